"""The second stage: items are found, and the loss on the answer alone says what to look for.

    1. query -> search over the keys as they are held -> k rows, the same for every device's share of the batch
    2. the first `reencode` of them are encoded again, with gradients; the others are read as they are held
    3. scores once more from those keys, with gradients -> prior -> fusion -> answer

(Hu et al., CVPR 2023, "retrieval-augmented generation"; `KnowledgeFIDModel` of the reference, whose retrieval cannot
run.) The search itself has no gradient: which items are found changes with the parameters, but not smoothly.

Keys and values grow stale as the network learns. The trainer has them made anew every so many steps by a snapshot, in
the background (`common/training/refresh.py`); the answer's own gradient sees a stale key as a constant.

The search is part of the compiled step, exact, and spread over the devices. `engine` puts another in its place, which
the step calls on the host (`memory/engine.py`): an approximate index of FAISS, or Milvus, as the memory will be served.
It gets every version of the keys when that comes into use, with no step under way, and training waits for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from common.training.mesh import make_mesh
from common.training.task import Batch, Context, Metrics, Params, RefreshConfig, Version
from reveal.memory.engines import exact
from reveal.memory.engines.engine import NOTHING, Engine, Rows
from reveal.memory.engines.exact import ExactEngine, Hits, Index
from reveal.network.heads import scores
from reveal.network.model import Query, Reveal
from reveal.training import device_memory, losses
from reveal.training.device_memory import Contents, Held
from reveal.training.losses import Weights
from reveal.training.warm_start import RevealTask


@dataclasses.dataclass(frozen=True)
class Joint(RevealTask):
    """Items are found.

    Attributes:
      reencode: items of a row that are encoded again, the best ones; None: all k.
      sources: numbers of the sources to choose from; None: all.
      find: best, or for comparison random items.
      engine: that searches on the host, in one process, and on a CPU with one device; None: exactly, in the step. Never
        `ExactEngine`, which is JAX.
      refresh: how often keys and values are recomputed.
    """

    weights: Weights = dataclasses.field(default_factory=lambda: Weights(contrastive=0.0))
    reencode: int | None = None
    sources: Sequence[int] | None = None
    find: Literal["best", "random"] = "best"
    engine: Engine | None = None
    refresh: RefreshConfig = dataclasses.field(default_factory=RefreshConfig)
    failures: list[Exception] = dataclasses.field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self):
        super().__post_init__()
        if self.reencode is not None and not 0 <= self.reencode <= self.k:
            raise ValueError(f"task.reencode is {self.reencode}: encode again 0 to k={self.k} of the items")
        if self.find not in ("best", "random"):
            raise ValueError(f"task.find is {self.find!r}: choose best or random")
        if isinstance(self.engine, ExactEngine):
            raise ValueError("task.engine is ExactEngine: leave it null, and the step searches exactly by itself")
        if self.engine is not None and jax.process_count() > 1:
            named = type(self.engine).__name__
            raise ValueError(f"task.engine is {named}, which one process can ask: leave it null, or train in one")
        if self.sources is not None:
            object.__setattr__(self, "sources", tuple(self.sources))

    def refresh_arrays(
        self, params: Params, frozen: Any, check_cancelled: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Keys and values of the whole memory."""
        params = jax.tree.map(lambda x: x.astype(self.dtype), params)
        return device_memory.hold(self.graph, params, frozen["contents"], check_cancelled)._asdict()

    def on_refresh(self, version: Version, frozen: Any, params: Params) -> None:
        """Gives the engine, if there is one, the keys that are held from now on."""
        if self.engine is None:
            return
        jax.block_until_ready(params)  # the step under way searches the keys before
        contents = Contents(*frozen["contents"])
        live = np.asarray(contents.id) >= 0
        ids, source, keys = (np.asarray(x)[live] for x in (contents.id, contents.source, version.arrays["keys"]))
        rows = Rows.of(ids, source, keys, np.full(len(ids), version.number, np.int32))
        self.engine.update(rows, self.config.sources, version.number)

    def check(self) -> None:
        """Raises what the engine raised in a step, instead of finding anything."""
        if self.failures:
            first = self.failures[0]
            self.failures.clear()  # a next training with this task begins anew
            raise first

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        if "permutation" in batch and self.again < self.k:
            raise ValueError(
                f"task.reencode is {self.reencode}, but held values are not in the language of the batch: encode all"
                f" {self.k} again, or set data.shuffle=false"
            )
        model, contents, held = self.model(params), Contents(*context.frozen["contents"]), Held(**context.refreshed)
        query = self.query(model, batch)
        hits = self.search(query, contents, held, context)
        values, found = self.read(model, query, hits, contents, held, batch, context.key)
        generation, accuracy = self.reading(model, query, values, found, hits.rows >= 0, batch)
        flat = values.reshape(-1, *values.shape[2:])
        terms = {
            "generation": lambda: generation,
            "disentangle": lambda: losses.disentangle(flat),
            "gap": lambda: losses.gap(flat, query.states, query.mask),
        }
        if "gold" in batch:
            terms["gate"] = lambda: losses.gate(query.log_gate, jnp.asarray(batch["source"]))
            terms["contrastive"] = lambda: self.contrast(model, query, contents, batch, context.key)
        loss, parts = losses.total(terms, self.weights)
        return loss, parts | {"accuracy": accuracy} | self.retrieval(hits, contents, batch)

    @property
    def again(self) -> int:
        """Items that are encoded again."""
        return self.k if self.reencode is None else self.reencode

    def search(self, query: Query, contents: Contents, held: Held, context: Context) -> Hits:
        """The rows of the k items to read; no gradient."""
        b = len(query.vector)
        if self.k == 0:
            nothing = jnp.zeros((b, 0), jnp.int32)
            return Hits(nothing, jnp.zeros((b, 0)), nothing)
        if self.engine is not None and self.find == "best":
            return self.ask(query, contents, context.mesh or make_mesh(1))
        gate = query.log_gate if self.sources is None else exact.allow(query.log_gate, self.sources)
        source = jnp.asarray(contents.source)
        if self.find == "random":
            live = jnp.where(source < self.config.sources, 0.0, -jnp.inf)
            noise = jax.random.gumbel(context.key, (b, len(source)))
            drawn = jax.lax.top_k(live + noise, self.k)[1]
            return Hits(drawn, jnp.zeros(drawn.shape), source[drawn])
        mesh = context.mesh or make_mesh(1)
        split = b % mesh.devices.size == 0
        return exact.search(Index(held.keys, source), query.vector, self.k, gate, mesh, split=split)

    def ask(self, query: Query, contents: Contents, mesh: Mesh) -> Hits:
        """The engine's answer, on the host. Raises ValueError for several CPU devices: they share the threads that a
        call of the host needs, and while one waits for the other, there may be none left."""
        engine, shape = self.engine, (len(query.vector), self.k)
        assert engine is not None  # `search` looked
        if mesh.devices.size > 1 and mesh.devices.flat[0].platform == "cpu":
            raise ValueError(
                f"task.engine is {type(engine).__name__}, and {mesh.devices.size} CPU devices that ask it may wait for"
                " each other for ever: set trainer.devices=1"
            )
        nobody = np.full(shape, NOTHING, np.int32)
        nothing = nobody, np.full(shape, -np.inf, np.float32), nobody

        def found(vectors: Array, log_gate: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            asked, gate = np.asarray(vectors), np.asarray(log_gate)
            numbers = [np.isfinite(x).all(axis=1, keepdims=True) for x in (asked, gate)]
            lost = ~(numbers[0] & numbers[1])  # the loss will tell
            asked, gate = np.where(lost, 0, asked), np.where(lost, 0, gate)
            try:
                hits = engine.search(asked, self.k, sources=self.sources, log_gate=gate)
            except Exception as error:  # raised in here, it would end the program without a word
                self.failures.append(error)
                return nothing
            ids = np.where(lost, NOTHING, hits.ids)
            return ids.astype(np.int32), hits.scores.astype(np.float32), hits.sources.astype(np.int32)

        shapes = [jax.ShapeDtypeStruct(shape, part.dtype) for part in nothing]
        question = jax.lax.stop_gradient((query.vector.astype(jnp.float32), query.log_gate))
        ids, scored, sources = jax.pure_callback(found, shapes, *question)
        return Hits(device_memory.rows_of(contents, ids), scored, sources)

    def read(
        self,
        model: Reveal,
        query: Query,
        hits: Hits,
        contents: Contents,
        held: Held,
        batch: Batch,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, "b k c d"], Float[Array, "b k"]]:
        """Values and scores of what was found: of the first ones as the network makes them now."""
        safe = jnp.maximum(hits.rows, 0)
        keys, values = jax.lax.stop_gradient((held.keys[safe], held.values[safe]))
        if self.again and self.k:
            fresh = device_memory.take(contents, hits.rows[:, : self.again])
            item = self.encode(model, fresh, batch, key)
            keys = jnp.concatenate([item.key, keys[:, self.again :]], axis=1)
            values = jnp.concatenate([item.value, values[:, self.again :]], axis=1)
        return values, scores(query.vector, keys, query.log_gate, jnp.maximum(hits.sources, 0))

    def contrast(
        self, model: Reveal, query: Query, contents: Contents, batch: Batch, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        """As in the warm start, for the rows whose item is known."""
        ids = jnp.concatenate([jnp.asarray(batch["gold"])[:, None], jnp.asarray(batch["negatives"])], axis=1)
        item = self.encode(model, device_memory.take(contents, device_memory.rows_of(contents, ids)), batch, key)
        return losses.contrastive(query.vector, item.key, self.temperature, items=ids).loss

    def retrieval(self, hits: Hits, contents: Contents, batch: Batch) -> dict[str, Array]:
        """How often the right item was found, where somebody knows it."""
        if "gold" not in batch or self.k == 0:
            return {}
        gold: Bool[Array, "b k"] = self.ids(hits.rows, contents) == jnp.asarray(batch["gold"])[:, None]
        return {"recall_1": jnp.mean(gold[:, 0]), f"recall_{self.k}": jnp.mean(gold.any(axis=1))}

    @staticmethod
    def ids(rows: Int[Array, "b k"], contents: Contents) -> Int[Array, "b k"]:
        """The items' numbers, -1 where there is none."""
        return jnp.where(rows >= 0, jnp.asarray(contents.id)[jnp.maximum(rows, 0)], -1)
