"""The tokenizer gives Hugging Face's ids, from every kind of file; the text encoder the reference's states."""

import dataclasses
import gzip
import json
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import DATA, assert_near, network
from refusal import refused

from common.io.clip_tokenizer import Tokenizer
from common.nn.text_encoder import TextConfig, TextEncoder

TINY = DATA / "tokenizer_tiny"
ENCODER = TextConfig(50, 16, 32, 2, 2, 8, eos_token_id=49)
EXPECTED = json.loads((DATA / "tokenizer_expected.json").read_text("utf-8"))["tiny_1000"]

# What transformers 5.23.0's CLIPTokenizer gives with the tiny vocabulary (start 998 and end 999 left out).
ODD = [
    ("<|ENDOFTEXT|>", [27, 347, 524, 639, 69, 600, 87, 339, 91, 285]),
    ("!<|ENDOFTEXT|>!", [0, 27, 347, 524, 639, 69, 600, 87, 339, 91, 29, 256]),
    ("a <|endoftext|> <|endoftext|>b", [320, 999, 999, 321]),
    ("ΑΣ ΟΔΟΣ", [138, 109, 139, 481, 138, 123, 138, 112, 138, 123, 139, 481]),
    ("İ", [328, 136, 485]),
    ("a\x1cb\x1d \x1c b", [320, 472, 321, 473, 472, 321]),
    ("a\x85b\xa0b\u200bb\ufeffb", [320, 321, 321, 728, 489, 321, 171, 119, 379, 321]),
    ("''s '' 'S it\u2019s", [6, 262, 338, 6, 262, 568, 585, 728, 503, 338]),
    ("e\u0301 \u00e9", [127, 358, 127, 358]),
    ("Ⅷ ½ ²", [158, 227, 371, 126, 377, 126, 366]),
    ("x\x00y", [343, 444, 344]),
    ("'sa 'rex 'tt", [568, 320, 982, 343, 713, 339]),
    ("안녕하세요", [168, 243, 230, 167, 227, 243, 169, 243, 246, 168, 226, 116, 168, 248, 498]),
    ("हिन्दी", [156, 97, 373, 156, 97, 379, 156, 97, 357, 156, 98, 491, 156, 97, 355, 156, 98, 478]),
]


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer.from_folder(TINY)


def copy_of_tiny(folder, **config):
    """The tiny tokenizer with other entries in its configuration."""
    shutil.copytree(TINY, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def merge_lines():
    return (TINY / "merges.txt").read_text("utf-8").splitlines()[1:]


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: ascii(case["text"])[:30])
def test_the_references_prompts(tiny, case):
    assert len(tiny.encode(case["text"])) == case["n"]
    row = tiny(case["text"])
    assert row.shape == (1, 77) and row.dtype == np.int32
    expected = (case["ids"] + [case["padded77_tail"]] * 77)[:77]  # the file's long prompt is cut already
    assert row[0].tolist() == expected


@pytest.mark.parametrize("text, ids", ODD, ids=lambda value: ascii(value)[:30])
def test_odd_prompts(tiny, text, ids):
    assert tiny.encode(text) == [998, *ids, 999]


def test_a_batch_is_its_rows(tiny):
    texts = ["a cat", "", "two dogs and a very long tail"]
    np.testing.assert_array_equal(tiny(texts, 12), np.concatenate([tiny(text, 12) for text in texts]))
    assert tiny([]).shape == (0, 77)


def test_what_is_cut_can_be_asked_for(tiny):
    text = "a red circle " * 3 + "END of it"
    kept = tiny(text, 20)[0]
    assert kept[-1] == 999 and tiny.decode(kept) + " " + tiny.truncated(text, 20) == text.lower()
    assert tiny.truncated(text, 77) == "" and tiny.truncated("", 2) == ""


