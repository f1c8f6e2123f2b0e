"""Every query gets its own items, on as many devices as this program has (`test_exact_search`).

Keys, queries and gates are multiples of 1/8, so that scores are exact, ties are many, and NumPy has to agree to the
last bit and in the order of ties.
"""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from common.training.mesh import make_mesh, shard_batch
from reveal.memory.engines import exact
from reveal.memory.engines.engine import Rows

SOURCES, WIDTH = 3, 8


def eighths(rng, *shape: int) -> np.ndarray:
    return rng.integers(-8, 9, shape).astype(np.float32) / 8


def drawn(rng, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids in no order, sources, keys."""
    ids = rng.permutation(3 * n)[:n].astype(np.int64)
    return ids, rng.integers(0, SOURCES, n).astype(np.uint8), eighths(rng, n, WIDTH)


def by_numpy(ids, source, keys, queries, k, gate=None, sources=range(SOURCES)):
    """The ids, scores and sources that a search has to find."""
    scores = queries @ keys.T + (0 if gate is None else gate[:, source])
    order = np.stack([np.lexsort((ids, -row, ~np.isin(source, list(sources)))) for row in scores])
    order = order[:, : min(k, int(np.isin(source, list(sources)).sum()))]
    pad = partial(np.pad, pad_width=((0, 0), (0, k - order.shape[1])))
    found = np.take_along_axis(scores, order, 1)
    return (
        pad(ids[order], constant_values=-1),
        pad(found, constant_values=-np.inf),
        pad(source[order].astype(np.int64), constant_values=-1),
    )


def check(mesh, n: int, b: int, k: int, split: bool, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    ids, source, keys = drawn(rng, n)
    queries, gate = eighths(rng, b, WIDTH), -np.abs(eighths(rng, b, SOURCES))
    index = exact.place(Rows.of(ids, source, keys), SOURCES, mesh)
    given = shard_batch(mesh, (queries, gate)) if split else (queries, gate)
    program = jax.jit(lambda index, q, g: exact.search(index, q, k, g, mesh, split=split))
    hits = program(index, *(jnp.asarray(x) for x in given))
    if split:
        assert {part.data.shape for part in hits.rows.addressable_shards} == {(b // mesh.devices.size, k)}
    rows = np.asarray(hits.rows)
    wanted = by_numpy(ids, source, keys, queries, k, gate)
    np.testing.assert_array_equal(np.where(rows < 0, -1, np.sort(ids)[rows]), wanted[0])
    np.testing.assert_array_equal(np.asarray(hits.scores), wanted[1])
    np.testing.assert_array_equal(np.asarray(hits.sources), wanted[2])


def routing(devices: int) -> None:
    """One to eight queries a device, few and many keys, k of 1 to 50, batches that are split and whole."""
    mesh = make_mesh(devices)
    for each in (1, 2, 3, 8):
        check(mesh, n=37 * each, b=each * devices, k=(1, 4, 7, 50)[each % 4], split=True, seed=each)
    for each in (1, 3):
        check(mesh, n=300, b=each, k=5, split=False)
    if devices % 2 == 0:
        check(make_mesh(devices, fsdp=2), n=300, b=2 * devices, k=5, split=True)


if __name__ == "__main__":
    assert len(jax.devices()) == int(sys.argv[1])
    routing(int(sys.argv[1]))
