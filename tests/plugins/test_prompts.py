"""Weights in prompts, prompts of more than one row of tokens, and textual inversions of every writer as their words."""

import numpy as np
import pytest
import safetensors.numpy
from refusal import refused
from tiny_base import WIDTH, diffusion_base
from weight_files import write_torch

from plugins.cli.generate import read_embedding
from plugins.diffusion.compiled import make_layout
from plugins.diffusion.io.prompts import chunks, weighted_parts
from plugins.diffusion.io.textual_inversion import TextualInversion
from plugins.diffusion.pipeline import Run
from plugins.diffusion.request import make_request

APPLE = "a red apple"


@pytest.mark.parametrize("prompt, parts", [
    ("", []),
    ("a red apple", [("a red apple", 1.0)]),
    ("a (red:1.3) apple", [("a ", 1.0), ("red", 1.3), (" apple", 1.0)]),
    ("((red)) [table]", [("red", 1.21), (" ", 1.0), ("table", 1 / 1.1)]),
    ("((red:2) apple:0.5)", [("red", 1.0), (" apple", 0.5)]),
    (r"\(red\) 3:4", [("(red) 3:4", 1.0)]),
    ("red) (apple", [("red) ", 1.0), ("apple", 1.1)]),
    ("(red:1.3)( apple:1.3)", [("red apple", 1.3)]),
    ("(red:2.)(apple:.5)", [("red", 2.0), ("apple", 0.5)]),
])  # fmt: skip
def test_parts(prompt, parts):
    found = weighted_parts(prompt)
    assert [text for text, _ in found] == [text for text, _ in parts]
    np.testing.assert_allclose([weight for _, weight in found], [weight for _, weight in parts])


@pytest.mark.parametrize("number", ["9", "-1"])
def test_weights_out_of_range_are_refused(number):
    refused(ValueError, weighted_parts, f"a (red:{number}) apple", match=number)


def test_rows_of_tokens():
    tokenizer = diffusion_base().tokenizer
    assert tokenizer is not None
    for prompt in (APPLE, "an apple :)", "std::vector", "it's :: here"):
        plain, ones = chunks(prompt, tokenizer, 16)
        np.testing.assert_array_equal(plain, tokenizer(prompt, 16))
        assert ones.min() == ones.max() == 1
    text = " ".join(["red"] * 40)
    ids = tokenizer.encode(text)[1:-1]
    tokens, weights = chunks(f"({text}:0.5)", tokenizer, 16)
    assert len(tokens) == -(-len(ids) // 14)
    inside = weights == 0.5
    assert [*tokens[inside]] == ids and not inside[:, 0].any() and (tokens[:, 0] == tokenizer.start_id).all()
    assert len(chunks("", tokenizer, 16)[0]) == 1


def test_images_of_weighted_and_long_prompts():
    """Weight 1 changes nothing, others do, and the end of a long prompt counts."""
    base, options = diffusion_base(), {"seeds": [5, 6], "steps": 3, "batch": 2}
    plain = base(APPLE, **options)
    np.testing.assert_allclose(base(APPLE, weighted=True, **options), plain, atol=1e-5)
    assert np.abs(base("a (red:2) apple", weighted=True, **options) - plain).max() > 1e-3
    nothing = base("(a red apple:0)", weighted=True, **options)
    assert np.abs(nothing - plain).max() > 1e-3
    long = " ".join(["red"] * 20)
    ends = [base(f"{long} {end}", weighted=True, **options) for end in ("apple", "blue car")]
    assert np.abs(ends[0] - ends[1]).max() > 1e-4
    request = make_request(base.base, f"{long} apple", weighted=True, steps=3)
    assert request.chunks > 1 and not request.truncated


def test_prompts_of_many_different_lengths_are_refused_together():
    base, prompts = diffusion_base().base, [" ".join(["red"] * 14 * rows) for rows in (5, 7, 8)]
    refused(ValueError, lambda: make_request(base, prompts, weighted=True), match="280")
    assert make_request(base, prompts[:2], weighted=True).chunks == 35
    assert make_request(base, " ".join(["red"] * 14 * 65), weighted=True).chunks == 65


@pytest.mark.long
def test_an_image_of_a_weighted_prompt_does_not_depend_on_the_others():
    """Of one row of tokens, beside prompts of two and three."""
    base, options = diffusion_base(), {"steps": 3, "batch": 1, "weighted": True}
    two, three = (" ".join(["red"] * count) for count in (20, 34))
    request = make_request(base.base, [APPLE, two, three], steps=3, weighted=True)
    assert request.chunks == 6
    images = np.concatenate(list(base.run(request, batch=1)))
    for image, prompt in zip(images, (APPLE, two, three), strict=True):
        np.testing.assert_allclose(image, base(prompt, **options)[0], atol=1e-4)


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
