"""Time of an exported plugin on a CPU: one line for each runtime and number of cores.

    python -m benchmarks.export                    for Stable Diffusion 1.5, 512x512; needs the extras export and onnx
    python -m benchmarks.export --plugin FOLDER    a trained one
    python -m benchmarks.export --small            a tiny one through the same code, as a check

`jit` is the plugin as training and pipelines call it, `stablehlo` and `onnx` are the files of `plugins export`; the
latter runs in onnxruntime. Each case is a process of its own, bound to as many cores as it has threads. One image,
float32, random weights unless a plugin is named.

- `file MB`: the exported file; for `jit` the weights.
- `start s`: reading the file, compiling, and the first call. Nothing compiled earlier is used.
- `ms`: the median of `--repeats` calls. `CPU ms`: of all threads; less noisy than `ms` on a busy machine.
- `off by`: the largest difference from `jit`'s features, over their largest value.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

RUNTIMES = ("jit", "stablehlo", "onnx")
FILES = {"stablehlo": "plugin.stablehlo", "onnx": "plugin.onnx"}
NETWORK = "plugin"  # folder of the weights
COLUMNS = {"runtime": "", "cores": "", "file MB": ".1f", "start s": ".2f", "ms": ".1f", "CPU ms": ".1f"}
COLUMNS |= {"off by": ".0e"}


@dataclass
class Options:
    plugin: str | None = None
    """A MediaPipe plugin or a T2I-Adapter instead of random weights."""
    size: int = 512
    """Side of the picture."""
    cores: tuple[int, ...] = (1, 2)
    repeats: int = 20
    """Timed calls per number; the median counts."""
    small: bool = False
    """A tiny plugin and picture, to see that it runs."""
    case: Annotated[str | None, tyro.conf.arg(help="Run the case of this JSON in this process and print JSON.")] = None


def write(folder: str, plugin: str | None, size: int, small: bool) -> dict[str, Any]:
    """The weights and both files; megabytes of each."""
    import jax
    from flax import nnx

    from plugins import control
    from plugins.control.export import to_onnx, to_stablehlo

    if plugin is None:
        tiny = control.MediaPipeConfig((32, 64), 8, 8, (8,), (16, 24), (1, 1), expansion=2)
        network = control.MediaPipePlugin(tiny if small else control.MediaPipeConfig.sd15(), rngs=nnx.Rngs(0))
        for i, head in enumerate(network.heads):  # zeros at first, which would agree with anything
            head.kernel[...] = 0.1 * jax.random.normal(jax.random.key(i), head.kernel.shape)
    else:
        network = control.load(plugin)
    root = Path(folder)
    weights = control.save(network, root / NETWORK)
    (root / FILES["stablehlo"]).write_bytes(to_stablehlo(network, size, size))
    (root / FILES["onnx"]).write_bytes(to_onnx(network, size, size))
    paths = {"jit": weights} | {name: root / file for name, file in FILES.items()}
    return {name: path.stat().st_size / 1e6 for name, path in paths.items()}


def run(runtime: str, folder: str, size: int, cores: int, repeats: int) -> dict[str, Any]:
    """All numbers of one runtime, in this process; its features of one picture go to the folder."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    picture = np.random.default_rng(0).random((1, size, size, 3), np.float32)
    prepare = {"jit": jitted, "stablehlo": stablehlo, "onnx": onnx}[runtime](Path(folder), cores)
    start = time.perf_counter()
    call = prepare(picture)
    features = call()
    starting = time.perf_counter() - start
    seconds, work = np.median([timed(call) for _ in range(repeats)], axis=0)
    np.savez(Path(folder) / f"{runtime}.npz", *features)
    return {"start s": starting, "ms": 1e3 * seconds, "CPU ms": 1e3 * work}


Call = Callable[[], list[np.ndarray]]


def jitted(folder: Path, cores: int) -> Callable[[np.ndarray], Call]:
    """All imports are done; then, for a picture, what loads, and calls."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from plugins import control
    from plugins.control.contract import encode

    jax.devices()  # starts the backend

    def prepare(picture: np.ndarray) -> Call:
        graph, params = nnx.split(control.load(folder / NETWORK))
        params, x = nnx.to_pure_dict(params), jnp.asarray(picture)
        return lambda: [np.asarray(feature) for feature in encode(graph, params, x)]

    return prepare


def stablehlo(folder: Path, cores: int) -> Callable[[np.ndarray], Call]:
    import jax

    from plugins.control.export import read_stablehlo

    jax.devices()

    def prepare(picture: np.ndarray) -> Call:
        program, x = read_stablehlo(folder / FILES["stablehlo"]), jax.device_put(picture)
        return lambda: [np.asarray(feature) for feature in program(x)]

    return prepare


def onnx(folder: Path, cores: int) -> Callable[[np.ndarray], Call]:
    import onnxruntime

    def prepare(picture: np.ndarray) -> Call:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = cores
        path, providers = str(folder / FILES["onnx"]), ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(path, options, providers=providers)
        feed = {"picture": np.ascontiguousarray(picture.transpose(0, 3, 1, 2))}
        return lambda: [np.asarray(feature).transpose(0, 2, 3, 1) for feature in session.run(None, feed)]

    return prepare


def timed(call: Call) -> tuple[float, float]:
    """Seconds, and seconds of all threads on the processor."""
    start, work = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start, time.process_time() - work


def off_by(folder: Path, runtime: str) -> float:
    """From the features of `jit`."""
    with np.load(folder / "jit.npz") as known, np.load(folder / f"{runtime}.npz") as other:
        return max(np.abs(known[name] - other[name]).max() / np.abs(known[name]).max() for name in known.files)


def in_process(case: str, **arguments: Any) -> dict[str, Any]:
    """One case in a process of its own, on the processor."""
    words = [sys.executable, "-m", "benchmarks.export", "--case", json.dumps([case, arguments])]
    quiet = {"JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, env={**os.environ, **quiet})
    return json.loads(done.stdout.splitlines()[-1])


def line(row: dict[str, Any]) -> None:
    print(f"| {' | '.join(format(row[name], form) for name, form in COLUMNS.items())} |", flush=True)


def main(options: Options) -> None:
    if options.case:
        name, arguments = json.loads(options.case)
        print(json.dumps({"write": write, "run": run}[name](**arguments)))
        return
    size = 64 if options.small else options.size
    with tempfile.TemporaryDirectory() as folder:
        megabytes = in_process("write", folder=folder, plugin=options.plugin, size=size, small=options.small)
        print(f"{size}x{size}\n\n| {' | '.join(COLUMNS)} |\n|{' ---: |' * len(COLUMNS)}", flush=True)
        for cores in options.cores:
            for runtime in RUNTIMES:
                row = in_process("run", runtime=runtime, folder=folder, size=size, cores=cores, repeats=options.repeats)
                row |= {"runtime": runtime, "cores": cores, "file MB": megabytes[runtime]}
                line(row | {"off by": off_by(Path(folder), runtime)})


if __name__ == "__main__":
    main(tyro.cli(Options))
