"""What a run leaves to read: `metrics.jsonl` always, TensorBoard by default, Weights & Biases if asked, PNG pictures.

`metrics.jsonl` has one object per logged step. After a resume it goes on; lines of steps that will be done again are
dropped first, so that a step never stands twice. Numbers that are not finite are written as null: JSON has no NaN.
Of several processes only the first writes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

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


@runtime_checkable
class Writer(Protocol):
    """One place that numbers and pictures go to."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None: ...
    def picture(self, step: int, name: str, picture: Image) -> None: ...
    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class LoggerConfig:
    """Attributes:
    tensorboard: write event files into `tensorboard/` of the run.
    wandb: project of Weights & Biases (extra `wandb`; WANDB_MODE=offline works); None: not used.
    """

    tensorboard: bool = True
    wandb: str | None = None

    def writers(self, folder: Path, step: int) -> list[Writer]:
        """The writers of a run that (re)starts at `step`."""
        writers: list[Writer] = [Files(folder, step)]
        if self.tensorboard:
            writers.append(TensorBoard(folder, step))
        if self.wandb:
            writers.append(WandB(folder, self.wandb))
        return writers


class Logger:
    """Writes scalars and pictures of one run to all its writers."""

    def __init__(self, folder: Path, step: int = 0, config: LoggerConfig | None = None):
        config = config or LoggerConfig()
        self.writers = config.writers(folder, step) if distributed.is_first() else []

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
    """The metrics of the steps since the last line of the log, read one step late.

    The step that has just been dispatched stays on the device; the one before it is read meanwhile. A value that is not
    finite is thereby noticed one step after it happened, and before anything is saved. `latest` gives the step of the
    newest checkpoint and `names` the examples of ids, for the error.
    """

    def __init__(self, latest: Callable[[], int | None], names: Callable[[Any], Sequence[str]]):
        self.latest, self.names = latest, names
        self.clock = time.perf_counter()
        self.rows: list[dict[str, float]] = []
        self.waiting: tuple[int, Any, Metrics] | None = None

    def add(self, step: int, ids: Any, metrics: Metrics) -> None:
        """Takes the metrics of `step`, just dispatched, and reads those of the step before."""
        self.check()
        self.waiting = step, ids, metrics

    def check(self) -> None:
        """Reads the step that waits. Raises FloatingPointError if one of `WATCHED` is not finite."""
        if self.waiting is None:
            return
        (step, ids, metrics), self.waiting = self.waiting, None
        row = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self.rows.append(row)
        bad = [name for name in WATCHED if not math.isfinite(row[name])]
        if bad:
            examples = "" if ids is None else f" on {', '.join(self.names(np.asarray(ids).tolist()))}"
            good = self.latest()
            saved = "there is no checkpoint yet" if good is None else f"the last good checkpoint is of step {good}"
            raise FloatingPointError(
                f"{bad[0]} became {row[bad[0]]} at step {step}{examples}; {saved}: "
                "lower optim.lr or set optim.clip, then start again"
            )

    def mean(self) -> dict[str, float]:
        """Means since the last call, with the speed; waits for the newest step."""
        self.check()
        values = {name: float(np.mean([row[name] for row in self.rows])) for name in self.rows[0]}
        now = time.perf_counter()
        values["steps_per_s"] = len(self.rows) / (now - self.clock)
        self.rows, self.clock = [], now
        return values


class Files:
    """`metrics.jsonl` and `pictures/NAME_STEP.png`."""

    def __init__(self, folder: Path, step: int):
        self.folder = folder / "pictures"
        self.path = folder / "metrics.jsonl"
        self._keep_until(step)
        self.stream = self.path.open("a")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        finite = {k: float(v) if math.isfinite(v) else None for k, v in values.items()}
        self.stream.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
        self.stream.flush()

    def picture(self, step: int, name: str, picture: Image) -> None:
        self.folder.mkdir(exist_ok=True)
        write_image(self.folder / f"{name}_{step:07d}.png", picture, overwrite=True)

    def close(self) -> None:
        self.stream.close()

    def _keep_until(self, step: int) -> None:
        if not self.path.exists():
            return
        lines = [line for line in self.path.read_text().splitlines() if _step(line) <= step]
        with atomic_output(self.path, overwrite=True) as temporary:
            Path(temporary).write_text("".join(line + "\n" for line in lines))


class TensorBoard:
    """Event files; those of steps that will be done again are marked as void."""

    def __init__(self, folder: Path, step: int):
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name.replace(" ", "_"), value, step)  # TensorBoard takes no blanks, and says so

    def picture(self, step: int, name: str, picture: Image) -> None:
        self.writer.add_image(name, np.clip(picture, 0, 1), step, dataformats="HWC")

    def close(self) -> None:
        self.writer.close()


class WandB:
    """Weights & Biases; the run's folder is its identity, so that a resumed run goes on there."""

    def __init__(self, folder: Path, project: str):
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError as error:
            raise ImportError(
                "logger.wandb needs the package wandb: pip install 'film-plugins-reveal[wandb]'"
            ) from error
        self.wandb: Any = wandb
        name = "-".join(folder.parts[-2:])
        self.run = wandb.init(project=project, id=name, name=name, dir=str(folder), resume="allow")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def picture(self, step: int, name: str, picture: Image) -> None:
        self.run.log({name: self.wandb.Image(np.clip(picture, 0, 1))}, step=step)

    def close(self) -> None:
        self.run.finish()


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError):
        return float("inf")  # a line that a crash cut short
