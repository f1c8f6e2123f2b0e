"""Pictures of a training run, as named objects that a config lists: what FILM does to a few triplets of a batch."""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from common.io.images import contact_sheet
from common.training.task import Batch
from film.model import FilmOutput
from film.visualization import flow_picture


@runtime_checkable
class ImageSummary(Protocol):
    """One picture of a batch and what the network made of it, all on the host."""

    @property
    def rows(self) -> int:
        """Examples it shows: the network is run on no more."""
        ...

    def __call__(self, batch: Batch, output: FilmOutput) -> Float[np.ndarray, "h w 3"]: ...


@dataclasses.dataclass(frozen=True)
class TripletSheet:
    """One row per triplet: x0, x1, FILM's frame, the truth, both warped frames, the forward flow."""

    rows: int = 4

    def __call__(self, batch: Batch, output: FilmOutput) -> Float[np.ndarray, "h w 3"]:
        columns = (
            *(batch["x0"], batch["x1"], output.image, batch["y"], output.x0_warped, output.x1_warped),
            [flow_picture(flow) for flow in output.forward_flow[0][: self.rows]],
        )
        rows = min(self.rows, len(batch["x0"]))
        sheet = [np.asarray(column[i], np.float32) for i in range(rows) for column in columns]
        return contact_sheet(sheet, columns=len(columns))


@dataclasses.dataclass(frozen=True)
class FlowPyramid:
    """One row per triplet: the forward flow at each level, finest first, brought to one size."""

    rows: int = 2

    def __call__(self, batch: Batch, output: FilmOutput) -> Float[np.ndarray, "h w 3"]:
        rows = min(self.rows, len(batch["x0"]))
        sheet = []
        for i in range(rows):
            for level, flows in enumerate(output.forward_flow):
                picture = flow_picture(np.asarray(flows[i]))
                sheet.append(np.repeat(np.repeat(picture, 2**level, axis=0), 2**level, axis=1))
        return contact_sheet(sheet, columns=len(output.forward_flow))
