"""In-between frames of any two frames: any moments, any size, on all local devices, in bounded memory.

    Interpolator(model, x0.shape[:2]).between(x0, x1, [Fraction(1, 3), Fraction(2, 3)])
    Interpolator(model, x0.shape[:2]).stream([x0, (x0, x1, moments), x1, (x1, x2, moments), x2])  # of several gaps

The network runs as three compiled functions, so that its levels are never all in memory (`film.model`): `_encode` for
each frame; `_coarse` and `_finish` for each new one. Encoded frames are kept for the next new frames as far as the plan
allows (`ComputePlan.kept`). If it allows fewer than two, `_coarse` gets the levels from 1 on alone, and the finest one
is made again for `_finish`, when the others are not needed any more. Sides are padded to a few sizes (`bucket`), so
that pictures of other sizes find compiled functions.

An image that does not fit the plan's window is cut into overlapping windows (`common.nn.tiling`). Flow is first
estimated in the whole image at `1 / flow_scale` of its size, so that a motion larger than a window is found; windows
refine it.

A network that knows the midpoint alone makes other moments as midpoints of midpoints (`film.moments`), depth first, as
many together as keep all devices busy. On an accelerator several pairs are one call. With several devices, calls are
handed out in turn; the result does not depend on their number. In a stream one queue of pairs goes on from gap to gap,
so that devices are busy with one new frame in each gap as well. Windows, and midpoints of midpoints, are computed gap
by gap.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from importlib.metadata import version
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from common.nn.tiling import Tiling
from common.runtime import return_freed_memory
from film import moments as moments_of
from film.config import MOST_TIMES
from film.model import Coarse, Encoded, Film, Pack, check_frame, concatenate, crop, pad_to_smallest
from film.moments import HALF
from film.planning import USABLE, ComputePlan, make_compute_plan
from film.shots import is_still

Frame = Float[np.ndarray, "h w 3"]
ACCELERATOR_PIXELS = 4 << 20  # per call; on a CPU one pair at a time is as fast and needs least memory
# On a CPU FILM compiles in two thirds of the time without XLA's fusion emitters, and runs as fast: `benchmarks/film.py`
# with and without this, `first s` and `CPU s`. A version of XLA that lacks an option refuses it.
COMPILER = {"xla_cpu_use_fusion_emitters": False} if version("jaxlib").startswith("0.10.") else {}


@dataclasses.dataclass(frozen=True)
class Quality:
    """What costs time: `ensemble` averages both directions of time and both mirror images, four runs of the network;
    `precision` is that of activations, float32 or bfloat16."""

    ensemble: bool = False
    precision: str = "float32"


DEFAULT_QUALITY = Quality()
MIRRORED_FLOW = np.array([-1, 1, -1, 1], np.float32)  # dx changes its sign


@dataclasses.dataclass(frozen=True, eq=False)
class _Image:
    """A padded frame; the object itself is the key of its encodings."""

    pixels: Frame


Gap = tuple[Frame, Frame, Sequence[Fraction]]  # two frames and moments between them
Task = tuple[_Image, _Image, Fraction]  # likewise, one moment
Levels = Literal["all", "finest", "coarser"]  # of an encoded frame
Frames = tuple[Pack | None, Encoded | None]  # encoded, as by `Film.encode`; None: not asked for


class Interpolator:
    """A network for frames of one size, (height, width).

    Args:
      plan: window, flow scale, encoded frames to keep and pairs per call; None: for `expected` new frames in a gap, as
        free memory allows (`make_compute_plan`).
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
        self.any_moment, self.quality = model.config.bilateral, quality
        self.devices = list(devices or jax.local_devices())
        self.graphdef, state = nnx.split(model)
        params = jax.tree.map(lambda x: x.astype(quality.precision), nnx.to_pure_dict(state))
        self.params = [jax.device_put(params, device) for device in self.devices]
        kept = 2 + expected.bit_length()
        self.plan = plan or make_compute_plan(
            model.config,
            size,
            memory=device_memory(self.devices[0]),
            align=align,
            kept=kept,
            together=max(1, expected),
            ensemble=quality.ensemble,
            accelerator=self.devices[0].platform != "cpu",
            batch=batch or usual_batch(self.devices[0], size),
        )
        zeros = [-side % max(1, align) for side in size]
        self.zeros = [(pixels // 2, pixels - pixels // 2) for pixels in zeros]
        self.edges = [
            (0, all_ - side - pixels) for all_, side, pixels in zip(self.plan.padded, size, zeros, strict=True)
        ]
        on_cpu = self.devices[0].platform == "cpu"
        self.batch = batch if plan and batch else self.plan.batch
        self._last: tuple[Frame, _Image] | None = None
        self._copies = len(self.devices) * (2 if quality.ensemble else 1)  # of each frame that is kept
        self._encoded: OrderedDict[tuple[_Image, bool, int], Frames] = OrderedDict()
        self._compiled = not on_cpu  # an accelerator's memory is not the compiler's
        self._next: Collection[_Image] = ()  # what the call after this one needs, if that is known

    def between(self, x0: Frame, x1: Frame, moments: Iterable[Fraction]) -> Iterator[Frame]:
        """The frames at `moments`, sorted and in (0, 1), float32, not clamped. Where nothing moves between x0 and x1
        (`film.shots`) a frame is their cross-fade. What a gap shares with the one before it is not computed again."""
        return self.stream([(x0, x1, list(moments))])

    def stream(self, items: Iterable[Frame | Gap]) -> Iterator[Frame]:
        """Frames as they are, and in the place of each gap its new ones, as `between` makes them. Items are read ahead
        until all devices have `batch` pairs: not at all for one pair on one device. An error of theirs comes after the
        frames before it."""
        tasks: Any = (task for item in items for task in (self._tasks(*item) if isinstance(item, tuple) else [item]))
        (top, _), (left, _) = self.zeros
        frames: Iterator[Any] = tasks if self.plan.tiled else self._run(tasks)
        for frame in frames:
            given = frame.shape[:2] == self.size
            yield frame if given else frame[top : top + self.size[0], left : left + self.size[1]]

    def _tasks(self, x0: Frame, x1: Frame, moments: Sequence[Fraction]) -> Iterator[Task | Frame]:
        """Of a gap; or its frames, where they do not wait for other gaps."""
        wanted = [Fraction(moment) for moment in moments]
        if sorted(wanted) != wanted or not all(0 < moment < 1 for moment in wanted):
            raise ValueError(f"moments {', '.join(map(str, wanted))}: give sorted numbers between 0 and 1")
        known = self._last is not None and (self._last[0] is x0 or np.array_equal(self._last[0], x0))
        if not known:
            check_frame("the first frame", x0)
        check_frame("the second frame", x1)
        a = self._last[1] if self._last is not None and known else self._padded(x0)
        b = self._padded(x1)
        self._last = x1, b
        still = is_still(x0, x1)
        if not still and not self._compiled:
            self.compile()
        if still:
            yield from (_fade(a.pixels, b.pixels, moment) for moment in wanted)
        elif self.any_moment or wanted == [HALF]:
            tasks = ((a, b, moment) for moment in wanted)
            yield from self._by_windows(tasks) if self.plan.tiled else tasks
        else:
            yield from self._midpoints(a, b, moments_of.of_midpoints(wanted))

    def compile(self) -> None:
        """Compiles the functions for `batch` pairs, as `between` does at first. Later the compiler's memory would come
        on top of encoded frames."""
        self._compiled = True
        count, (height, width), scale = self.batch, self.plan.window, self.plan.flow_scale
        for params, device in zip(self.params, self.devices, strict=True):
            sharding = jax.sharding.SingleDeviceSharding(device)

            def array(*shape: int, dtype: Any = jnp.float32, sharding: Any = sharding) -> jax.ShapeDtypeStruct:
                return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

            def compiled(function: Any, *words: Any, params: Any = params, batch: int = count) -> Any:
                """The shapes of its results, for `batch` images."""
                function.lower(self.graphdef, params, *words).compile()
                shapes = function.eval_shape(self.graphdef, params, *words)
                return jax.tree.map(lambda x: array(batch, *x.shape[1:], dtype=x.dtype), shapes)

            flow, time = None, array(count, 1)
            if scale > 1:
                small = array(count, *(side // scale for side in self.plan.padded), 3)
                compiled(FLOW, small, small, time)
                flow = array(count, height // scale, width // scale, 4)
            encode, coarse, finish = STAGES
            image = array(1, height, width, 3)
            finest, coarser = compiled(encode, image, "all" if self.plan.kept >= 2 else "coarser")
            if finest is None:
                finest, _ = compiled(encode, image, "finest")
            compiled(finish, finest, finest, compiled(coarse, coarser, coarser, time, flow), time)

    def _padded(self, frame: Frame) -> _Image:
        if frame.shape != (*self.size, 3):
            height, width = self.size
            raise ValueError(f"a frame of shape {frame.shape}: this interpolator is for {width}x{height}")
        aligned = np.pad(np.asarray(frame, np.float32), (*self.zeros, (0, 0)))
        return _Image(np.pad(aligned, (*self.edges, (0, 0)), mode="edge"))

    def _midpoints(self, a: _Image, b: _Image, wanted: Sequence[Fraction]) -> Iterator[Frame]:
        """Frames at moments k / 2^n. A frame is dropped when its moment has passed: no later one is made from it."""
        made: dict[Fraction, _Image] = {Fraction(0): a, Fraction(1): b}
        run = self._by_windows if self.plan.tiled else self._run
        steps = moments_of.schedule(wanted, self.batch * len(self.devices))
        for (new, ready), (following, _) in itertools.pairwise(itertools.chain(steps, [([], [])])):
            tasks = [(made[before], made[after], HALF) for before, after in map(moments_of.sources, new)]
            ahead = itertools.chain(*map(moments_of.sources, following))
            self._next = [made[moment] for moment in ahead if moment in made]
            made |= {m: _Image(frame) for m, frame in zip(new, run(tasks), strict=True)}
            for moment in ready:
                yield made[moment].pixels
            if ready:
                made = {m: image for m, image in made.items() if m >= ready[-1]}

    def _run(self, tasks: Iterable[Task | Frame]) -> Iterator[Frame]:
        """Padded frames, in the order of the tasks; a frame among these stays as it is."""
        order: deque[Frame | None] = deque()  # what is to come; None: a new frame
        most = 2 * self.batch * (len(self.devices) + 1)  # of them: more are only where few are new
        part: list[Task] = []
        running: deque[Array] = deque()
        made: deque[Frame] = deque()
        turns = itertools.cycle(range(len(self.devices)))

        def begin() -> None:
            device, count = next(turns), len(part)
            # Filled up to 1, 2, 4, ... or `batch` of them: another number would be compiled.
            part.extend(part[-1:] * (min(self.batch, 1 << (count - 1).bit_length()) - count))
            flow = self._flow(part, device) if self.plan.flow_scale > 1 else None
            running.append(self._frames(part, flow, device)[:count])
            part.clear()

        def first() -> Frame:
            if (given := order.popleft()) is not None:
                return given
            if not made:
                if not running:
                    begin()
                made.extend(np.asarray(running.popleft()))
            return made.popleft()

        tasks, failure = iter(tasks), None
        while True:
            try:
                task = next(tasks, None)
            except Exception as error:
                task, failure = None, error
            if task is None:
                break
            if isinstance(task, tuple):
                part.append(task)
                if len(part) == self.batch:
                    begin()
            order.append(None if isinstance(task, tuple) else task)
            while order and (order[0] is not None or made or len(running) == len(self.devices) or len(order) >= most):
                yield first()
        if part:
            begin()
        while order:
            yield first()
        if failure is not None:
            raise failure

    def _by_windows(self, tasks: Iterable[Task]) -> Iterator[Frame]:
        """Padded frames, in the order of the tasks."""
        for _, group in itertools.groupby(tasks, key=lambda task: task[:2]):
            while part := list(itertools.islice(group, self.plan.together)):
                yield from self._tiled(part)

    def _tiled(self, tasks: Sequence[Task]) -> Iterator[Frame]:
        """Moments of one pair, window by window; the windows are shared by the devices."""
        a, b, _ = tasks[0]
        flows = [np.asarray(self._flow([task], 0)) for task in tasks]
        frames = np.zeros((len(tasks), *self.plan.padded, 3), np.float32)
        running: deque[tuple[Any, list[Any]]] = deque()

        def blend() -> None:
            (rows, columns, weights), windows = running.popleft()
            for frame, window in zip(frames, windows, strict=True):
                frame[rows, columns] += weights * np.asarray(window).reshape(*self.plan.window, 3)

        for number, place in enumerate(Tiling(self.plan.padded, self.plan.window).windows()):
            rows, columns, _ = place
            device, scale = number % len(self.devices), self.plan.flow_scale
            x0, x1 = (_Image(image.pixels[rows, columns]) for image in (a, b))
            if is_still(x0.pixels, x1.pixels):
                windows = [_fade(x0.pixels, x1.pixels, moment) for *_, moment in tasks]
            else:
                coarse = [slice(place.start // scale, place.stop // scale) for place in (rows, columns)]
                windows = [
                    self._frames([(x0, x1, moment)], flow[:, coarse[0], coarse[1]], device)
                    for (*_, moment), flow in zip(tasks, flows, strict=True)
                ]
            running.append((place, windows))
            if len(running) == len(self.devices):
                blend()
        while running:
            blend()
        self._encoded.clear()
        yield from frames

    def _frames(self, tasks: Sequence[Task], flow: Any, device: int) -> Float[Array, "b h w 3"]:
        """One call of the network for all tasks, or the mean of its ensemble; `flow` is known, or None."""
        first, second, moments = zip(*tasks, strict=True)
        time = self._put(_times(moments), device)
        coarse, finish = (partial(function, self.graphdef, self.params[device]) for function in (_coarse, _finish))
        flow = None if flow is None else self._put(flow, device)
        frames = []
        for mirrored in (False, True) if self.quality.ensemble else (False,):
            known = flow if flow is None or not mirrored else _mirror(flow) * MIRRORED_FLOW
            encoded = {image: self._kept(image, mirrored, device) for image in dict.fromkeys(first + second)}
            (p0, e0), (p1, e1) = (concatenate([encoded[image] for image in images]) for images in (first, second))
            del encoded
            lean = p0 is None
            if lean:
                jax.block_until_ready((e0, e1))
                return_freed_memory()  # in pieces too small for an activation
            pairs = [(coarse(e0, e1, time, known), time)]
            if self.quality.ensemble:
                pairs.append((coarse(e1, e0, 1 - time, None if known is None else known[..., [2, 3, 0, 1]]), 1 - time))
            if lean:
                del e0, e1
                self._forget(self.plan.kept * self._copies, later=self._next)
                jax.block_until_ready(pairs)  # until then encoded frames that are dropped are in memory
                finest = functools.cache(partial(self._encode, mirrored=mirrored, device=device, levels="finest"))
                p0, p1 = (concatenate([finest(image)[0] for image in images]) for images in (first, second))
                jax.block_until_ready((p0, p1))
                return_freed_memory()
            made = finish(p0, p1, *pairs[0])
            if self.quality.ensemble:
                made += finish(p1, p0, *pairs[1])
            frames.append(_mirror(made) if mirrored else made)
        return (frames[0] + frames[1]) / 4 if self.quality.ensemble else frames[0]

    def _kept(self, image: _Image, mirrored: bool, device: int) -> Frames:
        """The encoded frame, from those that are kept or made."""
        key, kept = (image, mirrored, device), self.plan.kept
        if key not in self._encoded:
            self._forget(max(2, kept) * self._copies - 1)
            self._encoded[key] = self._encode(image, mirrored, device, "all" if kept >= 2 else "coarser")
        self._encoded.move_to_end(key)
        return self._encoded[key]

    def _forget(self, most: int, later: Collection[_Image] = ()) -> None:
        """Drops encoded frames until `most` are left: those of `later` last, else the one used longest ago first."""
        while len(self._encoded) > most:
            unused = (key for key in self._encoded if key[0] not in later)
            del self._encoded[next(unused, next(iter(self._encoded)))]

    def _encode(self, image: _Image, mirrored: bool, device: int, levels: Levels) -> Frames:
        pixels = image.pixels[None]
        images = self._put(_mirror(pixels) if mirrored else pixels, device)
        return _encode(self.graphdef, self.params[device], images, levels)

    def _flow(self, tasks: Sequence[Task], device: int) -> Float[Array, "b h w 4"]:
        """Flow in the whole images at a lower scale, in pixels of that scale."""
        first, second, moments = zip(*tasks, strict=True)
        small = (_shrink(np.stack([x.pixels for x in images]), self.plan.flow_scale) for images in (first, second))
        return _flow(self.graphdef, self.params[device], *(self._put(x, device) for x in (*small, _times(moments))))

    def _put(self, x: Any, device: int) -> Array:
        return jax.device_put(x, self.devices[device])


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
    """Frames and everything between them, in order of time.

    Args:
      frames: two or more frames of one size, RGB float32 in [0, 1]; consumed as needed. ValueError otherwise.
      times: how often each gap is halved, up to MOST_TIMES: `2**times - 1` new frames in each.
      moments: in place of `times`, the moments of each gap, sorted and in (0, 1).
      batch, align, options: as of `Interpolator`.

    Yields:
      The frames, float32, new ones not clamped. The inputs themselves are unchanged.
    """
    if not 0 <= times <= MOST_TIMES or (batch is not None and batch < 1) or align < 0:
        raise ValueError(f"times={times}, batch={batch}, align={align}: give 0 to {MOST_TIMES}, 1 or more, 0 or more")
    wanted = moments_of.even(2**times - 1) if moments is None else [Fraction(moment) for moment in moments]
    return _interpolate(model, frames, wanted, options | dict(batch=batch, align=align, expected=len(wanted)))


def _interpolate(
    model: Film, frames: Iterable[Frame], moments: Sequence[Fraction], options: dict[str, Any]
) -> Iterator[Frame]:
    iterator = iter(frames)
    before = next(iterator, None)
    if before is None:
        raise ValueError("no frames: interpolation needs at least two")

    def items(before: Frame) -> Iterator[Frame | Gap]:
        yield before
        count = 1
        for frame in iterator:
            count += 1
            if frame.shape != before.shape:
                (height, width), (h, w) = frame.shape[:2], before.shape[:2]
                raise ValueError(f"frame {count} is {width}x{height}, the first {w}x{h}: bring them to one size")
            yield before, frame, moments
            yield frame
            before = frame
        if count < 2:
            raise ValueError("one frame only: interpolation needs at least two")

    yield from Interpolator(model, before.shape[:2], **options).stream(items(before))


def device_memory(device: Any) -> float | None:
    """Bytes of an accelerator's memory that may be planned with; None: of a CPU, whose memory is the machine's."""
    stats = None if device.platform == "cpu" else device.memory_stats()
    return USABLE * stats["bytes_limit"] if stats else None


def usual_batch(device: Any, size: tuple[int, int]) -> int:
    return 1 if device.platform == "cpu" else max(1, ACCELERATOR_PIXELS // (size[0] * size[1]))


def _fade(x0: Any, x1: Any, moment: Fraction) -> Any:
    return x0 + np.float32(moment) * (x1 - x0)


def _times(moments: Sequence[Fraction]) -> Float[np.ndarray, "b 1"]:
    return np.array([[float(moment)] for moment in moments], np.float32)


def _mirror(x: Any) -> Any:
    """Left and right exchanged, of [b h w c]."""
    return x[:, :, ::-1]


def _shrink(images: Float[np.ndarray, "b h w 3"], scale: int) -> Float[np.ndarray, "b h2 w2 3"]:
    batch, height, width, channels = images.shape
    return images.reshape(batch, height // scale, scale, width // scale, scale, channels).mean(axis=(2, 4))


@partial(jax.jit, static_argnums=(0, 3), compiler_options=COMPILER)
def _encode(graphdef, params, images, levels: Levels) -> Frames:
    """XLA leaves out what only the other levels need."""
    finest, coarser = nnx.merge(graphdef, params).encode(images.astype(_precision(params)))
    return None if levels == "coarser" else finest, None if levels == "finest" else coarser


@partial(jax.jit, static_argnums=0, compiler_options=COMPILER)
def _coarse(graphdef, params, e0, e1, time, flow) -> Coarse:
    return nnx.merge(graphdef, params).coarse(e0, e1, time, flow)


@partial(jax.jit, static_argnums=0, compiler_options=COMPILER)
def _finish(graphdef, params, x0, x1, coarse, time) -> Float[Array, "b h w 3"]:
    return nnx.merge(graphdef, params).finish(x0, x1, coarse, time).image.astype(jnp.float32)


@partial(jax.jit, static_argnums=0, compiler_options=COMPILER)
def _flow(graphdef, params, x0, x1, time) -> Float[Array, "b h w 4"]:
    model = nnx.merge(graphdef, params)
    padded = [pad_to_smallest(model.config, x.astype(_precision(params))) for x in (x0, x1)]
    output = crop(model.forward(*padded, time), *x0.shape[1:3])
    return jnp.concatenate([output.backward_flow[0], output.forward_flow[0]], axis=-1)


STAGES, FLOW = (_encode, _coarse, _finish), _flow


def _precision(params: Any) -> Any:
    return jax.tree.leaves(params)[0].dtype
