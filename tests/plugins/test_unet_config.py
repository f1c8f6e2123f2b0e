"""Architectures are read from config.json as it is found, and what is not built here is refused by name."""

import dataclasses

import pytest
from networks import SMALL, stored_json

from plugins.diffusion.networks.unet import UNetConfig
from plugins.diffusion.networks.vae import VAEConfig

CASES = [("unet", UNetConfig), ("vae", VAEConfig)]


@pytest.mark.parametrize(("name", "config"), CASES, ids=["unet", "vae"])
def test_json_comes_back(name, config):
    """Every key that we write is one of theirs, with their value."""
    theirs = stored_json(name)
    ours = config.from_json(theirs).to_json()
    assert {key: theirs[key] for key in ours} == ours
    assert config.from_json(ours) == config.from_json(theirs) and hash(config.from_json(ours))


def test_old_files_leave_keys_out():
    theirs = {"_class_name": "UNet2DConditionModel", "cross_attention_dim": 768, "attention_head_dim": 8}
    assert UNetConfig.from_json(theirs | {"_name_or_path": "x", "dropout": 0.1}) == UNetConfig.sd15()
    heads = {"attention_head_dim": [5, 10, 20, 20], "cross_attention_dim": 1024, "use_linear_projection": True}
    extra = {"sample_size": 96, "upcast_attention": True, "only_cross_attention": False, "num_class_embeds": None}
    assert UNetConfig.from_json(theirs | heads | extra) == UNetConfig.sd21()
    assert UNetConfig.sd15().heads == (8, 8, 8, 8) and UNetConfig.sd21().heads == (5, 10, 20, 20)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("unet", {"addition_embed_type": "text_time"}, ("addition_embed_type", "'text_time'", "None")),
        ("unet", {"time_cond_proj_dim": 256}, ("time_cond_proj_dim", "256")),
        ("unet", {"mid_block_type": "UNetMidBlock2D"}, ("mid_block_type", "'UNetMidBlock2DCrossAttn'")),
        ("unet", {"_class_name": "ControlNetModel"}, ("ControlNetModel", "UNet2DConditionModel")),
        ("unet", {"down_block_types": ["AttnDownBlock2D"] * 4}, ("down_block_types", "CrossAttnDownBlock2D")),
        ("unet", {"attention_head_dim": [8, 8]}, ("attention_head_dim has an entry per level",)),
        ("unet", {"attention_head_dim": 7}, ("heads divide",)),
        ("unet", {"norm_num_groups": 5}, ("norm_num_groups divides",)),
        ("unet", {"layers_per_block": [1, 2, 2, 2.5]}, ("layers_per_block",)),
        ("unet", {"in_channels": 0}, ("in_channels is 0",)),
        ("vae", {"use_quant_conv": False}, ("use_quant_conv", "True")),
        ("vae", {"down_block_types": ["AttnDownEncoderBlock2D"]}, ("down_block_types", "'DownEncoderBlock2D'")),
        ("vae", {"_class_name": "AsymmetricAutoencoderKL"}, ("AutoencoderKL",)),
        ("vae", {"scaling_factor": 0.0}, ("scaling_factor is positive",)),
        ("vae", {"norm_num_groups": 32}, ("norm_num_groups divides",)),
    ],
)
def test_other_networks_are_refused(name, change, words):
    with pytest.raises(ValueError) as error:
        dict(CASES)[name].from_json(stored_json(name) | change)
    message = str(error.value)
    assert all(word in message for word in words) and "\n" not in message


def test_skip_shapes_at_sd_size():
    """The list in the paper's code: 320 at 64 three times, then a downsampler and two blocks a level."""
    shapes = UNetConfig.sd15().skip_shapes(64, 64)
    widths = [(320, 64)] * 3 + [(320, 32)] + [(640, 32)] * 2 + [(640, 16)] + [(1280, 16)] * 2 + [(1280, 8)] * 3
    assert shapes == [(side, side, width) for width, side in widths]
    assert SMALL.skip_shapes(5, 7) == [(5, 7, 8), (5, 7, 8), (3, 4, 8), (3, 4, 12)]


def test_lists_are_frozen():
    config = dataclasses.replace(SMALL, block_out_channels=[8, 12])
    assert config == SMALL and hash(config) == hash(SMALL)
