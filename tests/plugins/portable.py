"""A plugin, an image and a call of a UNet, shared by `tests/data/plugins/make_features.py` and the tests."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from networks import SMALL, normal
from tiny_base import random

from plugins.control.mediapipe import MediaPipeConfig, MediaPipePlugin
from plugins.diffusion.networks.unet import UNet

# As Stable Diffusion's, with transformers in all levels but the last; as the small base's, without them in the first.
UNETS = {
    "usual": dataclasses.replace(
        SMALL,
        block_out_channels=(8, 12, 12),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=(1, 3, 3),
    ),
    "other": dataclasses.replace(SMALL, transformer_layers_per_block=2),
}


class Case(NamedTuple):
    unet: UNet
    plugin: MediaPipePlugin
    picture: np.ndarray
    strength: float
    x: np.ndarray
    t: np.ndarray
    context: np.ndarray


def features_case(name: str) -> Case:
    """One image, wider than high, for two rows of latents."""
    config, rng = UNETS[name], np.random.default_rng(11)
    plugin = random(MediaPipePlugin, MediaPipeConfig.for_unet(config, 8))
    picture = rng.random((64, 128, 3), np.float32)
    x, context = normal(rng, 2, 8, 16, config.in_channels), normal(rng, 2, 5, config.cross_attention_dim)
    return Case(random(UNet, config), plugin, picture, 0.75, x, np.array([981, 20]), context)
