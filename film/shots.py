"""Where a clip must not be interpolated as it stands: cuts, still gaps and duplicate frames.

Cut. A network would morph one side into the other. Of thumbnails of `SIDE` pixels frame a is warped to b by DIS flow
(Kroeger et al., ECCV 2016), so that motion does not count; what is left is the correlation of their luma and the
Hellinger distance of their colours. At a cut, correlation minus distance is around 0 or below; within a shot above 0.3,
but for a whip pan that leaves nothing of a frame in the next one. Where the correlation alone is above `SAME` (across
shots it stays below 0.7) colours do not count: a flash or a fade. Where a frame is plain, what changes the colours by
much is a cut.

Still gap. If no block of `BLOCK` pixels changes by more than `STILL`, nothing moves, and in-betweens are cross-fades.

Duplicate. Drawn animation repeats frames ("on twos"), and so does a capture at a higher rate than its source; played
slower, it stutters. `without_duplicates` drops them; a longer hold stays a hold.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from common.io.images import to_uint8
from common.io.video_reader import TimedFrame

Frame = Float[np.ndarray, "h w 3"]
Thumbnail = UInt8[np.ndarray, "_ _ 3"]

SIDE = 128  # pixels of a thumbnail's longer side
SHORTEST = 32  # pixels; DIS flow crashes the process on some images with a side below
CUT = 0.15  # a lower correlation minus distance is a cut
FLAT = 1.0  # levels of 255; the luma of a plain frame deviates less
CHANGE = 32.0  # levels of 255; so large a mean difference to a plain frame is a continuity of 0
SAME = 0.9  # a higher correlation is one shot in another light
BLOCK = 16  # pixels
STILL = 1 / 255  # largest mean absolute difference of a block where nothing moves
HOLD = Fraction(1, 2)  # seconds; equal frames for longer are a hold, not duplicates


def thumbnail(frame: Frame) -> Thumbnail:
    """The frame in 8 bits, its longer side reduced to `SIDE` pixels, neither below `SHORTEST`."""
    scale = min(1, SIDE / max(frame.shape[:2]))
    size = [max(SHORTEST, round(scale * side)) for side in (frame.shape[1], frame.shape[0])]
    return to_uint8(cv2.resize(np.asarray(frame, np.float32), size, interpolation=cv2.INTER_AREA))


def is_cut(a: Thumbnail, b: Thumbnail) -> bool:
    return continuity(a, b) < CUT


def continuity(a: Thumbnail, b: Thumbnail) -> float:
    """Correlation of the motion-compensated luma, up to `SAME` minus the distance of the colours, from -3 to 1."""
    (luma_a, colours_a), (luma_b, colours_b) = map(_described, (a, b))
    if min(cv2.blur(luma, (5, 5)).std() for luma in (luma_a, luma_b)) < FLAT:
        return 1 - float(cv2.absdiff(a, b).mean()) / CHANGE
    dis = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
    flow = dis.calc(luma_b, luma_a, None)  # type: ignore[call-overload]
    y, x = np.mgrid[: luma_b.shape[0], : luma_b.shape[1]].astype(np.float32)
    warped = cv2.remap(luma_a, x + flow[..., 0], y + flow[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    distance = np.sqrt(max(0, 1 - np.sqrt(colours_a * colours_b).sum()))
    p, q = (cv2.blur(luma.astype(np.float32), (5, 5)) for luma in (warped, luma_b))
    p, q = p - p.mean(), q - q.mean()
    correlation = float((p * q).mean() / max(1.0, np.sqrt((p * p).mean() * (q * q).mean())))
    return correlation if correlation > SAME else correlation - float(distance)


def is_still(x0: Frame, x1: Frame) -> bool:
    if x0 is x1:
        return True
    change = np.abs(np.subtract(x1, x0, dtype=np.float32)).mean(axis=-1)
    return float(cv2.blur(change, (BLOCK, BLOCK)).max()) <= STILL


def without_duplicates(frames: Iterable[TimedFrame]) -> Iterator[TimedFrame]:
    """Of each run of equal frames the first; of a run longer than `HOLD`, and at the end, the last as well."""
    kept = latest = None
    for frame in frames:
        if kept is not None and is_still(kept.image, frame.image):
            latest = frame
            continue
        if kept is not None and latest is not None and frame.time - kept.time > HOLD:
            yield latest
        kept, latest = frame, None
        yield kept
    if latest is not None:
        yield latest


def _described(small: Thumbnail) -> tuple[UInt8[np.ndarray, "h w"], Float[np.ndarray, " n"]]:
    histogram = cv2.calcHist([small], [0, 1, 2], None, [8, 8, 8], [0, 256] * 3).ravel()
    return cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), histogram / histogram.sum()
