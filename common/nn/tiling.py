"""Overlapping windows of a large image, blended smoothly.

A network sees one window at a time, so its memory depends on the window, not on the image. At a window's edge it lacks
what lies beyond, so the outer `margin` pixels are context only; over the next pixels of the overlap the weights of
neighbours cross-fade along a raised cosine. At the image's own edges weights do not fall.

    window 1   |==========~~~~....|              = weight 1   ~ cross-fade   . context only
    window 2             |....~~~~==========|
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

GRID = 32  # pixels; windows begin at multiples, so that all levels of a pyramid down to 1/32 begin there as well
MARGIN = 32  # pixels of context
OVERLAP = 128  # pixels that neighbours share, two margins included


@dataclasses.dataclass(frozen=True)
class Tiling:
    """Windows of one size that cover an image; sizes are (height, width) and multiples of `grid`."""

    image: tuple[int, int]
    window: tuple[int, int]
    overlap: int = OVERLAP
    margin: int = MARGIN
    grid: int = GRID

    def __post_init__(self) -> None:
        for image, window in zip(self.image, self.window, strict=True):
            fits = window == image or 2 * self.overlap < window < image
            if not fits or image % self.grid or window % self.grid:
                rule = f"sides are multiples of {self.grid}, windows over {2 * self.overlap}, not over the image"
                raise ValueError(f"windows {self.window} of an image {self.image}: {rule}")

    def corners(self) -> list[tuple[int, int]]:
        """Top and left of each window, row by row, evenly spread."""
        rows, columns = map(self._starts, self.image, self.window)
        return list(itertools.product(rows, columns))

    def windows(self) -> Iterator[tuple[slice, slice, Float[np.ndarray, "h w 1"]]]:
        """Rows, columns and weights of each window; the weights of all windows sum to one at each pixel."""
        rows, columns = (list(self._weights(*sides)) for sides in zip(self.image, self.window, strict=True))
        for (top, down), (left, right) in itertools.product(rows, columns):
            weights = (down[:, None] * right)[..., None]
            yield slice(top, top + self.window[0]), slice(left, left + self.window[1]), weights

    def _starts(self, image: int, window: int) -> list[int]:
        count = 1 if window == image else -(-(image - self.overlap) // (window - self.overlap))
        return [i * (image - window) // max(1, count - 1) // self.grid * self.grid for i in range(count)]

    def _weights(self, image: int, window: int) -> Iterator[tuple[int, Float[np.ndarray, " n"]]]:
        starts, ramps, total = self._starts(image, window), [], np.zeros(image, np.float32)
        margin = min(self.margin, self.overlap // 2)
        places = np.linspace(0, 1, self.overlap - 2 * margin + 2)[1:-1]  # in the cross-fade
        rise = np.concatenate([np.zeros(margin), np.sin(np.pi / 2 * places) ** 2])
        for start in starts:
            ramp = np.ones(window, np.float32)
            if start > 0:
                ramp[: len(rise)] = rise
            if start + window < image:
                ramp[window - len(rise) :] *= rise[::-1]
            ramps.append(ramp)
            total[start : start + window] += ramp
        for start, ramp in zip(starts, ramps, strict=True):
            yield start, ramp / total[start : start + window]
