"""Visualization: optical flow as colours, and the image summaries of training and evaluation.

`TripletSheet` is a named object that a training config lists. Evaluations draw a row of small images for each example
that they show (`draw_row`). `inspection_sheet` shows how the network made one frame, `comparison` a frame beside the
plain cross-fade.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Protocol, runtime_checkable

import cv2
import numpy as np
from jaxtyping import Float
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from common.io.images import contact_sheet
from common.training.task import Batch
from film.data.triplet import Prediction, Triplet
from film.model import FilmOutput

Image = Float[np.ndarray, "_ _ 3"]
Frame = Float[np.ndarray, "h w 3"]
Row = list[tuple[Image, str]]  # images and the labels under them
WIDTH = 320  # pixels of each image of a row
ERROR_GAIN = 4
# where on the wheel its six colours stand, and the first again: red, yellow, green, cyan, blue, magenta
WHEEL = np.array([0, 15, 21, 25, 36, 49, 55])
WHEEL_COLORS = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 1], [1, 0, 0]])
CELL = 480  # pixels across an image of an `inspection_sheet`
FROM_X0, EVEN, FROM_X1 = np.array([[0.85, 0.37, 0.0], [0.97, 0.97, 0.97], [0.0, 0.35, 0.7]], np.float32)
NOT_FINITE = np.array([1, 0, 1], np.float32)  # colour of pixels that are not finite


def flow_picture(flow: Float[np.ndarray, "h w 2"], limit: float | None = None) -> Frame:
    """RGB in [0, 1] of flow (dx, dy) in pixels, by the colour wheel of Baker et al. (IJCV 2011): the hue is the
    direction (right is red, down yellow, left cyan, up blue to violet), the saturation the speed: white is zero, full
    colour `limit` pixels and above; by default the 99th percentile."""
    flow = np.asarray(flow, np.float32)
    speed = np.hypot(flow[..., 0], flow[..., 1])
    limit = max(float(np.percentile(speed, 99)) if limit is None else limit, 1e-3)
    turn = np.arctan2(flow[..., 1], flow[..., 0]) / (2 * np.pi) % 1 * WHEEL[-1]
    colors = np.stack([np.interp(turn, WHEEL, channel) for channel in WHEEL_COLORS.T], axis=-1)
    return (1 - np.clip(speed / limit, 0, 1)[..., None] * (1 - colors)).astype(np.float32)


@runtime_checkable
class ImageSummary(Protocol):
    """One image of a training batch and the network's output on its first `rows` examples, all on the host."""

    @property
    def rows(self) -> int: ...
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


