"""Weights in prompts, and prompts of more than one row of tokens."""

import numpy as np
import pytest
from refusal import refused
from tiny_base import diffusion_base

from plugins.diffusion.io.prompts import chunks, weighted_parts
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
