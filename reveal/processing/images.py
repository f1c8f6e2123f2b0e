"""From images to the squares that a network sees: resizing, crops, and views of a question's image.

What fills a third of a photograph has a ninth of a square's few pixels. So a network with a picture tower looks at
*views*: the whole image and windows of it, each resized to the square. The question is asked about the view v with the
largest

    score of its best item - size_cost (1 - share of v) - background (similarity of v to no picture)

A smaller window has to score more, as a piece of a picture is often a picture of its own: the upper two stripes of
Austria's flag are Monaco's. A window near the tower's vector of no picture counts less, as some match by chance.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from common.io.images import from_uint8

WHOLE = (1, 1)  # share of an image that is kept


@dataclasses.dataclass(frozen=True)
class Views:
    """Which views of an image there are, and how one is chosen; the two weights are in units of a score."""

    windows: tuple[tuple[float, int], ...] = ()  # (share of both sides, n): n x n windows of that share
    size_cost: float = 0.15  # of a view of no size
    background: float = 0.5  # of the similarity to no picture

    @classmethod
    def from_json(cls, fields: Mapping[str, Any] | Sequence[Any]) -> "Views":
        """A description in a header; older ones are the windows alone."""
        fields = fields if isinstance(fields, Mapping) else {"windows": fields}
        windows = tuple((float(share), int(count)) for share, count in fields.get("windows", ()))
        return cls(**{**fields, "windows": windows})

    @property
    def count(self) -> int:
        return 1 + sum(n * n for _, n in self.windows)

    def of(self, image: UInt8[np.ndarray, "_h _w 3"], size: int) -> Float[np.ndarray, "v {size} {size} 3"]:
        """The whole image, then its windows row by row."""
        height, width = image.shape[:2]
        found = [resized(image, size)]
        for share, count in self.windows:
            tall, wide = max(1, round(share * height)), max(1, round(share * width))
            tops, lefts = (np.linspace(0, room, count).round().astype(int) for room in (height - tall, width - wide))
            found += [resized(image[top : top + tall, left : left + wide], size) for top in tops for left in lefts]
        return from_uint8(np.stack(found))

    def best(self, scores: Float[np.ndarray, " v"], no_picture: Float[np.ndarray, " v"]) -> int:
        """The view to ask about, by the score of each view's best item; the first of equals."""
        shares = np.concatenate([[1.0], *(np.full(count * count, share) for share, count in self.windows)])
        return int((scores - self.size_cost * (1 - shares) - self.background * no_picture).argmax())


def crops(image: UInt8[np.ndarray, "_h _w 3"], count: int) -> list[UInt8[np.ndarray, "_h _w 3"]]:
    """Windows in rows along the longer side, of about as many, that share half with the next; one alone is the middle:
    1, 4 and 9 have 2/3, 2/3 and 1/2 of each side."""
    if image.shape[0] > image.shape[1]:
        return [one.swapaxes(0, 1) for one in crops(image.swapaxes(0, 1), count)]

    def window(size: int, place: int, of: int) -> slice:
        length = max(1, round(2 * size / (of + 1 + (count == 1))))
        start = round((size - length) * (place / (of - 1) if of > 1 else 0.5))
        return slice(start, start + length)

    (height, width), rows = image.shape[:2], np.array_split(np.arange(count), max(1, round(count**0.5)))
    places = [(row, column, len(own)) for row, own in enumerate(rows) for column in range(len(own))]
    return [image[window(height, row, len(rows)), window(width, column, of)] for row, column, of in places]


def resized(
    image: UInt8[np.ndarray, "_h _w 3"],
    size: int,
    rng: np.random.Generator | None = None,
    share: Sequence[float | int] = WHOLE,
) -> UInt8[np.ndarray, "{size} {size} 3"]:
    """A crop of the image's aspect and of a share of its area drawn by `rng`, resized to a square."""
    height, width = image.shape[:2]
    if rng is not None and share[0] < 1:
        side = np.sqrt(rng.uniform(share[0], share[1]))
        crop_height, crop_width = max(1, round(height * side)), max(1, round(width * side))
        top, left = int(rng.integers(height - crop_height + 1)), int(rng.integers(width - crop_width + 1))
        image = image[top : top + crop_height, left : left + crop_width]
    interpolation = cv2.INTER_AREA if min(image.shape[:2]) >= size else cv2.INTER_LINEAR
    return cv2.resize(image, (size, size), interpolation=interpolation)
