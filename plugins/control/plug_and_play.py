"""Plug-and-Play: keep a picture's layout by lending its features to another prompt's run (Tumanyan et al., 2211.12572).

Nothing is trained. The base itself has to say what the picture looks like from inside:

1. *Invert* (DDIM backwards, empty prompt): the noise from which the base would make this very picture.
2. *Follow*: from that noise forwards again, so that the picture's latents at each step of the coming run are known.
3. *Generate* from the same noise, with the new prompt. In each call the picture's latents ride along as a row of their
   own, and its values replace those of the other rows in two kinds of places, on the way up:

       features of one residual block       for the first 80 % of the steps: where things are
       queries and keys of self-attention   for the first 50 %: which places belong together

The release takes features of the fifth of twelve residual blocks on the way up, and attention from there on; in Stable
Diffusion 1.x that is `up_blocks.1.resnets.1` and `attn1` of `up_blocks.1.attentions.1` to `up_blocks.3.attentions.2`.
In other networks it is the block a third of the way up.

    image = pipeline("a silver horse", controls=[PlugAndPlay(photo)], sampler="ddim")

The price: a row more in every call (half as much again with guidance), and `inversion` + steps calls beforehand, once
for each picture. It runs with DDIM, whose way back is known. All seeds give the same: the noise is the picture's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from plugins.control.contract import check_picture, check_settings
from plugins.diffusion.networks.unet_config import UP_TYPES, UNetConfig
from plugins.diffusion.request import check_images
from plugins.diffusion.samplers import Step, ddim, ddim_inversion
from plugins.diffusion.steering import WITH, WITHOUT, Effect, Rows, steered

INVERSION = 200  # steps; the release takes 999, the round trip's error falls as one over their number


class Place(NamedTuple):
    """Where values are replaced: the tap's names of them, and for which first part of the run."""

    names: tuple[str, ...]
    until: float


