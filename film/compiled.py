"""FILM as compiled functions on the local devices, with the encoded frames that are kept for the next call.

The network runs as three compiled functions, so that its levels are never all in memory (`film.model`): `_encode` for
each frame; `_coarse` and `_finish` for each new one. Encoded frames are kept as far as the plan allows
(`ComputePlan.kept`). If it allows fewer than two, `_coarse` gets the levels from 1 on alone, and the finest one is made
again for `_finish`, when the others are not needed any more.
"""

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Collection, Sequence
from fractions import Fraction
from functools import partial
from importlib.metadata import version
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from common.checked import Checked, Dtype
from common.runtime import return_freed_memory
from film.model import Coarse, Encoded, Film, Pack, concatenate, crop, pad_to_smallest
from film.planning import ComputePlan

# On a CPU FILM compiles in two thirds of the time without XLA's fusion emitters, and runs as fast: `benchmarks/film.py`
# with and without this, `first s` and `CPU s`. A version of XLA that lacks an option refuses it.
COMPILER = {"xla_cpu_use_fusion_emitters": False} if version("jaxlib").startswith("0.10.") else {}
MIRRORED_FLOW = np.array([-1, 1, -1, 1], np.float32)  # dx changes its sign


@dataclasses.dataclass(frozen=True)
class Quality(Checked):
    """What costs time: `ensemble` averages both directions of time and both mirror images, four runs of the network;
    `precision` is that of activations and colours."""

    ensemble: bool = False
    precision: Dtype = "float32"


@dataclasses.dataclass(frozen=True, eq=False)
class PaddedFrame:
    """The object itself is the key of its encodings."""

    pixels: Float[np.ndarray, "h w 3"]


Task = tuple[PaddedFrame, PaddedFrame, Fraction]  # two frames and a moment between them
Levels = Literal["all", "finest", "coarser"]  # of an encoded frame
EncodedLevels = tuple[Pack | None, Encoded | None]  # the finest and the coarser ones; None: not asked for


