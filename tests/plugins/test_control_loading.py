"""Control networks from every kind of file, and written so that diffusers reads them."""

import functools
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence

import ldm
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from ldm import Tensor, conv, with_bias
from networks import SMALL, WEIGHTS, assert_same, folder, parameters, stored, stored_json, stored_shapes
from tiny_base import random

from common.io.tensor_files import digest_of
from plugins.control import ControlNetwork, single_file
from plugins.control.controlnet import ControlNet, ControlNetConfig
from plugins.control.loading import load, save
from plugins.control.mediapipe import MediaPipeConfig, MediaPipePlugin
from plugins.control.t2i_adapter import T2IAdapter, T2IAdapterConfig

KINDS = {"controlnet": ControlNet, "t2i_adapter": T2IAdapter}
WIDTHS = (16, 32, 32, 32)
LIGHT = T2IAdapterConfig(channels=(320, 640, 1280), num_res_blocks=4, adapter_type="light_adapter")  # for colour
ZERO = np.zeros((2, 2), np.float32)


# Control networks as their first releases name tensors, written down a second time: made by counting, as their
# constructors do, where `plugins/control/single_file.py` decodes. (name in the release, name in diffusers, shape).


def first_controlnet(
    widths: Sequence[int] = (320, 640, 1280, 1280), context: int = 768, hints: Sequence[int] = (16, 32, 96, 256)
) -> Iterator[Tensor]:
    """The UNet's walk without its way up; a zero convolution for each block of the way down; the hint encoder, whose
    every second layer is an activation."""
    yield from (row for row in ldm.unet(widths, context) if not row[0].startswith(("output_blocks.", "out.")))
    skips = [widths[0], *(width for width in widths for _ in range(3))][:-1]  # the last level has no downsampler
    for row, skip in enumerate(skips):
        yield from with_bias((f"zero_convs.{row}.0", f"controlnet_down_blocks.{row}"), skip, skip, 1, 1)
    yield from with_bias(("middle_block_out.0", "controlnet_mid_block"), widths[-1], widths[-1], 1, 1)
    own = "controlnet_cond_embedding"
    yield from conv(("input_hint_block.0", f"{own}.conv_in"), hints[0], 3)
    inner = [(outputs, before) for before, width in itertools.pairwise(hints) for outputs in (before, width)]
    for i, (outputs, inputs) in enumerate(inner):
        yield from conv((f"input_hint_block.{2 * i + 2}", f"{own}.blocks.{i}"), outputs, inputs)
    yield from conv((f"input_hint_block.{2 * len(inner) + 2}", f"{own}.conv_out"), widths[0], hints[-1])


def first_full_adapter(widths: Sequence[int] = (320, 640, 1280, 1280), unshuffled: int = 192) -> Iterator[Tensor]:
    """Two residual blocks a level, all in one row."""
    yield from conv(("conv_in", "adapter.conv_in"), widths[0], unshuffled)
    row, before = 0, widths[0]
    for level, width in enumerate(widths):
        if width != before:
            yield from conv((f"body.{row}.in_conv", f"adapter.body.{level}.in_conv"), width, before, 1)
        for i in range(2):
            ours = f"adapter.body.{level}.resnets.{i}"
            yield from conv((f"body.{row}.block1", f"{ours}.block1"), width, width)
            yield from conv((f"body.{row}.block2", f"{ours}.block2"), width, width, 1)
            row += 1
        before = width


def first_light_adapter(widths: Sequence[int] = (320, 640, 1280, 1280), unshuffled: int = 192) -> Iterator[Tensor]:
    """Four residual blocks a level, each level by itself."""
    before = unshuffled
    for level, width in enumerate(widths):
        inner, theirs, ours = width // 4, f"body.{level}", f"adapter.body.{level}"
        yield from conv((f"{theirs}.in_conv", f"{ours}.in_conv"), inner, before, 1)
        for i in range(4):
            for block in ("block1", "block2"):
                yield from conv((f"{theirs}.body.{i}.{block}", f"{ours}.resnets.{i}.{block}"), inner, inner)
        yield from conv((f"{theirs}.out_conv", f"{ours}.out_conv"), width, inner, 1)
        before = width


@functools.cache
def fixed(kind) -> ControlNetwork:
    """The fixtures' network."""
    return load(folder(kind))


@pytest.fixture(scope="module")
def plugin() -> MediaPipePlugin:
    return random(MediaPipePlugin, MediaPipeConfig.for_unet(SMALL, 4))


def write(path, tensors, config=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, path)
    if config is not None:
        (path.parent / "config.json").write_text(json.dumps(config))
    return path


def theirs(release, tensors) -> dict[str, np.ndarray]:
    """The tensors of a diffusers' file by their names in the first release; all of them are renamed."""
    rest = dict(tensors)
    renamed = {name: rest.pop(ours).reshape(shape) for name, ours, shape in release}
    assert not rest
    return renamed


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_diffusers_and_back(tmp_path, kind):
    network = fixed(kind)
    assert isinstance(network, KINDS[kind])
    path = save(network, tmp_path)
    assert path == tmp_path / WEIGHTS
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "pt", "sha256": digest_of(path)}
    written, reference = safetensors.numpy.load_file(path), stored(kind)
    assert written.keys() == reference.keys()
    for key, value in reference.items():
        np.testing.assert_array_equal(written[key], value, key)
    ours = json.loads((tmp_path / "config.json").read_text())
    assert ours.items() <= stored_json(kind).items()  # every key is diffusers', with the same value
    assert_same(load(tmp_path), network)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_plugin_has_pytorchs_layout_and_every_dtype(tmp_path, plugin, dtype):
    path = save(plugin, tmp_path, dtype)
    depthwise = [v.shape for key, v in safetensors.numpy.load_file(path).items() if key.endswith("filter.weight")]
    assert depthwise and all(shape[1:] == (1, 3, 3) for shape in depthwise)
    for source in (tmp_path, path):
        again = load(source, dtype)
        assert isinstance(again, MediaPipePlugin) and again.config == plugin.config
        found = parameters(again)
        for name, value in parameters(plugin).items():
            np.testing.assert_array_equal(found[name], value.astype(dtype))


