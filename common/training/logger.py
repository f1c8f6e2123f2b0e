"""What a run leaves to read: `metrics.jsonl` always, TensorBoard beside it, pictures as PNGs.

`metrics.jsonl` has one object per logged step. After a resume it goes on; lines of steps that will be done again are
dropped first, so that a step never stands twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float
from tensorboardX import SummaryWriter

from common.files import atomic_output
from common.images import write_image


class Logger:
    """Writes scalars and pictures of one run into its folder; `step` is where the run (re)starts."""

    def __init__(self, folder: Path, step: int = 0):
        self.folder = folder
        self.path = folder / "metrics.jsonl"
        self._keep_until(step)
        self.stream = self.path.open("a")
        self.tensorboard = SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.stream.write(json.dumps({"step": step, **{k: float(v) for k, v in values.items()}}) + "\n")
        self.stream.flush()
        for name, value in values.items():
            self.tensorboard.add_scalar(name, value, step)

    def pictures(self, step: int, pictures: Mapping[str, Float[np.ndarray, "h w 3"]]) -> None:
        for name, picture in pictures.items():
            folder = self.folder / "pictures"
            folder.mkdir(exist_ok=True)
            write_image(folder / f"{name}_{step:07d}.png", picture, overwrite=True)
            self.tensorboard.add_image(name, np.clip(picture, 0, 1), step, dataformats="HWC")

    def close(self) -> None:
        self.stream.close()
        self.tensorboard.close()

    def _keep_until(self, step: int) -> None:
        if not self.path.exists():
            return
        lines = [line for line in self.path.read_text().splitlines() if _step(line) <= step]
        with atomic_output(self.path, overwrite=True) as temporary:
            Path(temporary).write_text("".join(line + "\n" for line in lines))


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError):
        return float("inf")  # a line that a crash cut short
