"""Winograd's convolution beside XLA's on this CPU: `python -m benchmarks.winograd`, a row per layer.

The layers are 3x3 convolutions of FILM's presets at 256x256. CPU milliseconds of a call are medians, both kinds in
turns in one process; each call allocates its arrays anew, which costs wide layers more here than inside the network.
`compile` is CPU seconds, `taken` what `common.nn.winograd.is_faster` chooses.
"""

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import lax

from common.nn.winograd import is_faster, winograd_conv
from film.compiled import COMPILER

LAYERS = (  # side, inputs, outputs
    (256, 64, 64),
    (256, 144, 64),
    (128, 128, 128),
    (128, 400, 128),
    (64, 256, 256),
    (64, 896, 128),
    (64, 908, 256),
    (32, 512, 512),
    (32, 1920, 256),
    (32, 2448, 512),
    (16, 256, 256),
    (256, 16, 16),
    (128, 32, 32),
    (64, 64, 64),
    (32, 612, 128),
)


def plain_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def main(repeats: int = 9) -> None:
    """Prints the table."""
    print("| pixels | inputs | outputs | XLA ms | Winograd ms | ratio | XLA compile | Winograd compile | taken |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    rng = np.random.default_rng(0)
    for side, inputs, outputs in LAYERS:
        x = jnp.asarray(rng.normal(size=(1, side, side, inputs)), jnp.float32)
        kernel = jnp.asarray(rng.normal(size=(3, 3, inputs, outputs)), jnp.float32)
        functions, compilation = [], []
        for function in (plain_conv, winograd_conv):
            start = time.process_time()
            functions.append(jax.jit(function, compiler_options=COMPILER).lower(x, kernel).compile())
            compilation.append(time.process_time() - start)
        runs: list[list[float]] = [[], []]
        for number in range(repeats + 1):
            for function, times in zip(functions, runs, strict=True):
                start = time.process_time()
                jax.block_until_ready(function(x, kernel))
                if number:
                    times.append(1000 * (time.process_time() - start))
        xla, ours = map(statistics.median, runs)
        cells: list[Any] = [f"{side}x{side}", inputs, outputs, f"{xla:.1f}", f"{ours:.1f}", f"{ours / xla:.2f}"]
        cells += [f"{seconds:.2f}" for seconds in compilation] + ["yes" if is_faster(x, kernel) else ""]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
