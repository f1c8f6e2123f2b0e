"""Exported networks compute what the network does: as StableHLO, ONNX and LiteRT, and as features in PyTorch's UNet."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
import safetensors.numpy
from commands import mistake
from flax import nnx
from networks import DATA, folder, nhwc
from portable import UNETS, features_case
from refusal import refused
from tiny_base import random

from common.io.images import write_image
from common.io.tensor_files import digest_of
from plugins.cli.export import check_bytes
from plugins.cli.main import main
from plugins.control import MediaPipeConfig, MediaPipePlugin, T2IAdapter, T2IAdapterConfig, contract, load, save
from plugins.control.export import control_program, save_features
from plugins.formats.litert import litert, open_litert
from plugins.formats.onnx_graph import onnx
from plugins.formats.program import read_stablehlo, stablehlo

HEIGHT, WIDTH = 24, 40  # three and five latents high and wide: odd at every level
NETWORKS = {
    "plugin": (MediaPipePlugin, MediaPipeConfig((8, 12), 8, 8, (8,), (8, 16), (2, 2), expansion=2, groups=4)),
    "plugin on pixels": (MediaPipePlugin, MediaPipeConfig((8,), 1, 8, (), (8,), (1,), expansion=2, groups=4)),
    "adapter": (T2IAdapter, T2IAdapterConfig(channels=(8, 12, 12), downscale_factor=4)),
    "grey light adapter": (T2IAdapter, T2IAdapterConfig(1, (8, 12), 2, 8, "light_adapter")),
}
IMAGES = np.random.default_rng(1).random((2, HEIGHT, WIDTH, 3), np.float32)


@pytest.fixture(scope="module", params=NETWORKS)
def case(request):
    """A network, and its features of two images."""
    network = random(*NETWORKS[request.param])
    return network, contract.encode(*nnx.split(network), jnp.asarray(IMAGES))


def assert_close(features, expected) -> None:
    for ours, theirs in zip(features, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def stored_features(path: Path) -> list[np.ndarray]:
    tensors = safetensors.numpy.load_file(path)
    return [nhwc(tensors[f"feature_{level}"]) for level in range(len(tensors))]


onnx_session = functools.partial(onnxruntime.InferenceSession, providers=["CPUExecutionProvider"])


@pytest.mark.long
def test_stablehlo(case, tmp_path):
    """For any number of images."""
    network, expected = case
    path = tmp_path / "plugin.stablehlo"
    path.write_bytes(stablehlo(control_program(network, HEIGHT, WIDTH)))
    for rows in (1, 2):
        assert_close(read_stablehlo(path)(IMAGES[:rows]), [f[:rows] for f in expected])
    exported = jax.export.deserialize(bytearray(path.read_bytes()))
    assert exported.platforms == ("cpu", "cuda", "tpu") and exported.in_avals[0].shape[1:] == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize(("platform", "grouped"), [("cpu", False), ("cuda", True)])
def test_each_platform_has_its_own_depthwise_convolution(platform, grouped):
    """A program for an accelerator runs on the CPU too, without JAX's check of the platform."""
    network = random(*NETWORKS["plugin"])
    exported = jax.export.deserialize(bytearray(stablehlo(control_program(network, HEIGHT, WIDTH), 1, [platform])))
    assert ("feature_group_count = 16" in exported.mlir_module()) == grouped
    assert exported.mlir_module_serialized.startswith(b"ML\xefR")  # MLIR's bytecode, for other readers
    unchecked = (jax.export.DisabledSafetyCheck.platform(),)
    here = dataclasses.replace(exported, platforms=("cpu",), disabled_safety_checks=unchecked)
    assert_close(jax.jit(here.call)(IMAGES[:1]), contract.encode(*nnx.split(network), IMAGES[:1]))


