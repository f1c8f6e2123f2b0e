"""Image summaries of an evaluation: a row for each example, those that went worst or an even choice of all.

Rows are drawn small and at once, while their frames are at hand, so that no test set is read twice and no more rows
are kept than are shown. The columns: x0, x1, the truth, each method's frame with the evaluated one last, its flow.
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
WIDTH = 320  # pixels of each image
NOT_FINITE = np.array([1, 0, 1], np.float32)  # colour of pixels that are not finite


class Cell(NamedTuple):
    """An image and the label under it."""

    image: Frame
    label: str


class Gallery:
    """The rows drawn of a set: its `count` examples with the smallest lead, and those with the indices `chosen`."""

    def __init__(self, count: int, chosen: Container[int] = ()):
        self.count, self.chosen = count, chosen
        self.worst: list[tuple[float, int, list[Cell]]] = []
        self.examples: list[list[Cell]] = []

    def offer(self, index: int, lead: float, draw: Callable[[], list[Cell]]) -> None:
        """`draw` is called only for an example that is shown or among the worst so far; of equal ones, the first is."""
        if index in self.chosen:
            self.examples.append(draw())
        if len(self.worst) < self.count or (self.worst and lead < self.worst[-1][0]):
            self.worst.append((lead, index, draw()))
            self.worst = sorted(self.worst, key=lambda entry: entry[:2])[: self.count]


def spread(counts: Sequence[int], total: int) -> list[set[int]]:
    """Indices of the examples to show of sets of these sizes: `total` dealt evenly to the sets, evenly spaced in each;
    fewer where a set has not as many."""
    shares = [(i + 1) * total // len(counts) - i * total // len(counts) for i in range(len(counts))]
    shares = [min(share, count) for share, count in zip(shares, counts, strict=True)]
    return [{(2 * k + 1) * n // (2 * share) for k in range(share)} for share, n in zip(shares, counts, strict=True)]


def stacked(rows: Sequence[list[Cell]]) -> Frame:
    """The rows below each other, each as high as its images."""
    return np.concatenate([contact_sheet([c.image for c in row], len(row), [c.label for c in row]) for row in rows])


def draw_row(
    triplet: Triplet, predictions: Mapping[str, Prediction], scores: Sequence[str], title: str = ""
) -> list[Cell]:
    """x0 with the names of its set and triplet, x1, the truth, each method's frame with its score, the first method's
    last, and its flow if it has one."""
    cells = [Cell(triplet.x0, f"{title} {triplet.name}".strip()), Cell(triplet.x1, "x1"), Cell(triplet.y, "truth")]
    for (method, prediction), score in reversed([*zip(predictions.items(), scores, strict=True)]):
        cells.append(Cell(prediction.image, f"{method} {score}"))
    flow = next(iter(predictions.values())).flow
    if flow is not None:
        speed = float(np.percentile(np.hypot(flow[..., 0], flow[..., 1]), 99))
        cells.append(Cell(flow_picture(np.nan_to_num(flow)), f"flow, full colour {speed:.0f} px"))
    return [Cell(_thumbnail(cell.image), cell.label) for cell in cells]


def _thumbnail(image: Frame) -> Float[np.ndarray, "h2 w2 3"]:
    """`WIDTH` pixels wide, clipped, and marked where it is not finite."""
    image = np.where(np.isfinite(image).all(axis=-1, keepdims=True), np.clip(image, 0, 1), NOT_FINITE)
    height = max(1, round(WIDTH * image.shape[0] / image.shape[1]))
    method = cv2.INTER_AREA if image.shape[1] > WIDTH else cv2.INTER_LINEAR
    return cv2.resize(image.astype(np.float32), (WIDTH, height), interpolation=method)
