"""Logs of a run: `metrics.jsonl` and PNG pictures always, TensorBoard by default, Weights & Biases on request.

`metrics.jsonl` has one object per logged step; numbers that are not finite are null. On resume the lines of steps that
will be repeated are dropped. Of several processes only the first writes.
"""

import contextlib
import dataclasses
import json
import math
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from tensorboardX import SummaryWriter

from common.io.files import atomic_output
from common.io.images import write_image
from common.training import distributed
from common.training.task import Metrics

Image = Float[np.ndarray, "h w 3"]
WATCHED = ("loss", "grad_norm", "update_norm")  # metrics that end the run when they are not finite


@dataclasses.dataclass(frozen=True)
class LoggerConfig:
    tensorboard: bool = True  # event files in `tensorboard/` of the run
    wandb: str | None = None  # project of Weights & Biases (extra `wandb`; WANDB_MODE=offline works)


class Logger:
    """Writes scalars and pictures of a run that (re)starts at `step` to all its writers."""

    def __init__(self, folder: Path, step: int = 0, config: LoggerConfig | None = None):
        config = config or LoggerConfig()
        self.writers: list[Any] = []
        if distributed.is_first():
            self.writers = [Files(folder, step), *([TensorBoard(folder, step)] if config.tensorboard else [])]
            self.writers += [WandB(folder, step, config.wandb)] if config.wandb else []

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for writer in self.writers:
            writer.scalars(step, values)

    def pictures(self, step: int, pictures: Mapping[str, Image]) -> None:
        for name, picture in pictures.items():
            for writer in self.writers:
                writer.picture(step, name, picture)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


class MetricWindow:
    """The metrics of the steps since the last log line, read one step late: the step that was just dispatched runs
    meanwhile. A value that is not finite is found before anything is saved. `latest` gives the step of the newest
    checkpoint and `names` the examples of ids, for the error."""

    def __init__(self, latest: Callable[[], int | None], names: Callable[[Any], Sequence[str]]):
        self.latest, self.names = latest, names
        self.clock: float | None = None  # None: the first step is being compiled
        self.rows: list[dict[str, float]] = []
        self.pending: tuple[int, Any, Metrics] | None = None

    def add(self, step: int, ids: Any, metrics: Metrics) -> None:
        """Takes the metrics of `step`, just dispatched, and reads those of the step before."""
        if self.clock is None:
            self.clock = time.perf_counter()
        self.check()
        self.pending = step, ids, metrics

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the time inside out of the steps per second; checks the pending step first."""
        self.check()
        begin = time.perf_counter()
        yield
        if self.clock is not None:
            self.clock += time.perf_counter() - begin

    def check(self) -> None:
        """Reads the pending step. Raises FloatingPointError if one of `WATCHED` is not finite."""
        if self.pending is None:
            return
        (step, ids, metrics), self.pending = self.pending, None
        row = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self.rows.append(row)
        bad = next((name for name in WATCHED if not math.isfinite(row[name])), None)
        if bad is None:
            return
        examples = "" if ids is None else f" on {', '.join(self.names(np.asarray(ids).tolist()))}"
        way = "lower optim.lr or set optim.clip"
        if (good := self.latest()) is None:
            way = f"there is no checkpoint yet: {way}, and start again"
        else:  # `common/training/run.py` resumes with the same values alone
            there = "task.start_from the weights that python -m common.training.export writes"
            way = f"the last good checkpoint is of step {good}: {way} in a run of another name, with {there}"
        raise FloatingPointError(f"{bad} became {row[bad]} at step {step}{examples}; {way}")

    def mean(self) -> dict[str, float]:
        """Means since the last call, with the steps per second, compiling left out; waits for the newest step."""
        self.check()
        values = {name: float(np.mean([row[name] for row in self.rows])) for name in self.rows[0]}
        assert self.clock is not None, "there are rows, so there was a step"
        rows, before, self.rows, self.clock = self.rows, self.clock, [], time.perf_counter()
        return values | {"steps_per_s": len(rows) / (self.clock - before)}


class Files:
    """`metrics.jsonl` and `pictures/NAME_STEP.png`."""

    def __init__(self, folder: Path, step: int):
        self.folder, path = folder / "pictures", folder / "metrics.jsonl"
        if path.exists():
            with path.open() as lines, atomic_output(path, overwrite=True) as temporary:
                whole = (re.fullmatch(r'\{"step": (\d+),.*\}\n', line) for line in lines)  # a crash may cut one short
                temporary.write_text("".join(line[0] for line in whole if line and int(line[1]) <= step))
        self.stream = path.open("a")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        finite = {k: float(v) if math.isfinite(v) else None for k, v in values.items()}
        print(json.dumps({"step": step, **finite}, allow_nan=False), file=self.stream, flush=True)

    def picture(self, step: int, name: str, picture: Image) -> None:
        self.folder.mkdir(exist_ok=True)
        write_image(self.folder / f"{name}_{step:07d}.png", picture, overwrite=True)

    def close(self) -> None:
        self.stream.close()


class TensorBoard:
    """Event files; those of steps that will be repeated are marked as void."""

    def __init__(self, folder: Path, step: int):
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
        self.close = self.writer.close

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name.replace(" ", "_"), value, step)  # TensorBoard warns of blanks

    def picture(self, step: int, name: str, picture: Image) -> None:
        self.writer.add_image(name, np.clip(picture, 0, 1), step, dataformats="HWC")


class WandB:
    """Weights & Biases. The id is in `wandb_id`: a resumed run continues there, one that starts again is another."""

    def __init__(self, folder: Path, step: int, project: str):
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError as error:
            raise ImportError("logger.wandb needs wandb: pip install 'film-plugins-reveal[wandb]'") from error
        self.wandb: Any = wandb
        path, name = folder / "wandb_id", "-".join(folder.parts[-2:])
        if step == 0 or not path.exists():
            path.write_text(secrets.token_hex(8))
        self.run = wandb.init(project=project, id=path.read_text(), name=name, dir=str(folder), resume="allow")
        self.close = self.run.finish

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def picture(self, step: int, name: str, picture: Image) -> None:
        self.run.log({name: self.wandb.Image(np.clip(picture, 0, 1))}, step=step)
