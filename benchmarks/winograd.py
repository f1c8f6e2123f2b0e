"""Winograd's convolution beside XLA's on this CPU: `python -m benchmarks.winograd`, a row per layer.

The layers are 3x3 convolutions of FILM's presets at 256x256. CPU milliseconds of a call are medians, both kinds in
turns in one process; each call allocates its arrays anew, which costs wide layers more here than inside the network.
`compile` is CPU seconds, `taken` what `common.nn.winograd.is_faster` chooses.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import lax

from benchmarks.measuring import heading, line, medians, timed
from common.nn.winograd import is_faster, winograd_conv
from film.compiled import COMPILER

LAYERS = {  # side: inputs, outputs of each
    256: ((64, 64), (144, 64), (16, 16)),
    128: ((128, 128), (400, 128), (32, 32)),
    64: ((256, 256), (896, 128), (908, 256), (64, 64)),
    32: ((512, 512), (1920, 256), (2448, 512), (612, 128)),
    16: ((256, 256),),
}
COLUMNS = {"pixels": "", "inputs": "", "outputs": "", "XLA ms": ".1f", "Winograd ms": ".1f", "ratio": ".2f"}
COLUMNS |= {"XLA compile": ".2f", "Winograd compile": ".2f", "taken": ""}


def plain_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def main(repeats: int = 9) -> None:
    heading("3x3 convolutions", COLUMNS)
    rng = np.random.default_rng(0)
    for side, inputs, outputs in ((side, *layer) for side, layers in LAYERS.items() for layer in layers):
        x = jnp.asarray(rng.normal(size=(1, side, side, inputs)), jnp.float32)
        kernel = jnp.asarray(rng.normal(size=(3, 3, inputs, outputs)), jnp.float32)
        row: dict[str, Any] = {"pixels": f"{side}x{side}", "inputs": inputs, "outputs": outputs}
        programs = {}
        for name, function in (("XLA", plain_conv), ("Winograd", winograd_conv)):
            lowered = jax.jit(function, compiler_options=COMPILER).lower(x, kernel)
            programs[name], _, row[f"{name} compile"] = timed(lowered.compile)
        turns = [
            {
                f"{name} ms": 1000 * timed(lambda call=call: jax.block_until_ready(call(x, kernel)))[2]  # noqa: B023
                for name, call in programs.items()
            }
            for _ in range(repeats + 1)
        ]
        row |= medians(turns[1:])
        row |= {"ratio": row["Winograd ms"] / row["XLA ms"], "taken": "yes" if is_faster(x, kernel) else ""}
        line(COLUMNS, row)


if __name__ == "__main__":
    tyro.cli(main)
