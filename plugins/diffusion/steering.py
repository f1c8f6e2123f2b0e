"""Between sampler and UNet: classifier-free guidance and controls, any number of them, added up.

A call of the UNet has up to four rows, the *branches*, for each image, in this order:

    source     latents of another image (Plug-and-Play reads features of it), if a control has one
    uncond     the sample with the negative prompt, if there is guidance; an InstructPix2Pix sees no image here
    image      InstructPix2Pix alone: the sample with the negative prompt and the image to edit
    cond       the sample with the prompt (and the image)

`steered` makes the model that a sampler calls. In each call every control returns an `Effect`: features for the levels
(T2I-Adapter, MediaPipe's plugins), residuals for the skips and the middle (ControlNet), or a tap that replaces values
inside the network (Plug-and-Play). Effects are added, taps run one after the other.

A control has two parts, as everything under `jax.jit`: a hashable `StaticControl`, which is part of the compiled
function, and a tree of arrays, which is not: strengths, weights and images change without a new compilation.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from plugins.diffusion.networks.unet_blocks import Tap, untouched
from plugins.diffusion.samplers import Step

SOURCE, UNCOND, IMAGE, COND = BRANCHES = ("source", "uncond", "image", "cond")


class Conditioning(NamedTuple):
    """What the UNet reads beside noisy latents and time, a row for each."""

    context: Float[Array, "*b n d"]  # text states
    pooled: Float[Array, "*b p"] | None = None  # SDXL: pooled text, and sizes, as `UNet.__call__` takes them
    sizes: Float[Array, "*b s"] | None = None
    channels: Float[Array, "*b h w e"] | None = None  # of images, behind the latents' (inpainting, InstructPix2Pix)

    @property
    def added(self) -> dict[str, Array]:
        """Keyword arguments of a UNet or a ControlNet, beside context."""
        return {} if self.pooled is None or self.sizes is None else {"pooled": self.pooled, "sizes": self.sizes}


def guide(
    uncond: Float[Array, "b ..."], cond: Float[Array, "b ..."], scale: float | Float[Array, ""], rescale: float = 0.0
) -> Float[Array, "b ..."]:
    """Classifier-free guidance, uncond + scale (cond - uncond); scale 1 disables it. `rescale` in [0, 1] is phi of
    2305.08891 (equations 14-16), against over-exposure: it mixes in the guided prediction with each row's standard
    deviation set back to that of `cond`."""
    guided = uncond + scale * (cond - uncond)
    if rescale == 0:
        return guided
    axes = tuple(range(1, cond.ndim))
    ratio = jnp.std(cond, axes, keepdims=True) / jnp.std(guided, axes, keepdims=True)
    return guided * (rescale * ratio + 1 - rescale)


class Rows(NamedTuple):
    """One call of the UNet: r rows of `branches` for each of b images."""

    x: Float[Array, "b r h w c"]
    conditioning: Conditioning  # b r ...
    branches: tuple[str, ...]
    step: Step

    def chosen(self, branches: Sequence[str]) -> "Rows":
        """These rows alone."""
        index = [i for i, branch in enumerate(self.branches) if branch in branches]
        names = tuple(self.branches[i] for i in index)
        x, conditioning = jax.tree.map(lambda array: array[:, jnp.array(index)], (self.x, self.conditioning))
        return Rows(x, conditioning, names, self.step)


class Effect(NamedTuple):
    """A control's contribution to one call: `b k h w c` for the rows of `branches`, b and k of 1 broadcast; other rows
    get zeros. A tap gets all rows, `b * r` of them, and returns those that it does not change."""

    branches: tuple[str, ...] = (UNCOND, IMAGE, COND)
    level_features: tuple[Array | None, ...] = ()
    skip_residuals: tuple[Array, ...] = ()
    mid_residual: Array | None = None
    tap: Tap = untouched


@runtime_checkable
class StaticControl(Protocol):
    """The compiled part of a control; hashable."""

    def source(self, arrays: Any, step: Step) -> Float[Array, "b h w c"] | None:
        """The latents of its source row in this call; None: it needs no such row."""

    def effect(self, arrays: Any, rows: Rows) -> Effect: ...


def steered(
    unet: Callable,
    dtype: Any,
    branches: Mapping[str, Conditioning],
    scale: Float[Array, ""],
    rescale: float = 0.0,
    controls: Sequence[tuple[StaticControl, Any]] = (),
    image_scale: Float[Array, ""] | None = None,
) -> Callable[[Array, Step], Array]:
    """The model for a sampler: the UNet with text and controls in one call, in `dtype`, guided if there is a branch
    `UNCOND`. `branches` have a row for each image; that of `SOURCE` is read if a control has a source. `image_scale` is
    InstructPix2Pix's second guidance (2211.09800, equation 3). An image's rows are adjacent, so that they stay on one
    device when the batch is sharded."""

    def model(x: Float[Array, "b h w c"], step: Step) -> Float[Array, "b h w c"]:
        sources = [source for static, arrays in controls if (source := static.source(arrays, step)) is not None]
        assert len(sources) <= 1 and (not sources or SOURCE in branches), "`make_request` allows one source"
        names = tuple(name for name in BRANCHES if name in branches and (name != SOURCE or sources))
        images = [sources[0] if name == SOURCE else x for name in names]
        stacked = jnp.stack([jnp.broadcast_to(image, x.shape).astype(dtype) for image in images], 1)
        conditioning = jax.tree.map(lambda *arrays: jnp.stack(arrays, 1), *(branches[name] for name in names))
        rows = Rows(stacked, conditioning, names, step)
        added = _joined([static.effect(arrays, rows) for static, arrays in controls], rows)
        inputs, flat = _flat(rows.x), jax.tree.map(_flat, conditioning)
        if flat.channels is not None:
            inputs = jnp.concatenate([inputs, flat.channels.astype(dtype)], axis=-1)
        output = unet(inputs, step.t, flat.context, **flat.added, **added)
        output = output.astype(x.dtype).reshape(*rows.x.shape[:2], *output.shape[1:])
        by_name = {name: output[:, i] for i, name in enumerate(names)}
        if UNCOND not in by_name:
            return by_name[COND]
        if IMAGE not in by_name:
            return guide(by_name[UNCOND], by_name[COND], scale, rescale)
        assert image_scale is not None, "the branch IMAGE has a scale of its own"
        towards_image = (image_scale - 1) * (by_name[IMAGE] - by_name[UNCOND])
        return guide(by_name[IMAGE], by_name[COND], scale, rescale) + towards_image

    return model


def _joined(effects: Sequence[Effect], rows: Rows) -> dict[str, Any]:
    """The UNet's arguments: all effects added."""
    joined: dict[str, Any] = {}
    for name in ("level_features", "skip_residuals"):
        if lists := [(effect.branches, getattr(effect, name)) for effect in effects if getattr(effect, name)]:
            longest = max(len(tensors) for _, tensors in lists)
            joined[name] = [_sum([(k, t[i]) for k, t in lists if i < len(t)], rows) for i in range(longest)]
    if (middle := _sum([(effect.branches, effect.mid_residual) for effect in effects], rows)) is not None:
        joined["mid_residual"] = middle
    taps = [effect.tap for effect in effects if effect.tap is not untouched]

    def tap(name: str, value: Array) -> Array:
        for each in taps:
            value = each(name, value)
        return value

    return joined | ({"tap": tap} if taps else {})


def _sum(tensors: Sequence[tuple[tuple[str, ...], Array | None]], rows: Rows) -> Array | None:
    """The sum of what there is, as the UNet takes it: a row each, or one for all."""
    spread = [_spread(branches, tensor, rows) for branches, tensor in tensors if tensor is not None]
    if not spread:
        return None
    total = sum(spread[1:], spread[0])
    return total[0] if total.shape[:2] == (1, 1) else _flat(jnp.broadcast_to(total, rows.x.shape[:2] + total.shape[2:]))


def _spread(branches: tuple[str, ...], tensor: Float[Array, "b k h w c"], rows: Rows) -> Array:
    """`b r h w c` (or 1 for r) from the rows of `branches`: zeros for the others."""
    one = tensor.shape[1] == 1
    if one and set(rows.branches) <= set(branches):
        return tensor
    named = [branch for branch in rows.branches if branch in branches]
    own = {branch: tensor[:, 0 if one else i] for i, branch in enumerate(named)}
    return jnp.stack([own.get(branch, jnp.zeros_like(tensor[:, 0])) for branch in rows.branches], 1)


def _flat(rows: Float[Array, "b r ..."]) -> Float[Array, "b_r ..."]:
    return rows.reshape(-1, *rows.shape[2:])
