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
from networks import DATA, SMALL, folder, nhwc
from portable import UNETS, features_case
from refusal import refused
from tiny_base import TEXT, VAE, random

from common.io.images import write_image
from common.io.tensor_files import digest_of
from common.nn.text_encoder import TextEncoder
from plugins.cli.export import check_bytes
from plugins.cli.main import main
from plugins.control import MediaPipeConfig, MediaPipePlugin, T2IAdapter, T2IAdapterConfig, contract, load, save
from plugins.control.export import control_program, save_features
from plugins.diffusion.networks.tiny_vae import AutoencoderTiny, TinyVAEConfig
from plugins.diffusion.networks.unet import UNet, UNetConfig
from plugins.diffusion.networks.vae import AutoencoderKL
from plugins.diffusion.programs import decoder_program, text_program, unet_program
from plugins.formats.litert import litert, open_litert
from plugins.formats.onnx_graph import onnx
from plugins.formats.program import Input, Program, read_stablehlo, stablehlo

HEIGHT, WIDTH = 24, 40  # three and five latents high and wide: odd at every level
CONTROLS = {
    "plugin": (MediaPipePlugin, MediaPipeConfig((8, 12), 8, 8, (8,), (8, 16), (2, 2), expansion=2, groups=4)),
    "plugin on pixels": (MediaPipePlugin, MediaPipeConfig((8,), 1, 8, (), (8,), (1,), expansion=2, groups=4)),
    "adapter": (T2IAdapter, T2IAdapterConfig(channels=(8, 12, 12), downscale_factor=4)),
    "grey light adapter": (T2IAdapter, T2IAdapterConfig(1, (8, 12), 2, 8, "light_adapter")),
}
IMAGES = np.random.default_rng(1).random((2, HEIGHT, WIDTH, 3), np.float32)
XL = UNetConfig(
    block_out_channels=(32, 32), layers_per_block=1, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=8, attention_head_dim=(1, 2),
    transformer_layers_per_block=(1, 2), use_linear_projection=True, addition_embed_type="text_time",
    addition_time_embed_dim=16, projection_class_embeddings_input_dim=8 + 6 * 16,
)  # fmt: skip
BASE = {
    "unet": lambda: unet_program(random(UNet, SMALL), 8, 12, 5),
    "unet with features": lambda: unet_program(random(UNet, SMALL), 6, 10, 5, features=True),
    "sdxl": lambda: unet_program(random(UNet, XL), 8, 8, 5, sizes=6),
    "decoder": lambda: decoder_program(random(AutoencoderKL, VAE), 8, 6),
    "fast decoder": lambda: decoder_program(random(AutoencoderTiny, TinyVAEConfig()), 4, 4),
    "text": lambda: text_program(random(TextEncoder, TEXT), 9),
}
onnx_session = functools.partial(onnxruntime.InferenceSession, providers=["CPUExecutionProvider"])


def program_of(name: str) -> Program:
    return BASE[name]() if name in BASE else control_program(random(*CONTROLS[name]), HEIGHT, WIDTH)


