"""Scored examples as one picture, a row each with the numbers under it: those that went worst, or a fair choice of all.

Rows are drawn small and at once, while their frames are at hand, so that no test set is read twice and no more rows
are ever kept than are shown. The columns: x0, x1, the truth, each method's frame with the evaluated one last, its flow.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Float

from common.io.images import contact_sheet
from film.data.triplet import Triplet
from film.evaluation.baselines import Prediction
from film.visualization import flow_picture

Frame = Float[np.ndarray, "h w 3"]
WIDTH = 320  # pixels of each picture
MARK = np.array([1, 0, 1], np.float32)  # where a prediction is no number


class Cell(NamedTuple):
    """A picture and what stands under it."""

    picture: Frame
    label: str


class Worst:
    """Keeps the rows of the `count` examples with the smallest lead."""

    def __init__(self, count: int):
        self.count = count
        self.kept: list[tuple[float, int, list[Cell]]] = []
        self.seen = 0

    def offer(self, lead: float, row: Callable[[], list[Cell]]) -> None:
        """`row` is drawn only if its example belongs to the worst so far; of equals, the first does."""
        self.seen += 1
        if len(self.kept) == self.count and (not self.kept or lead >= self.kept[-1][0]):
            return
        self.kept.append((lead, self.seen, row()))
        self.kept = sorted(self.kept, key=lambda entry: entry[:2])[: self.count]

    def sheet(self) -> Frame | None:
        """The rows, worst first; None if there are none."""
        return sheet([row for _, _, row in self.kept])


class Gallery:
    """What is drawn of a set: its `count` worst examples, and those with the numbers `chosen`."""

    def __init__(self, count: int, chosen: Container[int]):
        self.worst, self.chosen = Worst(count), chosen
        self.examples: list[list[Cell]] = []

    def offer(self, number: int, lead: float, row: Callable[[], list[Cell]]) -> None:
        """As `Worst.offer`, for the example with this number."""
        self.worst.offer(lead, row)
        if number in self.chosen:
            self.examples.append(row())


def spread(counts: Sequence[int], total: int) -> list[set[int]]:
    """Which examples to show of sets with so many: `total` dealt evenly to the sets, evenly spaced in each; fewer where
    a set has not as many."""
    shares = [(i + 1) * total // len(counts) - i * total // len(counts) for i in range(len(counts))]
    shares = [min(share, count) for share, count in zip(shares, counts, strict=True)]
    return [{(2 * k + 1) * n // (2 * share) for k in range(share)} for share, n in zip(shares, counts, strict=True)]


def sheet(rows: Sequence[list[Cell]]) -> Frame | None:
    """The rows below each other, each as high as its pictures; None if there are none."""
    if not rows:
        return None
    return np.concatenate([contact_sheet([c.picture for c in row], len(row), [c.label for c in row]) for row in rows])


def row(triplet: Triplet, predictions: Mapping[str, Prediction], scores: Sequence[str], name: str = "") -> list[Cell]:
    """x0 with the names of its set and triplet, x1, the truth, each method's frame with its score, the first method's
    last, and its flow if it has one."""
    cells = [Cell(triplet.x0, f"{name} {triplet.name}".strip()), Cell(triplet.x1, "x1"), Cell(triplet.y, "truth")]
    for (method, prediction), score in reversed([*zip(predictions.items(), scores, strict=True)]):
        cells.append(Cell(prediction.image, f"{method} {score}"))
    flow = next(iter(predictions.values())).flow
    if flow is not None:
        speed = float(np.percentile(np.hypot(flow[..., 0], flow[..., 1]), 99))
        cells.append(Cell(flow_picture(np.nan_to_num(flow)), f"flow, full colour {speed:.0f} px"))
    return [Cell(_shrunk(cell.picture), cell.label) for cell in cells]


def _shrunk(picture: Frame) -> Float[np.ndarray, "h2 w2 3"]:
    """`WIDTH` pixels wide, as shown: clipped, and marked where it is no number."""
    picture = np.where(np.isfinite(picture).all(axis=-1, keepdims=True), np.clip(picture, 0, 1), MARK)
    height = max(1, round(WIDTH * picture.shape[0] / picture.shape[1]))
    filter = cv2.INTER_AREA if picture.shape[1] > WIDTH else cv2.INTER_LINEAR
    return cv2.resize(picture.astype(np.float32), (WIDTH, height), interpolation=filter)