def test_a_pipelines_folder_and_variants(tmp_path):
    tensors = stored("t2i_adapter")
    half = {key: value.astype(np.float16) for key, value in tensors.items()}
    folder = tmp_path / "adapter"
    write(folder / "diffusion_pytorch_model.fp16.safetensors", half, stored_json("t2i_adapter"))
    only = parameters(load(tmp_path, "float16"))["adapter.conv_in.bias"]
    np.testing.assert_array_equal(only, half["adapter.conv_in.bias"])
    write(folder / WEIGHTS, tensors)
    assert_same(load(tmp_path), fixed("t2i_adapter"))
    np.testing.assert_array_equal(parameters(load(tmp_path, variant="fp16"))["adapter.conv_in.bias"], only)


@pytest.mark.parametrize("whole", [True, False])
def test_a_controlnet_in_its_first_names(tmp_path, whole):
    """In a checkpoint beside its base, and by itself; its groups and heads are not in shapes, but beside it."""
    tensors = theirs(first_controlnet(WIDTHS, 32, (8, 16, 24, 32)), stored("controlnet"))
    if whole:
        tensors = {f"control_model.{name}": value for name, value in tensors.items()}
        tensors |= {"model.diffusion_model.out.2.weight": ZERO, "first_stage_model.quant_conv.bias": ZERO}
    assert_same(load(write(tmp_path / "control.safetensors", tensors, stored_json("controlnet"))), fixed("controlnet"))


def test_a_t2i_adapter_in_both_names_without_a_config(tmp_path):
    full, path = stored("t2i_adapter"), tmp_path / "adapter.safetensors"
    for tensors in (full, theirs(first_full_adapter(WIDTHS), full)):
        write(path, tensors, {"_class_name": "AutoencoderKL"})  # config.json of another network
        assert_same(load(path), fixed("t2i_adapter"))
    light = random(T2IAdapter, T2IAdapterConfig(1, (8, 16), 4, 8, "light_adapter"))
    source = safetensors.numpy.load_file(save(light, tmp_path / "light"))
    assert_same(load(write(path, theirs(first_light_adapter((8, 16, 16), 64), source))), light)


@pytest.mark.parametrize(("network", "config", "release", "size"), [
    (ControlNet, ControlNetConfig(), first_controlnet, 361_279_120),
    (T2IAdapter, T2IAdapterConfig(), first_full_adapter, 77_369_280),
    (T2IAdapter, T2IAdapterConfig(in_channels=1), functools.partial(first_full_adapter, unshuffled=64), 77_000_640),
    (T2IAdapter, LIGHT, first_light_adapter, 18_689_200),
])  # fmt: skip
def test_names_sizes_and_architecture_of_the_published_files(network, config, release, size):
    shapes = stored_shapes(network, config)
    rows = {theirs: (ours, shape) for theirs, ours, shape in release()}
    assert shapes == dict(rows.values()) and sum(map(math.prod, shapes.values())) == size
    class_name = single_file.class_name(rows)
    assert class_name == config.to_json()["_class_name"]
    origins = single_file.origins(class_name, rows)
    assert {key: origin.key for key, origin in origins.items()} == {ours: key for key, (ours, _) in rows.items()}
    assert type(config).from_json(single_file.infer_config(class_name, shapes)) == config


@pytest.mark.parametrize(("keys", "value"), [
    ("control_model.lora_controlnet", "lora_controlnet"),
    ("difference", "difference"),
    ("model.diffusion_model.out.2.bias", "model"),
    ("zero_convs.0.0.weight", "conv_in.weight"),
    ("stem.weight", "config.json"),
    ("body.0.block1.weight body.3.in_conv.weight", "adapter.body.0.in_conv.weight"),
])  # fmt: skip
def test_files_of_other_networks_are_refused(tmp_path, keys, value):
    path = write(tmp_path / "file.safetensors", dict.fromkeys(keys.split(), ZERO))
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*{re.escape(value)}"):
        load(path)


def test_wrong_sources_and_arguments(tmp_path):
    file = write(tmp_path / "adapter.safetensors", stored("t2i_adapter"))
    misfit = write(tmp_path / "misfit" / WEIGHTS, {"extra.weight": ZERO}, stored_json("t2i_adapter"))
    for call, error, value in (
        (lambda: load(folder("unet")), ValueError, "UNet2DConditionModel"),
        (lambda: load(file, variant="fp16"), ValueError, "fp16"),
        (lambda: load(folder("t2i_adapter"), "int8"), ValueError, "int8"),
        (lambda: load(misfit.parent), ValueError, "extra.weight"),
        (lambda: load(tmp_path), FileNotFoundError, file.name),
        (lambda: load("no-such-control"), FileNotFoundError, "canny-small"),
        (lambda: save(fixed("t2i_adapter"), misfit.parent), FileExistsError, "config"),
    ):
        with pytest.raises(error, match=value):
            call()
