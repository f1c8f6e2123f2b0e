"""Time and memory of FILM: `python benchmarks/film.py`, one row per model, size and number of frames.

A `pair` is one new frame between two; a `sequence` is 17 frames, the two and the 15 new ones that halve their gap four
times. Each case runs in a process of its own, set up and planned as by the `film` command, without the compilation
cache. Presets have weights drawn by a rule, and see a pattern that moves (`benchmarks.film_reference`). Shipped weights
see the photos of `examples/`, cropped to the size: what is searched for depends on what is seen (`film.matching`). With
`--rows FILE` rows that the file of JSON lines holds are not measured again.

| column | meaning |
| --- | --- |
| first s | seconds of the first run, compilation included |
| s, CPU s | of each new frame, medians; CPU seconds, of all threads together, count on a busy machine |
| GiB | peak of the process; on an accelerator of the device's memory |
| GFLOP/s | arithmetic with plain convolutions by XLA's count (multiply and add as two), for each second |
| of peak | on an accelerator: that rate as a share of `PEAKS` |

`--reference CLONE` adds the TensorFlow program to each row of `paper`: CLONE is a clone of
github.com/google-research/frame-interpolation, `--reference-python` the Python of an environment with TensorFlow 2.15.1
and tensorflow-addons 0.23.0. Both run in turns on the same weights and frames, but for images that the memory lacks
room for. `CPU ratio` is ours by theirs. `--untiled` adds the same program with every level computed whole
(`film.ops.row_tiling`): what row tiling costs, and what it saves.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import tyro

# Run as a script, this file's folder comes first on the path, and `import film` would find this file.
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent), *(path for path in sys.path if Path(path or ".").resolve() != HERE)]

from benchmarks.film_reference import ALIGN, pair, peak, serve, variable  # noqa: E402
from benchmarks.measuring import RowLog  # noqa: E402

PRESETS = "paper", "small", "small-plain"
KINDS = {"pair": 1, "sequence": 4}  # how often the gap is halved
LONG = 600  # seconds: a longer first run is the only one, and counts with its compilation
REFERENCE_BYTES = 6600  # of the TensorFlow program for each pixel, measured at 720p
SAME_MEAN = 1e-4  # of the two programs' frames, at most
PEAKS = {  # FLOP/s of the float32 convolutions of an accelerator by its name: dense TF32 where it has that
    "H200": 494e12,
    "H100": 494e12,
    "A100": 156e12,
    "L4": 60e12,
    "V100": 15.7e12,
    "T4": 8.1e12,
}


@dataclass
class Options:
    models: tuple[str, ...] = ("paper", "small")
    """Also small-plain: without a search of the whole frames (`film.matching`). Or names of shipped weights."""
    sizes: tuple[str, ...] = ("256x256", "512x512", "1280x720", "1920x1080", "3840x2160")
    """WIDTHxHEIGHT each. The sequences of the last two take hours on two cores."""
    kinds: tuple[str, ...] = tuple(KINDS)
    repeats: int = 3  # Most timed runs per number; the median counts
    seconds: float = 60  # No run begins later than so many seconds after the first
    reference: Path | None = None  # A clone of the TensorFlow program
    reference_python: str = sys.executable
    untiled: bool = False  # Run each row without row tiling as well
    rows: Path | None = None  # A file of JSON lines to go on with
    case: Annotated[str | None, tyro.conf.arg(help="Serve one MODEL:WIDTHxHEIGHT:KIND[:untiled] in this process.")] = (
        None
    )


def serve_case(name: str, width: int, height: int, times: int, untiled: bool) -> None:
    """Answers lines of stdin as `film_reference.serve`."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import nnx

    from common.io.images import read_image
    from common.nn.init import blank
    from common.runtime import setup
    from common.weights.porting import flatten, unflatten_like
    from film import compiled, moments
    from film.cli import MOST_KEPT
    from film.config import FilmConfig
    from film.interpolator import Interpolator
    from film.io.weights import load
    from film.model import Film
    from film.ops import convolution, row_tiling
    from film.photos import place
    from film.planning import make_compute_plan
    from film.porting import key_table

    setup(most_kept=MOST_KEPT)
    if untiled:
        row_tiling.FEWEST = sys.maxsize
    if name in PRESETS:
        config = FilmConfig.paper() if name == "paper" else FilmConfig.small(matching=name == "small")
        graphdef, shapes = blank(Film, config)
        names = {path: entry.source for path, entry in key_table(config, "variables").items()}
        # Drawn by NumPy: JAX would compile some sixty programs, which stay in memory.
        drawn = {path: jnp.asarray(variable(names.get(path, path), x.shape)) for path, x in flatten(shapes).items()}
        model, frames = nnx.merge(graphdef, unflatten_like(drawn, shapes)), pair(height, width)
    else:
        model = load(name)
        photos = (read_image(HERE.parent / f"examples/cup_{number}.jpg") for number in (0, 1))
        config, frames = model.config, [place(photo, (width, height), "crop") for photo in photos]

    functions = {key: getattr(compiled, key) for key in ("_encode", "_coarse", "_finish", "_flow")}
    calls, arguments = Counter[tuple[str, str]](), dict[tuple[str, str], Any]()

    def counted(key: str) -> Any:
        def call(graphdef: Any, *given: Any) -> Any:
            levels = [word for word in given if isinstance(word, str)]  # of `_encode`
            variant = key, levels[0] if levels else ""
            calls[variant] += 1
            arrays = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), given[: len(given) - len(levels)])
            arguments[variant] = graphdef, *arrays, *levels
            return functions[key](graphdef, *given)

        return call

    for key in functions:
        setattr(compiled, key, counted(key))
    wanted = moments.even(2**times - 1)
    plan = make_compute_plan(config, (height, width), kept=2 + len(wanted).bit_length(), together=len(wanted))
    network = Interpolator(model, (height, width), plan=plan)
    runs, mean = 0, 0.0

    def run() -> None:
        nonlocal runs, mean
        runs += 1
        for moment, frame in zip(wanted, network.between(*frames, wanted), strict=True):
            if moment == Fraction(1, 2):
                mean = float(np.mean(frame))

    def report() -> dict[str, Any]:
        device = jax.devices()[0]
        used = device.memory_stats()["peak_bytes_in_use"] / 2**30 if device.platform != "cpu" else peak()
        row_tiling.FEWEST = sys.maxsize  # XLA counts the body of a loop once
        convolution.is_faster = lambda *_: False
        jax.clear_caches()
        total = sum(
            count * functions[variant[0]].lower(*arguments[variant]).cost_analysis()["flops"]
            for variant, count in calls.items()
        )
        kind = device.device_kind if device.platform != "cpu" else ""
        return {"peak": used, "mean": mean, "flops": total / runs, "device": kind, "windows": plan.tiled}

    serve(run, report)