def spread(counts: Sequence[int], total: int) -> list[set[int]]:
    """For sets of these sizes, the indices of the examples to show: `total` shared evenly by the sets, evenly spaced
    in each; fewer where a set has too few."""
    ends = [i * total // len(counts) for i in range(len(counts) + 1)]
    shares = [min(end - start, n) for (start, end), n in zip(itertools.pairwise(ends), counts, strict=True)]
    return [{(2 * k + 1) * n // (2 * share) for k in range(share)} for share, n in zip(shares, counts, strict=True)]


def stacked(rows: Sequence[Row]) -> Image:
    """The rows below each other, each as high as its images."""
    sheets = [contact_sheet([image for image, _ in row], len(row), [label for _, label in row]) for row in rows]
    return np.concatenate(sheets)


def draw_row(
    triplet: Triplet, predictions: Mapping[str, Prediction], scores: Sequence[str], title: str, errors: Sequence[str]
) -> Row:
    """The row of a triplet: x0, x1, the truth, each method's frame, the evaluated one's (the first of `predictions`)
    last, the errors of the methods in `errors`, the evaluated one's flow. Labels have names and scores."""
    row = [(triplet.x0, f"{title}: {triplet.name}"), (triplet.x1, "x1"), (triplet.y, "truth")]
    for (method, prediction), score in reversed([*zip(predictions.items(), scores, strict=True)]):
        row.append((prediction.image, f"{method} {score}"))
    for method in errors:
        error = np.abs(predictions[method].image - triplet.y)
        row.append((ERROR_GAIN * error, f"error of {method}, {ERROR_GAIN} times"))
    flow = next(iter(predictions.values())).flow
    if flow is not None:
        speed = float(np.percentile(np.hypot(flow[..., 0], flow[..., 1]), 99))
        row.append((flow_picture(np.nan_to_num(flow)), f"flow, full colour {speed:.0f} px"))
    return [(_thumbnail(image), label) for image, label in row]


def inspection_sheet(x0: Frame, x1: Frame, output: FilmOutput, time: float) -> Image:
    """How the frame at `time` came about, as nine labelled images: the inputs and the frame; both flows, with the wheel
    that reads them; the inputs warped to `time`, and the share that each has in the frame, by the network's own weight
    or, where it has none, by `mixing_weight`. `output` is the network's for a batch of one."""
    image, warped0, warped1 = (np.asarray(x[0]) for x in (output.image, output.x0_warped, output.x1_warped))
    flows = [np.asarray(flow[0][0], np.float32) for flow in (output.forward_flow, output.backward_flow)]
    limit = max(1.0, float(np.percentile([np.hypot(flow[..., 0], flow[..., 1]) for flow in flows], 99)))
    own = output.weight
    weight = mixing_weight(image, warped0, warped1, time)[..., None] if own is None else np.asarray(own[0])
    mask = EVEN + np.maximum(2 * weight - 1, 0) * (FROM_X0 - EVEN) + np.maximum(1 - 2 * weight, 0) * (FROM_X1 - EVEN)
    height = max(1, round(CELL * image.shape[0] / image.shape[1]))
    y, x = np.mgrid[:height, :CELL].astype(np.float32)
    radius = 0.45 * min(CELL, height)
    disk = np.stack([x - (CELL - 1) / 2, y - (height - 1) / 2], axis=-1)
    inside = np.clip(radius - np.linalg.norm(disk, axis=-1, keepdims=True), 0, 1)  # with a smooth edge
    wheel = 1 - inside * (1 - flow_picture(disk, radius))
    cells = [
        (x0, "x0"),
        (image, f"frame at time {time:g}"),
        (x1, "x1"),
        (flow_picture(flows[0], limit), "flow x0 to x1"),
        (wheel, f"direction of flow; full colour: {limit:.0f} px and more"),
        (flow_picture(flows[1], limit), "flow x1 to x0"),
        (warped0, f"x0 warped to {time:g}"),
        (mask, "taken from: x0 orange, x1 blue, both alike white"),
        (warped1, f"x1 warped to {time:g}"),
    ]
    images, labels = zip(*((_thumbnail(np.asarray(image), CELL), label) for image, label in cells), strict=True)
    return contact_sheet(images, 3, labels, gap=10, font_size=16)


def mixing_weight(image: Frame, x0_warped: Frame, x1_warped: Frame, time: float) -> Float[np.ndarray, "h w"]:
    """The weight m in [0, 1] with which image = m * x0_warped + (1 - m) * x1_warped fits best, by least squares over
    the channels of a pixel and its neighbours. Where the warped images are alike it falls back to 1 - time."""
    between = x0_warped - x1_warped
    fit = cv2.GaussianBlur(((image - x1_warped) * between).sum(axis=-1), (0, 0), 1)
    scale = cv2.GaussianBlur((between**2).sum(axis=-1), (0, 0), 1)
    prior = np.float32(3 * (16 / 255) ** 2)  # smaller differences say little: the residual outweighs them
    return np.clip((fit + prior * (1 - time)) / (scale + prior), 0, 1)


def comparison(image: Frame, x0: Frame, x1: Frame, moment: Fraction) -> Float[np.ndarray, "h w2 3"]:
    """The frame at the right of the plain cross-fade of x0 and x1 at `moment`, labelled, a line between."""
    fade = x0 + np.float32(moment) * (x1 - x0)
    line = np.ones((len(image), 2, 3), np.float32)
    return np.concatenate([_titled(fade, "cross-fade"), line, _titled(image, "FILM")], axis=1)


def _titled(image: Image, title: str) -> Image:
    patch, alpha = _title(title, max(11, round(0.035 * min(image.shape[:2]))))
    height, width = (min(sides) for sides in zip(image.shape[:2], alpha.shape[:2], strict=True))
    image, alpha = np.array(image, np.float32), alpha[:height, :width]
    corner = image[:height, :width]
    corner += alpha * (patch[:height, :width] - corner)
    return image


@functools.lru_cache
def _title(title: str, size: int) -> tuple[Float[np.ndarray, "h w 1"], Float[np.ndarray, "h w 1"]]:
    """White letters of `size` pixels on a dark ground, half as much around it: values and opacity."""
    font, margin, height = ImageFont.load_default(size), size // 2, 7 * size // 4
    width = int(font.getlength(title)) + size
    letters, ground = (Pillow.new("L", (margin + width, margin + height)) for _ in range(2))
    box = (margin, margin, margin + width - 1, margin + height - 1)
    ImageDraw.Draw(ground).rounded_rectangle(box, radius=height // 4, fill=150)
    ImageDraw.Draw(letters).text((2 * margin, margin + height // 2), title, fill=255, font=font, anchor="lm")
    values, opacity = (np.asarray(x, np.float32)[..., None] / 255 for x in (letters, ground))
    return values, np.maximum(values, opacity)


def _thumbnail(image: Image, width: int = WIDTH) -> Image:
    """`width` pixels wide, clipped, and coloured where it is not finite."""
    image = np.where(np.isfinite(image).all(axis=-1, keepdims=True), np.clip(image, 0, 1), NOT_FINITE)
    height = max(1, round(width * image.shape[0] / image.shape[1]))
    method = cv2.INTER_AREA if image.shape[1] > width else cv2.INTER_LINEAR
    return cv2.resize(image.astype(np.float32), (width, height), interpolation=method)
