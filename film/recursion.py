"""From a network that knows the midpoint to any number of in-between frames.

Halving every gap `times` times turns n frames into `(n - 1) * 2**times + 1`. Within a gap the frames are computed
level by level: 1/2, then 1/4 and 3/4 together, then the eighths. What depends on one frame alone (its pyramids,
features and its half of the flow predictor, `Film.encode`) is computed once per frame and shared by both neighbours
and all deeper levels; frames of the last level have no later neighbours and are never encoded.

    gap     0 ------------------------------ 1      encode 0, 1
    level 1                 1/2                     1 pair,  encode 1/2
    level 2        1/4              3/4             2 pairs, encode both
    level 3    1/8     3/8      5/8     7/8         4 pairs, encode nothing

Frames are consumed and produced one by one. A level with more pairs than `batch` is computed depth first, so that never
more than a few encoded frames are alive, whatever the number of inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from film.config import MOST_TIMES
from film.model import Encoded, Film, concatenate, pad_to_smallest

Frame = Float[np.ndarray, "h w 3"]
MIDPOINT = 0.5
ACCELERATOR_PIXELS = 4 << 20  # per call; on a CPU one pair at a time is as fast and needs least memory


def interpolate(
    model: Film, frames: Iterable[Frame], times: int = 1, *, batch: int | None = None, align: int = 1
) -> Iterator[Frame]:
    """Frames and everything between them, in order of time.

    Args:
      frames: two or more frames of one size, RGB float32 in [0, 1]; consumed as needed. ValueError otherwise.
      times: how often each gap is halved, up to MOST_TIMES.
      batch: most pairs per call; None chooses by frame size and device.
      align: pads with zeros to a multiple of this many pixels, half on each side, as the reference's command does
        with 64. 1 adds no padding.

    Yields:
      `(n - 1) * 2**times + 1` frames like the inputs, float32, not clamped. The inputs themselves are unchanged.
    """
    if not 0 <= times <= MOST_TIMES or (batch is not None and batch < 1) or align < 1:
        raise ValueError(
            f"times={times}, batch={batch}, align={align}: times is from 0 to {MOST_TIMES}, the others at least 1"
        )
    return _interpolate(model, frames, times, batch, align)


def _interpolate(model: Film, frames: Iterable[Frame], times: int, batch: int | None, align: int) -> Iterator[Frame]:
    iterator = iter(frames)
    first = next(iterator, None)
    if first is None:
        raise ValueError("no frames: interpolation needs at least two")
    interpolator = Interpolator(model, first.shape, batch=batch, align=align)
    before = interpolator.encode(first)
    yield first
    count = 1
    for count, frame in enumerate(iterator, 2):
        if frame.shape != first.shape:
            raise ValueError(
                f"frame {count} is {frame.shape[1]}x{frame.shape[0]}, the first {first.shape[1]}x{first.shape[0]}: "
                "resize or crop them to one size"
            )
        after = interpolator.encode(frame)
        yield from interpolator.between(before, after, times)
        yield frame
        before = after
    if count < 2:
        raise ValueError("one frame only: interpolation needs at least two")


class Interpolator:
    """A network and its two compiled functions for frames of one size."""

    def __init__(self, model: Film, shape: tuple[int, ...], *, batch: int | None = None, align: int = 1):
        self.graphdef, state = nnx.split(model)
        self.params = nnx.to_pure_dict(state)
        height, width = self.size = (shape[0], shape[1])
        if min(self.size) < 2:
            raise ValueError(f"a frame of {width}x{height} is too small: sides are at least 2 pixels")
        missing = [-side % align for side in self.size]
        self.padding = [(pixels // 2, pixels - pixels // 2) for pixels in missing]
        on_cpu = jax.default_backend() == "cpu"
        self.batch = batch or (1 if on_cpu else max(1, ACCELERATOR_PIXELS // (height * width)))

    def encode(self, frame: Frame | Float[Array, "h w 3"]) -> Encoded:
        """All that the network derives from a frame alone, as a batch of one."""
        padded = jnp.pad(jnp.asarray(frame, jnp.float32)[None], ((0, 0), *self.padding, (0, 0)))
        return _encode(self.graphdef, self.params, padded)

    def midpoints(self, pairs: list[tuple[Encoded, Encoded]]) -> Float[Array, "b h w 3"]:
        """The frames half-way between encoded pairs, in one call."""
        e0, e1 = (concatenate([pair[side] for pair in pairs]) for side in (0, 1))
        (top, _), (left, _) = self.padding
        height, width = self.size
        return _midpoints(self.graphdef, self.params, e0, e1)[:, top : top + height, left : left + width]

    def between(self, e0: Encoded, e1: Encoded, times: int) -> Iterator[Frame]:
        """The `2**times - 1` frames strictly between two encoded frames."""
        if times < 1:
            return
        if 2 ** (times - 1) > self.batch:
            middle = self.midpoints([(e0, e1)])[0]
            encoded = self.encode(middle)
            yield from self.between(e0, encoded, times - 1)
            yield np.asarray(middle)
            yield from self.between(encoded, e1, times - 1)
            return
        ends, images = [e0, e1], []
        for level in range(times):
            new = list(self.midpoints(list(pairwise(ends))))
            images = _alternate(new, images)
            if level + 1 < times:
                ends = _alternate(ends, [self.encode(image) for image in new])
        yield from map(np.asarray, images)


def _alternate(outer: list, inner: list) -> list:
    """outer[0], inner[0], outer[1], ..., outer[-1]: `inner` is one shorter."""
    both = [None] * (len(outer) + len(inner))
    both[::2], both[1::2] = outer, inner
    return both


@partial(jax.jit, static_argnums=0)
def _encode(graphdef, params, images) -> Encoded:
    model = nnx.merge(graphdef, params)
    return model.encode(pad_to_smallest(model.config, images))


@partial(jax.jit, static_argnums=0)
def _midpoints(graphdef, params, e0, e1) -> Float[Array, "b h w 3"]:
    model = nnx.merge(graphdef, params)
    time = jnp.full((e0.packs[0].shape[0], 1), MIDPOINT)
    return model.interpolate_encoded(e0, e1, time).image
