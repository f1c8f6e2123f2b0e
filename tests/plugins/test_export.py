"""What leaves this project computes what stays in it: as StableHLO, as ONNX, and as features inside PyTorch's UNet."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
import safetensors.numpy
from flax import nnx
from networks import DATA, folder, nhwc, one_line
from portable import UNETS, features_case
from tiny_base import random

from common.io.images import write_image
from plugins.cli.main import main
from plugins.control import contract
from plugins.control.controlnet import ControlNet
from plugins.control.convolutions import Depthwise
from plugins.control.export import read_stablehlo, save_features, to_onnx, to_stablehlo
from plugins.control.loading import load, save
from plugins.control.mediapipe import MediaPipePlugin
from plugins.control.mediapipe_config import MediaPipeConfig
from plugins.control.t2i_adapter import T2IAdapter
from plugins.control.t2i_adapter_config import LIGHT, T2IAdapterConfig

HEIGHT, WIDTH = 24, 40  # three and five latents high and wide: odd at every level
NETWORKS = {
    "plugin": (MediaPipePlugin, MediaPipeConfig((8, 12), 8, 8, (8,), (8, 16), (2, 2), expansion=2, groups=4)),
    "plugin on pixels": (MediaPipePlugin, MediaPipeConfig((8,), 1, 8, (), (8,), (1,), expansion=2, groups=4)),
    "adapter": (T2IAdapter, T2IAdapterConfig(channels=(8, 12, 12), downscale_factor=4)),
    "grey light adapter": (T2IAdapter, T2IAdapterConfig(1, (8, 12), 2, 8, LIGHT)),
}


@pytest.fixture(scope="module", params=NETWORKS)
def kind(request):
    """A network, two pictures, and its features of them."""
    made = random(*NETWORKS[request.param])
    pictures = np.random.default_rng(1).random((2, HEIGHT, WIDTH, 3), np.float32)
    graph, state = nnx.split(made)
    return made, pictures, contract.encode(graph, nnx.to_pure_dict(state), jnp.asarray(pictures))


def stored_features(path: Path) -> list[np.ndarray]:
    tensors = safetensors.numpy.load_file(path)
    return [nhwc(tensors[f"feature_{level}"]) for level in range(len(tensors))]


# ---- StableHLO


def test_stablehlo_gives_the_same_features(kind, tmp_path):
    made, pictures, expected = kind
    path = tmp_path / "plugin.stablehlo"
    path.write_bytes(to_stablehlo(made, HEIGHT, WIDTH))
    features = read_stablehlo(path)(pictures)
    for ours, theirs in zip(features, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    exported = jax.export.deserialize(bytearray(path.read_bytes()))
    assert exported.platforms == ("cpu", "cuda", "tpu")
    rows, *size = exported.in_avals[0].shape
    assert not isinstance(rows, int) and size == [HEIGHT, WIDTH, 3]  # any number of pictures


@pytest.mark.parametrize(("platform", "grouped"), [("cpu", False), ("cuda", True), ("tpu", True)])
def test_each_platform_has_its_own_filters_whoever_writes(platform, grouped):
    """The program for an accelerator runs here too, when JAX is told not to mind."""
    made = random(*NETWORKS["plugin"])
    exported = jax.export.deserialize(bytearray(to_stablehlo(made, HEIGHT, WIDTH, 1, [platform])))
    assert ("feature_group_count = 16" in exported.mlir_module()) == grouped
    assert exported.mlir_module_serialized.startswith(b"ML\xefR")  # MLIR's bytecode, for other readers
    unminding = (jax.export.DisabledSafetyCheck.platform(),)
    here = dataclasses.replace(exported, platforms=("cpu",), disabled_safety_checks=unminding)
    picture = jnp.asarray(np.random.default_rng(1).random((1, HEIGHT, WIDTH, 3), np.float32))
    graph, state = nnx.split(made)
    for ours, theirs in zip(jax.jit(here.call)(picture), contract.encode(graph, state, picture), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert type(made.levels[0][0].filter) is Depthwise  # the network given stays as it was


def test_other_files_are_no_programs(tmp_path):
    path = tmp_path / "plugin.stablehlo"
    path.write_bytes(b"no program")
    with pytest.raises(ValueError, match="is no program of `plugins export`") as error:
        read_stablehlo(path)
    assert "export it again" in one_line(error)


# ---- ONNX


def test_onnx_gives_the_same_features(kind):
    made, pictures, expected = kind
    session = onnxruntime.InferenceSession(to_onnx(made, HEIGHT, WIDTH), providers=["CPUExecutionProvider"])
    (picture,) = session.get_inputs()
    assert (picture.name, picture.shape) == ("picture", ["b", 3, HEIGHT, WIDTH])
    assert [output.name for output in session.get_outputs()] == [f"feature_{i}" for i in range(made.places)]
    for rows in (1, 2):
        features = session.run(None, {"picture": pictures[:rows].transpose(0, 3, 1, 2)})
        for output, ours, theirs in zip(session.get_outputs(), features, expected, strict=True):
            assert ours.shape[1:] == tuple(output.shape[1:])
            error = np.abs(nhwc(ours) - theirs[:rows]).max() / np.abs(theirs).max()
            assert error < 1e-5, output.name


def test_without_the_package_onnx_it_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ImportError, match=r"film-plugins-reveal\[export\]") as error:
        to_onnx(random(*NETWORKS["plugin"]), HEIGHT, WIDTH)
    one_line(error)


# ---- features


def test_features_are_written_channels_first_with_what_they_are(kind, tmp_path):
    made, pictures, expected = kind
    path = save_features(tmp_path / "f.safetensors", made, pictures[0], 0.5)
    for ours, theirs in zip(stored_features(path), expected, strict=True):
        np.testing.assert_allclose(ours, 0.5 * theirs[:1], atol=1e-5)
    with safetensors.safe_open(path, "np") as file:
        about = file.metadata()
        shapes = [list(file.get_tensor(f"feature_{level}").shape) for level in range(made.places)]
    assert about["strength"] == "0.5" and about["picture"] == f"{WIDTH}x{HEIGHT}"
    assert json.loads(about["shapes"]) == shapes and about["network"] == type(made).__name__
    with pytest.raises(FileExistsError):
        save_features(path, made, pictures[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", UNETS)
def test_features_in_pytorch_steer_as_ours(tmp_path, name):
    """`make_features.py` gave diffusers' UNet the file that is beside it, by the adapters' hook and by PyTorch's."""
    case = features_case(name)
    path = save_features(tmp_path / "f.safetensors", case.plugin, case.picture, case.strength)
    if name == "usual":
        for ours, kept in zip(stored_features(path), stored_features(DATA / "features.safetensors"), strict=True):
            np.testing.assert_allclose(ours, kept, atol=1e-5)
    graph, state = nnx.split(case.unet)
    call = jax.jit(lambda state, added, *inputs: nnx.merge(graph, state)(*inputs, added))
    inputs = jnp.asarray(case.x), jnp.asarray(case.t), jnp.asarray(case.context)
    plugin, params = nnx.split(case.plugin)
    encoded = contract.encode(plugin, nnx.to_pure_dict(params), jnp.asarray(case.picture[None]))
    with np.load(DATA / "features_io.npz") as outputs:
        theirs = outputs[name]
    for added in ([case.strength * feature for feature in encoded], stored_features(path)):
        np.testing.assert_allclose(call(state, added, *inputs), theirs, atol=1e-4)
    nothing = [0 * feature for feature in encoded]
    assert np.abs(call(state, nothing, *inputs) - theirs).max() > 0.1


