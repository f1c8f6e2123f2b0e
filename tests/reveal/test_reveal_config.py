"""Sizes of the published networks, and configurations that are none."""

import dataclasses
import json
import math

import jax
import pytest
from reveal_networks import REFERENCE, one_line

from reveal.network.config import RevealConfig, VitConfig
from reveal.network.porting import blank

PRESETS = {
    "tiny": (RevealConfig.tiny(), 1_061_894),
    "base": (RevealConfig.base(), 475_978_757),
    "large": (RevealConfig.large(), 1_429_956_101),
    "full": (RevealConfig.full(), 2_138_249_349),
}


def by_hand(c: RevealConfig) -> int:
    """From the paper's figures: kernels, norms, tables."""
    d, inner = c.width, c.heads * c.head_dim
    attention, mlp, table = 4 * d * inner, 3 * d * c.mlp, 32 * c.heads
    encoder, decoder = attention + mlp + 2 * d, 2 * attention + mlp + 3 * d
    text = c.vocab_size * d + (c.encoder_layers - c.fusion_layers) * encoder + table
    head = c.fusion_layers * encoder + table + d
    value = c.fusion_layers * decoder + table + d + c.value_tokens * d
    fusion = head + 2
    generator = c.decoder_layers * decoder + table + d + d * c.vocab_size
    gate = (c.key_dim + 1) * c.sources
    v, w = c.vit, c.vit.width
    block = 4 * (w * w + w) + (w * v.mlp + v.mlp) + (v.mlp * w + w) + 4 * w
    vit = 3 * v.patch**2 * w + w + v.tokens * w + v.depth * block + 2 * w + w * d + d
    return text + 2 * head + d * c.key_dim + value + fusion + generator + gate + vit


@pytest.mark.parametrize("name", PRESETS)
def test_sizes(name):
    config, count = PRESETS[name]
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(blank(config)[1])) == by_hand(config) == count
    assert f"{count:,} parameters" in (getattr(RevealConfig, name).__doc__ or "")


def test_the_published_networks():
    assert [PRESETS[name][0].vit.tokens for name in ("base", "large", "full")] == [196, 196, 256]
    assert [PRESETS[name][0].text_layers for name in ("base", "large", "full")] == [6, 16, 16]


def test_there_and_back():
    for config in (REFERENCE, RevealConfig.full()):
        assert RevealConfig.from_json(json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert RevealConfig.from_json({}) == RevealConfig.base()
    with pytest.raises(ValueError, match="RevealConfig has no depth; its fields are vit, vocab_size"):
        RevealConfig.from_json({"depth": 3})
    with pytest.raises(ValueError, match="VitConfig has no side"):
        RevealConfig.from_json({"vit": {"side": 3}})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"fusion_layers": 4}, "fusion_layers < encoder_layers"),
        ({"prior": "sum"}, "prior is one of multiply, logits, off"),
        ({"bos": 96}, "bos and eos are below vocab_size"),
        ({"width": 0, "heads": -1}, "width is positive, and whole; heads is positive, and whole"),
    ],
)
def test_no_networks(change, told):
    with pytest.raises(ValueError) as caught:
        dataclasses.replace(REFERENCE, **change)
    assert one_line(caught).endswith(f"breaks: {told}")


@pytest.mark.parametrize(
    ("change", "told"), [({"heads": 5}, "heads divides width"), ({"patch": 15}, "patch divides image_size")]
)
def test_no_picture_encoders(change, told):
    with pytest.raises(ValueError, match=told):
        VitConfig(**change)