class CompiledFilm:
    """A network on `devices`. `device` arguments are indices of these."""

    def __init__(self, model: Film, plan: ComputePlan, quality: Quality, devices: Sequence[Any]):
        self.graphdef, state = nnx.split(model)
        params = jax.tree.map(lambda x: x.astype(quality.precision), nnx.to_pure_dict(state))
        self.params = [jax.device_put(params, device) for device in devices]
        self.plan, self.ensemble, self.devices = plan, quality.ensemble, devices
        self._levels: Levels = "all" if plan.kept >= 2 else "coarser"  # of frames that are kept
        self.next_frames: Collection[PaddedFrame] = ()  # those of the call after this one, if that is known
        self._copies = len(devices) * (2 if quality.ensemble else 1)  # of each frame that is kept
        self._encoded: OrderedDict[tuple[PaddedFrame, bool, int], EncodedLevels] = OrderedDict()

    def compile(self, batch: int) -> None:
        """Compiles the functions for `batch` pairs, before encoded frames are in memory beside the compiler."""
        (height, width), scale = self.plan.window, self.plan.flow_scale
        for params, device in zip(self.params, self.devices, strict=True):
            array = partial(jax.ShapeDtypeStruct, sharding=jax.sharding.SingleDeviceSharding(device))

            def compiled(function: Any, *words: Any, params: Any = params, array: Any = array) -> Any:
                """The shapes of its results, for `batch` images."""
                function.lower(self.graphdef, params, *words).compile()
                shapes = function.eval_shape(self.graphdef, params, *words)
                return jax.tree.map(lambda x: array((batch, *x.shape[1:]), x.dtype), shapes)

            flow, time = None, array((batch, 1), jnp.float32)
            if scale > 1:
                small = array((batch, *(side // scale for side in self.plan.padded), 3), jnp.float32)
                compiled(FLOW, small, small, time)
                flow = array((batch, height // scale, width // scale, 4), jnp.float32)
            encode, coarse, finish = STAGES
            image = array((1, height, width, 3), jnp.float32)
            finest, coarser = compiled(encode, image, self._levels)
            if finest is None:
                finest, _ = compiled(encode, image, "finest")
            compiled(finish, finest, finest, compiled(coarse, coarser, coarser, time, flow), time)

    def frames(self, tasks: Sequence[Task], flow: Any, device: int) -> Float[Array, "b h w 3"]:
        """One call of the network for all tasks, or the mean of its ensemble; `flow` is known, or None."""
        first, second, moments = zip(*tasks, strict=True)
        time = self._put(_times(moments), device)
        coarse, finish = (partial(function, self.graphdef, self.params[device]) for function in (_coarse, _finish))
        flow = None if flow is None else self._put(flow, device)
        frames = []
        for mirrored in (False, True) if self.ensemble else (False,):
            known = flow if flow is None or not mirrored else _mirror(flow) * MIRRORED_FLOW
            encoded = {image: self._kept(image, mirrored, device) for image in dict.fromkeys(first + second)}
            (p0, e0), (p1, e1) = (concatenate([encoded[image] for image in images]) for images in (first, second))
            del encoded
            lean = p0 is None
            if lean:
                jax.block_until_ready((e0, e1))
                return_freed_memory()  # in pieces too small for an activation
            pairs = [(coarse(e0, e1, time, known), time)]
            if self.ensemble:
                pairs.append((coarse(e1, e0, 1 - time, None if known is None else known[..., [2, 3, 0, 1]]), 1 - time))
            if lean:
                del e0, e1
                self._forget(self.plan.kept * self._copies, later=self.next_frames)
                jax.block_until_ready(pairs)  # until then encoded frames that are dropped are in memory
                finest = functools.cache(partial(self._encode, mirrored=mirrored, device=device, levels="finest"))
                p0, p1 = (concatenate([finest(image)[0] for image in images]) for images in (first, second))
                jax.block_until_ready((p0, p1))
                return_freed_memory()
            made = finish(p0, p1, *pairs[0])
            if self.ensemble:
                made += finish(p1, p0, *pairs[1])
            frames.append(_mirror(made) if mirrored else made)
        return (frames[0] + frames[1]) / 4 if self.ensemble else frames[0]

    def flow(self, tasks: Sequence[Task], device: int) -> Float[Array, "b h w 4"]:
        """Flow in the whole images at the plan's lower scale, in pixels of that scale."""
        *pair, moments = zip(*tasks, strict=True)
        small = (_shrink(np.stack([x.pixels for x in images]), self.plan.flow_scale) for images in pair)
        return _flow(self.graphdef, self.params[device], *(self._put(x, device) for x in (*small, _times(moments))))

    def forget(self) -> None:
        self._encoded.clear()

    def _kept(self, image: PaddedFrame, mirrored: bool, device: int) -> EncodedLevels:
        key = (image, mirrored, device)
        if key not in self._encoded:
            self._forget(max(2, self.plan.kept) * self._copies - 1)
            self._encoded[key] = self._encode(image, mirrored, device, self._levels)
        self._encoded.move_to_end(key)
        return self._encoded[key]

    def _forget(self, most: int, later: Collection[PaddedFrame] = ()) -> None:
        """Drops encoded frames until `most` are left: those of `later` last, else the one used longest ago first."""
        while len(self._encoded) > most:
            unused = (key for key in self._encoded if key[0] not in later)
            del self._encoded[next(unused, next(iter(self._encoded)))]

    def _encode(self, image: PaddedFrame, mirrored: bool, device: int, levels: Levels) -> EncodedLevels:
        pixels = image.pixels[None]
        images = self._put(_mirror(pixels) if mirrored else pixels, device)
        return _encode(self.graphdef, self.params[device], images, levels)

    def _put(self, x: Any, device: int) -> Array:
        return jax.device_put(x, self.devices[device])


def _times(moments: Sequence[Fraction]) -> Float[np.ndarray, "b 1"]:
    return np.array([[float(moment)] for moment in moments], np.float32)


def _mirror(x: Any) -> Any:
    """Left and right exchanged, of [b h w c]."""
    return x[:, :, ::-1]


def _shrink(images: Float[np.ndarray, "b h w 3"], scale: int) -> Float[np.ndarray, "b h2 w2 3"]:
    batch, height, width, channels = images.shape
    return images.reshape(batch, height // scale, scale, width // scale, scale, channels).mean(axis=(2, 4))


@partial(jax.jit, static_argnums=(0, 3), compiler_options=COMPILER)
def _encode(graphdef, params, images, levels: Levels) -> EncodedLevels:
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


# For `compile`, also where the names above are replaced by functions that count calls (`benchmarks/film.py`).
STAGES, FLOW = (_encode, _coarse, _finish), _flow


def _precision(params: Any) -> Any:
    return jax.tree.leaves(params)[0].dtype
