"""Texts and images as ids and pixels: T5's pieces, words, and what a CLIP and a SigLIP read."""

import dataclasses
import json

import numpy as np
import pytest
from published_folders import SIDE, clip_folder
from refusal import refused

from common.nn.two_towers import SiglipTextConfig, TwoTowerConfig
from common.nn.vision_transformer import SiglipVisionConfig
from reveal.cli.main import main as reveal
from reveal.memory.items import Item
from reveal.processing import tokenizers
from reveal.processing.tokenizers import SPECIAL, Pieces, Tokenizer, Words, load, main, train, trained
from reveal.processing.two_tower_processor import TwoTowerProcessor, tokenizer_of
from reveal.sources import jsonl
from reveal.sources.records import Skips

TEXTS = [f"a {colour} {bird} eats {food} by the {place}." for colour in ("red", "blue", "grey") for bird in
         ("gull", "crow", "heron") for food in ("fish", "seeds", "worms") for place in ("sea", "lake")]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "texts.txt").write_text("\n".join(TEXTS), "utf-8")
    train((folder / "texts.txt",), folder / "spiece.model", size=80)
    train((folder / "texts.txt",), folder / "words.json", size=100)
    return folder


def unpadded(tokenizer, text: str) -> list[int]:
    tokens = tokenizer.encode(text, 40)
    return tokens[tokens != tokenizer.pad].tolist()


@pytest.mark.parametrize("name", ["spiece.model", "words.json"])
def test_the_interface(files, tmp_path, name):
    tokenizer, text = load(files / name), TEXTS[3].rstrip(".")
    assert isinstance(tokenizer, Tokenizer)
    tokens = tokenizer.encode(text, 64)
    assert tokens.dtype == np.int32 and tokens.shape == (64,) and tokens.max() < len(tokenizer)
    assert (tokens[np.flatnonzero(tokens)[-1] + 1 :] == tokenizer.pad).all()
    assert tokenizer.decode([tokenizer.bos, *tokens[tokens != 0], tokenizer.eos, *tokens]) == text
    np.testing.assert_array_equal(tokenizer.encode(text, 3), tokens[:3])
    assert tokenizer.encode("", 2).tolist() == [0, 0] and tokenizer.decode([]) == ""
    texts = "red gull", "the sea", f"red gull {tokenizer.separator} the sea"
    first, second, joined = (unpadded(tokenizer, each) for each in texts)
    separator = joined[len(first)]
    assert joined == [*first, separator, *second] and tokenizer.separator in tokenizer.decode(joined)
    assert len({tokenizer.mask, tokenizer.bos, tokenizer.eos, tokenizer.pad, separator}) == 5
    (tmp_path / name).write_bytes((files / name).read_bytes())
    assert load(tmp_path / name).digest == tokenizer.digest
    for half in ("\ud83d", "\ude00"):  # of surrogate pairs
        tokens = unpadded(tokenizer, f"red gull {half} sea")
        assert name == "words.json" or tokens == unpadded(tokenizer, "red gull \ufffd sea")
        assert tokenizer.decode(tokens).startswith("red gull") and tokenizer.decode(tokens).endswith("sea")


def test_pieces_have_t5s_ids(files, monkeypatch):
    tokenizer = Pieces(files / "spiece.model")
    n = tokenizer.pieces
    assert (tokenizer.pad, tokenizer.eos, tokenizer.bos, tokenizer.mask) == (0, 1, n + 1, n + 99)
    assert tokenizer.encode("<extra_id_99><extra_id_0>", 3).tolist() == [n, n + 99, 0]
    assert len(tokenizer) % 128 == 0 and 0 <= len(tokenizer) - n - 100 < 128
    assert tokenizer.decode([n + 99, len(tokenizer) - 1]) == "<extra_id_0>"  # the last id is unused
    monkeypatch.setattr(tokenizer, "pieces", 32000)
    assert len(tokenizer) == 32128


def test_byte_fallback_and_spelling(files, tmp_path):
    (tmp_path / "bytes.model").write_bytes(tokenizers.trained(iter(TEXTS), 340, byte_fallback=True))
    plain, bytes_ = load(files / "spiece.model"), load(tmp_path / "bytes.model")
    assert bytes_.decode(unpadded(bytes_, "red Łódź")) == "red Łódź" != plain.decode(unpadded(plain, "red Łódź"))
    spelt = "".join(bytes_.spelling(number) for number in bytes_.encode("a gull 東", 40).tolist())
    assert spelt.replace("\u2581", " ").strip() == "a gull"  # bytes and padding have no spelling


def test_words(files):
    words = Words.load(files / "words.json")
    tokens = words.encode("A PURPLE gull?", 4).tolist()
    assert tokens[1] == tokens[3] == SPECIAL.index("<extra_id_1>") and words.decode(tokens[2:3]) == "gull"
    assert words.decode([*tokens[2:3], len(words), len(words) + 20]) == "gull"  # a network may have more ids
    assert len(Words.of_texts(TEXTS, 10)) == 10 and Words.of_texts(TEXTS) == Words.of_texts(reversed(TEXTS))
    assert Words.of_texts(["a b"]).digest != Words.of_texts(["a c"]).digest


