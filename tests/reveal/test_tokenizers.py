"""Texts and numbers: T5's numbering for any SentencePiece model, and the same properties for words."""

import json
import sys

import numpy as np
import pytest
from reveal_networks import one_line

from recipes.small_world.vocabulary import SPECIAL
from reveal.processing import tokenizers
from reveal.processing.tokenizers import Pieces, Tokenizer, Words, load, train
from reveal.sources.jsonl import lines_of

TEXTS = [f"a {colour} {bird} eats {food} by the {place}." for colour in ("red", "blue", "grey") for bird in
         ("gull", "crow", "heron") for food in ("fish", "seeds", "worms") for place in ("sea", "lake")]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "texts.txt").write_text("\n".join(TEXTS), "utf-8")
    train((folder / "texts.txt",), folder / "spiece.model", size=80)
    train((folder / "texts.txt",), folder / "words.json", size=100)
    return folder


@pytest.mark.parametrize("name", ["spiece.model", "words.json"])
def test_a_text_comes_back(files, name):
    tokenizer = load(files / name)
    assert isinstance(tokenizer, Tokenizer)
    tokens = tokenizer.encode(TEXTS[3].rstrip("."), 64)
    assert tokens.dtype == np.int32 and tokens.shape == (64,) and tokens.max() < len(tokenizer)
    assert (tokens[np.flatnonzero(tokens)[-1] + 1 :] == tokenizer.pad).all()
    answer = [tokenizer.bos, *tokens[tokens != 0], tokenizer.eos, *tokens]
    assert tokenizer.decode(answer) == TEXTS[3].rstrip(".")
    np.testing.assert_array_equal(tokenizer.encode(TEXTS[3], 3), tokens[:3])
    assert tokenizer.encode("", 2).tolist() == [0, 0] and tokenizer.decode([]) == ""


@pytest.mark.parametrize("name", ["spiece.model", "words.json"])
def test_the_separator_is_one_number_and_no_text_is_glued_over_it(files, name):
    tokenizer = load(files / name)
    first, second = (tokenizer.encode(text, 12) for text in ("red gull", "the sea"))
    joined = tokenizer.encode(f"red gull {tokenizer.separator} the sea", 24)
    joined, first, second = (x[x != 0].tolist() for x in (joined, first, second))
    assert joined == [*first, joined[len(first)], *second]
    assert tokenizer.separator in tokenizer.decode(joined)
    assert len({tokenizer.mask, tokenizer.bos, tokenizer.eos, tokenizer.pad, joined[len(first)]}) == 5


def test_options_of_sentencepiece_and_how_pieces_are_spelt(files, tmp_path):
    (tmp_path / "bytes.model").write_bytes(tokenizers.trained(iter(TEXTS), 340, byte_fallback=True))
    plain, spelling_all = load(files / "spiece.model"), load(tmp_path / "bytes.model")
    texts = [[tokenizer.decode(tokenizer.encode(text, 40)) for text in ("red Łódź", "a gull")] for tokenizer in
             (plain, spelling_all)]  # fmt: skip
    assert texts[1] == ["red Łódź", "a gull"] and texts[0][0] != "red Łódź"
    spelt = [spelling_all.spelling(int(number)) for number in spelling_all.encode("a gull 東", 40)]
    assert "".join(spelt).replace("\u2581", " ").strip() == "a gull"  # bytes and padding are spelt as nothing


def test_pieces_are_numbered_as_t5_numbers_them(files):
    tokenizer = Pieces(files / "spiece.model")
    n = tokenizer.pieces
    assert (tokenizer.pad, tokenizer.eos, tokenizer.bos, tokenizer.mask) == (0, 1, n + 1, n + 99)
    assert tokenizer.encode("<extra_id_99><extra_id_0>", 3).tolist() == [n, n + 99, 0]
    assert len(tokenizer) % 128 == 0 and 0 <= len(tokenizer) - n - 100 < 128
    assert tokenizer.decode([n + 99, len(tokenizer) - 1]) == "<extra_id_0>"  # the last number is a spare one


def test_t5s_own_numbers(files, monkeypatch):
    monkeypatch.setattr(Pieces, "encode", None)
    tokenizer = Pieces(files / "spiece.model")
    tokenizer.pieces = 32000
    assert len(tokenizer) == 32128


