"""Photos or a video in, a clip out: what the `film` command and a notebook both call.

    film.convert(["a.jpg", "b.jpg"], "clip.mp4", frames=15)
    film.convert("clip.mp4", "slow.mp4", factor="4", slow_motion=True)

`film.io.plan` checks all that is known beforehand. Then frames are decoded (in a thread), interpolated and encoded (in
another thread) one by one, so memory does not grow with the length of a clip. A cut is held, not morphed.
"""

import ast
import contextlib
import dataclasses
import gc
import hashlib
import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from tqdm import tqdm

from common import terminal
from common.io.files import unfinished_job
from common.io.images import contact_sheet, shrink, write_image
from common.io.video import open_clip
from common.io.video_reader import TimedFrame, prefetch
from common.nn.tiling import Tiling
from common.terminal import EXHAUSTED, plain_memory_errors
from film.compiled import Quality
from film.interpolator import Frame, Gap, Interpolator, device_memory, usual_batch
from film.io.options import Options
from film.io.plan import Plan, make_plan
from film.io.sources import Movie, Name
from film.io.weights import load
from film.model import Film, with_matching
from film.moments import halvings
from film.planning import ComputePlan, default_memory, make_compute_plan, multiply_adds
from film.shots import is_cut, is_still, thumbnail
from film.timeline import Timeline
from film.visualization import comparison, inspection_sheet

SHEET_FRAMES = 9
SHEET_SIDE = 1280  # longer side of a frame on a sheet, in pixels: an overview that every format can hold
INSPECT_SIDE = 640  # of the frames that the network sees once more, as a whole, for `inspect`
CPU_SPEED = 70e9  # operations per second of a core
Progress = bool | Callable[[int, int], None]
Look = Callable[[int, Frame], None]


class Shown(NamedTuple):
    """A frame of the output, and the source's frames before and after it."""

    image: Frame
    x0: Frame
    x1: Frame
    moment: Fraction  # between them


def convert(
    inputs: Name | Sequence[Name],
    output: Name | None = None,
    model: Film | None = None,
    *,
    progress: Progress = False,
    **options: Any,
) -> Plan:
    """Makes a clip; returns the plan that was carried out. Raises as `make_plan` and `run`.

    Args:
      inputs: a video; or photos, a folder or a glob of photos.
      output: a movie, an animation, or a folder for numbered PNGs; None: a movie beside the input.
      model: None: the default weights.
      progress: True shows a bar; a function is called with (frames done, all of them or 0 if that is not known), and
        ends the work by an exception.
      options: the fields of `film.io.options.Options`, as `factor="2.5"`.
    """
    if not isinstance(model, Film | None):
        raise TypeError(f"the network is {model!r}: give one, as film.load() does")
    names = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    plan = make_plan(names, output, Options(**options))
    model = as_asked(model or load(), plan.options)
    run(model, plan, compute_plan(model, plan), progress=progress)
    return plan


def as_asked(model: Film, options: Options) -> Film:
    """The network, with a search of the whole frames or without (`--matching`)."""
    return with_matching(model, None if options.matching is None else options.matching == "on")


def run(model: Film, plan: Plan, compute: ComputePlan, *, progress: Progress = False, look: Look | None = None) -> int:
    """Carries out a plan; returns the number of frames written. Each is also given to `look`, with its number. After
    Ctrl-C the frames so far are a playable clip; after it and after errors of the machine finished parts stay for
    `resume`. MemoryError where the device's memory does not do, not even for a plan of half of it."""
    options, (width, height) = plan.options, plan.size
    count = plan.frames or 0
    sampled = set(np.linspace(0, count - 1, min(SHEET_FRAMES, count)).round().tolist()) if options.sheet else set()
    sheet = []
    clip = open_clip(
        plan.output,
        plan.shown,
        plan.rate,
        plan.encoding,
        colour=plan.colour,
        audio=plan.audio,
        captions=plan.captions,
        overwrite=options.overwrite,
        resume=options.resume,
        job=f"{_job(model, plan)}{dataclasses.astuple(compute)}",
    )
    size = f"images of {width}x{height} need more memory than this device has"
    with clip as writer, plain_memory_errors(f"{size}; give --memory or --size, or --batch 1"):
        first, compiling = 0 if sampled else writer.done, True
        total = None if plan.frames is None else plan.in_betweens(plan.frames)
        hidden = None if progress is True and total != 0 else True
        begun = plan.in_betweens(first)
        bar = tqdm(desc="compiling", total=total, initial=begun, unit="in-between", disable=hidden, smoothing=0.1)
        # The network cannot be interrupted: it runs in a thread, which Ctrl-C does not wait for.
        frames = prefetch(_frames(model, plan, compute, first), 1, wait=False)
        with bar, contextlib.closing(frames):
            for number, shown in enumerate(frames, first):
                if number in sampled:
                    sheet.append(shrink(shown.image, SHEET_SIDE))
                if number >= writer.done:
                    image = comparison(*shown) if options.compare else shown.image
                    writer.write(image)
                    if look:
                        look(number, image)
                if shown.moment and compiling:  # the first in-between took its time, which tells no pace
                    bar.set_description_str("", refresh=False)
                    bar.initial = bar.last_print_n = bar.n + 1
                    bar.unpause()
                    compiling = False
                bar.update(bool(shown.moment))
                if callable(progress):
                    progress(number + 1, count)
            bar.total = bar.n  # frames that are held are none, and a variable rate was guessed
    if options.sheet is not None:
        write_image(options.sheet, contact_sheet(sheet, columns=3), overwrite=options.overwrite)
    if options.inspect is not None:
        two = itertools.islice(plan.source.frames(plan.timeline.step), 2)
        x0, *_, x1 = [shrink(frame.image, INSPECT_SIDE) for frame in two] * 2
        picture = inspection_sheet(x0, x1, model(x0[None], x1[None]), 0.5)
        write_image(options.inspect, picture, overwrite=options.overwrite)
    return writer.count