# ---- what cannot leave


def test_a_controlnet_is_refused(tmp_path):
    controlnet = load(folder("controlnet"))
    assert isinstance(controlnet, ControlNet)
    for refuse in (
        lambda: to_stablehlo(controlnet, 64, 64),
        lambda: to_onnx(controlnet, 64, 64),
        lambda: save_features(tmp_path / "f.safetensors", controlnet, np.zeros((64, 64, 3), np.float32)),
    ):
        with pytest.raises(ValueError, match="a ControlNet is no program by itself, it runs in every step") as error:
            refuse()
        one_line(error)
    assert not list(tmp_path.iterdir())


def test_sides_are_multiples(kind):
    made, _, _ = kind
    if made.places == 1:
        return  # on pixels every side is one
    with pytest.raises(ValueError, match=r"a picture of 41x24: this network takes sides that are multiples of [48]"):
        to_stablehlo(made, HEIGHT, WIDTH + 1)


# ---- the command


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A plugin, and a picture larger than what it will be shown."""
    monkeypatch.chdir(tmp_path)
    save(random(*NETWORKS["plugin"]), "plugin")
    write_image("edges.png", np.random.default_rng(3).random((HEIGHT, WIDTH, 3), np.float32))
    return tmp_path


def export(*words: str) -> None:
    main(["export", "--plugin", "plugin", *words])


def refused(*words: str, capsys) -> str:
    """What the command says when it refuses; one line, and nothing written."""
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    with pytest.raises(SystemExit) as stop:
        export(*words)
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1, said
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before
    return said


def test_the_command_writes_programs(here, capsys):
    size = ("--size", str(WIDTH), str(HEIGHT))
    export("-o", "out/plugin.stablehlo", *size)
    assert capsys.readouterr().out.startswith("MediaPipePlugin as stablehlo, 0.0")
    export("-o", "plugin.model", "--format", "onnx", *size, "--quiet")
    assert capsys.readouterr().out == ""
    pictures = np.random.default_rng(1).random((1, HEIGHT, WIDTH, 3), np.float32)
    session = onnxruntime.InferenceSession("plugin.model", providers=["CPUExecutionProvider"])
    theirs = session.run(None, {"picture": pictures.transpose(0, 3, 1, 2)})
    for a, b in zip(read_stablehlo("out/plugin.stablehlo")(pictures), theirs, strict=True):
        np.testing.assert_allclose(a, nhwc(b), atol=1e-4)
    assert "plugin.model exists" in refused("-o", "plugin.model", "--format", "onnx", *size, capsys=capsys)
    export("-o", "plugin.model", "--format", "onnx", "--size", "8", "--overwrite")
    session = onnxruntime.InferenceSession("plugin.model", providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["b", 3, 8, 8]


def test_the_command_writes_features(here, capsys):
    export("-o", "edges.safetensors", "--picture", "edges.png", "--strength", "0.5")
    assert "MediaPipePlugin as features, 0.0" in capsys.readouterr().out
    assert [f.shape for f in stored_features(here / "edges.safetensors")] == [(1, 3, 5, 8), (1, 2, 3, 12)]
    export("-o", "small.safetensors", "--picture", "edges.png", "--size", "16")
    assert [f.shape for f in stored_features(here / "small.safetensors")] == [(1, 2, 2, 8), (1, 1, 1, 12)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "plugin.tflite"], "plugin.tflite does not say the format; add --format stablehlo, onnx, features"),
        (["-o", "f.safetensors"], "features are of a picture; give its condition: --picture EDGES"),
        (["-o", "p.onnx", "--picture", "edges.png"], "--picture belongs to --format features; onnx is the network"),
        (["-o", "p.onnx", "--strength", "0"], "--strength belongs to --format features"),
        (["-o", "p.onnx", "--size", "1", "2", "3"], "--size 1 2 3: give one side in pixels, or WIDTH HEIGHT"),
        (["-o", "p.onnx", "--size", "0"], "--size 0: give one side"),
        (["-o", "p.onnx", "--size", "20"], "a picture of 20x20: this network takes sides that are multiples of 8"),
        (["-o", "p.onnx", "--plugin", "none"], "no control 'none'"),
        (["-o", "p.onnx", "--plugin", str(folder("controlnet"))], "a ControlNet is no program by itself"),
        (["-o", "edges.png", "--format", "onnx"], "edges.png exists"),
        (["-o", "f.safetensors", "--picture", "none.png"], "none.png does not exist"),
        (["-o", "f.safetensors", "--picture", "edges.png", "--strength", "nan"], "strength=nan"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(here, capsys, words, said):
    assert said in refused(*words, capsys=capsys)