@dataclasses.dataclass(frozen=True, eq=False)
class PlugAndPlay:
    """A picture whose layout the run keeps. Raises ValueError in one line for settings that make no sense.

    Attributes:
      picture: `h w 3` for all images, or `b h w 3`, one each, in [0, 1].
      features: the part of the run in which the residual block's features are replaced.
      attention: the part of the run in which queries and keys are replaced.
      inversion: steps from the picture to its noise, up to 1000.
      strength: 1 replaces, 0 leaves alone, between them values are mixed.
      levels: a factor on `strength` for each place (`places`), the features first.
      steps: the part of the run in which it acts at all.
      prompt_only: the half of guidance without the prompt is left alone.
    """

    picture: Any
    features: int | float = 0.8
    attention: int | float = 0.5
    inversion: int = INVERSION
    strength: int | float = 1.0
    levels: Sequence[int | float] | None = None
    steps: Sequence[int | float] = (0.0, 1.0)
    prompt_only: bool = False
    _known: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)
    _of: list[Any] = dataclasses.field(default_factory=list, init=False, repr=False)  # parameters it was made with

    brings_source: ClassVar[bool] = True

    def __post_init__(self):
        object.__setattr__(self, "picture", check_images(self.picture))
        check_settings(self.strength, self.levels or (), self.steps, len(self.levels or ()))
        for name, part in (("features", self.features), ("attention", self.attention)):
            if not 0 <= part <= 1:
                raise ValueError(f"{name}={part} has to be a part of the run, from 0 to 1")
        if isinstance(self.inversion, bool) or not isinstance(self.inversion, int) or self.inversion < 1:
            raise ValueError(f"inversion={self.inversion!r} has to be a number of steps; {INVERSION} is the default")

    def places(self, unet: UNetConfig) -> list[Place]:
        """In that UNet: the features' first, then each self-attention's."""
        blocks = blocks_of_the_way_up(unet)
        blocks = blocks[len(blocks) // 3 :]
        level, i, _ = blocks[0]
        places = [Place((f"up_blocks.{level}.resnets.{i}",), self.features)]
        for level, i, looks in blocks:
            for depth in range(unet.transformer_layers_per_block if looks else 0):
                inside = f"up_blocks.{level}.attentions.{i}.transformer_blocks.{depth}.attn1"
                places.append(Place((f"{inside}.to_q", f"{inside}.to_k"), self.attention))
        return places

    def check(self, base: Any, request: Any) -> None:
        """Raises ValueError in one line unless it fits the base and the request."""
        check_picture(self.picture, request)
        places = len(self.places(base.unet))
        if self.levels is not None and len(self.levels) != places:
            raise ValueError(f"levels has {len(self.levels)} factors; Plug-and-Play has {places} places in this base")
        if request.sampler.name != ddim.name or dict(request.sampler.options).get("eta", 0):
            raise ValueError(f"Plug-and-Play follows DDIM, not {request.sampler.name}; ask for the sampler ddim")
        if request.image is not None:
            raise ValueError("Plug-and-Play starts from its own picture's noise; leave out the image to start from")
        ddim_inversion.plan(base.schedule, self.inversion)  # a schedule that cannot be gone back is told here

    def prepare(self, run: Any, rows: np.ndarray) -> tuple[Injection, Arrays]:
        """For these images of a run: what becomes part of its program, and the arrays that the program gets."""
        places = self.places(run.pipeline.base.unet)
        kinds = (WITH,) if self.prompt_only or not run.request.guided else (WITHOUT, WITH)
        levels = self.levels or (1.0,) * len(places)
        gains = jnp.asarray([self.strength * level for level in levels], jnp.float32)
        until = jnp.asarray([place.until for place in places], jnp.float32)
        window = jnp.asarray(self.steps, jnp.float32)
        acts = Injection(tuple(place.names for place in places), kinds)
        return acts, Arrays(self._trajectory(run, rows), gains, until, window)

    def begin(self, run: Any, rows: np.ndarray) -> Float[Array, "b h w c"]:
        """The noise that leads to the picture."""
        noise = self._trajectory(run, rows)[0]
        return jnp.broadcast_to(noise, (len(rows), *noise.shape[1:]))

    def _trajectory(self, run: Any, rows: np.ndarray) -> Float[Array, "steps b h w c"]:
        """The picture's latents before each step and after the last; kept for the images that were last asked for."""
        rows = np.zeros(1, int) if len(self.picture) == 1 else rows
        networks = [run.params[name] for name in ("unet", "vae", "text_encoder")]
        key = (run.pipeline.schedule, run.request.steps, run.request.clip_skip, tuple(map(int, rows)))
        same = len(networks) == len(self._of) and all(a is b for a, b in zip(networks, self._of, strict=True))
        if not same or key not in self._known:
            self._of[:] = networks  # kept, so that other trees cannot be taken for them
            self._known.clear()
            programs = run.pipeline.compiled
            latents = programs.encode_image(run.params["vae"], jnp.asarray(self.picture[rows]))
            settings = {"schedule": run.pipeline.schedule, "inversion": self.inversion, "steps": run.request.steps}
            self._known[key] = follow(
                programs.graphs["unet"], run.params["unet"], latents, run.states([""]), **settings
            )
        return self._known[key]


class Arrays(NamedTuple):
    """What may change without a new program."""

    trajectory: Float[Array, "steps b h w c"]
    gains: Float[Array, " places"]
    until: Float[Array, " places"]
    window: Float[Array, " 2"]


class Injection(NamedTuple):
    """How it acts in each call (`steering.Acts`): `names` for each place, the rows of `kinds` receive."""

    names: tuple[tuple[str, ...], ...]
    kinds: tuple[str, ...]

    def source(self, arrays: Arrays, step: Step) -> Float[Array, "b h w c"]:
        return arrays.trajectory[step.index]

    def effect(self, arrays: Arrays, rows: Rows) -> Effect:
        acting = rows.step.within(arrays.window[0], arrays.window[1])
        gains = {}
        for i, names in enumerate(self.names):
            gain = jnp.where(acting & rows.step.within(0.0, arrays.until[i]), arrays.gains[i], 0)
            gains |= dict.fromkeys(names, gain)
        receives = np.array([kind in self.kinds for kind in rows.kinds])

        def tap(name: str, value: Array) -> Array:
            return inject(value, gains[name], receives) if name in gains else value

        return Effect(self.kinds, tap=tap)


def inject(value: Float[Array, "rows ..."], gain: Float[Array, ""], receives: np.ndarray) -> Float[Array, "rows ..."]:
    """Mix each picture's first row, its source, into those of its rows that receive."""
    grouped = value.reshape(-1, len(receives), *value.shape[1:])
    share = (gain * receives).astype(value.dtype).reshape(1, -1, *(1,) * (value.ndim - 1))
    return (share * grouped[:, :1] + (1 - share) * grouped).reshape(value.shape)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("schedule", "inversion", "steps"))
def follow(
    graph: Any,
    params: Any,
    latents: Float[Array, "b h w c"],
    empty: Float[Array, "1 n d"],
    *,
    schedule: Any,
    inversion: int,
    steps: int,
) -> Float[Array, "steps b h w c"]:
    """Latents to their noise in `inversion` steps, and back in `steps`: the samples before each and after the last."""
    dtype = jax.tree.leaves(params)[0].dtype
    states = jnp.broadcast_to(empty, (len(latents), *empty.shape[1:]))
    model = steered(nnx.merge(graph, params), dtype, states, None, jnp.float32(1), 0.0)
    noise = ddim_inversion(model, latents, schedule, steps=inversion)
    _, samples = ddim(model, noise, schedule, steps=steps, trajectory=True)
    return samples


def blocks_of_the_way_up(unet: UNetConfig) -> list[tuple[int, int, bool]]:
    """(level, number in it, whether a transformer follows) of each residual block, in the order of computation."""
    each = range(unet.layers_per_block + 1)
    return [(level, i, kind == UP_TYPES[0]) for level, kind in enumerate(unet.up_block_types) for i in each]
