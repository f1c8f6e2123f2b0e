"""Files in, a clip out: what the `film` command and a notebook both call.

    make_clip(film.load(), make_plan(["a.jpg", "b.jpg"], "clip.mp4", times=5, fps=Fraction(30)))

`plan.py` checks all that is known beforehand. Then images are decoded, interpolated and written one by one; only a few
are ever in memory. The output's suffix says what is made: `.mp4`, `.gif`, or none for a folder of numbered PNGs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import jax
import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from common.io.images import contact_sheet, shrink, write_image
from common.io.video import write_clip
from film.io.plan import Plan
from film.io.plan import make_plan as make_plan
from film.model import Film
from film.recursion import interpolate

Frame = Float[np.ndarray, "h w 3"]
SHEET_FRAMES = 9
SHEET_SIDE = 1280  # longer side of a frame on the sheet: an overview that every format can hold


def make_clip(
    model: Film, plan: Plan, *, overwrite: bool = False, progress: bool = False, batch: int | None = None
) -> int:
    """Carries out a plan; returns the number of frames written.

    If the plan has a `sheet`, that becomes a contact sheet of frames spread evenly over the clip. Nothing is left
    behind when anything fails.

    Raises:
      ValueError, OSError: a photo or the disk changed since the plan was made.
      MemoryError: the device cannot hold what pictures of this size need.
    """
    frames = _or_memory_error(interpolate(model, map(plan.read, plan.photos), plan.times, batch=batch), plan.size)
    counted = iter(tqdm(frames, total=plan.frames, unit="frame", disable=None if progress else True))
    if plan.sheet is None:
        return write_clip(plan.output, counted, plan.fps, overwrite=overwrite)
    kept: list[Frame] = []
    count = write_clip(plan.output, _keep_some(counted, plan.frames, kept), plan.fps, overwrite=overwrite)
    write_image(plan.sheet, contact_sheet(kept, columns=3), overwrite=overwrite)
    return count


def _or_memory_error(frames: Iterable[Frame], size: tuple[int, int]) -> Iterator[Frame]:
    """JAX has no error class of its own for a device that is full."""
    try:
        yield from frames
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MemoryError(
            f"pictures of {size[0]}x{size[1]} need more memory than this device has; resize them, or try --batch 1"
        ) from error


def _keep_some(frames: Iterable[Frame], count: int, kept: list[Frame]) -> Iterator[Frame]:
    wanted = {round(i) for i in np.linspace(0, count - 1, min(SHEET_FRAMES, count))}
    for i, frame in enumerate(frames):
        if i in wanted:
            kept.append(shrink(frame, SHEET_SIDE))
        yield frame
