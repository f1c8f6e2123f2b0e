"""Visualization: optical flow as colours, and the image summaries of training and evaluation.

`TripletSheet` and `FlowPyramid` are named objects that a training config lists. A `Gallery` has a row for each example
that an evaluation shows, the worst ones or an even choice of all. Rows are drawn small and at once, while their frames
are at hand, so that no test set is read twice and no more rows are kept than are shown. Their columns: x0, x1, the
truth, each method's frame with the evaluated one last, its flow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Protocol, runtime_checkable

import cv2
import numpy as np
from jaxtyping import Float

from common.io.images import contact_sheet
from common.training.task import Batch
from film.data.triplet import Prediction, Triplet
from film.model import FilmOutput

Image = Float[np.ndarray, "_ _ 3"]
Row = list[tuple[Image, str]]  # images and the labels under them
WIDTH = 320  # pixels of each image of a `Gallery`
NOT_FINITE = np.array([1, 0, 1], np.float32)  # colour of pixels that are not finite


def flow_picture(flow: Float[np.ndarray, "h w 2"]) -> Float[np.ndarray, "h w 3"]:
    """RGB in [0, 1] of flow (dx, dy) in pixels: the hue is the direction, the saturation the speed.

    White is zero, full colour the 99th percentile.
    """
    flow = np.asarray(flow, np.float32)
    speed = np.hypot(flow[..., 0], flow[..., 1])
    limit = max(float(np.percentile(speed, 99)), 1e-3)
    hue = np.degrees(np.arctan2(flow[..., 1], flow[..., 0])) % 360
    hsv = np.stack([hue, np.clip(speed / limit, 0, 1), np.ones_like(speed)], axis=-1)
    return cv2.cvtColor(hsv.astype(np.float32), cv2.COLOR_HSV2RGB)


@runtime_checkable
class ImageSummary(Protocol):
    """One image of a training batch and the network's output, all on the host."""

    @property
    def rows(self) -> int:
        """Examples that it shows: the network runs on no more."""
        ...

    def __call__(self, batch: Batch, output: FilmOutput) -> Image: ...


@dataclasses.dataclass(frozen=True)
class TripletSheet:
    """One row per triplet: x0, x1, FILM's frame, the truth, both warped frames, the forward flow."""

    rows: int = 4

    def __call__(self, batch: Batch, output: FilmOutput) -> Image:
        columns = [batch["x0"], batch["x1"], output.image, batch["y"], output.x0_warped, output.x1_warped]
        columns.append([flow_picture(np.asarray(flow)) for flow in output.forward_flow[0][: self.rows]])
        rows = zip(*(column[: self.rows] for column in columns), strict=True)
        return contact_sheet([np.asarray(image) for row in rows for image in row], len(columns))


@dataclasses.dataclass(frozen=True)
class FlowPyramid:
    """One row per triplet: the forward flow at each level, finest first, brought to one size."""

    rows: int = 2

    def __call__(self, batch: Batch, output: FilmOutput) -> Image:
        images = []
        for i in range(min(self.rows, len(batch["x0"]))):
            for level, flows in enumerate(output.forward_flow):
                images.append(flow_picture(np.asarray(flows[i])).repeat(2**level, axis=0).repeat(2**level, axis=1))
        return contact_sheet(images, columns=len(output.forward_flow))


class Gallery:
    """The rows drawn of a set: its `count` examples with the smallest lead, and those with the indices `chosen`."""

    def __init__(self, count: int, chosen: Container[int] = ()):
        self.count, self.chosen = count, chosen
        self.worst: list[tuple[float, int, Row]] = []
        self.examples: list[Row] = []

    def offer(self, index: int, lead: float, draw: Callable[[], Row]) -> None:
        """Calls `draw` only for an example that is shown or among the worst so far; of equal ones, the first is."""
        if index in self.chosen:
            self.examples.append(draw())
        if len(self.worst) < self.count or (self.worst and lead < self.worst[-1][0]):
            self.worst.append((lead, index, draw()))
            self.worst = sorted(self.worst, key=lambda entry: entry[:2])[: self.count]


def spread(counts: Sequence[int], total: int) -> list[set[int]]:
    """For sets of these sizes, the indices of the examples to show: `total` shared evenly by the sets, evenly spaced
    in each; fewer where a set has too few."""
    shares = [(i + 1) * total // len(counts) - i * total // len(counts) for i in range(len(counts))]
    shares = [min(share, count) for share, count in zip(shares, counts, strict=True)]
    return [{(2 * k + 1) * n // (2 * share) for k in range(share)} for share, n in zip(shares, counts, strict=True)]


def stacked(rows: Sequence[Row]) -> Image:
    """The rows below each other, each as high as its images."""
    sheets = [contact_sheet([image for image, _ in row], len(row), [label for _, label in row]) for row in rows]
    return np.concatenate(sheets)


def draw_row(triplet: Triplet, predictions: Mapping[str, Prediction], scores: Sequence[str], title: str) -> Row:
    """The row of a triplet (see the module); the first method is the evaluated one. Labels have names and scores."""
    row = [(triplet.x0, f"{title} {triplet.name}"), (triplet.x1, "x1"), (triplet.y, "truth")]
    for (method, prediction), score in reversed([*zip(predictions.items(), scores, strict=True)]):
        row.append((prediction.image, f"{method} {score}"))
    flow = next(iter(predictions.values())).flow
    if flow is not None:
        speed = float(np.percentile(np.hypot(flow[..., 0], flow[..., 1]), 99))
        row.append((flow_picture(np.nan_to_num(flow)), f"flow, full colour {speed:.0f} px"))
    return [(_thumbnail(image), label) for image, label in row]


def _thumbnail(image: Image) -> Image:
    """`WIDTH` pixels wide, clipped, and coloured where it is not finite."""
    image = np.where(np.isfinite(image).all(axis=-1, keepdims=True), np.clip(image, 0, 1), NOT_FINITE)
    height = max(1, round(WIDTH * image.shape[0] / image.shape[1]))
    method = cv2.INTER_AREA if image.shape[1] > WIDTH else cv2.INTER_LINEAR
    return cv2.resize(image.astype(np.float32), (WIDTH, height), interpolation=method)
