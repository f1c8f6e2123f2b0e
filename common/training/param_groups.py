"""Which parameters an optimiser moves, and how far: regular expressions over their paths.

A parameter's *path* joins its keys, as in `fusion/convs/3/kernel`. `multipliers` gives paths a factor on their step:

    multipliers:
      - ["^encoder/", 0]         # frozen: no bit changes, nothing decays, and there is no optimiser state
      - ["^heads/.*bias$", 2.0]  # twice the step
      - ["^heads/", 0.3]

The first expression found in a path (`re.search`) decides. A path that none is found in has factor 1; end with
`[".*", 0]` to freeze all that is not named. A gradient that is frozen counts for nothing, in the clipped norm neither.

An expression that decides over no parameter is an error: a layer that was renamed is not silently trained.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import keystr, tree_map_with_path
from jaxtyping import PyTree

Multipliers = Sequence[tuple[str, float]]  # (expression, factor); see `read_multipliers`
PATHS_SHOWN = 5


def parameter_paths(params: PyTree) -> PyTree:
    """A tree like `params` that holds each leaf's path."""
    return tree_map_with_path(lambda path, _: keystr(path, simple=True, separator="/"), params)


def trainable(multipliers: Multipliers, params: PyTree) -> PyTree:
    """A tree like `params` (arrays or shapes) that is False where they are frozen."""
    return jax.tree.map(lambda path: _factor(multipliers, path) != 0, parameter_paths(params))


def hold(multipliers: Multipliers, params: PyTree) -> PyTree:
    """`params` through which no gradient reaches the frozen ones: their backward pass is left out of the program."""
    if not any(factor == 0 for _, factor in multipliers):
        return params
    return jax.tree.map(
        lambda moves, x: x if moves else jax.lax.stop_gradient(x), trainable(multipliers, params), params
    )


def decayed(no_decay: Sequence[str], params: PyTree) -> PyTree:
    """A tree like `params` that is True where weights decay: two and more dimensions, and no expression found."""
    return jax.tree.map(
        lambda x, path: x.ndim >= 2 and _deciding(no_decay, path) is None, params, parameter_paths(params)
    )


def scale_by_path(multipliers: Multipliers) -> optax.GradientTransformation:
    """Multiplies each update by its path's factor."""

    def update(updates: PyTree, _: Any) -> PyTree:
        return jax.tree.map(lambda u, path: u * _factor(multipliers, path), updates, parameter_paths(updates))

    return optax.stateless(update)


def freeze(tx: optax.GradientTransformation, multipliers: Multipliers) -> optax.GradientTransformation:
    """`tx` for the parameters that are not frozen; it never sees the others."""

    def labels(params: PyTree) -> PyTree:
        return jax.tree.map(lambda moves: "trained" if moves else "frozen", trainable(multipliers, params))

    return optax.partition({"trained": tx, "frozen": optax.stateless(_nothing)}, labels)


def check_expressions(multipliers: Multipliers, no_decay: Sequence[str], params: PyTree) -> None:
    """Raises ValueError for an expression that decides over none of `params`, and if all of them are frozen."""
    paths = jax.tree.leaves(parameter_paths(params))
    expressions = [expression for expression, _ in multipliers]
    for name, asked in (("multipliers", expressions), ("no_decay", no_decay)):
        for expression in asked:
            if not any(re.search(expression, path) for path in paths):
                raise ValueError(f"optim.{name}: {expression!r} is found in no path; paths are {_some(paths)}")
    deciding = {_deciding(expressions, path) for path in paths}
    for index, expression in enumerate(expressions):
        if index not in deciding:
            raise ValueError(
                f"optim.multipliers: earlier expressions decide over every path of {expression!r}; move it up"
            )
    if not any(_factor(multipliers, path) for path in paths):
        raise ValueError(f"optim.multipliers freeze every parameter; give some a factor above 0: {_some(paths)}")


def read_multipliers(multipliers: Sequence[Any]) -> tuple[tuple[str, float], ...]:
    """Config's pairs as tuples; ValueError for one that is no (expression, factor >= 0)."""
    return tuple(_read_pair(pair) for pair in _list(multipliers, "multipliers"))


def read_expressions(expressions: Sequence[str], name: str) -> tuple[str, ...]:
    """Config's list as a tuple; ValueError, which calls it `name`, for one that is no regular expression."""
    for expression in _list(expressions, name):
        try:
            re.compile(expression)
        except (re.error, TypeError) as error:
            raise ValueError(f"optim.{name}: {expression!r} is not a regular expression ({error})") from error
    return tuple(expressions)


def _list(value: Any, name: str) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"optim.{name} is {value!r}: it has to be a list; [] for none")
    return value


def _read_pair(pair: Any) -> tuple[str, float]:
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise ValueError(f"optim.multipliers: {pair!r} is no pair; write [expression, factor]")
    expression, factor = pair
    if isinstance(factor, str) or not 0 <= factor < math.inf:
        raise ValueError(f"optim.multipliers: the factor of {expression!r} is {factor!r}; give 0 or more, 0 freezes")
    return read_expressions([expression], "multipliers")[0], float(factor)


def _factor(multipliers: Multipliers, path: str) -> float:
    index = _deciding([expression for expression, _ in multipliers], path)
    return 1.0 if index is None else multipliers[index][1]


def _deciding(expressions: Sequence[str], path: str) -> int | None:
    return next((i for i, expression in enumerate(expressions) if re.search(expression, path)), None)


def _nothing(updates: PyTree, _: Any) -> PyTree:
    """-0.0, the only number that changes nothing when it is added: 0.0 would turn a parameter of -0.0 into 0.0.

    (An addition on a CPU still turns subnormal numbers, below 1.2e-38, into 0.)
    """
    return jax.tree.map(partial(jnp.full_like, fill_value=-0.0), updates)


def _some(paths: Sequence[str]) -> str:
    shown = paths[:: max(1, len(paths) // PATHS_SHOWN)][:PATHS_SHOWN]
    more = f" and {len(paths) - len(shown)} more" if len(paths) > len(shown) else ""
    return ", ".join(shown) + more
