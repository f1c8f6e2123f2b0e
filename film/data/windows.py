"""Read a film once, from its start, and hand out the short runs of frames that triplets are cut from.

Seeking in compressed video is where frame numbers go wrong, so nothing here seeks: decoding 10,000 frames of
720p takes some ten seconds, and number n is always the n-th decoded picture, counted from 0.

Each frame comes with its half-size luma, which is all that flow needs, and with the change of its 32x18
thumbnail since the frame before, by which scene cuts are found.
"""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import av
import cv2
import numpy as np
from jaxtyping import UInt8
from tqdm import tqdm

from film.data.teacher_flow import half_luma

CUT_LEVEL, CUT_RATIO = (
    8.0,
    3.0,
)  # a cut changes the thumbnail by so many levels AND so many times its surroundings
UNNAMED, BT709, BT601 = 2, 1, 5  # colour matrices as video files number them


class Frame(NamedTuple):
    """`change`: mean absolute thumbnail difference from the frame before, levels of 255."""

    image: UInt8[np.ndarray, "h w 3"]
    luma: UInt8[np.ndarray, "h2 w2"]
    change: float


def windows(video: str | Path, centres: list[int], reach: int) -> Iterator[tuple[int, list[Frame]]]:
    """For each of the rising `centres`: (centre, its frames centre - reach ... centre + reach).

    Raises FileNotFoundError (no video), ValueError (centres without enough frames around them).
    """
    if not Path(video).is_file():
        raise FileNotFoundError(f"{video}: no such video; `python -m recipes.film_small.fetch_film` gets data/bbb.mp4")
    if not centres or centres[0] < reach:
        raise ValueError(f"no centre has {reach} frames on either side: widen first..last or lower the gap")
    waiting, ring = deque(centres), deque(maxlen=2 * reach + 1)
    thumbnail = np.zeros((18, 32), np.float32)
    with (
        av.open(str(video)) as container,
        tqdm(total=len(centres), unit="frame", desc=Path(video).name) as bar,
    ):
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for number, picture in enumerate(container.decode(stream)):
            if number < waiting[0] - reach:
                continue
            image = _rgb(picture)
            luma, before = half_luma(image), thumbnail
            thumbnail = np.asarray(cv2.resize(luma, (32, 18), interpolation=cv2.INTER_AREA), np.float32)
            ring.append(Frame(image, luma, float(np.abs(thumbnail - before).mean())))
            if number == waiting[0] + reach:
                bar.update()
                yield waiting.popleft(), list(ring)
                if not waiting:
                    return
    raise ValueError(f"{video}: ends before frame {waiting[0] + reach}: lower `last`")


def has_cut(window: list[Frame], gap: int) -> bool:
    """Does the thumbnail jump, between middle - gap and middle + gap, beyond the changes around it?"""
    changes = np.array([frame.change for frame in window[1:]])  # the first one's is about a frame outside
    middle = len(changes) // 2
    largest = changes[middle - gap : middle + gap].max()
    return bool(largest > CUT_LEVEL and largest > CUT_RATIO * np.median(changes))


def _rgb(picture: av.VideoFrame) -> UInt8[np.ndarray, "h w 3"]:
    """Decoded picture -> RGB by its own colour matrix; if it names none its height decides, as in players."""
    guess = BT709 if picture.height >= 720 else BT601
    matrix = guess if int(picture.colorspace) == UNNAMED else None
    return picture.to_ndarray(format="rgb24", src_colorspace=matrix)
