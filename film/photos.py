"""Photos as people take them -> frames of one size, one view and one exposure.

    preparation = prepare(sizes, names, photos, fit="crop", size="1080p", align=True, match_exposure=True)
    frame = preparation.apply(3, photo)      # photo number 3

Photos are float32 ``h w 3``, RGB in [0, 1]. `prepare` needs their sizes alone, unless it aligns them or matches their
exposure: then it takes each photo once, in order. `apply` does one photo after another (docs/photos.md):

1. fit         photos of different sizes are brought to one frame (`FITS`); none is ever enlarged for it:
               crop    the smallest width by the smallest height; each photo just covers it, its centre is kept
               pad     the largest width by the largest height, scaled down until the smallest photo need not be
                       enlarged; each photo is scaled to fit inside, with black bars
               resize  the size of the photo with the fewest pixels; the others are stretched to it
2. align       the shake of the hand is undone, and the part that all photos show is kept (`film.alignment`)
3. size        the frame is scaled to `size` (`parse_size`)
4. exposure    one gain per colour in linear light makes each photo as bright, and as warm, as the first: the median
               ratio of what two consecutive photos show at the same places (or, where none could be matched, at the
               same ranks), clipped values left out, multiplied up. What moves is less than half of the frame.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import Float

from common.io.images import place, shrink
from common.io.srgb import from_linear, to_linear
from film import alignment
from film.alignment import MIN_SPAN, MIN_VIEW, Matrix, View, rescaled

FITS = ("crop", "pad", "resize")
SMALLEST = 2  # pixels a side
LIGHT_SIDE = 64  # pixels of the longer side of the images that exposures are compared in
USABLE = (0.01, 0.85)  # linear light: below is noise, above a channel may be clipped
MIN_USABLE = 0.02  # share of pixels that are usable in both photos
SHOULDER = 0.8  # linear light above which a gain below 1 fades out: white stays white

Image = Float[np.ndarray, "_ _ 3"]
Size = tuple[int, int]  # width, height
Gains = Float[np.ndarray, "3"]


@dataclasses.dataclass(frozen=True)
class Preparation:
    """What is done to each photo of a sequence. Without matrices and gains all photos are treated alike."""

    frame: Size  # the common size, before alignment
    size: Size  # of the result
    fit: str | None = None
    view: View | None = None  # the common view, in pixels of the first photo's frame
    matrices: tuple[Matrix, ...] = ()  # from the first photo's frame to each photo's
    gains: tuple[Gains, ...] = ()

    def apply(self, number: int, photo: Image) -> Image:
        frame = place(photo, self.frame, self.fit)
        if self.view is not None:
            frame = alignment.warp(frame, self.matrices[number], self.view)
        frame = place(frame, self.size, self.fit)
        return expose(frame, self.gains[number]) if self.gains else frame

    def __str__(self) -> str:
        """What is done, in the words of a plan line; empty if nothing."""
        done = [] if self.fit is None else [f"{self.fit} to {self.frame[0]}x{self.frame[1]}"]
        if self.view is not None:
            done.append(f"aligned, {self.view.width / self.frame[0]:.0%} of each side in common")
        if self.gains:
            stops = np.log2([gain.mean() for gain in self.gains])
            done.append(f"exposure matched by {stops.min():+.1f} to {stops.max():+.1f} EV")
        return ", ".join(done)


def prepare(
    sizes: Sequence[Size],
    names: Sequence[str | Path],
    photos: Iterable[Image] = (),
    *,
    fit: str | None = None,
    size: str | int | None = None,
    align: bool = False,
    match_exposure: bool = False,
) -> Preparation:
    """Plans the preparation of a sequence.

    Args:
      sizes: (width, height) of each photo, as `read_image` gives it.
      names: what errors call the photos.
      photos: in order, taken once and only for `align` and `match_exposure`.
      fit: one of FITS; None: all photos must have one size.
      size: a target as of `parse_size`; None keeps the size.

    ValueError for sizes that need a `fit`, photos that do not align, exposures that cannot be compared.
    """
    if align and fit == "pad":
        raise ValueError("--align with --fit pad: the bars would be aligned too; give --fit crop or --fit resize")
    frame = common_size(sizes, names, fit)
    view, matrices, gains = None, [], []
    if align or match_exposure:
        matrices, gains = _compare((place(photo, frame, fit) for photo in photos), names, align, match_exposure)
    if align:
        view = alignment.common_view(matrices, frame)
        if min(view.width / frame[0], view.height / frame[1]) < MIN_VIEW:
            raise ValueError(
                f"{names[0]} to {names[-1]}: the aligned photos have {view.width}x{view.height} of "
                f"{frame[0]}x{frame[1]} in common; take fewer photos, or leave --align out"
            )
    before = frame if view is None else (view.width, view.height)
    after = before if size is None else scaled_size(size, before, fit, names[0])
    return Preparation(frame, after, fit, view, tuple(matrices) if align else (), tuple(gains))


def scaled_size(text: str | int, size: Size, fit: str | None, name: str | Path) -> Size:
    """As `parse_size`, for the image `name`; ValueError for another shape without a `fit`."""
    width, height = scaled = parse_size(text, size)
    if fit is None and abs(width * size[1] - height * size[0]) > 2 * max(size):
        raise ValueError(
            f"--size {text} has another shape than {name} ({size[0]}x{size[1]}): add --fit crop, pad or resize"
        )
    return scaled


def parse_size(text: str | int, size: Size) -> Size:
    """The (width, height) that `text` asks of an image of `size`.

    1080p is the shorter side, 1280 the longer one; both keep the shape, round to even sides (which every movie codec
    takes) and never enlarge. 1280x720 is taken as it is. ValueError for another text.
    """
    (width, height), words = size, str(text).strip().lower()
    if exact := re.fullmatch(r"(\d+)x(\d+)", words):
        target = int(exact[1]), int(exact[2])
    elif side := re.fullmatch(r"(\d+)(p?)", words):
        scale = int(side[1]) / (min(size) if side[2] else max(size))
        target = size if scale >= 1 else (2 * round(width * scale / 2), 2 * round(height * scale / 2))
    else:
        raise ValueError(f"--size {text}: give the shorter side (1080p), the longer one (1280), or both (1280x720)")
    if min(target) < SMALLEST:
        raise ValueError(
            f"--size {text} makes {target[0]}x{target[1]} of {width}x{height}: a side has {SMALLEST} or more"
        )
    return target


def common_size(sizes: Sequence[Size], names: Sequence[str | Path], fit: str | None) -> Size:
    """The one size to which `fit` brings photos of `sizes`: see the module. ValueError without one."""
    if fit is not None and fit not in FITS:
        raise ValueError(f"--fit {fit}: give one of {', '.join(FITS)}")
    for size, name in zip(sizes, names, strict=True):
        if size != sizes[0] and fit is None:
            first, other = (f"{width}x{height}" for width, height in (sizes[0], size))
            raise ValueError(
                f"{names[0]} is {first}, {name} is {other}: add --fit crop (keep the centre), pad (black bars) or "
                "resize (stretch)"
            )
    widths, heights = zip(*sizes, strict=True)
    if fit == "crop":
        return min(widths), min(heights)
    if fit == "pad":
        largest = max(widths), max(heights)
        scale = min(max(width / largest[0], height / largest[1]) for width, height in sizes)
        return round(largest[0] * scale), round(largest[1] * scale)
    return min(sizes, key=lambda size: size[0] * size[1])


def light_thumbnail(image: Image) -> Image:
    """The image as `exposure_gains` compares it: small and in linear light."""
    return shrink(to_linear(shrink(image, 8 * LIGHT_SIDE)), LIGHT_SIDE)


def exposure_gains(light0: Image, light1: Image, matrix: Matrix | None) -> Gains | None:
    """By what the second image's channels are multiplied, in linear light, to be as bright as the first's.

    Both are results of `light_thumbnail`; `matrix` leads from the first to the second; without one only their
    distributions are compared. None if fewer than MIN_USABLE of the pixels are neither dark nor near white in both.
    """
    if matrix is not None:  # what is beyond the edge becomes 0, which is not usable
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        light1 = cv2.warpPerspective(light1, matrix, light1.shape[1::-1], flags=flags)
    values = np.stack([light0.reshape(-1, 3), light1.reshape(-1, 3)])
    if matrix is None:
        values = np.sort(values, axis=1)
    usable = ((values > USABLE[0]) & (values < USABLE[1])).all(axis=(0, 2))
    if usable.mean() < MIN_USABLE:
        return None
    before, after = np.log(values[:, usable])
    return np.exp(np.median(before - after, axis=0)).astype(np.float32)


def expose(image: Image, gains: Gains) -> Image:
    """The image times one gain per channel in linear light, clipped; one below 1 fades out towards white."""
    if (gains == 1).all():
        return image
    light = to_linear(image)
    fade = np.clip((light - SHOULDER) / (1 - SHOULDER), 0, 1)
    fade = fade * fade * (3 - 2 * fade) * np.maximum(1 - gains, 0)
    return np.clip(from_linear(light * (gains + fade)), 0, 1)


def _compare(
    frames: Iterable[Image], names: Sequence[str | Path], align: bool, match_exposure: bool
) -> tuple[list[Matrix], list[Gains]]:
    matrices, gains = [np.eye(3)], [np.ones(3, np.float32)]
    first = before = None  # small images of the first frame and of the one before
    for number, frame in enumerate(frames):
        now = alignment.grey_thumbnail(frame), light_thumbnail(frame)
        if first is None or before is None:
            first = before = now
            continue
        pair = f"{names[number - 1]} and {names[number]}"
        found = alignment.register(before[0], now[0])
        small, tiny, size = (image.shape[1::-1] for image in (*now, frame))
        if align:
            if found.matrix is None:
                raise ValueError(
                    f"{pair} do not align: {found.share:.0%} of their matches agree and span {found.span:.0%} of the "
                    f"frame (at least {MIN_SPAN:.0%} is needed: background around what moves); leave --align out"
                )
            # errors of steps add up: what the steps lead to is measured against the first
            steps = found.matrix @ rescaled(matrices[-1], size, small)
            matrices.append(rescaled(alignment.refine(first[0], now[0], steps / steps[2, 2]), small, size))
        if match_exposure:
            matrix = None if found.matrix is None else rescaled(found.matrix, small, tiny)
            gain = exposure_gains(before[1], now[1], matrix)
            if gain is None:
                raise ValueError(
                    f"{pair}: under {MIN_USABLE:.0%} of the pixels are neither black nor white in both, too few to "
                    "compare exposures; leave --match-exposure out"
                )
            gains.append(gains[-1] * gain)
        before = now
    return matrices, gains if match_exposure else []