def test_the_command(files, tmp_path, capsys):
    words = ["tokenizer", "train", str(files / "texts.txt"), "-o", str(tmp_path / "again.json"), "--size", "20"]
    reveal(words)
    assert "vocab_size=20 bos=2 eos=1 mask=3" in capsys.readouterr().out
    refused(SystemExit, reveal, words, match="2")
    assert "again.json" in capsys.readouterr().err
    main(["show", str(files / "spiece.model"), "red gull"])
    assert "red gull" in capsys.readouterr().out


def test_training_reads_long_lines_and_reports_broken_ones(tmp_path, capsys):
    texts, model = tmp_path / "texts.jsonl", tmp_path / "x.model"
    lines = [json.dumps({"text": text}) for text in (*TEXTS, "cut emoji \ud83d", "quokka zebra " * 1000)]
    texts.write_text("\n".join(lines), "utf-8")
    train((texts,), model, size=60)
    assert load(model).decode(load(model).encode("quokka zebra", 20)) == "quokka zebra"
    entry = {"id": 3, "image": "x.jpg", "source": "wiki", "text": "a gull", "answers": ["fish", "worms"]}
    texts.write_text(json.dumps(entry) + "\n\n", "utf-8")
    assert list(jsonl.lines_of([texts])) == ["a gull", "fish", "worms"]
    texts.write_text("\n".join([*lines, '{"text": broken']), "utf-8")
    with pytest.raises(SystemExit, match="2"):
        main(["train", str(texts), "-o", str(tmp_path / "y.model"), "--size", "60"], prog="reveal tokenizer")
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("reveal tokenizer: ") and "'{\"text\": broken'" in error
    assert not (tmp_path / "y.model").exists()


def test_refusals(files):
    twice = json.dumps({"words": [*SPECIAL, "a", "a"]})
    for name, content in (("bad.model", "no model"), ("bad.json", "{"), ("bad.json", "[]"), ("bad.json", twice)):
        (files / name).write_text(content)
        refused(ValueError, load, files / name, match=name)
    for texts, value in (((files / "texts.txt",), "size 3 "), ((), "0 texts")):
        refused(ValueError, train, texts, files / "large.model", size=3, match=value)


SIGLIP = TwoTowerConfig(SiglipTextConfig(max_position_embeddings=24), SiglipVisionConfig(image_size=32), 768)


@pytest.fixture
def siglip(tmp_path):
    (tmp_path / "spiece.model").write_bytes(trained(iter(["a gull eats fish by the sea"] * 9), 40))
    return tmp_path


def test_siglips_texts_are_lower_case_without_punctuation_and_padded_with_the_end(siglip):
    tokenizer = tokenizer_of(siglip, SIGLIP)
    row, count = tokenizer("A gull, (eats)  FISH!")
    plain, _ = tokenizer("a gull eats fish")
    np.testing.assert_array_equal(row, plain)
    assert count < 24 and row[-1] == tokenizer.end == tokenizer.padding == 1
    long, count = tokenizer("gull " * 40)
    assert count > 24 and len(long) == 24 and long[-1] == 1
    assert tokenizer(" ") == (pytest.approx(np.zeros(24)), 0)


def test_a_tokenizer_of_another_model_is_refused(siglip):
    small = dataclasses.replace(SIGLIP, text=dataclasses.replace(SIGLIP.text, vocab_size=5))
    refused(ValueError, tokenizer_of, siglip, small)
    refused(FileNotFoundError, tokenizer_of, siglip / "nowhere", SIGLIP)


def test_rows_of_items(tmp_path):
    folder = clip_folder(tmp_path / "clip")
    config = TwoTowerConfig.from_json(json.loads((folder / "config.json").read_text()))
    processor = TwoTowerProcessor.of_folder(folder, config, ["own"])
    image, skips = np.full((40, 60, 3), 255, np.uint8), Skips()
    origin = {"file": "a.txt", "part": 1, "crc": 0}
    items = [
        Item("own", {"text": "gull"}, image),
        Item("own", {}, image),
        Item("own", {"text": "x" * 99, "from": origin}),
    ]
    rows = [processor.row(item, skips) for item in items]
    assert processor.row(Item("own", {"text": ""}), skips) is None
    assert processor.row(Item("own", {"text": "a"}, b"no image"), skips) is None
    assert processor.row(Item("own", {"text": "a", "from": {"name": "Ann"}}), skips) is not None
    batch = processor.batch([row for row in rows if row is not None])
    assert batch["tokens"].shape == (3, 77) and batch["image"].shape == (3, SIDE, SIDE, 3)
    assert batch["has_text"].tolist() == [True, False, True] and batch["has_image"].tolist() == [True, True, False]
    assert batch["image"][0].min() == 255 and len(skips.counts) == 3
    assert ["a.txt, part 1"] in skips.names.values()
    refused(ValueError, processor.question, "y" * 90)