def inputs_of(program: Program, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def draw(name: str, value: Input) -> np.ndarray:
        if value.dtype == jnp.int32:
            return rng.integers(0, TEXT.vocab_size, (rows, *value.shape), np.int32)
        if not value.batched:
            return np.array(981, np.float32)
        return IMAGES[:rows] if name == "picture" else rng.standard_normal((rows, *value.shape), np.float32)

    return {name: draw(name, value) for name, value in program.inputs.items()}


def assert_near(found, expected, most: float) -> None:
    """Relative to the largest value of each output."""
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() / np.abs(theirs).max() < most


def assert_close(features, expected) -> None:
    for ours, theirs in zip(features, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def first_rows(inputs: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
    return {name: value[:rows] if value.ndim else value for name, value in inputs.items()}


def stored_features(path: Path) -> list[np.ndarray]:
    tensors = safetensors.numpy.load_file(path)
    return [nhwc(tensors[f"feature_{level}"]) for level in range(len(tensors))]


@pytest.mark.parametrize("name", [*CONTROLS, *(pytest.param(name, marks=pytest.mark.long) for name in BASE)])
def test_onnx(name):
    """For any number of rows; float16 is the type of stored weights alone."""
    program, sizes = program_of(name), []
    inputs = inputs_of(program, 3 if name in BASE else 2)
    expected = jax.jit(program.function)(**inputs)
    for weights, most in {"float32": 2e-5, "float16": 1e-2}.items() if name in BASE else [("float32", 1e-5)]:
        data = onnx(program, weights)
        session = onnx_session(data)
        assert [each.name for each in session.get_inputs()] == list(program.inputs)
        assert [each.name for each in session.get_outputs()] == list(program.outputs)
        for rows in (1, len(expected[0])):
            first = first_rows(inputs, rows)
            first = {name: value.transpose(0, 3, 1, 2) if value.ndim == 4 else value for name, value in first.items()}
            found = session.run(None, first)
            assert [each.shape for each in session.get_outputs()] == [["b", *each.shape[1:]] for each in found]
            assert_near([nhwc(np.asarray(each)) for each in found], [each[:rows] for each in expected], most)
        sizes.append(len(data))
    assert name not in BASE or sizes[1] < 0.8 * sizes[0]


LITERT = {  # name: type of weights: error
    **{name: {"float16": 1e-2} for name in BASE},
    "text": {"float32": 1e-5, "float16": 5e-3, "int8": 0.1},
    **{name: {"float16": 2e-3, "int8": 5e-2} for name in CONTROLS},  # of the shipped networks: docs/portable.md
}
LITERT_MARKS = {"text": ()} | dict.fromkeys(CONTROLS, (pytest.mark.long,))


@pytest.mark.parametrize("name", [pytest.param(n, marks=LITERT_MARKS.get(n, (pytest.mark.slow,))) for n in LITERT])
def test_litert(name, tmp_path):
    program, path, sizes = program_of(name), tmp_path / "program.tflite", {}
    inputs = inputs_of(program, 1)
    expected = jax.jit(program.function)(**inputs)
    for weights, most in LITERT[name].items():
        path.write_bytes(litert(program, weights))
        outputs = open_litert(path)(**inputs)
        assert list(outputs) == list(program.outputs)
        assert_near(outputs.values(), expected, most)
        sizes[weights] = path.stat().st_size
    assert name != "text" or sizes["float16"] < 0.8 * sizes["float32"]


@pytest.mark.long
@pytest.mark.parametrize("name", [*CONTROLS, "unet with features"])
def test_stablehlo(name, tmp_path):
    """For any number of rows."""
    program, path = program_of(name), tmp_path / "program.stablehlo"
    path.write_bytes(stablehlo(program))
    inputs = inputs_of(program, 2)
    expected = jax.jit(program.function)(**inputs)
    for rows in (1, 2):
        assert_close(read_stablehlo(path)(*first_rows(inputs, rows).values()), [each[:rows] for each in expected])
    exported = jax.export.deserialize(bytearray(path.read_bytes()))
    assert exported.platforms == ("cpu", "cuda", "tpu")


@pytest.fixture(scope="module", params=CONTROLS)
def case(request):
    """A network, and its features of two images."""
    network = random(*CONTROLS[request.param])
    return network, contract.encode(*nnx.split(network), jnp.asarray(IMAGES))


@pytest.mark.parametrize(("platform", "grouped"), [("cpu", False), ("cuda", True)])
def test_each_platform_has_its_own_depthwise_convolution(platform, grouped):
    """A program for an accelerator runs on the CPU too, without JAX's check of the platform."""
    network = random(*CONTROLS["plugin"])
    exported = jax.export.deserialize(bytearray(stablehlo(control_program(network, HEIGHT, WIDTH), 1, [platform])))
    assert ("feature_group_count = 16" in exported.mlir_module()) == grouped
    assert exported.mlir_module_serialized.startswith(b"ML\xefR")  # MLIR's bytecode, for other readers
    unchecked = (jax.export.DisabledSafetyCheck.platform(),)
    here = dataclasses.replace(exported, platforms=("cpu",), disabled_safety_checks=unchecked)
    assert_close(jax.jit(here.call)(IMAGES[:1]), contract.encode(*nnx.split(network), IMAGES[:1]))


def test_an_operation_without_a_form_in_onnx_is_named():
    program = Program(lambda x: (jnp.sort(x),), {"x": Input((4,))}, ("y",))
    refused(ValueError, onnx, program, match="sort")


def test_without_the_package_onnx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    refused(ImportError, lambda: onnx(control_program(random(*CONTROLS["plugin"]), HEIGHT, WIDTH)), match=r"\[export\]")


def test_features_are_channels_first_with_metadata(case, tmp_path):
    """A network's program gives the same."""
    network, expected = case
    assert_close(jax.jit(control_program(network, HEIGHT, WIDTH).function)(picture=IMAGES), expected)
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
    controlnet, plugin = load(folder("controlnet")), random(*CONTROLS["plugin"])
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
    save(random(*CONTROLS["plugin"]), "plugin")
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


@pytest.mark.long
def test_the_command_writes_the_parts_of_a_base(tmp_path, capsys):
    for part, tail in (("unet", "--with-features"), ("decoder", ""), ("text_encoder", "")):
        main(f"export --base diffusion-small --part {part} -o {tmp_path}/{part}.onnx --weights float16 {tail}".split())
        assert part in capsys.readouterr().out
    sessions = {path.stem: onnx_session(path) for path in tmp_path.iterdir()}
    shapes = {name: {each.name: each.shape for each in session.get_inputs()} for name, session in sessions.items()}
    assert shapes["decoder"] == {"latents": ["b", 4, 16, 16]} and shapes["text_encoder"] == {"tokens": ["b", 24]}
    assert shapes["unet"]["feature_2"] == ["b", 112, 4, 4] and shapes["unet"]["timestep"] == []
