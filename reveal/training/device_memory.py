"""The memory on the devices: what joint training searches, reads and re-encodes in every step.

    contents   the items themselves, constant in training: tokens, images, sources
    encoded    their keys and values, computed from the parameters some steps ago

A step searches `encoded.keys`, re-encodes the items that gradients must reach from `contents`, and reads the others
from `encoded`, which the trainer refreshes every so many steps (`encode_all`; `common/training/refresh.py`).

All of it but sources and ids is split by rows over the devices of the mesh (`SPLIT`): each encodes its own rows, and
`gather` brings the rows that a step reads to the devices that read them. On a number of devices that does not divide
the rows, such as 7, each holds and encodes all of them, and only the search is split.

Rows are the items in order of their ids, padded with rows that no search finds to a multiple of `ROWS` (`exact.py`).
Rows carry the item's id, so this memory and the one on disk name the same items.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Integer, UInt8

from reveal.memory.engines.exact import UNIT
from reveal.network.layers import PLAIN, Mode
from reveal.network.model import Item, Reveal

ROWS = 8 * UNIT  # which 2, 4, 8, ... devices divide, up to eight into whole blocks
CHUNK = 128  # items that a device encodes at a time
SPLIT = (("contents/(tokens|image|has_image)$", "rows"),)  # `common.training.mesh.Rules`


class Contents(NamedTuple):
    tokens: Int[Array | np.ndarray, "m l"]  # 0 where there is no text
    image: UInt8[Array | np.ndarray, "*m s s 3"] | Float[Array, "*m s s 3"]  # 0 to 255; floats after `augment.py`
    has_image: Bool[Array | np.ndarray, " m"]
    source: Int[Array | np.ndarray, " m"]  # the number of sources for a padding row
    id: Int[Array | np.ndarray, " m"]  # -1 for a padding row


class Encoded(NamedTuple):
    """Keys and values of all rows of `Contents`."""

    keys: Float[Array, "m e"]
    values: Float[Array, "m c d"]


def contents_of(items: Any, sources: int) -> Contents:
    """Items (`own_batches.ItemArrays`) of so many sources in order of their ids, padded."""
    order = np.argsort(items.id, kind="stable")
    padding = -len(order) % ROWS

    def padded(array: np.ndarray, dtype: Any, value: int = 0) -> np.ndarray:
        rows = np.full((len(order) + padding, *array.shape[1:]), value, dtype)
        # "clip", for "raise" fills a copy first: images are most of a host's memory
        np.take(array.astype(dtype, copy=False), order, axis=0, out=rows[: len(order)], mode="clip")
        return rows

    return Contents(
        padded(items.tokens, np.int32),
        padded(items.image, np.uint8),
        padded(items.has_image, bool),
        padded(items.source, np.int32, sources),
        padded(items.id, np.int32, -1),
    )


def rows_of(contents: Contents, ids: Integer[Array, "*b"]) -> Int[Array, "*b"]:
    """The row of each id, -1 for an unknown one."""
    count = jnp.sum(jnp.asarray(contents.id) >= 0)
    ordered = jnp.where(contents.id < 0, jnp.iinfo(jnp.int32).max, contents.id)
    rows = jnp.searchsorted(ordered, ids.astype(jnp.int32))
    rows = jnp.minimum(rows, jnp.maximum(count - 1, 0)).astype(jnp.int32)
    return jnp.where((jnp.asarray(contents.id)[rows] == ids) & (ids >= 0), rows, -1)


def gather(arrays: Any, rows: Int[Array, "b ..."], mesh: Mesh | None = None) -> Any:
    """`array[rows]` of each array of a tree, which the mesh may split by rows; without gradients.

    Each device looks up all rows in its share, 0 for others', and the sum goes to those that hold the batch's part: one
    column of `rows` at a time, for the look-up is as large as that of the whole batch."""
    arrays = jax.tree.map(jnp.asarray, arrays)
    count = len(jax.tree.leaves(arrays)[0])
    if mesh is None or mesh.devices.size == 1 or count % mesh.devices.size:
        return jax.tree.map(lambda array: lax.stop_gradient(array[rows]), arrays)
    axes, split, share = mesh.axis_names, len(rows) % mesh.devices.size == 0, count // mesh.devices.size

    def of_each_device(shares: Any, rows: Array) -> Any:
        if split:
            rows = lax.all_gather(rows, axes, tiled=True)
        here = rows - lax.axis_index(axes) * share

        def of_column(here: Array) -> Any:
            own = (here >= 0) & (here < share)

            def look_up(array: Array) -> Array:
                found = array[jnp.where(own, here, 0)]
                mine = own.reshape(-1, *(1,) * (found.ndim - 1))
                found = jnp.where(mine, found, 0)  # of booleans: integers, which can be summed
                total = lax.psum_scatter(found, axes, tiled=True) if split else lax.psum(found, axes)
                return total.astype(array.dtype)

            return jax.tree.map(look_up, shares)

        def of_rows(columns: Array) -> Array:
            found = jnp.moveaxis(columns, 0, 1)
            return found.reshape(len(found), *rows.shape[1:], *found.shape[2:])

        return jax.tree.map(of_rows, lax.map(of_column, here.reshape(len(here), -1).T))

    by_row, whole = PartitionSpec(axes), PartitionSpec(axes) if split else PartitionSpec()
    mapped = jax.shard_map(of_each_device, mesh=mesh, in_specs=(by_row, whole), out_specs=whole, check_vma=False)
    return mapped(lax.stop_gradient(arrays), rows)


def take(contents: Contents, rows: Int[Array, "b ..."], mesh: Mesh | None = None) -> Contents:
    """Some rows; -1 gives a padding row."""
    present = rows >= 0
    at = jnp.where(present, rows, 0)
    tokens, image, has_image = gather((contents.tokens, contents.image, contents.has_image), at, mesh)
    taken = Contents(tokens, image, has_image, jnp.asarray(contents.source)[at], jnp.asarray(contents.id)[at])
    return taken._replace(
        tokens=jnp.where(present[..., None], taken.tokens, 0),
        has_image=present & taken.has_image,
        id=jnp.where(present, taken.id, -1),
    )


def permuted(
    tokens: Int[Array, "b ..."], permutation: Int[Array | np.ndarray, "b v"] | None = None
) -> Int[Array, "b ..."]:
    if permutation is None:
        return tokens
    return jnp.take_along_axis(jnp.asarray(permutation), tokens.reshape(len(tokens), -1), axis=1).reshape(tokens.shape)


def encode(
    model: Reveal, contents: Contents, permutation: Int[Array | np.ndarray, "b v"] | None = None, mode: Mode = PLAIN
) -> Item:
    """Keys and values of items [b k ...] as [b k ...], their texts `permuted`."""
    b, k = contents.source.shape
    tokens = permuted(jnp.asarray(contents.tokens), permutation)
    flat = [x.reshape(b * k, *x.shape[2:]) for x in (tokens, contents.image, contents.has_image)]
    key, value = model.encode_item(flat[0], flat[1] / 255, flat[2], mode=mode)
    return Item(key.reshape(b, k, -1), value.reshape(b, k, *value.shape[1:]))


def encode_all(
    graph: nnx.GraphDef, params: Mapping[str, Any], contents: Contents, check_cancelled: Callable[[], None]
) -> Encoded:
    """Keys and values of all rows, without gradients. Each device encodes `CHUNK` of its rows at a time, so that
    training steps run in between; `check_cancelled` may raise after each."""
    sharding = getattr(contents.tokens, "sharding", None)
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) and not sharding.is_fully_replicated else None
    share = len(contents.id) // (1 if mesh is None else mesh.size)
    chunk = math.gcd(share, CHUNK)
    if isinstance(sharding, NamedSharding):  # gathers split parameters once, not for every chunk
        params = jax.jit(lambda tree: tree, out_shardings=NamedSharding(sharding.mesh, PartitionSpec()))(params)
    inputs = Contents(*map(jnp.asarray, contents))
    encoded = _empty(graph, params, inputs, mesh)
    for start in range(0, share, chunk):
        encoded = _encode_chunk(graph, params, inputs, encoded, start, chunk, mesh)
        jax.block_until_ready(encoded)
        check_cancelled()
    return encoded


@partial(jax.jit, static_argnums=(0, 3))
def _empty(graph: nnx.GraphDef, params: Mapping[str, Any], contents: Contents, mesh: Mesh | None) -> Encoded:
    """Zeros in place of the keys and values of all rows, split as they are."""
    shapes = jax.eval_shape(partial(_encode_rows, graph, params), contents.tokens, contents.image, contents.has_image)
    zeros = [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]
    if mesh is not None:
        zeros = lax.with_sharding_constraint(zeros, NamedSharding(mesh, PartitionSpec(mesh.axis_names)))
    return Encoded(*zeros)


@partial(jax.jit, static_argnums=(0, 5, 6), donate_argnums=3)
def _encode_chunk(
    graph: nnx.GraphDef,
    params: Mapping[str, Any],
    contents: Contents,
    encoded: Encoded,
    start: Int[Array, ""] | int,
    chunk: int,
    mesh: Mesh | None,
) -> Encoded:
    def of_each_device(params: Any, encoded: Encoded, inputs: tuple[Any, ...], start: Array) -> Encoded:
        rows = [lax.dynamic_slice_in_dim(x, start, chunk) for x in inputs]
        put = partial(lax.dynamic_update_slice_in_dim, start_index=start, axis=0)
        return Encoded(*map(put, encoded, _encode_rows(graph, params, *rows)))

    if mesh is not None:
        rows, whole = PartitionSpec(mesh.axis_names), PartitionSpec()
        specs = {"in_specs": (whole, rows, rows, whole), "out_specs": rows}
        of_each_device = jax.shard_map(of_each_device, mesh=mesh, check_vma=False, **specs)
    inputs = contents.tokens, contents.image, contents.has_image
    return of_each_device(params, encoded, inputs, jnp.asarray(start))


def _encode_rows(graph: nnx.GraphDef, params: Mapping[str, Any], tokens: Array, image: Array, has_image: Array) -> Item:
    return nnx.merge(graph, params).encode_item(tokens, image / 255, has_image)
