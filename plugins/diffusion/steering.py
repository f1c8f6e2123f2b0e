"""What may stand between a sampler and the UNet: controls, any number of them, added up.

A call of the UNet has up to three rows for each picture, in this order:

    source     the latents of another picture on its way (Plug-and-Play reads features of it), if a control has one
    without    the sample with the negative prompt, if there is guidance
    with       the sample with the prompt

`steered` makes the model that a sampler asks. In each call every control says what it adds, its `Effect`: features for
the levels (T2I-Adapter, MediaPipe's plugins), residuals for the skips and the middle (ControlNet), or a tap that puts
values into the network (Plug-and-Play). Effects of several controls are added, taps run one after the other; without
controls the UNet is called as if this file did not exist.

A control comes in two parts, as everything under `jax.jit`: a hashable `Acts`, which is part of the program, and a
tree of arrays, which is not: strengths, weights, pictures change without a new compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float

from plugins.diffusion.networks.tap import Tap, untouched
from plugins.diffusion.samplers import Step


def guide(
    uncond: Float[Array, "b ..."], cond: Float[Array, "b ..."], scale: float | Float[Array, ""], rescale: float = 0.0
) -> Float[Array, "b ..."]:
    """uncond + scale (cond - uncond): scale 0 ignores the prompt, 1 is no guidance, 7.5 is customary.

    `rescale` in [0, 1] is the paper's phi (2305.08891, equations 14-16): it mixes in the guided prediction with each
    row's standard deviation brought back to that of `cond`, against over-exposure. Raises ValueError outside [0, 1].
    """
    if not 0 <= rescale <= 1:
        raise ValueError(f"guidance rescale={rescale} has to lie in [0, 1]; 0 is off, 0.7 is the paper's")
    guided = uncond + scale * (cond - uncond)
    if rescale == 0:
        return guided
    axes = tuple(range(1, cond.ndim))
    ratio = jnp.std(cond, axes, keepdims=True) / jnp.std(guided, axes, keepdims=True)
    return guided * (rescale * ratio + 1 - rescale)


SOURCE, WITHOUT, WITH = "source", "without", "with"


class Rows(NamedTuple):
    """One call of the UNet: r rows of `kinds` for each of b pictures."""

    x: Float[Array, "b r h w c"]
    context: Float[Array, "b r n d"]
    kinds: tuple[str, ...]
    step: Step

    def chosen(self, kinds: Sequence[str]) -> Rows:
        """These rows alone."""
        places = [i for i, kind in enumerate(self.kinds) if kind in kinds]
        names = tuple(self.kinds[i] for i in places)
        return Rows(self.x[:, jnp.array(places)], self.context[:, jnp.array(places)], names, self.step)


class Effect(NamedTuple):
    """What one control does to one call.

    Tensors are `b k h w c` for the rows of `kinds`; b and k of 1 stand for all of them. Rows that are not named get
    nothing. A tap sees all rows, `b * r` of them, and leaves alone those that it has nothing to do with.
    """

    kinds: tuple[str, ...] = (WITHOUT, WITH)
    level_features: tuple[Array | None, ...] = ()
    skip_residuals: tuple[Array, ...] = ()
    mid_residual: Array | None = None
    tap: Tap = untouched


@runtime_checkable
class Acts(Protocol):
    """How a control acts; hashable."""

    def source(self, arrays: Any, step: Step) -> Float[Array, "b h w c"] | None:
        """The latents that its source row holds in this call; None: it needs no such row."""

    def effect(self, arrays: Any, rows: Rows) -> Effect: ...


Steered = Sequence[tuple[Acts, Any]]


def steered(
    unet: Callable,
    dtype: Any,
    states: Float[Array, "b n d"],
    negative: Float[Array, "b n d"] | None,
    scale: Float[Array, ""],
    rescale: float,
    controls: Steered = (),
    empty: Float[Array, "1 n d"] | None = None,
) -> Callable[[Array, Step], Array]:
    """The model that a sampler asks: the UNet with text and controls, in one call, guided unless `negative` is None.

    `empty` is what a source row reads; the rows themselves are computed in `dtype`.
    """
    texts = {WITH: states} if negative is None else {WITHOUT: negative, WITH: states}

    def model(x: Float[Array, "b h w c"], step: Step) -> Float[Array, "b h w c"]:
        rows = _rows(x.astype(dtype), texts, _source(controls, step), empty, step)
        added = _joined([acts.effect(arrays, rows) for acts, arrays in controls], rows)
        answer = unet(_flat(rows.x), step.t, _flat(rows.context), **added)
        answer = answer.astype(x.dtype).reshape(*rows.x.shape[:2], *answer.shape[1:])
        with_prompt = answer[:, -1]
        return with_prompt if negative is None else guide(answer[:, -2], with_prompt, scale, rescale)

    return model


def _source(controls: Steered, step: Step) -> Array | None:
    found = [rows for acts, arrays in controls if (rows := acts.source(arrays, step)) is not None]
    assert len(found) <= 1, "a request has checked that one control at most brings a source"
    return found[0] if found else None


def _rows(x: Array, texts: dict[str, Array], source: Array | None, empty: Array | None, step: Step) -> Rows:
    """All rows of a call; those of a picture lie next to each other, and so stay together on one device."""
    pictures, contexts, kinds = [x] * len(texts), list(texts.values()), list(texts)
    if source is not None:
        assert empty is not None, "a control with a source comes with the states of the empty prompt"
        pictures.insert(0, jnp.broadcast_to(source.astype(x.dtype), x.shape))
        contexts.insert(0, jnp.broadcast_to(empty, contexts[0].shape))
        kinds.insert(0, SOURCE)
    return Rows(jnp.stack(pictures, 1), jnp.stack(contexts, 1), tuple(kinds), step)


def _joined(effects: Sequence[Effect], rows: Rows) -> dict[str, Any]:
    """The UNet's arguments: all effects added."""
    joined: dict[str, Any] = {}
    for name in ("level_features", "skip_residuals"):
        lists = [(effect.kinds, getattr(effect, name)) for effect in effects if getattr(effect, name)]
        if lists:
            longest = max(len(tensors) for _, tensors in lists)
            joined[name] = [_sum([(k, t[i]) for k, t in lists if i < len(t)], rows) for i in range(longest)]
    middle = _sum([(effect.kinds, effect.mid_residual) for effect in effects], rows)
    taps = [effect.tap for effect in effects if effect.tap is not untouched]
    if middle is not None:
        joined["mid_residual"] = middle
    if taps:
        joined["tap"] = _one_after_the_other(taps)
    return joined


