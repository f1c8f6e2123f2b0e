"""Time, arithmetic and memory of one training step of FILM. One line per case, each in a process of its own.

    python -m benchmarks.step                                       paper, crop 256, batch 1, 2, 4, remat or not
    python -m benchmarks.step --model small --crop 128 --batch 4
    python -m benchmarks.step --batch 8 --dtype float32 bfloat16    for an accelerator

A step is the trainer's own (`common.training.state.train_step`: gradient, Adam, new parameters) on FILM-L1, run on one
device with the state donated. `ms` is the median of the steps after the first. `TFLOP/s` counts the arithmetic of the
plain step, before XLA touches it, multiply and add as two: what remat computes twice counts once. `planned MB` is the
compiled program's own (arguments, results, temporaries); `peak MB` is measured: on an accelerator its own count, on
Linux the most memory of the process while stepping, less that before the state was made.
"""

import statistics
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
import tyro

from benchmarks.measuring import MEGABYTE, forget_peak, heading, in_process, line, memory, timed
from common.nn.init import COMPILE_FAST
from common.runtime import keep_freed_memory
from common.training.optimizer import OptimConfig, make_optimizer
from common.training.state import init_state, train_step
from common.training.task import Batch
from film.model import FilmConfig
from film.training.interpolation_task import FilmTask

PRESETS = {"paper": FilmConfig.paper, "small": FilmConfig.small}
# Columns and the formats of their numbers.
COLUMNS = {"batch": "", "dtype": "", "remat": "", "compile s": ".0f", "ms": ",.0f", "crops/s": ".2f", "TFLOP/s": ".3f"}
COLUMNS |= {"planned MB": ",.0f", "peak MB": ",.0f"}


@dataclass(frozen=True)
class Step:
    """One case: the trainer's step, compiled, with a state and a batch to run it on."""

    model: str = "small"
    batch: int = 8
    crop: int = 256
    dtype: str = "float32"
    remat: bool = False

    @cached_property
    def lowered(self) -> jax.stages.Lowered:
        task, tx, optim = self._parts()
        state = jax.eval_shape(partial(init_state, task, tx, optim, 0))
        step = jax.jit(partial(train_step, task, tx, optim, 1), donate_argnums=0)
        return step.lower(state, self.batch_of_noise(), {})

    @cached_property
    def compiled(self) -> jax.stages.Compiled:
        return self.lowered.compile()

    def flops(self) -> float:
        """Multiplications and additions of the step without remat."""
        cost = Step(self.model, self.batch, self.crop).lowered.cost_analysis()
        return (cost[0] if isinstance(cost, list) else cost or {}).get("flops", float("nan"))

    def planned(self) -> int:
        """Bytes that the compiled program says it needs; the donated state counts once."""
        memory: Any = self.compiled.memory_analysis()
        held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
        return held + memory.temp_size_in_bytes

    def fresh_state(self) -> Any:
        task, tx, optim = self._parts()
        return jax.jit(partial(init_state, task, tx, optim, 0), compiler_options=COMPILE_FAST)()

    def batch_of_noise(self) -> Batch:
        rng = np.random.default_rng(0)
        frames = rng.random((3, self.batch, self.crop, self.crop, 3), np.float32)
        return dict(zip(("x0", "y", "x1"), frames, strict=True)) | {"time": np.full((self.batch, 1), 0.5, np.float32)}

    def _parts(self):
        task = FilmTask(PRESETS[self.model](), random_init=True, dtype=self.dtype, remat=self.remat)
        optim = OptimConfig()
        return task, make_optimizer(optim, 1000), optim


def measure(case: Step, repeats: int) -> dict[str, Any]:
    keep_freed_memory()  # as training does; no cache of compiled programs
    compile_seconds = timed(lambda: case.compiled)[1]
    before = forget_peak()
    state, batch = case.fresh_state(), jax.device_put(case.batch_of_noise())
    times = []
    for _ in range(1 + repeats):
        (state, _), seconds, _ = timed(lambda state=state: jax.block_until_ready(case.compiled(state, batch, {})))
        times.append(seconds)
    seconds, device = statistics.median(times[1:]), jax.devices()[0]
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")  # of an accelerator
    row = {"device": device.device_kind, "compile s": compile_seconds, "ms": 1e3 * seconds}
    row |= {"crops/s": case.batch / seconds, "TFLOP/s": case.flops() / seconds / 1e12}
    row["planned MB"] = case.planned() / MEGABYTE
    return row | {"peak MB": memory("VmHWM") - before if peak is None else peak / MEGABYTE}


@dataclass
class Options:
    model: str = "paper"  # paper or small
    batch: tuple[int, ...] = (1, 2, 4)  # Batch sizes to try
    crop: int = 256  # Side of the crops, pixels
    dtype: tuple[str, ...] = ("float32",)  # What the network computes in: float32, bfloat16
    remat: tuple[bool, ...] = (False, True)  # Whether to forget activations and compute them again
    repeats: int = 3  # Timed steps per case, after one that is not; the median counts


def main(options: Options) -> None:
    row = {}
    heading(f"{options.model}, crop {options.crop}", COLUMNS)
    for dtype in options.dtype:
        for batch in options.batch:
            for remat in options.remat:
                case = Step(options.model, batch, options.crop, dtype, remat)
                row = in_process(measure, case, options.repeats)
                line(COLUMNS, row | {"batch": batch, "dtype": dtype, "remat": "yes" if remat else "no"})
    print(f"\non {row.get('device', 'nothing')}")


if __name__ == "__main__":
    main(tyro.cli(Options))
