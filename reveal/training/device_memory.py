"""A memory's items on the devices: what training searches, reads and encodes again in every step.

    contents   the items themselves, never changed while training: tokens, pictures, sources
    held       their keys and values, as a snapshot of the network made them some steps ago

A step finds items by `held.keys`, encodes those that gradients are to reach again from `contents`, and reads the others
as they are `held`. `hold` makes keys and values of all items; the trainer asks for them anew every so many steps
(`common/training/refresh.py`).

Rows are those of a memory in the order of its ids, filled up with rows that no search finds to a number that any mesh
divides (`exact.py`). A row has the item's number, so the memory on the disk and this one name the same things.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Integer, UInt8

from reveal.memory.engines.exact import UNIT
from reveal.network.model import Item, Reveal

ROWS = 8 * UNIT  # rows come in multiples of it: eight devices have whole blocks each
CHUNK = 128  # items that are encoded at a time


class Contents(NamedTuple):
    """Items as the networks read them; any of the arrays may be NumPy's.

    Attributes:
      tokens: the text; 0 where there is none.
      image: the picture, 0 to 255; floats after `augment.py`.
      has_image: False where there is no picture.
      source: number of the source; as many as there are sources for a row that is no item.
      id: of the item; -1 for a row that is none.
    """

    tokens: Int[Array | np.ndarray, "m l"]
    image: UInt8[Array | np.ndarray, "*m s s 3"] | Float[Array, "*m s s 3"]
    has_image: Bool[Array | np.ndarray, " m"]
    source: Int[Array | np.ndarray, " m"]
    id: Int[Array | np.ndarray, " m"]


class Held(NamedTuple):
    """Keys and values of all rows of `Contents`."""

    keys: Float[Array, "m e"]
    values: Float[Array, "m c d"]


def contents_of(items: Any, sources: int) -> Contents:
    """Items with arrays `tokens`, `image`, `has_image`, `source` and `id` (as `item_arrays.ItemArrays`), ordered by
    id and filled up. Raises ValueError if an id is there twice, or there is no item, or one of an unknown source."""
    order = np.argsort(items.id, kind="stable")
    if not len(order) or (np.diff(items.id[order]) == 0).any():
        raise ValueError(f"{len(order)} items, of which some have the same id: give one item or more, each an id")
    if (most := int(items.source.max())) >= sources:
        raise ValueError(f"an item has source {most}, the network knows {sources}: raise task.network.sources")
    spare = -len(order) % ROWS

    def filled(array: np.ndarray, dtype: Any, value: int = 0) -> np.ndarray:
        ordered = array[order].astype(dtype)
        return np.pad(ordered, [(0, spare)] + [(0, 0)] * (array.ndim - 1), constant_values=value)

    return Contents(
        filled(items.tokens, np.int32),
        filled(items.image, np.uint8),
        filled(items.has_image, bool),
        filled(items.source, np.int32, sources),
        filled(items.id, np.int32, -1),
    )


def rows_of(contents: Contents, ids: Integer[Array, "*b"]) -> Int[Array, "*b"]:
    """The row of each id, -1 for what is not there. Works in `jit`."""
    count = jnp.sum(jnp.asarray(contents.id) >= 0)
    ordered = jnp.where(contents.id < 0, jnp.iinfo(jnp.int32).max, contents.id)
    rows = jnp.searchsorted(ordered, ids.astype(jnp.int32))
    rows = jnp.minimum(rows, jnp.maximum(count - 1, 0)).astype(jnp.int32)
    return jnp.where((jnp.asarray(contents.id)[rows] == ids) & (ids >= 0), rows, -1)


def take(contents: Contents, rows: Int[Array, "*b"]) -> Contents:
    """Some rows; -1 gives a row that is no item."""
    there = rows >= 0
    found = jax.tree.map(lambda array: jnp.asarray(array)[jnp.where(there, rows, 0)], contents)
    return found._replace(
        tokens=jnp.where(there[..., None], found.tokens, 0),
        has_image=there & found.has_image,
        id=jnp.where(there, found.id, -1),
    )


def translated(
    tokens: Int[Array, "b ..."], permutation: Int[Array | np.ndarray, "b v"] | None = None
) -> Int[Array, "b ..."]:
    """Each token replaced by another, per row of the batch: into its language. None leaves them."""
    if permutation is None:
        return tokens
    return jnp.take_along_axis(jnp.asarray(permutation), tokens.reshape(len(tokens), -1), axis=1).reshape(tokens.shape)


def encode(
    model: Reveal, contents: Contents, permutation: Int[Array | np.ndarray, "b v"] | None = None, **how: Any
) -> Item:
    """Keys and values of rows [b k ...] as [b k ...], their texts `translated`; `how` is `Reveal.encode_item`'s."""
    b, k = contents.source.shape
    tokens = translated(jnp.asarray(contents.tokens), permutation)
    flat = [x.reshape(b * k, *x.shape[2:]) for x in (tokens, contents.image, contents.has_image)]
    key, value = model.encode_item(flat[0], flat[1] / 255, flat[2], **how)
    return Item(key.reshape(b, k, -1), value.reshape(b, k, *value.shape[1:]))


def hold(
    graph: nnx.GraphDef,
    params: Mapping[str, Any],
    contents: Contents,
    check_cancelled: Callable[[], None] = lambda: None,
) -> Held:
    """Keys and values of all rows, without gradients, `CHUNK` at a time: whoever shares the devices gets in between,
    and `check_cancelled` may raise. Compiled once."""
    parts = []
    for start in range(0, len(contents.id), CHUNK):
        parts.append(_hold(graph, params, contents, start))
        jax.block_until_ready(parts[-1])
        check_cancelled()
    return Held(*(jnp.concatenate(x) for x in zip(*parts, strict=True)))


@partial(jax.jit, static_argnums=0)
def _hold(graph: nnx.GraphDef, params: Mapping[str, Any], contents: Contents, start: Int[Array, ""] | int) -> Held:
    part = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(jnp.asarray(x), start, CHUNK)[:, None], contents)
    return Held(*(x[:, 0] for x in encode(nnx.merge(graph, params), part)))