def _frames(model: Film, plan: Plan, compute: ComputePlan, first: int, again: bool = True) -> Iterator[Shown]:
    """The output frames from number `first` on. With `again`, where the device's memory does not do for the first new
    one, planned again with half of the memory."""
    options, (width, height), step = plan.options, plan.size, plan.timeline.step
    quality = Quality(options.ensemble, options.precision)
    batch = min(options.batch or compute.batch, compute.batch)  # of a resumed job it may be smaller than planned
    interpolator = Interpolator(model, (height, width), plan=compute, quality=quality, batch=batch)
    smaller = None
    with contextlib.closing(prefetch(plan.source.frames(step, first * step))) as source:
        try:
            for shown in sequence(interpolator, source, plan.timeline, first, cuts=isinstance(plan.source, Movie)):
                yield shown
                first, again = first + 1, again and (shown.image is shown.x0 or is_still(shown.x0, shown.x1))
        except jax.errors.JaxRuntimeError as error:
            if not again or EXHAUSTED not in str(error):
                raise
            try:
                smaller = compute_plan(model, plan, compute.memory / 2)
            except MemoryError:
                raise error from None
    if smaller is not None:
        del interpolator
        gc.collect()  # what the error's traceback held
        now = describe(smaller, model, plan)
        terminal.complain(f"warning: images of {width}x{height} need more memory than was planned; now {now}")
        yield from _frames(model, plan, smaller, first, again=False)


def sequence(
    interpolator: Interpolator, source: Iterable[TimedFrame], timeline: Timeline, first: int = 0, *, cuts: bool = False
) -> Iterator[Shown]:
    """The output frames from number `first` on; `source` may begin at any frame that is shown up to then. With `cuts`,
    the frame before a cut is held up to it."""

    asked: deque[Shown] = deque()  # of which the interpolator has not given the image yet

    def moments_from(start: Fraction, end: Fraction) -> list[Fraction]:
        return timeline.moments(start, end)[max(0, first - timeline.frames(start)) :]

    def items() -> Iterator[Frame | Gap]:
        before = small = None
        for frame in source:
            following = thumbnail(frame.image) if cuts else None
            if before is not None:
                moments, x0, x1 = moments_from(before.time, frame.time), before.image, frame.image
                asked.extend(Shown(x0, x0, x1, moment) for moment in moments)
                if moments and not moments[0]:
                    yield x0
                    del moments[0]
                if moments and small is not None and following is not None and is_cut(small, following):
                    yield from itertools.repeat(x0, len(moments))
                elif moments:
                    yield x0, x1, moments
            before, small = frame, following
        if before is not None and before.duration:
            held, image = moments_from(before.time, before.time + before.duration), before.image
            asked.extend(Shown(image, image, image, Fraction(0)) for _ in held)
            yield from itertools.repeat(image, len(held))

    for image in interpolator.stream(items()):
        yield asked.popleft()._replace(image=image)


def compute_plan(model: Film, plan: Plan, most: float | None = None) -> ComputePlan:
    """How the network runs, within `most` bytes, or `--memory` or what is free. A resumed job keeps the plan that it
    began with, since frames in other windows would differ a little. Raises as `make_compute_plan`."""
    (width, height), device = plan.size, jax.local_devices()[0]
    memory = most or (device_memory(device) if plan.memory is None else plan.memory)
    name, job = _job(model, plan), unfinished_job(plan.output) if plan.options.resume and not most else ""
    if job.startswith(name):
        begun = ComputePlan(*ast.literal_eval(job.splitlines()[0].removeprefix(name)))
        if begun.memory > (there := default_memory() if memory is None else memory):
            raise MemoryError(
                f"{plan.output} was begun with {begun.memory / 1e9:.1f} GB of memory, there are {there / 1e9:.1f} GB:"
                " give as much (--memory), or start again without --resume"
            )
        return begun
    uneven = plan.timeline.ease or plan.options.retime or (isinstance(plan.source, Movie) and plan.source.info.variable)
    return make_compute_plan(
        model.config,
        (height, width),
        memory=memory,
        flow_scale=plan.flow_scale,
        kept=2 + halvings(0 if uneven else plan.per_gap.numerator),
        together=math.ceil(plan.per_gap),
        ensemble=plan.options.ensemble,
        accelerator=device.platform != "cpu",
        batch=plan.options.batch or usual_batch(device, (height, width)),
    )


def describe(compute: ComputePlan, model: Film, plan: Plan) -> str:
    """A line about memory and, on a CPU, time."""
    text, windows, (height, width) = "images as a whole", 1, compute.window
    if compute.tiled:
        windows = len(Tiling(compute.padded, compute.window).corners())
        text = f"{windows} windows of {width}x{height}, flow from 1/{compute.flow_scale}"
    text += f", at most about {compute.memory / 1e9:.1f} GB"
    if plan.frames is not None and jax.default_backend() == "cpu":
        pixels = width * height * windows
        work = 2 * multiply_adds(model.config) * pixels * plan.frames * (4 if plan.options.ensemble else 1)
        seconds = work / (CPU_SPEED * (os.cpu_count() or 1))
        text += f", about {max(1, seconds):.0f} s" if seconds < 120 else f", about {seconds / 60:.0f} min"
    return text


def _job(model: Film, plan: Plan) -> str:
    """A name of the work: what other inputs, options or parameters have begun is not resumed."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(nnx.state(model)):
        digest.update(np.asarray(leaf).tobytes())
    return f"{plan.job} {digest.hexdigest()} "
