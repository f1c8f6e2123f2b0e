"""Time of exported networks on a CPU: a plugin by itself, and what controls add to a base, as on a device.

    python -m benchmarks.export                     a plugin of Stable Diffusion 1.5's size, 512x512
    python -m benchmarks.export --plugin FOLDER     a trained one
    python -m benchmarks.export --base diffusion-small --plugin canny-small --size 64    beside its base
    python -m benchmarks.export --small             a tiny plugin through the same code, as a check

Needs the extras export, onnx and litert. `jit` is the network as training and pipelines call it, the others are files
of `plugins export`, in float32: `onnx` runs in onnxruntime, `litert` in LiteRT's interpreter. Each case is a process of
its own, bound to as many cores as it has threads; its programs are timed in turns.

- `file MB`: the plugin's file; with a base, the UNet's. For `jit` the weights.
- `start s`: reading the files, compiling, and the first calls. Nothing compiled earlier is used.
- `plugin ms`: of one image, the median of `--repeats` calls. `CPU ms`: of all threads; less noisy on a busy machine.
- `off by`: the largest difference from `jit`'s outputs, over their largest value.

With a base, `base`, `with plugin` and `with ControlNet` are milliseconds of a call for the two rows of guidance: the
plugin's features are inputs of the UNet, a ControlNet of random weights runs beside it. Overheads, in percent of the
base's calls, are of `--steps` calls and what is computed once before them; `by parts` leaves out the sums of features,
which take less than calls differ by, `by calls` is whole calls with their noise.
"""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks.measuring import ON_CPU, heading, in_process, line, timed

QUIET = {**ON_CPU, "TF_CPP_MIN_LOG_LEVEL": "3"}
FORMATS = {  # of each runtime: suffix of its files, and type of their weights
    "jit": ("", "float32"),
    "stablehlo": (".stablehlo", "float32"),
    "onnx": (".onnx", "float32"),
    "litert": (".tflite", "float32"),
    "litert float16": (".half.tflite", "float16"),
    "litert int8": (".int8.tflite", "int8"),
}
PLUGIN, BASE, FEATURES, CONTROLNET, HINT = "plugin", "base", "features", "controlnet", "hint"
ROWS = {PLUGIN: 1, HINT: 1, BASE: 2, FEATURES: 2, CONTROLNET: 2}
COLUMNS = {"runtime": "", "cores": "", "file MB": ".1f", "start s": ".2f", "plugin ms": ".2f", "CPU ms": ".2f"}
COLUMNS |= {"off by": ".0e"}
WITH_BASE = {"base": ".2f", "with plugin": ".2f", "with ControlNet": ".2f", "plugin % by parts": "+.2f"}
WITH_BASE |= {"plugin % by calls": "+.1f", "ControlNet %": "+.1f"}


@dataclass
class Options:
    plugin: str | None = None  # A MediaPipe plugin or a T2I-Adapter instead of random weights
    base: str | None = None
    """A base that the plugin fits: also time its UNet alone, with the plugin, and with a ControlNet."""
    size: int = 512  # Side of the picture
    steps: int = 20  # Calls of the UNet in a run
    cores: tuple[int, ...] = (1, 2)
    repeats: int = 20  # Timed calls per number; the median counts
    runtimes: tuple[str, ...] = tuple(FORMATS)
    small: bool = False  # A tiny plugin and picture, to see that it runs


def programs(plugin: str | None, base: str | None, size: int, small: bool) -> dict[str, Any]:
    """The programs by name; random weights where none are named."""
    import jax
    from flax import nnx

    from plugins import control, diffusion
    from plugins.control.export import control_program
    from plugins.diffusion.programs import unet_program
    from plugins.formats.program import Input, Program

    def redrawn(network: Any, name: str) -> Any:
        """Zero convolutions would agree with anything."""
        for i, conv in enumerate(getattr(network, name)):
            conv.kernel[...] = 0.1 * jax.random.normal(jax.random.key(i), conv.kernel.shape)
        return network

    if plugin is None:
        tiny = control.MediaPipeConfig((32, 64), 8, 8, (8,), (16, 24), (1, 1), expansion=2)
        config = tiny if small else control.MediaPipeConfig()
        network = redrawn(control.MediaPipePlugin(config, rngs=nnx.Rngs(0)), "heads")
    else:
        network = control.load(plugin)
    found = {PLUGIN: control_program(network, size, size)}
    if base is None:
        return found
    files = diffusion.read_base(base)
    unet, unit = diffusion.load_unet(files.path), files.base.unit
    side, tokens = size // unit, files.base.length
    other: Any = control.ControlNet.for_unet(unet.config, unit, rngs=nnx.Rngs(0))
    other = redrawn(other, "controlnet_down_blocks")

    def controlled(latents: Any, timestep: Any, context: Any, hint: Any) -> tuple[Any, ...]:
        output = other(hint, latents, timestep, context)
        return (unet(latents, timestep, context, None, output.skip_residuals, output.mid_residual),)

    alone = unet_program(unet, side, side, tokens)
    hint = Input((side, side, unet.config.block_out_channels[0]))
    return found | {
        BASE: alone,
        FEATURES: unet_program(unet, side, side, tokens, features=True),
        CONTROLNET: Program(controlled, {**alone.inputs, "hint": hint}, ("prediction",)),
        HINT: Program(lambda picture: (other.encode(picture),), {"picture": Input((size, size, 3))}, ("hint",)),
    }


