"""Networks of a base as programs of other runtimes: ONNX, LiteRT and StableHLO files give JAX's outputs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
from networks import SMALL, random
from refusal import refused
from tiny_base import TEXT, VAE

from common.nn.text_encoder import TextEncoder
from plugins.cli.main import main
from plugins.diffusion.networks.tiny_vae import AutoencoderTiny, TinyVAEConfig
from plugins.diffusion.networks.unet import UNet, UNetConfig
from plugins.diffusion.networks.vae import AutoencoderKL
from plugins.diffusion.programs import decoder_program, text_program, unet_program
from plugins.formats.litert import litert, open_litert
from plugins.formats.onnx_graph import onnx
from plugins.formats.program import Input, Program, read_stablehlo, stablehlo

XL = UNetConfig(
    block_out_channels=(32, 32), layers_per_block=1, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=8, attention_head_dim=(1, 2),
    transformer_layers_per_block=(1, 2), use_linear_projection=True, addition_embed_type="text_time",
    addition_time_embed_dim=16, projection_class_embeddings_input_dim=8 + 6 * 16,
)  # fmt: skip
PROGRAMS = {
    "unet": lambda: unet_program(random(UNet, SMALL), 8, 12, 5),
    "unet with features": lambda: unet_program(random(UNet, SMALL), 6, 10, 5, features=True),
    "sdxl": lambda: unet_program(random(UNet, XL), 8, 8, 5, sizes=6),
    "decoder": lambda: decoder_program(random(AutoencoderKL, VAE), 8, 6),
    "fast decoder": lambda: decoder_program(random(AutoencoderTiny, TinyVAEConfig()), 4, 4),
    "text": lambda: text_program(random(TextEncoder, TEXT), 9),
}


def inputs_of(program: Program, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def draw(name: str, value: Input) -> np.ndarray:
        if value.dtype == jnp.int32:
            return rng.integers(0, TEXT.vocab_size, (rows, *value.shape), np.int32)
        if not value.batched:
            return np.array(981, np.float32)
        return rng.standard_normal((rows, *value.shape), np.float32)

    return {name: draw(name, value) for name, value in program.inputs.items()}


def assert_near(found: list[np.ndarray], expected: list[np.ndarray], most: float) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() / np.abs(theirs).max() < most


def first_rows(inputs: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
    return {name: value[:rows] if value.ndim else value for name, value in inputs.items()}


def turned(array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return array.transpose(axes) if array.ndim == 4 else array


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_onnx(name):
    """For any number of rows; float16 is the type of stored weights alone."""
    program, sizes = PROGRAMS[name](), []
    inputs = inputs_of(program, 3)
    expected = jax.jit(program.function)(**inputs)
    for weights, most in (("float32", 2e-5), ("float16", 1e-2)):
        data = onnx(program, weights)
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        assert [each.name for each in session.get_inputs()] == list(program.inputs)
        for rows in (1, 3):
            first = {name: turned(value, (0, 3, 1, 2)) for name, value in first_rows(inputs, rows).items()}
            found = [turned(np.asarray(each), (0, 2, 3, 1)) for each in session.run(None, first)]
            assert_near(found, [each[:rows] for each in expected], most)
        sizes.append(len(data))
    assert sizes[1] < 0.8 * sizes[0]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS if name != "text"])
def test_litert(name, tmp_path):
    """float16 for all; a test of plugins has int8 too."""
    check_litert(PROGRAMS[name](), tmp_path / "program.tflite", {"float16": 1e-2})


def test_litert_with_each_type_of_weights(tmp_path):
    sizes = check_litert(PROGRAMS["text"](), tmp_path / "text.tflite", {"float32": 1e-5, "float16": 5e-3, "int8": 0.1})
    assert sizes["float16"] < 0.8 * sizes["float32"]


def check_litert(program: Program, path: Path, most: dict[str, float]) -> dict[str, int]:
    """The sizes of the files."""
    inputs, sizes = inputs_of(program, 1), {}
    expected = jax.jit(program.function)(**inputs)
    for weights, largest in most.items():
        path.write_bytes(litert(program, weights))
        outputs = open_litert(path)(**inputs)
        assert list(outputs) == list(program.outputs)
        assert_near(list(outputs.values()), expected, largest)
        sizes[weights] = path.stat().st_size
    return sizes


@pytest.mark.long
def test_stablehlo(tmp_path):
    program, path = PROGRAMS["unet with features"](), tmp_path / "unet.stablehlo"
    path.write_bytes(stablehlo(program, platforms=["cpu"]))
    inputs = inputs_of(program, 2)
    expected = jax.jit(program.function)(**inputs)
    for rows in (1, 2):
        found = read_stablehlo(path)(*first_rows(inputs, rows).values())
        assert_near(list(found), [each[:rows] for each in expected], 1e-5)


def test_an_operation_without_a_form_in_onnx_is_named():
    program = Program(lambda x: (jnp.sort(x),), {"x": Input((4,))}, ("y",))
    refused(ValueError, onnx, program, match="sort")


@pytest.mark.long
def test_the_command_writes_the_parts_of_a_base(tmp_path, capsys):
    for part, tail in (("unet", "--with-features"), ("decoder", ""), ("text_encoder", "")):
        main(f"export --base diffusion-small --part {part} -o {tmp_path}/{part}.onnx --weights float16 {tail}".split())
        assert part in capsys.readouterr().out
    sessions = {path.stem: onnxruntime.InferenceSession(path) for path in tmp_path.iterdir()}
    shapes = {name: {each.name: each.shape for each in session.get_inputs()} for name, session in sessions.items()}
    assert shapes["decoder"] == {"latents": ["b", 4, 16, 16]} and shapes["text_encoder"] == {"tokens": ["b", 24]}
    assert shapes["unet"]["feature_2"] == ["b", 112, 4, 4] and shapes["unet"]["timestep"] == []