def test_onnx(case):
    network, expected = case
    session = onnx_session(onnx(control_program(network, HEIGHT, WIDTH)))
    (image,) = session.get_inputs()
    assert (image.name, image.shape) == ("picture", ["b", 3, HEIGHT, WIDTH])
    assert [output.name for output in session.get_outputs()] == [f"feature_{i}" for i in range(network.num_outputs)]
    for rows in (1, 2):
        features = session.run(None, {"picture": IMAGES[:rows].transpose(0, 3, 1, 2)})
        assert [output.shape for output in session.get_outputs()] == [["b", *f.shape[1:]] for f in features]
        for ours, theirs in zip(features, expected, strict=True):
            assert np.abs(nhwc(ours) - theirs[:rows]).max() / np.abs(theirs).max() < 1e-5


@pytest.mark.long
def test_litert(case, tmp_path):
    """Relative to the largest feature; the numbers of the shipped networks are in docs/portable.md."""
    network, expected = case
    path = tmp_path / "plugin.tflite"
    for weights, most in (("float16", 2e-3), ("int8", 5e-2)):
        path.write_bytes(litert(control_program(network, HEIGHT, WIDTH), weights))
        features = open_litert(path)(picture=IMAGES[:1])
        assert list(features) == [f"feature_{level}" for level in range(network.num_outputs)]
        for name, theirs in zip(features, expected, strict=True):
            assert np.abs(features[name] - theirs[:1]).max() / np.abs(theirs).max() < most


def test_without_the_package_onnx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    refused(ImportError, lambda: onnx(control_program(random(*NETWORKS["plugin"]), HEIGHT, WIDTH)), match=r"\[export\]")


def test_features_are_channels_first_with_metadata(case, tmp_path):
    network, expected = case
    path = save_features(tmp_path / "f.safetensors", network, IMAGES[0], 0.5)
    assert_close(stored_features(path), [0.5 * f[:1] for f in expected])
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()
    assert json.loads(metadata.pop("shapes")) == [[1, f.shape[3], *f.shape[1:3]] for f in expected]
    known = {"format": "pt", "network": type(network).__name__, "strength": "0.5", "picture": f"{WIDTH}x{HEIGHT}"}
    assert metadata == known | {"sha256": digest_of(path)}
    refused(FileExistsError, save_features, path, network, IMAGES[0])


@pytest.mark.long
@pytest.mark.parametrize("name", UNETS)
def test_features_in_pytorch_give_our_outputs(tmp_path, name):
    """`make_features.py` gave diffusers' UNet the stored file, by the adapters' hook and by PyTorch's."""
    case = features_case(name)
    path = save_features(tmp_path / "f.safetensors", case.plugin, case.picture, case.strength)
    features = stored_features(path)
    if name == "usual":
        assert_close(features, stored_features(DATA / "features.safetensors"))
    graph, state = nnx.split(case.unet)
    inputs = jnp.asarray(case.x), jnp.asarray(case.t), jnp.asarray(case.context)
    call = jax.jit(lambda added: nnx.merge(graph, state)(*inputs, added))
    theirs = np.load(DATA / "features_io.npz")[name]
    np.testing.assert_allclose(call(features), theirs, atol=1e-4)
    assert np.abs(call([0 * feature for feature in features]) - theirs).max() > 0.1


def test_networks_sizes_and_files_that_are_refused(tmp_path):
    controlnet, plugin = load(folder("controlnet")), random(*NETWORKS["plugin"])
    file = tmp_path / "plugin.stablehlo"
    file.write_bytes(b"no program")
    for refuse, value in (
        (lambda: control_program(controlnet, 64, 64), "ControlNet"),
        (lambda: save_features(tmp_path / "f", controlnet, np.zeros((64, 64, 3), np.float32)), "ControlNet"),
        (lambda: control_program(plugin, HEIGHT, WIDTH + 1), "41x24.*8"),
        (lambda: read_stablehlo(file), file.name),
        (lambda: open_litert(file), file.name),
        (lambda: onnx(control_program(plugin, 8, 8), "int8"), "int8"),
    ):
        refused(ValueError, refuse, match=value)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(random(*NETWORKS["plugin"]), "plugin")
    write_image("edges.png", IMAGES[0])
    return tmp_path


