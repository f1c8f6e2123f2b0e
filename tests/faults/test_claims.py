"""Configs that claim many layers are refused before they are made."""

import numpy as np
import pytest
from refusal import refused

from common.nn.text_encoder import TextConfig
from common.weights.torch_names import fill
from film.config import FilmConfig
from plugins.diffusion.networks.unet import UNet
from plugins.diffusion.networks.unet_config import UNetConfig
from reveal.network.config import RevealConfig, VitConfig


@pytest.mark.parametrize(("make", "name"), [
    (lambda: FilmConfig(flow_convs=(3, 3, 3, 10**6)), "flow_convs"),
    (lambda: RevealConfig(encoder_layers=10**6), "encoder_layers"),
    (lambda: VitConfig(depth=10**6), "depth"),
    (lambda: TextConfig.from_json({"_class_name": TextConfig.architecture, "num_hidden_layers": 10**6}), "layers"),
    (lambda: UNetConfig.from_json({"transformer_layers_per_block": [1, 10**6]}), "layers"),
])  # fmt: skip
def test_layers_of_a_header(make, name):
    assert name in refused(ValueError, make)


def test_layers_that_the_tensors_cannot_be():
    """Each number is within its limit, and all together are 14,000 transformers."""
    config = UNetConfig.from_json({"transformer_layers_per_block": 1000})
    assert "over 500 parameters" in refused(ValueError, lambda: fill(UNet, config, dict.fromkeys("abc", np.zeros(1))))


@pytest.mark.parametrize("item", [[[]], [{}], {"": []}])
def test_lists_within_a_list_of_names(item):
    fields = {"down_block_types": ["DownBlock2D", "DownBlock2D", "DownBlock2D", item]}
    assert "down_block_types" in refused(ValueError, lambda: UNetConfig.from_json(fields))