class Program:
    """A case in a process of its own, see `film_reference.serve`."""

    def __init__(self, command: Sequence[str]):
        env, pipe = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}, subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)
        self.first = self.answer()
        self.runs = [self.first] if self.first["seconds"] > LONG else []

    def turn(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.runs.append(self.answer())

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a case ended with exit code {self.process.wait()}")
        return json.loads(line)

    def median(self, key: str) -> float:
        return statistics.median(run[key] for run in self.runs)

    def end(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        answer = self.answer()
        self.process.wait()
        return answer


def fits(width: int, height: int) -> bool:
    """Whether the machine has the memory for the TensorFlow program."""
    from film.planning import free_memory

    return REFERENCE_BYTES * (width + -width % ALIGN) * (height + -height % ALIGN) < free_memory()


def cells(options: Options, model: str, size: str, kind: str) -> list[str]:
    width, height = map(int, size.split("x"))
    count = 2 ** KINDS[kind] - 1
    case = f"{model}:{size}:{kind}"
    cases = [case, f"{case}:untiled"] if options.untiled else [case]
    programs = [Program([sys.executable, __file__, "--case", name]) for name in cases]
    if options.reference is not None and model == "paper" and fits(width, height):
        arguments = [options.reference_python, str(HERE / "film_reference.py"), str(options.reference)]
        programs.append(Program([*arguments, str(width), str(height), str(KINDS[kind])]))
    end_of_turns = time.perf_counter() + (options.seconds if programs[0].first["seconds"] < LONG else 0)
    for _ in range(options.repeats):
        if not all(program.runs for program in programs) or time.perf_counter() < end_of_turns:
            for program in programs:
                program.turn()
    ends = [program.end() for program in programs]
    row = [model, size + " in windows" * ends[0]["windows"], kind, f"{programs[0].first['seconds']:.1f}"]
    for program, end in zip(programs, ends, strict=True):
        row += [f"{program.median(key) / count:.2f}" for key in ("seconds", "cpu")] + [f"{end['peak']:.2f}"]
        if program is not programs[0]:
            row.append(f"{programs[0].median('cpu') / program.median('cpu'):.2f}")
            if width % ALIGN == height % ALIGN == 0 and abs(ends[0]["mean"] - end["mean"]) > SAME_MEAN:
                raise RuntimeError(f"the programs' frames differ: means {ends[0]['mean']} and {end['mean']}")
    rate = ends[0]["flops"] / programs[0].median("seconds")
    top = next((top for name, top in PEAKS.items() if name in ends[0]["device"]), None)
    row[7:7] = [f"{rate / 1e9:.0f}", f"{rate / top:.0%}" if top else ""]
    return row


def main(options: Options) -> None:
    """Print the table."""
    if options.case:
        model, size, kind, *untiled = options.case.split(":")
        serve_case(model, *map(int, size.split("x")), KINDS[kind], bool(untiled))
        return
    log = RowLog(options.rows)
    header = ["model", "size", "frames", "first s", "s", "CPU s", "GiB", "GFLOP/s", "of peak"]
    for name in ["untiled"] * options.untiled + ["TF"] * (options.reference is not None):
        header += [f"{name} s", f"{name} CPU s", f"{name} GiB", "CPU ratio"]
    print("| " + " | ".join(header) + " |")
    print("|" + " --- |" * 3 + " ---: |" * (len(header) - 3))
    for model in options.models:
        for size in options.sizes:
            for kind in options.kinds:
                key = {"model": model, "size": size, "kind": kind, "reference": options.reference is not None}
                key["untiled"] = options.untiled
                row = log.row(key, lambda: {"cells": cells(options, model, size, kind)})["cells"]  # noqa: B023
                print("| " + " | ".join(row + [""] * (len(header) - len(row))) + " |", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Options))
