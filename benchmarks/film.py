"""Time and memory of FILM: `python benchmarks/film.py`, one line per model and size.

Each measurement runs in a process of its own (peak memory belongs to one case, compile time to one start), with the
persistent compilation cache off. Weights are random, made without a compiler; the peak is the whole process's. `pair`
is one call of the network on two new frames. `in-between` is the cost of one more frame in a sequence, where each frame
is encoded once: one encoding plus one midpoint. Times are medians after a warm-up. Arithmetic is counted from the
compiled program (XLA's own count, multiply and add as two), without row tiling. XLA counts a loop's body once, so the
correlation and the largest warps are hardly in it.

The column `reference` is the time of the TensorFlow program for a pair on two quiet cores of the same kind, measured
once and not by this script: 1.6 to 1.75 s (256), 6.0 s (512), 23 s (720p).
"""

from __future__ import annotations

import dataclasses
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

# Run as a script, this file's folder comes first on the path, and `import film` would find this file.
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]

REFERENCE = {("paper", 256, 256): 1.6, ("paper", 512, 512): 6.0, ("paper", 720, 1280): 23.0}


@dataclass
class Options:
    models: tuple[str, ...] = ("paper", "small")
    sizes: tuple[str, ...] = ("256x256", "512x512", "1280x720")
    """WIDTHxHEIGHT each."""
    repeats: int = 3
    """Timed runs per number; the median counts."""
    changes: str = "{}"
    """JSON of FilmConfig fields to change, for instance '{"flow_convs": [3, 3, 3, 6]}'."""
    case: Annotated[str | None, tyro.conf.arg(help="Run one MODEL:WIDTHxHEIGHT in this process and print JSON.")] = None


def measure(model_name: str, changes: dict[str, Any], width: int, height: int, repeats: int) -> dict:
    """All numbers of one case, in this process."""
    import jax
    import jax.numpy as jnp
    from film.recursion import Interpolator, _encode, _midpoints
    from flax import nnx

    from common.runtime import keep_freed_memory, return_compilers_memory
    from film.model import Film, FilmConfig
    from film.ops import row_tiling

    keep_freed_memory()
    return_compilers_memory()
    config = dataclasses.replace(getattr(FilmConfig, model_name)(), **changes)
    rng = np.random.default_rng(0)
    graphdef, state = nnx.split(nnx.eval_shape(lambda: Film(config, rngs=nnx.Rngs(0))))
    params = jax.tree.map(lambda leaf: jnp.asarray(_he_normal(rng, leaf.shape)), nnx.to_pure_dict(state))
    frames = rng.random((2, height, width, 3), np.float32)
    interpolator = Interpolator(nnx.merge(graphdef, params), frames[0].shape)
    start = time.perf_counter()
    e0, e1 = (interpolator.encode(frame) for frame in frames)
    jax.block_until_ready(interpolator.midpoints([(e0, e1)]))
    first = time.perf_counter() - start

    def median(run: Callable[[], object]) -> float:
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            jax.block_until_ready(run())
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    encode = median(lambda: interpolator.encode(frames[0]))
    midpoint = median(lambda: interpolator.midpoints([(e0, e1)]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    row_tiling.PIXELS = width * height
    jax.clear_caches()
    flops = _flops(_encode, interpolator.graphdef, interpolator.params, jnp.asarray(frames[:1]))
    flops += _flops(_midpoints, interpolator.graphdef, interpolator.params, e0, e1)
    return {
        "compile": first - 2 * encode - midpoint,
        "pair": 2 * encode + midpoint,
        "in_between": encode + midpoint,
        "gflops": flops / (encode + midpoint) / 1e9,
        "peak_gb": peak / 2**20,
    }


def _he_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A kernel, or a bias of zeros, drawn by NumPy: JAX would compile some sixty programs, which stay in memory."""
    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    return rng.standard_normal(shape, np.float32) * (2 / math.prod(shape[:-1])) ** 0.5


def _flops(function, *arguments) -> float:
    cost = function.lower(*arguments).compile().cost_analysis()
    return (cost[0] if isinstance(cost, list) else cost)["flops"]


def main(options: Options) -> None:
    if options.case:
        name, size = options.case.split(":")
        width, height = map(int, size.split("x"))
        print(json.dumps(measure(name, json.loads(options.changes), width, height, options.repeats)))
        return
    print("| model | size | compile s | pair s | in-between s | reference s | GFLOP/s | peak GB |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in options.models:
        for size in options.sizes:
            case = ["--case", f"{name}:{size}", "--repeats", str(options.repeats), "--changes", options.changes]
            command = [sys.executable, __file__, *case]
            run = subprocess.run(command, check=True, capture_output=True, text=True)
            row = json.loads(run.stdout.splitlines()[-1])
            width, height = map(int, size.split("x"))
            reference = REFERENCE.get((name, height, width), "")
            print(
                f"| {name} | {size} | {row['compile']:.1f} | {row['pair']:.2f} | {row['in_between']:.2f} | {reference} "
                f"| {row['gflops']:.0f} | {row['peak_gb']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(tyro.cli(Options))
