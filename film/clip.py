"""Photos in, a clip out: what the `film` command and a notebook both call.

    make_clip(film.load(), make_plan(["a.jpg", "b.jpg"], "clip.mp4", times=5, fps=Fraction(30)))

`film.io.plan` checks all that is known beforehand. Then images are decoded, interpolated and written one by one; only a
few are ever in memory. The output's suffix decides the format: `.mp4`, `.gif`, or none for a folder of numbered PNGs.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
from tqdm import tqdm

from common.io.images import contact_sheet, shrink, write_image
from common.io.video import write_clip
from film.io.plan import Plan
from film.io.plan import make_plan as make_plan
from film.model import Film
from film.recursion import Frame, interpolate

SHEET_FRAMES = 9
SHEET_SIDE = 1280  # longer side of a frame on the sheet, in pixels: an overview that every format can hold


def make_clip(
    model: Film, plan: Plan, *, overwrite: bool = False, progress: bool = False, batch: int | None = None
) -> int:
    """Carries out a plan; returns the number of frames written.

    `plan.sheet` becomes a contact sheet of frames spread evenly over the clip. Nothing is left behind after an error.
    """
    shown = np.linspace(0, plan.frames - 1, min(SHEET_FRAMES, plan.frames)).round() if plan.sheet else ()
    sheet: list[Frame] = []

    def frames() -> Iterator[Frame]:
        computed = interpolate(model, map(plan.read, plan.photos), plan.times, batch=batch)
        bar = tqdm(computed, total=plan.frames, unit="frame", disable=None if progress else True)
        try:
            for number, frame in enumerate(bar):
                if number in shown:
                    sheet.append(shrink(frame, SHEET_SIDE))
                yield frame
        except jax.errors.JaxRuntimeError as error:  # JAX has no error class of its own for a full device
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            width, height = plan.size
            raise MemoryError(
                f"images of {width}x{height} need more memory than this device has; resize them, or try --batch 1"
            ) from error

    count = write_clip(plan.output, frames(), plan.fps, overwrite=overwrite)
    if plan.sheet is not None:
        write_image(plan.sheet, contact_sheet(sheet, columns=3), overwrite=overwrite)
    return count
