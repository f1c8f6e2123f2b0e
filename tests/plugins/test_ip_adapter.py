"""A picture as prompt: what it changes, what it leaves, and which files are refused. Parity is in test_families."""

import functools
import json
import shlex

import commands
import jax
import numpy as np
import pytest
import safetensors.numpy
from networks import random
from refusal import refused
from tiny_base import WIDTH, diffusion_base

from common.io.image_preparation import ImagePreparation
from common.io.images import read_image, write_image
from common.nn.init import blank
from common.nn.vision_transformer import ImageEncoder, VisionConfig
from common.weights.torch_names import state_dict
from plugins.cli.main import main
from plugins.control.ip_adapter import (
    AdapterWeights,
    IPAdapter,
    IPAdapterConfig,
    cross_attentions,
    infer_config,
    load_ip_adapter,
)
from plugins.diffusion.networks.unet_config import UNetConfig
from plugins.diffusion.request import make_request

VISION = VisionConfig(8, 16, 2, 2, image_size=8, patch_size=4, projection_dim=12)
PICTURES = np.random.default_rng(0).random((2, 20, 12, 3)).astype(np.float32)
OPTIONS = {"steps": 2, "batch": 2}
PROMPT = "a red apple"


@functools.cache
def adapter(context: int = WIDTH) -> IPAdapter:
    widths = tuple(width for _, width, _ in cross_attentions(diffusion_base().unet.config))
    config = IPAdapterConfig(VISION.projection_dim, context, 4, widths)
    return IPAdapter(config, random(AdapterWeights, config), random(ImageEncoder, VISION), ImagePreparation(8))


@pytest.mark.long
def test_a_picture_changes_images_by_its_strength_and_steps():
    base = diffusion_base()

    def image(strength, steps=(0, 1), picture=PICTURES[0]):
        controls = [adapter().on(picture, strength=strength, steps=steps)]
        return base(PROMPT, seeds=[5, 6], controls=controls, **OPTIONS)

    plain = base(PROMPT, seeds=[5, 6], **OPTIONS)
    np.testing.assert_array_equal(image(0), plain)
    whole, half = image(1), image(1, steps=(0, 0.5))
    assert np.abs(whole - plain).max() > 1e-3 and np.abs(half - plain).max() > 1e-3
    assert np.abs(whole - half).max() > 1e-4
    each = image(1, picture=PICTURES)
    np.testing.assert_allclose(each[0], whole[0], atol=1e-5)
    assert np.abs(each[1] - whole[1]).max() > 1e-4
    np.testing.assert_allclose(image(1, picture=PICTURES[1])[1], each[1], atol=1e-5)


def test_its_size_is_not_the_outputs():
    request = make_request(diffusion_base().base, PROMPT, controls=[adapter().on(PICTURES[0])])
    assert (request.height, request.width) == (16, 16)


@pytest.mark.parametrize("value, control", [
    ("11", lambda: adapter().on(PICTURES[0], strength=11)),
    ("text states of 12", lambda: adapter(12).on(PICTURES[0])),
    ("2 image prompts for 3", lambda: adapter().on(PICTURES)),
])  # fmt: skip
def test_settings_and_other_bases_are_refused(value, control):
    base = diffusion_base().base
    refused(ValueError, lambda: make_request(base, PROMPT, seeds=range(3), controls=[control()]), match=value)


@pytest.mark.parametrize("value, names", [
    ("FaceID Plus", ["image_proj.perceiver_resampler.proj_in.weight"]),
    ("full-face", ["image_proj.proj.3.weight"]),
    ("FaceID", ["image_proj.proj.2.weight"]),
    ("unet.conv", ["unet.conv.weight"]),
    ("image_proj.latents", ["image_proj.latents"]),
])  # fmt: skip
def test_other_files_are_refused(value, names):
    refused(ValueError, infer_config, dict.fromkeys(names, (4, 4)), match=value)


def test_cross_attentions_of_stable_diffusion():
    """The PyTorch library counts 16 of them, the middle's last."""
    layers = cross_attentions(UNetConfig.sd15())
    assert len(layers) == 16 and layers[0] == ("down_blocks.0.attentions.0.transformer_blocks.0.attn2", 320, 8)
    assert layers[6][0].startswith("up_blocks.1.") and layers[-1][0].startswith("mid_block.")
    config = IPAdapterConfig(1024, 768, 4, tuple(width for _, width, _ in layers))
    leaves = jax.tree.leaves(blank(AdapterWeights, config)[1])
    assert sum(leaf.size for leaf in leaves) == 22_319_616
    assert len(cross_attentions(UNetConfig.sdxl())) == 70


def written(folder) -> str:
    """The adapter and its tower as files."""
    tensors = {}
    for name, value in state_dict(adapter().weights).items():
        part, *rest = name.split(".")
        tensors[".".join([part, str(2 * int(rest[0]) + 1), *rest[1:]] if part == "ip_adapter" else [name])] = value
    safetensors.numpy.save_file(tensors, folder / "ip.safetensors")
    tower = folder / "image_encoder"
    tower.mkdir()
    (tower / "config.json").write_text(json.dumps({"model_type": "clip_vision_model", **VISION.to_json()}))
    safetensors.numpy.save_file(state_dict(adapter().tower), tower / "model.safetensors")
    return str(folder / "ip.safetensors")


@pytest.mark.long
def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    base, file = diffusion_base(), written(tmp_path)
    base.save("base")
    write_image("picture.png", PICTURES[0])
    command = f"generate --prompt '{PROMPT}' --base base --steps 2 --batch 2 --seed 5 --image-prompt picture.png"
    for words, value in [("", "--ip-adapter"), ("--ip-adapter ip.safetensors --image-encoder none", "none")]:
        assert value in commands.mistake(f"{command} {words} -o image.png", capsys)
    main(shlex.split(f"{command} --ip-adapter ip.safetensors --image-prompt-strength 0.5 -o image.png"))
    control = load_ip_adapter(file).on(read_image("picture.png"), strength=0.5)
    expected = base(PROMPT, seeds=5, controls=[control], **OPTIONS)[0]
    np.testing.assert_allclose(read_image("image.png"), expected, atol=0.01)