def test_a_word_that_nobody_knows(files):
    words = Words.load(files / "words.json")
    tokens = words.encode("A PURPLE gull?", 4).tolist()
    assert tokens[1] == tokens[3] == SPECIAL.index("<extra_id_1>") and words.decode(tokens[2:3]) == "gull"
    assert words.decode([*tokens[2:3], len(words), len(words) + 20]) == "gull"  # a network may have more numbers
    assert len(Words.of_texts(TEXTS, 10)) == 10
    assert Words.of_texts(TEXTS).vocabulary == Words.of_texts(reversed(TEXTS)).vocabulary


def test_json_lines_give_their_texts_and_nothing_else(files):
    path = files / "items.jsonl"
    entry = {"id": 3, "image": "x.jpg", "source": "wiki", "text": "a gull", "answers": ["fish", "worms"]}
    path.write_text(json.dumps(entry) + "\n\n", "utf-8")
    assert list(lines_of([path])) == ["a gull", "fish", "worms"]


def test_the_command(files, capsys, monkeypatch):
    words = ["tokenizers", "train", str(files / "texts.txt"), "-o", str(files / "again.json"), "--size", "20"]
    monkeypatch.setattr(sys, "argv", words)
    tokenizers.main()
    assert "vocab_size=20 bos=2 eos=1 mask=3" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        tokenizers.main()
    assert stop.value.code == 2 and "exists" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["tokenizers", "show", str(files / "spiece.model"), "red gull"])
    tokenizers.main()
    assert "red gull" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["spiece.model", "words.json"])
def test_half_a_surrogate_pair_is_an_unknown_letter(files, name):
    tokenizer = load(files / name)
    for half in ("\ud83d", "\ude00"):
        tokens = tokenizer.encode(f"red gull {half} sea", 12)
        if name == "spiece.model":
            np.testing.assert_array_equal(tokens, tokenizer.encode("red gull \ufffd sea", 12))
        assert tokenizer.decode(tokens).startswith("red gull") and tokenizer.decode(tokens).endswith("sea")


def test_a_digest_names_the_numbering(files, tmp_path):
    for name in ("spiece.model", "words.json"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
        assert load(files / name).digest == load(tmp_path / name).digest
    assert Words.of_texts(["a b"]).digest != Words.of_texts(["a c"]).digest
    assert load(files / "spiece.model").digest != load(files / "words.json").digest


def test_training_reads_long_lines_and_says_what_is_wrong_with_one(tmp_path, capsys):
    texts = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": text}) for text in (*TEXTS, "cut emoji \ud83d", "quokka zebra " * 1000)]
    texts.write_text("\n".join(lines), "utf-8")
    train((texts,), tmp_path / "x.model", size=60)
    assert load(tmp_path / "x.model").decode(load(tmp_path / "x.model").encode("quokka zebra", 20)) == "quokka zebra"
    texts.write_text("\n".join([*lines, '{"text": broken']), "utf-8")
    with pytest.raises(SystemExit) as stop:
        tokenizers.main(["train", str(texts), "-o", str(tmp_path / "y.model"), "--size", "60"], prog="reveal tokenizer")
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1
    assert said.startswith("reveal tokenizer: ") and "'{\"text\": broken' is no JSON" in said
    assert not (tmp_path / "y.model").exists()


def test_a_training_that_is_stopped_ends_quietly(tmp_path, capsys, monkeypatch):
    def stopped(paths):
        yield from TEXTS
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenizers, "lines_of", stopped)
    with pytest.raises(SystemExit) as stop:
        tokenizers.main(["train", "texts.txt", "-o", str(tmp_path / "x.model")])
    assert stop.value.code == 130 and "stopped" in capsys.readouterr().err


def test_what_is_no_tokenizer_is_refused(files):
    (files / "bad.model").write_bytes(b"no model")
    with pytest.raises(ValueError, match="no SentencePiece model") as caught:
        load(files / "bad.model")
    one_line(caught)
    with pytest.raises(ValueError, match="no SentencePiece model of size 3 "):
        train((files / "texts.txt",), files / "large.model", size=3)
    with pytest.raises(ValueError, match=r"0 texts into .*: give 1 file or more"):
        train((), files / "x.model")
