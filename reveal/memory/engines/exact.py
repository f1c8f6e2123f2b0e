"""Exact search on the devices: every key is compared, on the device that holds it.

`ExactEngine`, the default engine, compares keys of one vector or of several (`LateInteractionEngine` is another name of
it). Its parts are for a JAX program that searches inside `jit`, as training does:

    index = place(rows, sources, mesh)                   # keys split over the mesh by rows, once a refresh
    hits = search(index, queries, k, log_gate=gate)      # in jit: rows of the index, scores, sources

Stages of a search, for each device:

1. all queries come to every device, whatever share of the batch each holds (`split`)
2. its keys go by in blocks, so that scores take a few MB and never b x n
3. score = query . key (of several vectors: `maxsim`) + gate of the key's source. A deleted or padding row has a source
   of its own, of gate -inf, and so has what `sources` leaves out: there is no other mask
4. of each block, the maxima of small groups; only the k best groups can hold one of the k best keys, so only those are
   sorted
5. the block's best are merged with the best so far
6. each device's best go to the device that asked (all-to-all), or to all, and are merged

The batch is in no reshape beside the device axis. (The reference lays results out device by device and reads them row
by row: with more than one query a device it hands out other queries' items.)

Of equal scores the smaller row, which has the smaller id, wins at every stage: `lax.top_k` prefers the smaller index,
groups are put in order of rows before they are sorted, and earlier blocks and devices come first.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Integer

from reveal.memory.engines.engine import NOTHING, Rows, SearchResult, check_search

UNIT = 128  # each device's rows are a multiple of it, so that blocks fall into groups
BUDGET = 4 * 2**20  # numbers in a block of scores and keys
LARGEST_GROUP = 128
BLOCK = 16 * 2**20  # bytes of keys that are fetched at a time for a device
FEW = 1024  # changed keys that are put in place
NO_ROWS = Rows.of(np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros((0, 1), np.float32))


class Index(NamedTuple):
    """Keys and source numbers, split by rows over all devices of the mesh."""

    keys: Float[Array, "n d"]
    source: Int[Array, " n"]  # the number of sources for a row that is padding or deleted


class Hits(NamedTuple):
    """The best k rows of each query, best first; row and source -1, score -inf where there was none."""

    rows: Int[Array, "b k"]
    scores: Float[Array, "b k"]
    sources: Int[Array, "b k"]


def place(rows: Rows, sources: int, mesh: Mesh, dtype: str = "float32") -> Index:
    """Copies keys into the devices' memory, block by block; the host holds two blocks of each of its devices."""
    count, kind = _padded(len(rows), mesh), jnp.dtype(dtype)
    share = count // mesh.devices.size
    block = min(max(UNIT, BLOCK // (kind.itemsize * rows.key_dim)), share)

    def part(index: Any, first: int) -> np.ndarray:
        """The keys of one device's rows from `first` on, zeros behind the last."""
        start = min((index[0].start or 0) // block * share + first, len(rows))
        keys = np.asarray(without_padding(rows.keys(start, min(start + block, len(rows))), rows.key_vectors), kind)
        return keys if len(keys) == block else np.pad(keys, ((0, block - len(keys)), (0, 0)))

    keys = jnp.zeros((count, rows.key_dim), kind, device=_by_rows(mesh))
    shape = block * mesh.devices.size, rows.key_dim
    for start in range(0, share, block):
        first = min(start, share - block)  # the last block reaches back over rows that are there
        new = jax.make_array_from_callback(shape, _by_rows(mesh), partial(part, first=first))
        keys = _with_block(jax.block_until_ready(keys), new, first, mesh)
    return Index(jax.block_until_ready(keys), place_source(rows.source, sources, mesh))


def place_source(source: Integer[np.ndarray, " n"], sources: int, mesh: Mesh) -> Int[Array, " m"]:
    """An index's `source`. A row of source `sources` is never found: so a deletion copies no keys."""
    missing = _padded(len(source), mesh) - len(source)
    padded = np.pad(source.astype(np.int32), (0, missing), constant_values=sources)
    return jax.make_array_from_callback(padded.shape, _by_rows(mesh), lambda index: padded[index])


def search(
    index: Index,
    queries: Float[Array, "b *q d"],
    k: int,
    log_gate: Float[Array, "b s"],
    mesh: Mesh,
    *,
    split: bool = False,
) -> Hits:
    """The k best rows of each query; nothing has a gradient: `reveal.network.heads.scores` of the keys found has.

    Args:
      index: from `place` on this mesh, or any number of rows; what does not divide it is padded in every call.
      queries: [b d], or for late interaction [b q d], where a key is some vectors of d numbers, one after the other.
      log_gate: of all sources that the index was placed with; -inf for those not to choose from.
      split: whether batch and results are split over the mesh, as `shard_batch` does; else all devices hold both."""
    devices = mesh.devices.size
    if split and len(queries) % devices:
        raise ValueError(f"{len(queries)} queries do not split over {devices} devices; give a multiple, or split=False")
    if len(index.keys) % devices:
        missing = -len(index.keys) % (UNIT * devices)
        source = jnp.pad(jnp.asarray(index.source), (0, missing), constant_values=log_gate.shape[1])
        index = Index(jnp.pad(index.keys, ((0, missing), (0, 0))), source)
    rows = PartitionSpec(mesh.axis_names)
    whole = rows if split else PartitionSpec()
    queries, log_gate, index = lax.stop_gradient((queries.astype(jnp.float32), log_gate, index))
    body = partial(_of_each_device, k=k, axes=mesh.axis_names, split=split)
    specs = {"in_specs": (rows, rows, whole, whole), "out_specs": whole}
    # all devices merge the same lists: equal without being known to be
    mapped = jax.shard_map(body, mesh=mesh, check_vma=False, **specs)
    return Hits(*mapped(index.keys, index.source, queries, log_gate))


def allow(log_gate: Float[Array, "b s"], sources: Sequence[int]) -> Float[Array, "b s"]:
    """The gate, shut for all but `sources`."""
    chosen = np.isin(np.arange(log_gate.shape[1]), list(sources))
    return jnp.where(chosen, log_gate, -jnp.inf)


class ExactEngine:
    """Keys on the devices of a mesh, None: this process's, so that it can search alone; bfloat16 halves their memory
    and takes about 2 % of recall.

    Queries are [b d], or [b q d] of several vectors. A vector of zeros is padding: of a query it adds nothing, of a key
    it is left out; a key of such alone scores 0. A search compiles once for each k and number of queries, rounded up to
    a power of two."""

    def __init__(self, mesh: Mesh | None = None, dtype: str = "float32"):
        local = jax.local_devices()
        self.mesh = mesh or jax.make_mesh((len(local),), ("data",), axis_types=(AxisType.Auto,), devices=local)
        self._dtype = dtype
        self._place(NO_ROWS, 0)
        self._version, self._vectors = 0, 1

    def update(self, rows: Rows, sources: int, version: int) -> None:
        """As `Engine.update`. Deleted items are masked, and the keys of a few edited or added ones are put in place;
        else all keys are copied."""
        at = np.searchsorted(self.ids, rows.ids)
        added = np.append(self.ids, NOTHING)[at] != rows.ids
        at[added] += np.arange(added.sum())
        made = np.append(self._made, NOTHING)[np.minimum(at, len(self.ids))]
        changed = np.flatnonzero(added | (made != rows.versions))
        same = (rows.memory, sources, rows.key_dim) == (self._memory, self._sources, self.index.keys.shape[1])
        behind = (at[added] >= len(self.ids)).all() and at.max(initial=0) < len(self.index.keys)
        if same and behind and len(changed) <= FEW:
            self._put(rows, at, changed, added)
        else:
            self._place(NO_ROWS, 0)  # beside the keys that were there the new ones may not fit
            self._place(rows, sources)
        self._version, self._vectors = version, rows.key_vectors

    def search(
        self, queries: Any, k: int, *, sources: Sequence[int] | None = None, log_gate: Any = None
    ) -> SearchResult:
        width = self.index.keys.shape[1] // self._vectors
        queries, chosen, gate = check_search(queries, k, sources, log_gate, width, self._sources, several=True)
        queries = queries[:, None] if self._vectors > 1 and queries.ndim == 2 else queries
        b = len(queries)
        missing = (1 << max(b - 1, 0).bit_length()) - b
        queries, gate = (np.pad(x, ((0, missing), *[(0, 0)] * (x.ndim - 1))) for x in (queries, gate))
        shut = np.where(np.isin(np.arange(self._sources), chosen), gate, -np.inf).astype(np.float32)
        hits = _jitted(self.index, queries, k, shut, self.mesh)
        rows, scores, origin = (np.asarray(x)[:b] for x in jax.device_get(hits))
        ids = np.full(rows.shape, NOTHING, np.int64)
        ids[rows != NOTHING] = self.ids[rows[rows != NOTHING]]
        return SearchResult(ids, scores, origin.astype(np.int64), self._version)

    def _place(self, rows: Rows, sources: int) -> None:
        self.index = place(rows, sources, self.mesh, self._dtype)
        self.ids, self._made, self._memory, self._sources = rows.ids, rows.versions, rows.memory, sources

    def _put(self, rows: Rows, at: np.ndarray, changed: np.ndarray, added: np.ndarray) -> None:
        """Items into the index' rows `at`, those that are `added` behind the last, and the keys of the `changed`."""
        ids, made = np.append(self.ids, rows.ids[added]), np.append(self._made, rows.versions[added])
        source = np.full(len(ids), self._sources)
        made[at], source[at] = rows.versions, rows.source
        keys, placed = self.index.keys, place_source(source, self._sources, self.mesh)
        if len(changed):
            missing = (1 << (len(changed) - 1).bit_length()) - len(changed)
            new = np.concatenate([np.asarray(rows.keys(i, i + 1), np.float32) for i in changed.tolist()])
            new = without_padding(new, rows.key_vectors)
            where = np.pad(at[changed].astype(np.int32), (0, missing), constant_values=len(keys))
            keys = _with_rows(keys, where, np.pad(new, ((0, missing), (0, 0))), self.mesh)
        self.ids, self._made, self.index = ids, made, Index(keys, placed)


LateInteractionEngine = ExactEngine


def maxsim(queries: Float[Array, "b q d"], keys: Float[Array, "n _"]) -> Float[Array, "b n"]:
    """MaxSim (`engine.py`) of queries and of keys `without_padding`."""
    (b, q, d), n = queries.shape, len(keys)
    products = jnp.einsum("pd,md->pm", queries.reshape(-1, d), keys.reshape(-1, d), precision="highest")
    return products.reshape(b, q, n, -1).max(axis=3).sum(axis=1)


def without_padding(keys: np.ndarray, vectors: int) -> np.ndarray:
    """Keys [n k] of some vectors with the first that is not 0 in the place of those of zeros, which changes no maximum:
    so the search needs no mask."""
    if vectors == 1:
        return keys
    split = keys.reshape(len(keys), vectors, keys.shape[1] // vectors)
    there = (split != 0).any(axis=2)
    first = split[np.arange(len(keys)), there.argmax(axis=1)]
    return keys if there.all() else np.where(there[:, :, None], split, first[:, None]).reshape(keys.shape)


@partial(jax.jit, static_argnums=3, donate_argnums=0)
def _with_block(keys: Array, new: Array, first: Any, mesh: Mesh) -> Array:
    """The keys with each device's share of the new ones from its row `first` on, in the same memory."""
    rows, update = PartitionSpec(mesh.axis_names), partial(lax.dynamic_update_slice_in_dim, axis=0)
    specs = {"in_specs": (rows, rows, PartitionSpec()), "out_specs": rows}
    return jax.shard_map(update, mesh=mesh, check_vma=False, **specs)(keys, new, first)


@partial(jax.jit, static_argnums=3, donate_argnums=0)
def _with_rows(keys: Array, at: Array, new: Array, mesh: Mesh) -> Array:
    """The keys with new ones at some rows, in the same memory; a row beyond the last has none."""

    def of_each_device(keys: Array, at: Array, new: Array) -> Array:
        here = at - lax.axis_index(mesh.axis_names) * len(keys)
        here = jnp.where((here >= 0) & (here < len(keys)), here, len(keys))
        return keys.at[here].set(new.astype(keys.dtype), mode="drop")

    rows, whole = PartitionSpec(mesh.axis_names), PartitionSpec()
    specs = {"in_specs": (rows, whole, whole), "out_specs": rows}
    return jax.shard_map(of_each_device, mesh=mesh, check_vma=False, **specs)(keys, at, new)


_jitted = jax.jit(search, static_argnums=(2, 4))


def _by_rows(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


def _padded(count: int, mesh: Mesh) -> int:
    unit = UNIT * mesh.devices.size
    return max(-(-count // unit), 1) * unit


def _of_each_device(keys: Array, source: Array, queries: Array, log_gate: Array, *, k, axes, split) -> tuple:
    """The search on one device, which has its share of the keys and, if `split`, of the queries."""
    if split:
        queries, log_gate = (lax.all_gather(x, axes, tiled=True) for x in (queries, log_gate))
    scores, rows = _best_of_blocks(keys, source, queries, log_gate, k)
    origin = jnp.where(rows == NOTHING, NOTHING, source[rows])
    rows = jnp.where(rows == NOTHING, NOTHING, rows + lax.axis_index(axes) * len(keys))
    parts = []
    for part in (scores, rows, origin):
        if split:  # [device that asked, its queries, k] becomes [device that answered, ...]
            part = lax.all_to_all(part.reshape(lax.axis_size(axes), -1, k), axes, split_axis=0, concat_axis=0)
        else:
            part = lax.all_gather(part, axes)
        parts.append(jnp.moveaxis(part, 0, 1).reshape(part.shape[1], -1))
    best, at = lax.top_k(parts[0], k)
    rows, origin = (jnp.take_along_axis(part, at, axis=1) for part in parts[1:])
    return rows, best, origin


def _best_of_blocks(keys: Array, source: Array, queries: Array, log_gate: Array, k: int) -> tuple[Array, Array]:
    """Scores and rows of the k best keys of one device."""
    b, n, width, vectors = len(queries), *keys.shape, queries.size // queries.shape[-1]
    products = vectors * (width // queries.shape[-1])  # with a key
    block = min(n, max(UNIT, BUDGET // (products + width) // UNIT * UNIT))
    gate = jnp.pad(log_gate, ((0, 0), (0, 1)), constant_values=-jnp.inf)

    def step(number: Array, best: tuple[Array, Array]) -> tuple[Array, Array]:
        start = jnp.minimum(number * block, n - block)  # the last block reaches back over rows that have been seen
        seen = start + jnp.arange(block) < number * block
        part = lax.dynamic_slice_in_dim(keys, start, block).astype(jnp.float32)
        of = jnp.where(seen, gate.shape[1] - 1, lax.dynamic_slice_in_dim(source, start, block))
        if queries.ndim == 3:
            scores = maxsim(queries, part)
        else:
            scores = jnp.einsum("bd,nd->bn", queries, part, precision="highest")
        total = jnp.zeros((b, block))
        for source_number in range(gate.shape[1]):  # gate[:, of], but a gather of columns is slow everywhere
            total = jnp.where(of == source_number, gate[:, source_number, None], total)
        found, rows = _top_k_of_groups(scores + total, k)
        found, rows = jnp.concatenate([best[0], found], 1), jnp.concatenate([best[1], rows + start], 1)
        found, at = lax.top_k(found, k)
        return found, jnp.take_along_axis(rows, at, axis=1)

    nothing = jnp.full((b, k), -jnp.inf), jnp.full((b, k), NOTHING, jnp.int32)
    scores, rows = lax.fori_loop(0, -(-n // block), step, nothing)
    return scores, jnp.where(scores == -jnp.inf, NOTHING, rows)


def _top_k_of_groups(scores: Float[Array, "b n"], k: int) -> tuple[Float[Array, "b _"], Int[Array, "b _"]]:
    """The k best scores, or all there are, and their columns."""
    b, n = scores.shape
    size = 1
    while size < LARGEST_GROUP and 4 * size * size * k <= n and n % (2 * size) == 0:
        size *= 2
    if size == 1 or n // size <= k:
        found, at = lax.top_k(scores, min(k, n))
        return found, at
    groups = scores.reshape(b, n // size, size)
    chosen = jnp.sort(lax.top_k(groups.max(axis=2), k)[1], axis=1)
    few = jnp.take_along_axis(groups, chosen[:, :, None], axis=1).reshape(b, k * size)
    found, at = lax.top_k(few, k)
    return found, jnp.take_along_axis(chosen, at // size, axis=1) * size + at % size
