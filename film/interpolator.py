"""In-between frames of any two frames: any moments, any size, on all local devices, in bounded memory.

    Interpolator(model, x0.shape[:2]).between(x0, x1, [Fraction(1, 3), Fraction(2, 3)])
    Interpolator(model, x0.shape[:2]).stream([x0, (x0, x1, moments), x1, (x1, x2, moments), x2])  # of several gaps

Sides are padded to a few sizes (`film.planning.bucket`), so that images of other sizes find compiled functions
(`film.compiled`). An image that does not fit the plan's window is cut into overlapping windows (`common.nn.tiling`);
flow is first estimated in the whole image at `1 / flow_scale` of its size, so that a motion larger than a window is
found.

A network that knows the midpoint alone makes other moments as midpoints of midpoints (`film.moments`), depth first, as
many together as keep all devices busy. On an accelerator several pairs are one call; several devices get calls in turn,
and the result does not depend on their number. In a stream one queue of pairs goes on from gap to gap; windows, and
midpoints of midpoints, are computed gap by gap.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from common.nn.tiling import Tiling
from film import moments as moments_of
from film.compiled import CompiledFilm, PaddedFrame, Quality, Task
from film.config import MOST_TIMES
from film.model import Film, check_frame
from film.moments import HALF
from film.planning import USABLE, ComputePlan, make_compute_plan
from film.shots import Frame, is_still

Gap = tuple[Frame, Frame, Sequence[Fraction]]  # two frames and moments between them
ACCELERATOR_PIXELS = 4 << 20  # per call; on a CPU one pair at a time is as fast and needs least memory
DEFAULT_QUALITY = Quality()


class Interpolator:
    """A network for frames of one size, (height, width).

    Args:
      plan: None: for `expected` new frames in a gap, as free memory allows (`make_compute_plan`).
      batch: most pairs per call; None: those of the plan, without one by frame size and device (`usual_batch`).
      align: pads with zeros to a multiple of this many pixels, half on each side, as the reference's command does
        with 64; 1 adds no padding; 0 repeats the right and bottom edges up to the sizes of `film.planning.bucket`.
      devices: None: all local ones.
    """

    def __init__(
        self,
        model: Film,
        size: tuple[int, int],
        *,
        plan: ComputePlan | None = None,
        quality: Quality = DEFAULT_QUALITY,
        batch: int | None = None,
        align: int = 0,
        devices: Sequence[Any] | None = None,
        expected: int = 1,
    ):
        height, width = self.size = size
        if min(size) < 2:
            raise ValueError(f"a frame of {width}x{height} is too small: sides are at least 2 pixels")
        devices = list(devices or jax.local_devices())
        on_cpu = devices[0].platform == "cpu"
        self.plan = plan or make_compute_plan(
            model.config,
            size,
            memory=device_memory(devices[0]),
            align=align,
            kept=2 + moments_of.halvings(expected + 1),
            together=max(1, expected),
            ensemble=quality.ensemble,
            accelerator=not on_cpu,
            batch=batch or usual_batch(devices[0], size),
        )
        self.batch = batch if plan and batch else self.plan.batch
        self.any_moment, self.devices = model.config.bilateral, len(devices)
        self.film = CompiledFilm(model, self.plan, quality, devices)
        zeros = np.array([-side % max(1, align) for side in size])
        self.zeros = [(pixels // 2, pixels - pixels // 2) for pixels in zeros.tolist()]
        self.edges = [(0, pixels) for pixels in (np.array(self.plan.padded) - size - zeros).tolist()]
        (top, _), (left, _) = self.zeros
        self.inside = np.s_[top : top + height, left : left + width]  # of a padded frame: what was given
        self._last: PaddedFrame | None = None
        self._compiled = not on_cpu  # an accelerator's memory is not the compiler's

    def between(self, x0: Frame, x1: Frame, moments: Iterable[Fraction]) -> Iterator[Frame]:
        """The frames at `moments`, sorted and in (0, 1), float32, not clamped. Where nothing moves between x0 and x1
        (`film.shots`) a frame is their cross-fade. What a gap shares with the one before it is not computed again."""
        return self.stream([(x0, x1, list(moments))])

    def stream(self, items: Iterable[Frame | Gap]) -> Iterator[Frame]:
        """Frames as they are, and in the place of each gap its new ones, as `between` makes them. Items are read ahead
        until all devices have `batch` pairs. An error of theirs comes after the frames before it."""
        tasks: Any = (task for item in items for task in (self._tasks(*item) if isinstance(item, tuple) else [item]))
        frames: Iterator[Any] = tasks if self.plan.tiled else self._run(tasks)
        for frame in frames:
            yield frame if frame.shape[:2] == self.size else frame[self.inside]

    def _tasks(self, x0: Frame, x1: Frame, moments: Sequence[Fraction]) -> Iterator[Task | Frame]:
        """Of a gap; or its frames, where they do not wait for other gaps."""
        wanted = [Fraction(moment) for moment in moments]
        if sorted(wanted) != wanted or not all(0 < moment < 1 for moment in wanted):
            raise ValueError(f"moments {', '.join(map(str, wanted))}: give sorted numbers between 0 and 1")
        a = self._last
        if a is None or not np.array_equal(a.pixels[self.inside], np.asarray(x0, np.float32)):
            a = self._padded("the first frame", x0)
        self._last = b = self._padded("the second frame", x1)
        if is_still(x0, x1):
            yield from (_fade(a.pixels, b.pixels, moment) for moment in wanted)
            return
        if not self._compiled:
            self._compiled = True
            self.film.compile(self.batch)
        if self.any_moment or wanted == [HALF]:
            tasks = ((a, b, moment) for moment in wanted)
            yield from self._by_windows(tasks) if self.plan.tiled else tasks
        else:
            yield from self._midpoints(a, b, moments_of.of_midpoints(wanted))

    def _padded(self, name: str, frame: Frame) -> PaddedFrame:
        check_frame(name, frame)
        if frame.shape != (*self.size, 3):
            height, width = self.size
            raise ValueError(f"a frame of shape {frame.shape}: this interpolator is for {width}x{height}")
        aligned = np.pad(np.asarray(frame, np.float32), (*self.zeros, (0, 0)))
        return PaddedFrame(np.pad(aligned, (*self.edges, (0, 0)), mode="edge"))

    def _midpoints(self, a: PaddedFrame, b: PaddedFrame, wanted: Sequence[Fraction]) -> Iterator[Frame]:
        """Frames at moments k / 2^n. A frame is dropped when its moment has passed: no later one is made from it."""
        made: dict[Fraction, PaddedFrame] = {Fraction(0): a, Fraction(1): b}
        run = self._by_windows if self.plan.tiled else self._run
        steps = moments_of.schedule(wanted, self.batch * self.devices)
        for (new, ready), (following, _) in itertools.pairwise(itertools.chain(steps, [([], [])])):
            tasks = [(made[before], made[after], HALF) for before, after in map(moments_of.sources, new)]
            ahead = itertools.chain(*map(moments_of.sources, following))
            self.film.next_frames = [made[moment] for moment in ahead if moment in made]
            made |= {m: PaddedFrame(frame) for m, frame in zip(new, run(tasks), strict=True)}
            for moment in ready:
                yield made[moment].pixels
            if ready:
                made = {m: image for m, image in made.items() if m >= ready[-1]}

    def _run(self, tasks: Iterable[Task | Frame]) -> Iterator[Frame]:
        """Padded frames, in the order of the tasks; a frame among these stays as it is. Each device has one call."""
        running: deque[tuple[list[Task | Frame | Exception], Array | None]] = deque()
        turns, calls = itertools.cycle(range(self.devices)), 0
        most = 2 * self.batch * self.devices  # more are there only where few frames are new

        def results() -> Iterator[Frame]:
            items, new = running.popleft()
            made = iter(() if new is None else np.asarray(new))
            for item in items:
                if isinstance(item, Exception):
                    raise item
                yield next(made) if isinstance(item, tuple) else item

        for items in self._calls(tasks):
            pairs = [item for item in items if isinstance(item, tuple)]
            running.append((items, self._call(pairs, next(turns)) if pairs else None))
            calls += bool(pairs)
            while running and (running[0][1] is None or calls == self.devices or len(running) > most):
                calls -= running[0][1] is not None
                yield from results()
        while running:
            yield from results()

    def _calls(self, tasks: Iterable[Task | Frame]) -> Iterator[list[Task | Frame | Exception]]:
        """The tasks cut into calls of `batch` pairs, or fewer, so that not too many frames wait for the last pair;
        frames before the first pair are on their own. An error of the tasks is the last item."""
        items, pairs = [], 0
        try:
            for task in tasks:
                items.append(task)
                pairs += isinstance(task, tuple)
                if pairs in (0, self.batch) or len(items) == 4 * self.batch:
                    yield items
                    items, pairs = [], 0
        except Exception as error:
            items.append(error)
        if items:
            yield items

    def _call(self, pairs: list[Task], device: int) -> Float[Array, "b h w 3"]:
        """Filled up to 1, 2, 4, ... or `batch` pairs: another number would be compiled."""
        count = len(pairs)
        filled = pairs + pairs[-1:] * (min(self.batch, 1 << (count - 1).bit_length()) - count)
        flow = self.film.flow(filled, device) if self.plan.flow_scale > 1 else None
        return self.film.frames(filled, flow, device)[:count]

    def _by_windows(self, tasks: Iterable[Task]) -> Iterator[Frame]:
        for _, group in itertools.groupby(tasks, key=lambda task: task[:2]):
            while part := list(itertools.islice(group, self.plan.together)):
                yield from self._tiled(part)

    def _tiled(self, tasks: Sequence[Task]) -> Iterator[Frame]:
        """Moments of one pair, window by window; the windows are shared by the devices."""
        a, b, _ = tasks[0]
        flows = [np.asarray(self.film.flow([task], 0)) for task in tasks]
        frames = [np.zeros((*self.plan.padded, 3), np.float32) for _ in tasks]
        running: deque[tuple[Any, list[Any]]] = deque()

        def blend() -> None:
            (rows, columns, weights), windows = running.popleft()
            for frame, window in zip(frames, windows, strict=True):
                frame[rows, columns] += weights * np.asarray(window).reshape(*self.plan.window, 3)

        for number, place in enumerate(Tiling(self.plan.padded, self.plan.window).windows()):
            rows, columns, _ = place
            device, scale = number % self.devices, self.plan.flow_scale
            x0, x1 = (PaddedFrame(image.pixels[rows, columns]) for image in (a, b))
            if is_still(x0.pixels, x1.pixels):
                windows = [_fade(x0.pixels, x1.pixels, moment) for *_, moment in tasks]
            else:
                coarse = [slice(place.start // scale, place.stop // scale) for place in (rows, columns)]
                windows = [
                    self.film.frames([(x0, x1, moment)], flow[:, coarse[0], coarse[1]], device)
                    for (*_, moment), flow in zip(tasks, flows, strict=True)
                ]
            running.append((place, windows))
            del windows  # or they would stay until the next ones are there
            if len(running) == self.devices:
                blend()
        while running:
            blend()
        self.film.forget()
        while frames:  # one that has been given is not kept
            yield frames.pop(0)


def interpolate(
    model: Film,
    frames: Iterable[Frame],
    times: int = 1,
    *,
    moments: Sequence[Fraction | float] | None = None,
    batch: int | None = None,
    align: int = 0,
    **options: Any,
) -> Iterator[Frame]:
    """Frames and everything between them, in order of time: the frames as they are, and new ones, float32, not clamped.

    Args:
      frames: two or more of one size, RGB float32 in [0, 1]; consumed as needed. ValueError otherwise.
      times: how often each gap is halved, up to MOST_TIMES: `2**times - 1` new frames in each.
      moments: in place of `times`, the moments of each gap, sorted and in (0, 1).
      batch, align, options: as of `Interpolator`.
    """
    if not isinstance(model, Film):
        raise TypeError(f"the network is {model!r}: give one, as film.load() does")
    if moments is not None and times != 1:
        raise ValueError(f"times={times} and moments both choose the new frames: give one")
    if not 0 <= times <= MOST_TIMES or (batch is not None and batch < 1) or align < 0:
        raise ValueError(f"times={times}, batch={batch}, align={align}: give 0 to {MOST_TIMES}, 1 or more, 0 or more")
    wanted = moments_of.even(2**times - 1) if moments is None else [Fraction(moment) for moment in moments]
    return _interpolate(model, iter(frames), wanted, options | dict(batch=batch, align=align, expected=len(wanted)))


def _interpolate(
    model: Film, frames: Iterator[Frame], moments: Sequence[Fraction], options: dict[str, Any]
) -> Iterator[Frame]:
    first = next(frames, None)
    if first is None:
        raise ValueError("no frames: interpolation needs at least two")
    if np.ndim(first) != 3:
        raise ValueError(f"the first frame has shape {np.shape(first)}: frames are (height, width, 3), one by one")

    def items() -> Iterator[Frame | Gap]:
        yield first
        before, count = first, 1
        for count, frame in enumerate(frames, 2):
            if frame.shape != first.shape:
                (height, width), (h, w) = frame.shape[:2], first.shape[:2]
                raise ValueError(f"frame {count} is {width}x{height}, the first {w}x{h}: bring them to one size")
            yield before, frame, moments
            yield frame
            before = frame
        if count < 2:
            raise ValueError("one frame only: interpolation needs at least two")

    yield from Interpolator(model, first.shape[:2], **options).stream(items())


def device_memory(device: Any) -> float | None:
    """Bytes of an accelerator's memory that may be planned with; None: of a CPU, whose memory is the machine's."""
    stats = None if device.platform == "cpu" else device.memory_stats()
    return USABLE * stats["bytes_limit"] if stats else None


def usual_batch(device: Any, size: tuple[int, int]) -> int:
    return 1 if device.platform == "cpu" else max(1, ACCELERATOR_PIXELS // (size[0] * size[1]))


def _fade(x0: Any, x1: Any, moment: Fraction) -> Any:
    return x0 + np.float32(moment) * (x1 - x0)
