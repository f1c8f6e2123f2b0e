"""Sizes of the published networks, and invalid configurations."""

import dataclasses
import json
import math

import jax
import pytest
from reveal_networks import REFERENCE

from common.nn.init import blank
from reveal.network.config import RevealConfig
from reveal.network.model import Reveal

PRESETS = {"tiny": 1_061_894, "base": 475_978_757, "large": 1_429_956_101, "full": 2_138_249_349}


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
    config, count = getattr(RevealConfig, name)(), PRESETS[name]
    assert by_hand(config) == count and f"{count:,} parameters" in (getattr(RevealConfig, name).__doc__ or "")
    if name == "tiny":  # the others differ in numbers only
        assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(blank(Reveal, config)[1])) == count


def test_json():
    for config in (REFERENCE, RevealConfig.full()):
        assert RevealConfig.from_json(json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert RevealConfig.from_json({}) == RevealConfig.base()


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: RevealConfig.from_json({"depth": 3}), "RevealConfig has no depth"),
        (lambda: RevealConfig.from_json({"vit": {"side": 3}}), "VitConfig has no side"),
    ],
)
def test_refusals(call, value):
    with pytest.raises(ValueError, match=value):
        call()