def write(folder: str, runtimes: tuple[str, ...], **network: Any) -> dict[str, float]:
    """All files; by runtime, megabytes of the one that counts."""
    from plugins.formats.litert import litert
    from plugins.formats.onnx_graph import onnx
    from plugins.formats.program import stablehlo

    made, sizes = programs(**network), {}
    for runtime in runtimes:
        suffix, weights = FORMATS[runtime]
        for name, program in made.items():
            if runtime == "jit":
                data = onnx(program)  # its size is the weights'
            elif runtime == "stablehlo":
                data = stablehlo(program)
            else:
                data = onnx(program, weights) if runtime == "onnx" else litert(program, weights, ROWS[name])
            if suffix:
                (Path(folder) / f"{name}{suffix}").write_bytes(data)
            if name in (PLUGIN, BASE):
                sizes[runtime] = len(data) / 1e6
    return sizes


def run(runtime: str, folder: str, cores: int, repeats: int, **network: Any) -> dict[str, Any]:
    """All numbers of one runtime, in this process; outputs for the same inputs go to the folder."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    import jax

    jax.devices()  # starts the backend
    made, rng = programs(**network), np.random.default_rng(0)
    inputs = {
        name: {key: np.asarray(rng.random(x.shape), np.float32) for key, x in program.abstract(ROWS[name]).items()}
        for name, program in made.items()
    }
    start = time.perf_counter()
    calls = {name: opened(runtime, folder, name, made[name], inputs[name], cores) for name in made}
    outputs = {name: call() for name, call in calls.items()}
    starting = time.perf_counter() - start
    times = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(timed(call)[1:])
    flat = {f"{name}_{i}": array for name, arrays in outputs.items() for i, array in enumerate(arrays)}
    np.savez(Path(folder) / f"{runtime}.npz", **flat)
    return {"start s": starting} | {name: (1e3 * np.median(each, axis=0)).tolist() for name, each in times.items()}


Call = Callable[[], list[np.ndarray]]


def opened(runtime: str, folder: str, name: str, program: Any, inputs: dict[str, np.ndarray], cores: int) -> Call:
    """A call of that program in that runtime, with images `b h w c` in and out."""
    path = Path(folder) / f"{name}{FORMATS[runtime][0]}"
    if runtime == "onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = cores
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        feed = {key: channels(value, (0, 3, 1, 2)) for key, value in inputs.items()}
        return lambda: [channels(np.asarray(output), (0, 2, 3, 1)) for output in session.run(None, feed)]
    if runtime.startswith("litert"):
        from plugins.formats.litert import open_litert

        call = open_litert(path, cores)
        return lambda: list(call(**inputs).values())
    import jax

    from plugins.formats.program import read_stablehlo

    function = jax.jit(program.by_position) if runtime == "jit" else read_stablehlo(path)
    values = [jax.device_put(value) for value in inputs.values()]
    return lambda: [np.asarray(output) for output in function(*values)]


def channels(array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return np.ascontiguousarray(array.transpose(axes)) if array.ndim == 4 else array


def off_by(folder: Path, runtime: str) -> float:
    """From the outputs of `jit`."""
    with np.load(folder / "jit.npz") as known, np.load(folder / f"{runtime}.npz") as other:
        # Outputs of an untrained ControlNet are zeros.
        differences = {name: np.abs(known[name] - other[name]).max() for name in known.files}
        return max(found / (np.abs(known[name]).max() or 1) for name, found in differences.items())


def row(found: dict[str, Any], steps: int) -> dict[str, float]:
    millis = {name: value[0] for name, value in found.items() if name != "start s"}
    numbers = {"start s": found["start s"], "plugin ms": millis[PLUGIN], "CPU ms": found[PLUGIN][1]}
    if BASE not in millis:
        return numbers
    base = steps * millis[BASE]
    numbers |= {"base": millis[BASE], "with plugin": millis[FEATURES], "with ControlNet": millis[CONTROLNET]}
    numbers["plugin % by parts"] = 100 * millis[PLUGIN] / base
    numbers["plugin % by calls"] = 100 * ((millis[PLUGIN] + steps * millis[FEATURES]) / base - 1)
    numbers["ControlNet %"] = 100 * ((millis[HINT] + steps * millis[CONTROLNET]) / base - 1)
    return numbers


def main(options: Options) -> None:
    size = 64 if options.small else options.size
    runtimes = tuple(dict.fromkeys(("jit", *options.runtimes)))  # the others are compared with it
    network = {"plugin": options.plugin, "base": options.base, "size": size, "small": options.small}
    columns = COLUMNS | (WITH_BASE if options.base else {})
    with tempfile.TemporaryDirectory() as folder:
        megabytes = in_process(write, folder, runtimes, environment=QUIET, **network)
        heading(f"{size}x{size}", columns)
        for cores in options.cores:
            for runtime in runtimes:
                found = in_process(run, runtime, folder, cores, options.repeats, environment=QUIET, **network)
                cells = {"runtime": runtime, "cores": cores, "file MB": megabytes[runtime]}
                cells |= {"off by": off_by(Path(folder), runtime)}
                line(columns, row(found, options.steps) | cells)


if __name__ == "__main__":
    main(tyro.cli(Options))