def test_decoding(tiny):
    ids = tiny.encode("A photo of it's 日本!! <|endoftext|> x")
    assert tiny.decode(ids) == "a photo of it 's 日本 !! x"
    # As transformers shows it, a special token's name taking no blank after it.
    assert tiny.decode(ids, specials=True) == "<|startoftext|>a photo of it 's 日本 !! <|endoftext|>x <|endoftext|>"
    assert tiny.decode([127]) == "\ufffd"  # half of a two-byte letter


@pytest.mark.parametrize("where", ["tokenizer_config.json", "special_tokens_map.json"])
def test_a_padding_token_of_its_own(tmp_path, where):
    folder = copy_of_tiny(tmp_path / "sd2", **({"pad_token": "!"} if where == "tokenizer_config.json" else {}))
    if where == "special_tokens_map.json":  # where SD 2's folder has it, against its own tokenizer_config
        (folder / where).write_text(json.dumps({"pad_token": {"content": "!", "lstrip": False}}))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer("a", 5)[0].tolist() == [998, 320, 999, 0, 0]
    assert tokenizer.encode("hello!") == [998, 71, 826, 334, 0, 999]  # Hugging Face's numbers for this folder
    assert tokenizer.decode([320, 999, 0, 0]) == "a"


@pytest.mark.parametrize("split", [False, True])
def test_one_file_of_newer_folders(tmp_path, tiny, split):
    """Special tokens lie beside the vocabulary; in a pipeline's folder."""
    (tmp_path / "tokenizer").mkdir()
    vocab = json.loads((TINY / "vocab.json").read_text("utf-8"))
    added = [{"id": vocab.pop(token), "content": token} for token in ("<|startoftext|>", "<|endoftext|>")]
    merges = [line.split() if split else line for line in merge_lines()]
    model = {"type": "BPE", "end_of_word_suffix": "</w>", "vocab": vocab, "merges": merges}
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": added}), "utf-8")
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.vocab == tiny.vocab and tokenizer.merges == tiny.merges


def test_openais_list_of_merges_numbers_the_vocabulary(tmp_path, tiny):
    path = tmp_path / "bpe.txt.gz"
    path.write_bytes(gzip.compress("\n".join(['"bpe_simple_vocab_16e6.txt#version: 0.2', *merge_lines(), ""]).encode()))
    tokenizer = Tokenizer.from_bpe_file(path)
    assert tokenizer.vocab == tiny.vocab
    np.testing.assert_array_equal(tokenizer("A Photo of déjà vu"), tiny("A Photo of déjà vu"))
    assert Tokenizer.from_bpe_file(path, pad="!").pad_id == 0


def test_merges_go_by_rank_then_from_the_left():
    letters = ["a", "b", "a</w>", "b</w>", "ab", "ba", "aba", "abab</w>", "ab</w>", "<|startoftext|>", "<|endoftext|>"]
    vocab = {token: number for number, token in enumerate(letters)}
    merges = [("a", "b"), ("b", "a"), ("ab", "a"), ("a", "b</w>")]
    tokenizer = Tokenizer(vocab, merges)
    assert tokenizer.encode("bababa")[1:-1] == [vocab[token] for token in ("b", "ab", "ab", "a</w>")]
    assert tokenizer.encode("ab")[1:-1] == [vocab["ab</w>"]]
    assert tokenizer.encode("ac")[1:-1] == [vocab["a"], vocab["<|endoftext|>"]]  # no token for a letter: unknown


@pytest.mark.parametrize("file, text, error, named", [
    ("vocab.json", None, FileNotFoundError, "vocab.json"),
    ("merges.txt", None, FileNotFoundError, "merges.txt"),
    ("vocab.json", '{"a": 0', ValueError, "vocab.json"),
    ("vocab.json", "[1]", ValueError, "vocab.json"),
    ("vocab.json", '{"a": "b"}', ValueError, "vocab.json"),
    ("vocab.json", '{"a": 0}', ValueError, "1 tokens"),
    ("merges.txt", "a b\na b c\n", ValueError, "'a b c'"),
    ("tokenizer_config.json", '{"tokenizer_class": "T5Tokenizer"}', ValueError, "'T5Tokenizer'"),
])  # fmt: skip
def test_files_that_are_no_tokenizer(tmp_path, file, text, error, named):
    path = copy_of_tiny(tmp_path / "t") / file
    path.unlink() if text is None else path.write_text(text)
    refused(error, Tokenizer.from_folder, path.parent, match=named)


