"""Writing the answer: greedy, beam search and sampling, each one loop on the device.

A decoder is known here only by a `Step`: tokens of `r` rows and what it keeps of their past, to the logits of each next
token and the past with them. All three begin with `bos`, stop after `length` tokens or when every row has written
`eos`, and give `eos` and then padding. The same inputs (and key) give the same tokens.

Beam search keeps the `width` best beginnings of a text by

    log p(tokens) / ((5 + n) / 6)^penalty                         n tokens, `eos` included

(Wu et al., 2016). 0 compares plain probabilities, which favours short texts; 1 nearly the mean per token. A beginning
that has ended stays among the best as it is, as long as nothing beats it, and takes part in every comparison at its own
length. With `width` 1 it is the greedy search.

Sampling draws from the softmax of logits / temperature, cut to the `top_k` likeliest tokens and to the fewest whose
probabilities reach `top_p` (Holtzman et al., 2020), the first of them always included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from reveal.network.config import PAD
from reveal.network.t5 import Cache

Step = Callable[[Int[Array, " r"], Cache], tuple[Float[Array, "r v"], Cache]]
NEVER = -jnp.inf  # log-probability


@dataclasses.dataclass(frozen=True)
class Greedy:
    """The likeliest token each time, `length` tokens at most."""

    length: int = 32

    def __post_init__(self):
        _check(self, [(self.length >= 1, "length is at least 1")])


@dataclasses.dataclass(frozen=True)
class Beam:
    """Beam search: `width` beginnings, `penalty` for short texts as in the module's docstring."""

    length: int = 32
    width: int = 4
    penalty: int | float = 0.6

    def __post_init__(self):
        rules = [(min(self.length, self.width) >= 1, "length and width are at least 1")]
        _check(self, [*rules, (self.penalty >= 0, "penalty is not negative")])


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Draws tokens; `top_k` 0 and `top_p` 1 cut nothing."""

    length: int = 32
    temperature: int | float = 1.0
    top_k: int = 0
    top_p: int | float = 1.0

    def __post_init__(self):
        rules = [
            (self.length >= 1, "length is at least 1"),
            (self.temperature > 0, "temperature is positive (Greedy is its limit 0)"),
            (self.top_k >= 0, "top_k is not negative"),
            (0 < self.top_p <= 1, "0 < top_p <= 1"),
        ]
        _check(self, rules)


Decoding = Greedy | Beam | Sampling


def likeliest(length: int, beams: int, penalty: int | float = 0) -> Greedy | Beam:
    """The likeliest text that `beams` beginnings lead to: `Beam`, or `Greedy` for one."""
    return Greedy(length) if beams == 1 else Beam(length, beams, penalty)


class Generated(NamedTuple):
    """Texts, and the logarithm of the probability that the network gives each, uncut and at temperature 1."""

    tokens: Int[Array, "b n"]
    log_probability: Float[Array, " b"]


def generate(
    step: Step, cache: Cache, how: Decoding, *, bos: int, eos: int, key: PRNGKeyArray | None = None
) -> Generated:
    """Writes one text per context of the empty `cache`, which has `rows_of(how)` rows for each.

    Raises ValueError for a sampling without `key`."""
    if isinstance(how, Beam):
        return _beam(step, cache, how, bos, eos)
    if isinstance(how, Greedy):
        return _row(step, cache, how.length, lambda logits, place: jnp.argmax(logits, axis=-1), bos, eos)
    if key is None:
        raise ValueError("sampling needs a key: pass key=jax.random.key(seed)")

    def draw(logits: Array, place: Array) -> Array:
        return jax.random.categorical(jax.random.fold_in(key, place), cut(logits / how.temperature, how))

    return _row(step, cache, how.length, draw, bos, eos)


def rows_of(how: Decoding) -> int:
    """Rows of the cache per context."""
    return how.width if isinstance(how, Beam) else 1


def cut(logits: Float[Array, "r v"], how: Sampling) -> Float[Array, "r v"]:
    """`logits` with -inf for the tokens that are not drawn; among equals at the border all stay."""
    ordered = -jnp.sort(-logits, axis=-1)
    least = jnp.full((len(logits), 1), NEVER)
    if 0 < how.top_k < logits.shape[-1]:
        least = ordered[:, how.top_k - 1 : how.top_k]
        ordered = jnp.where(ordered >= least, ordered, NEVER)
    if how.top_p < 1:
        probability = jax.nn.softmax(ordered)
        before = jnp.cumsum(probability, axis=-1) - probability  # of the likelier ones; 0 for the first
        least = jnp.where(before < how.top_p, ordered, jnp.inf).min(axis=-1, keepdims=True)
    return jnp.where(logits >= least, logits, NEVER)


class _Row(NamedTuple):
    """Where the loop over single rows stands: texts so far, the last token of each, whether it has ended."""

    tokens: Int[Array, "r n"]
    last: Int[Array, " r"]
    ended: Bool[Array, " r"]
    log_probability: Float[Array, " r"]
    cache: Cache


def _row(step: Step, cache: Cache, length: int, pick: Callable[[Array, Array], Array], bos: int, eos: int) -> Generated:
    """One text per row, token by token as `pick(logits, place)` says."""
    rows = len(cache.masked)

    def advance(now: _Row) -> _Row:
        logits, cache = step(now.last, now.cache)
        token = jnp.where(now.ended, PAD, pick(logits, now.cache.place)).astype(jnp.int32)
        gained = jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], axis=-1)[:, 0]
        return _Row(
            lax.dynamic_update_slice_in_dim(now.tokens, token[:, None], now.cache.place, axis=1),
            token,
            now.ended | (token == eos),
            now.log_probability + jnp.where(now.ended, 0, gained),
            cache,
        )

    none = jnp.zeros((rows,), bool)
    empty = jnp.full((rows, length), PAD, jnp.int32)
    start = _Row(empty, jnp.full((rows,), bos, jnp.int32), none, jnp.zeros((rows,)), cache)
    unfinished = lambda now: (now.cache.place < length) & ~now.ended.all()  # noqa: E731
    end = lax.while_loop(unfinished, advance, start)
    return Generated(end.tokens, end.log_probability)


class _Beams(NamedTuple):
    """Where beam search stands: `w` texts per context, the best first, and how many tokens each has."""

    tokens: Int[Array, "b w n"]
    last: Int[Array, "b w"]
    ended: Bool[Array, "b w"]
    log_probability: Float[Array, "b w"]
    lengths: Int[Array, "b w"]
    cache: Cache


def _beam(step: Step, cache: Cache, how: Beam, bos: int, eos: int) -> Generated:
    b, w = len(cache.masked), how.width

    def advance(now: _Beams) -> _Beams:
        logits, cache = step(now.last.reshape(-1), now.cache)
        gained = jax.nn.log_softmax(logits).reshape(b, w, -1)
        vocabulary = gained.shape[-1]
        nothing = jnp.where(jnp.arange(vocabulary) == PAD, 0.0, NEVER)  # all that an ended text can be continued with
        total = now.log_probability[..., None] + jnp.where(now.ended[..., None], nothing, gained)
        lengths = now.lengths + ~now.ended
        rated = total / (((5 + lengths) / 6) ** how.penalty)[..., None]
        best = lax.top_k(rated.reshape(b, -1), w)[1]
        beam, token = best // vocabulary, (best % vocabulary).astype(jnp.int32)

        def of(x: Array) -> Array:
            return jnp.take_along_axis(x, beam.reshape(b, w, *[1] * (x.ndim - 2)), axis=1)

        ended = of(now.ended)
        return _Beams(
            lax.dynamic_update_slice_in_dim(of(now.tokens), token[..., None], now.cache.place, axis=2),
            token,
            ended | (token == eos),
            jnp.take_along_axis(total.reshape(b, -1), best, axis=1),
            of(lengths),
            cache.choose((beam + w * jnp.arange(b)[:, None]).reshape(-1)),
        )

    none = jnp.zeros((b, w), bool)
    empty = jnp.full((b, w, how.length), PAD, jnp.int32)
    first = jnp.where(jnp.arange(w) == 0, 0.0, NEVER)  # all beams begin alike: only one of them counts
    start = _Beams(
        empty, jnp.full((b, w), bos, jnp.int32), none, jnp.tile(first, (b, 1)), jnp.zeros((b, w), jnp.int32), cache
    )

    def unfinished(now: _Beams) -> Bool[Array, ""]:
        """Without a penalty nothing overtakes a best text that has ended."""
        ended = now.ended if how.penalty else now.ended[:, 0]
        return (now.cache.place < how.length) & ~ended.all()

    end = lax.while_loop(unfinished, advance, start)
    return Generated(end.tokens[:, 0], end.log_probability[:, 0])


def _check(how: Any, rules: list[tuple[bool, str]]) -> None:
    broken = [rule for holds, rule in rules if not holds]
    if broken:
        raise ValueError(f"{how} breaks: {'; '.join(broken)}")