def _sum(parts: Sequence[tuple[tuple[str, ...], Array | None]], rows: Rows) -> Array | None:
    """The sum over all that is there, a tensor for the UNet: a row each, or one for all."""
    spread = [_spread(kinds, tensor, rows) for kinds, tensor in parts if tensor is not None]
    if not spread:
        return None
    total = sum(spread[1:], spread[0])
    b, r = rows.x.shape[:2]
    return total[0] if total.shape[:2] == (1, 1) else _flat(jnp.broadcast_to(total, (b, r, *total.shape[2:])))


def _spread(kinds: tuple[str, ...], tensor: Float[Array, "b k h w c"], rows: Rows) -> Array:
    """`b r h w c` (or 1 for r) from the rows that are meant: zeros for the others."""
    if set(rows.kinds) <= set(kinds) and tensor.shape[1] == 1:
        return tensor
    named = [kind for kind in rows.kinds if kind in kinds]
    own = {kind: tensor[:, 0 if tensor.shape[1] == 1 else i] for i, kind in enumerate(named)}
    nothing = jnp.zeros_like(tensor[:, 0])
    return jnp.stack([own.get(kind, nothing) for kind in rows.kinds], 1)


def _one_after_the_other(taps: Sequence[Tap]) -> Tap:
    def tap(name: str, value: Array) -> Array:
        for each in taps:
            value = each(name, value)
        return value

    return tap


def _flat(rows: Float[Array, "b r ..."]) -> Float[Array, "b_r ..."]:
    return rows.reshape(-1, *rows.shape[2:])