def test_other_wrong_input(tmp_path, tiny):
    (tmp_path / "x.gz").write_bytes(b"no gzip")
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}')
    for call, message in (
        (lambda: Tokenizer.from_bpe_file(tmp_path / "x.gz"), r"x\.gz"),
        (lambda: Tokenizer.from_folder(tmp_path), r"tokenizer\.json"),
        (lambda: tiny("a", 1), "is 1"),
        (lambda: tiny.decode([320, 1000]), "1000"),
    ):
        refused(ValueError, call, match=message)


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(DATA / "text_encoder_io.npz", allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def tokens(reference) -> np.ndarray:
    return reference["input_ids"].astype(np.int32)


@pytest.fixture(scope="module")
def states(tokens):
    return network("text_encoder")(tokens)


def close(ours, theirs):
    assert_near(ours, theirs, rtol=0, atol=2e-5)


def test_the_references_states(reference, states):
    close(states.last, reference["last_hidden_state"])
    close(states.pooled, reference["pooler_output"])
    assert len(states.hidden) == 4
    for i, hidden in enumerate(states.hidden):
        close(hidden, reference[f"hidden_{i}"])


def test_clip_skip_leaves_layers_out_of_the_last_states_only(reference, states, tokens):
    skipped = network("text_encoder")(tokens, skip=1)
    close(skipped.last, reference["clip_skip2_final_ln"])
    np.testing.assert_array_equal(skipped.pooled, states.pooled)
    assert np.abs(np.asarray(skipped.last) - np.asarray(states.last)).max() > 0.1


def test_masked_tokens_are_not_looked_at(reference, tokens):
    mask = reference["attention_mask"].astype(bool)
    assert not mask.all()
    close(network("text_encoder")(tokens, mask=mask).last, reference["last_hidden_state_masked"])


@pytest.mark.parametrize("end, place", [(49, 2), (2, 4), (3, 0)])
def test_which_token_is_pooled(end, place):
    """The first end token; for 2, as old files say, the largest number; without any, the first token."""
    encoder = TextEncoder(dataclasses.replace(ENCODER, eos_token_id=end), rngs=nnx.Rngs(0))
    row = jnp.array([[4, 5, 49 if end == 49 else 6, 1, 49, 49]])
    found = encoder(row)
    np.testing.assert_array_equal(found.pooled[0], found.last[0, place])


def test_counts_of_the_published_networks():
    for config, count in ((TextConfig.clip_l(), 123_060_480), (TextConfig.openclip_h(), 340_387_840)):
        state = nnx.state(nnx.eval_shape(lambda config=config: TextEncoder(config, rngs=nnx.Rngs(0))))
        assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state)) == count


def test_half_precision_and_jit(tokens, states):
    graphdef, params = nnx.split(network("text_encoder"))
    params = nnx.to_pure_dict(params)
    run = jax.jit(lambda params: nnx.merge(graphdef, params)(tokens))
    close(run(params).last, states.last)
    rounded = run(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params))
    assert rounded.last.dtype == jnp.bfloat16
    assert np.abs(np.asarray(rounded.last, np.float32) - np.asarray(states.last)).mean() < 0.05


def test_calls_out_of_range(tokens):
    encoder = network("text_encoder")
    refused(ValueError, encoder, np.zeros((1, 78), np.int32), match=r"78.*77")
    refused(ValueError, encoder, tokens, skip=3, match="skip is 3")