def export(words: str) -> None:
    main(f"export --plugin plugin {words}".split())


@pytest.mark.long
def test_the_command_writes_programs(here, capsys):
    export(f"-o out/plugin.stablehlo --size {WIDTH} {HEIGHT}")
    assert "MediaPipePlugin" in capsys.readouterr().out
    export(f"-o plugin.onnx --format onnx --size {WIDTH} {HEIGHT} --quiet")
    assert capsys.readouterr().out == ""
    theirs = onnx_session("plugin.onnx").run(None, {"picture": IMAGES.transpose(0, 3, 1, 2)})
    for ours, other in zip(read_stablehlo("out/plugin.stablehlo")(IMAGES), theirs, strict=True):
        np.testing.assert_allclose(ours, nhwc(other), atol=1e-4)
    export(f"-o plugin.tflite --size {WIDTH} {HEIGHT} --weights float16 --quiet")
    for name, other in open_litert("plugin.tflite")(picture=IMAGES[:1]).items():
        np.testing.assert_allclose(other, nhwc(theirs[int(name[-1])])[:1], atol=1e-2)
    export("-o plugin.onnx --format onnx --size 8 --overwrite")
    assert onnx_session("plugin.onnx").get_inputs()[0].shape == ["b", 3, 8, 8]


def test_the_command_writes_features(here):
    export("-o edges.safetensors --picture edges.png --strength 0.5")
    assert [f.shape for f in stored_features(here / "edges.safetensors")] == [(1, 3, 5, 8), (1, 2, 3, 12)]
    export("-o small.safetensors --picture edges.png --size 16")
    assert [f.shape for f in stored_features(here / "small.safetensors")] == [(1, 2, 2, 8), (1, 1, 1, 12)]


MISTAKES = {  # words -> a value in the error
    "-o plugin.mlmodel": "plugin.mlmodel",
    "-o plugin.onnx --base diffusion-small": "--plugin and --base",
    "-o plugin.onnx --part unet": "--part",
    "-o plugin.onnx --with-features": "--with-features",
    "-o plugin.stablehlo --weights float16": "--weights float16",
    "-o plugin.onnx --weights int8": "--weights int8",
    "-o f.safetensors": "--picture",
    "-o p.onnx --strength 0": "--strength",
    "-o p.onnx --size 1 2 3": "--size 1 2 3",
    "-o p.onnx --size 0": "--size 0",
    "-o p.onnx --size 20": "20x20",
    "-o plugin.model --format onnx": ".onnx",
    "-o plugin.stablehlo --format onnx": ".onnx",
    "-o plugin": ".stablehlo .onnx .tflite .safetensors",
    "-o f.safetensors --picture edges.png --strength nan": "strength=nan",
    "-o f.safetensors --picture edges.png --strength 11": "strength=11",
}


def test_errors_of_the_command_write_nothing(here, capsys):
    for words, value in MISTAKES.items():
        assert value in mistake(f"export --plugin plugin {words}", capsys), words


@pytest.mark.parametrize("network", ["--base diffusion-small --part unet", "--plugin plugin"])
def test_weights_that_a_format_cannot_hold_are_refused(here, capsys, monkeypatch, network):
    many = 859_520_964  # Stable Diffusion 1.5's UNet
    check_bytes("unet", many, "onnx", "float16")
    refused(ValueError, check_bytes, "unet", many, "stablehlo", "float32", match=r"3\.4 GB.*--weights float16")
    monkeypatch.setattr("plugins.cli.export.LARGEST", 1000)
    for output in ("a.onnx", "a.onnx --weights float16", "a.tflite --weights int8", "a.stablehlo"):
        assert "no format" in mistake(f"export {network} -o {output}", capsys), output
