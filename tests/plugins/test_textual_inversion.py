"""Textual inversions of every writer become words of prompts, or are refused by name."""

import numpy as np
import pytest
import safetensors.numpy
from refusal import refused
from tiny_base import WIDTH, diffusion_base
from weight_files import write_torch

from plugins.cli.generate import read_embedding
from plugins.diffusion.compiled import make_layout
from plugins.diffusion.io.textual_inversion import TextualInversion
from plugins.diffusion.pipeline import Run
from plugins.diffusion.request import make_request

VECTORS = np.random.default_rng(0).normal(size=(2, WIDTH)).astype(np.float32)


def written(path, tensors):
    (write_torch if path.suffix in (".pt", ".bin") else lambda p, t: safetensors.numpy.save_file(t, p))(path, tensors)
    return path


@pytest.mark.parametrize("name, tensors, word", [
    ("cat.safetensors", {"emb_params": VECTORS}, "cat"),
    ("file.safetensors", {"<cat>": VECTORS[0]}, "<cat>"),
    ("cat-2.pt", {"string_to_token.*": np.array(265), "string_to_param.*": VECTORS}, "cat-2"),
    ("learned_embeds.bin", {"<cat>": VECTORS}, "<cat>"),
])  # fmt: skip
def test_files(tmp_path, name, tensors, word):
    inversion = TextualInversion.load(written(tmp_path / name, tensors))
    assert inversion.word == word and isinstance(inversion.vectors, np.ndarray)
    np.testing.assert_allclose(inversion.vectors, VECTORS[: len(inversion.vectors)], atol=1e-3)
    assert len(inversion.vectors) == (1 if tensors.get("<cat>", VECTORS).ndim == 1 else 2)
    assert read_embedding(f"dog={tmp_path / name}").word == "dog"


def test_a_file_for_two_text_encoders(tmp_path):
    path = written(tmp_path / "cat.safetensors", {"clip_l": VECTORS, "clip_g": VECTORS[:, :4].copy()})
    vectors = TextualInversion.load(path).vectors
    assert {kind: value.shape[1] for kind, value in vectors.items()} == {"text_encoder": WIDTH, "text_encoder_2": 4}


@pytest.mark.parametrize("value, tensors", [
    ("weight", {"a.weight": VECTORS, "b.weight": VECTORS}),
    ("int32", {"<cat>": np.ones((1, WIDTH), np.int32)}),
    (r"\(1, 2, 16\)", {"<cat>": VECTORS[None]}),
    ("finite", {"<cat>": VECTORS * np.inf}),
    (r"\(cat\)", {"(cat)": VECTORS}),
])  # fmt: skip
def test_other_files_are_refused(tmp_path, value, tensors):
    refused(ValueError, TextualInversion.load, written(tmp_path / "x.safetensors", tensors), match=value)


@pytest.mark.parametrize("value, inversions", [
    ("12 for its one", [TextualInversion("cat", np.ones((1, 12), np.float32))]),
    ("16 for text_encoder_2", [TextualInversion("cat", {"text_encoder_2": VECTORS})]),
    ("'cat'", [TextualInversion("cat", VECTORS), TextualInversion("Cat", VECTORS)]),
    ("15 vectors", [TextualInversion("cat", np.ones((15, WIDTH), np.float32))]),
])  # fmt: skip
def test_vectors_of_another_base_are_refused(value, inversions):
    refused(ValueError, diffusion_base().with_embeddings, inversions, match=value)


def test_words_of_a_tokenizer():
    """A word is found in any case, whole, and the longest first; `decode` gives it back."""
    plain = diffusion_base().tokenizer
    tokenizer = plain.with_words({"apple": [1000], "apple-2": [1001, 1002], "<x>": [1003]})
    for text, ids in [("Apple", [1000]), ("apple-2", [1001, 1002]), ("a<x>b", [*plain.encode("a")[1:-1], 1003])]:
        assert tokenizer.encode(text)[1 : 1 + len(ids)] == ids
    assert tokenizer.encode("pineapple red") == plain.encode("pineapple red")
    ids = tokenizer.encode("red apple-2 <x> red")
    assert ids[1:-1] == [*plain.encode("red")[1:-1], 1001, 1002, 1003, *plain.encode("red")[1:-1]]
    assert tokenizer.decode(ids) == "red apple-2 <x> red" and plain.words == {}


def context(pipeline, prompt, **options):
    request = make_request(pipeline.base, prompt, **options)
    run = Run(pipeline, request, pipeline.compiled.params(), make_layout(1, 16, 16, 2, None, None), None, None)
    return np.asarray(run.conditioning([prompt]).context)


def test_a_word_is_its_vectors_in_prompts_with_weights_and_long_ones(tmp_path):
    """Vectors that are rows of the table give the states of those tokens."""
    base = diffusion_base()
    table = np.asarray(base.text_encoder.embeddings.token_embedding.embedding)
    red, blue = (base.tokenizer.encode(word)[1:-1] for word in ("red", "blue"))
    same = base.with_embeddings([TextualInversion("<same>", table[[*red, *blue]])])
    for prompt, weighted in [("a {}", False), ("({}:1.5) car", True), ("red " * 20 + "{}", True)]:
        words = context(same, prompt.format("<same>"), weighted=weighted)
        np.testing.assert_allclose(words, context(base, prompt.format("red blue"), weighted=weighted), atol=1e-6)
    new = base.with_embeddings([TextualInversion("<same>", VECTORS)])
    assert np.abs(context(new, "<same>") - context(same, "<same>")).max() > 1e-3
    assert make_request(new.base, "<same> " * 10).truncated  # of two tokens each
    refused(ValueError, new.save, tmp_path / "saved", match="<same>")
    assert not (tmp_path / "saved").exists()
