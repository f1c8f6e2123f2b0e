"""Joint training of REVEAL with millions of items on simulated devices: `python -m benchmarks.joint_items`.

A small network, random items of 16x16 pixels and 8 tokens, eight devices simulated on this machine's cores.

- `MB`: of items, keys and values on each device, and on all.
- `step MB`: what the compiled step needs beside its arguments and results on each device, by XLA; flat if no device
  gathers the items of the others.
- `refresh s`: encoding all items; `step s`, median: searching all keys, reading the items found, the gradient.
- `batch ms`: CPU milliseconds to draw the negatives of a batch of 64 questions, each with a gold item of its own.
"""

import os
import statistics
import time
import types
from typing import Any

DEVICES = 8
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}".strip()

import jax  # noqa: E402  # reads the flag
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import tyro  # noqa: E402

from benchmarks.measuring import heading, line  # noqa: E402
from common.training.mesh import make_mesh, place, shard_batch, shardings  # noqa: E402
from common.training.task import Context  # noqa: E402
from reveal.network.config import RevealConfig, VitConfig  # noqa: E402
from reveal.training.joint import Joint  # noqa: E402
from reveal.training.losses import Weights  # noqa: E402
from reveal.training.own_batches import ItemArrays, OwnDataConfig  # noqa: E402

SIDE, LENGTH, WORDS, SOURCES, BATCH = 16, 8, 512, 4, 64
# Columns and the formats of their numbers.
COLUMNS = {"items": ",", "MB, each": ",.0f", "MB, all": ",.0f", "step MB": ".0f", "refresh s": ".0f", "step s": ".2f"}
COLUMNS |= {"batch ms": ".1f"}


class Vocabulary:
    bos = 2

    def __len__(self) -> int:
        return WORDS


def items_of(count: int) -> ItemArrays:
    rng, ids = np.random.default_rng(0), np.arange(count)
    tokens = rng.integers(3, WORDS, (count, LENGTH), np.int32)
    image = np.resize(rng.integers(0, 256, (1009, SIDE, SIDE, 3), np.uint8), (count, SIDE, SIDE, 3))
    return ItemArrays(tokens, image, np.ones(count, bool), (ids % SOURCES).astype(np.uint8), ids)


def row(count: int, steps: int) -> dict[str, Any]:
    vit = VitConfig(width=16, depth=1, heads=2, mlp=16, patch=8, image_size=SIDE)
    network = RevealConfig(
        vit, WORDS, 16, 2, 8, 16, 2, 1, fusion_layers=1, key_dim=8, value_tokens=2, sources=SOURCES, bos=2
    )
    names = tuple(f"source {number}" for number in range(SOURCES))
    knowledge: Any = types.SimpleNamespace(items=items_of(count), vocabulary=Vocabulary(), sources=names)
    task = Joint(knowledge, network, k=4, reencode=4, weights=Weights(contrastive=0, gate=0, disentangle=0, gap=0))
    mesh, rng = make_mesh(DEVICES), np.random.default_rng(1)
    frozen = task.frozen()
    frozen = place(frozen, shardings(mesh, frozen, task.frozen_rules))
    params = jax.jit(task.init)(jax.random.key(0))
    start = time.perf_counter()
    encoded = task.refresh_arrays(params, frozen)
    refresh = time.perf_counter() - start
    batch = {"tokens": rng.integers(3, WORDS, (BATCH, LENGTH), np.int32), "answer": np.full((BATCH, 2), 3, np.int32)}
    batch["image"] = rng.random((BATCH, SIDE, SIDE, 3), np.float32)
    batch = shard_batch(mesh, batch)

    def loss(params: Any, batch: Any, frozen: Any, encoded: Any) -> Any:
        return task.loss(params, batch, Context(jnp.zeros((), jnp.int32), jax.random.key(0), frozen, encoded, mesh))

    step = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(params, batch, frozen, encoded).compile()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        jax.block_until_ready(step(params, batch, frozen, encoded))
        times.append(time.perf_counter() - start)
    arrays = jax.tree.leaves((frozen, encoded))
    row = {"items": count, "MB, all": sum(x.nbytes for x in arrays) / 1e6, "refresh s": refresh}
    row["MB, each"] = sum(x.addressable_shards[0].data.nbytes for x in arrays) / 1e6
    row["step MB"] = step.memory_analysis().temp_size_in_bytes / 1e6
    return row | {"step s": statistics.median(times[1:]), "batch ms": 1000 * negatives(count)}


def negatives(count: int) -> float:
    """CPU seconds for those of a batch, of as many gold items as items."""
    data = OwnDataConfig("items.jsonl", "questions.jsonl", ("a",), "words", negatives=4)
    data.__dict__["_golds"] = np.arange(count)
    questions = [types.SimpleNamespace(negatives=(), gold=number) for number in range(BATCH)]
    rng, start = np.random.default_rng(0), time.process_time()
    for question in questions:
        data._negatives(question, rng)  # type: ignore[arg-type]
    return time.process_time() - start


def main(counts: tuple[int, ...] = (100_000, 1_000_000, 5_000_000), steps: int = 5) -> None:
    """Print the table.

    Args:
        counts: numbers of items; five millions take 10 GB of this machine.
        steps: of each, the first not timed.
    """
    heading("joint training", COLUMNS)
    for count in counts:
        line(COLUMNS, row(count, steps))


if __name__ == "__main__":
    tyro.cli(main)
