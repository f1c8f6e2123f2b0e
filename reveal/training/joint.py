"""The second training stage: items are retrieved, and the loss on the answer trains the retriever.

    1. query -> search over the stored keys -> k rows, the same for every device's share of the batch
    2. the first `reencode` of them are encoded again, with gradients; the others keep their stored keys and values
    3. scores of those keys, with gradients -> prior -> fusion -> answer

(Hu et al., CVPR 2023, "retrieval-augmented generation"; `KnowledgeFIDModel` of the reference, whose retrieval cannot
run.) The search itself has no gradient. Stored keys and values, constants to the gradient, grow stale as the network
learns: the trainer recomputes them from a snapshot of the parameters in the background, every so many steps
(`common/training/refresh.py`).

The search is exact, part of the compiled step, and sharded over the devices. `engine` replaces it by one that the step
calls on the host (`memory/engines/engine.py`): an approximate index of FAISS, or Milvus, as the memory will be served.
It gets every version of the keys when that comes into use, with no step running, and training waits for it.
"""

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from common.checked import NotNegative
from common.training.mesh import make_mesh
from common.training.task import Batch, Context, Metrics, Params, RefreshConfig, Version
from reveal.memory.engines import exact
from reveal.memory.engines.engine import NOTHING, Engine, Rows
from reveal.memory.engines.exact import ExactEngine, Hits, Index
from reveal.network.heads import scores
from reveal.network.model import Query, Reveal
from reveal.training import device_memory
from reveal.training.device_memory import Contents, Encoded
from reveal.training.losses import Output, Weights
from reveal.training.warm_start import RevealTask


@dataclasses.dataclass(frozen=True)
class Joint(RevealTask):
    weights: Weights = dataclasses.field(default_factory=lambda: Weights(contrastive=0.0))
    reencode: NotNegative | None = None  # how many of a row's items are encoded again, the best ones; None: all k
    sources: Sequence[int] | None = None  # indices of the sources to search; None: all
    find: Literal["best", "random"] = "best"  # random items are a baseline
    engine: Engine | None = None  # on the host, for one process and on a CPU one device; None: exact, in the step
    refresh: RefreshConfig = dataclasses.field(default_factory=RefreshConfig)
    failures: list[Exception] = dataclasses.field(default_factory=list, init=False, repr=False, compare=False)
    # Drawn name of a training: its versions, numbered from 0, are not those of the one before.
    training: str = dataclasses.field(default="", init=False, repr=False, compare=False)

    def rules(self):
        yield self.reencode is None or self.reencode <= self.k, "reencode is at most k"

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.engine, ExactEngine):
            raise ValueError("task.engine is ExactEngine: leave it null for the exact search of the step itself")
        if self.engine is not None and jax.process_count() > 1:
            name = type(self.engine).__name__
            raise ValueError(f"task.engine is {name}, which serves one process: leave it null, or train in one process")

    def frozen(self) -> dict[str, Any]:
        object.__setattr__(self, "training", secrets.token_hex(8))
        return super().frozen()

    def refresh_arrays(
        self, params: Params, frozen: Any, check_cancelled: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        params = jax.tree.map(lambda x: x.astype(self.dtype), params)
        return device_memory.encode_all(self.graph, params, frozen["contents"], check_cancelled)._asdict()

    def on_refresh(self, version: Version, frozen: Any, params: Params) -> None:
        """Updates the engine, if there is one, with the keys of the next steps."""
        if self.engine is None:
            return
        jax.block_until_ready(params)  # the running step searches the keys before
        contents = Contents(*frozen["contents"])
        live = np.asarray(contents.id) >= 0
        ids, source, keys = (np.asarray(x)[live] for x in (contents.id, contents.source, version.arrays["keys"]))
        rows = Rows.of(ids, source, keys, np.full(len(ids), version.number, np.int32))
        self.engine.update(dataclasses.replace(rows, memory=self.training), self.config.sources, version.number)

    def check(self) -> None:
        if self.failures:
            first = self.failures[0]
            self.failures.clear()  # the next training with this task starts clean
            raise first

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        if "permutation" in batch and self.fresh < self.k:
            way_out = f"re-encode all {self.k}, as stored values do not follow data.shuffle, or set it to false"
            raise ValueError(f"task.reencode is {self.reencode}: {way_out}")
        model, contents = self.model(params), Contents(*context.frozen["contents"])
        encoded = Encoded(**context.refreshed)
        query = self.query(model, batch, context.key)
        hits = self.search(query, contents, encoded, context)
        values, score = self.read(model, query, hits, contents, encoded, batch, context)
        mode = self.mode(context.key, 2)
        fused = model.fuse(query, values, score, hits.rows >= 0, mode=mode.fold(0))
        output = Output(query, values, model.text_logits(fused, batch["answer"], mode=mode.fold(1)))
        weights = dataclasses.replace(self.weights, reconstruct=0)  # of the warm start
        if self.k == 0:  # means over values that are not there
            weights = dataclasses.replace(weights, disentangle=0, gap=0)
        if "gold" not in batch:
            weights = dataclasses.replace(weights, contrastive=0, gate=0)
        else:
            output = output._replace(source=jnp.asarray(batch["source"]))
        if weights.contrastive:
            ids, _, candidates = self.candidates(model, contents, batch, context.key, context.mesh)
            output = output._replace(keys=candidates.key, ids=ids)
        loss, metrics = self.total(weights, output, batch, context)
        return loss, metrics | self.recall(hits, contents, batch)

    @property
    def fresh(self) -> int:
        return self.k if self.reencode is None else self.reencode

    def search(self, query: Query, contents: Contents, encoded: Encoded, context: Context) -> Hits:
        """The k items to read; no gradient."""
        b = len(query.vector)
        if self.k == 0:
            empty = jnp.zeros((b, 0), jnp.int32)
            return Hits(empty, jnp.zeros((b, 0)), empty)
        if self.engine is not None and self.find == "best":
            return self.search_engine(query, contents, context.mesh or make_mesh(1))
        gate = query.log_gate if self.sources is None else exact.allow(query.log_gate, self.sources)
        source = jnp.asarray(contents.source)
        if self.find == "random":
            chosen = range(self.config.sources) if self.sources is None else self.sources
            live = jnp.isin(source, jnp.array(chosen))
            noise = jnp.where(live, jax.random.gumbel(context.key, (b, len(source))), -jnp.inf)
            best, rows = jax.lax.top_k(noise, self.k)
            found = best > -jnp.inf
            rows, origin = (jnp.where(found, x, NOTHING) for x in (rows, source[rows]))
            return Hits(rows, jnp.where(found, 0, -jnp.inf), origin)
        mesh = context.mesh or make_mesh(1)
        split = b % mesh.devices.size == 0
        return exact.search(Index(encoded.keys, source), query.vector, self.k, gate, mesh, split=split)

    def search_engine(self, query: Query, contents: Contents, mesh: Mesh) -> Hits:
        """The engine's result, computed on the host; queries that are not finite find nothing. Raises ValueError for
        several CPU devices: they share the threads that a host callback needs, and devices that wait for each other may
        leave none."""
        engine, shape = self.engine, (len(query.vector), self.k)
        assert engine is not None  # `search` checked
        if mesh.devices.size > 1 and mesh.devices.flat[0].platform == "cpu":
            name, count = type(engine).__name__, mesh.devices.size
            raise ValueError(f"task.engine is {name}, which may deadlock {count} CPU devices: set trainer.devices=1")
        no_ids = np.full(shape, NOTHING, np.int32)
        nothing = no_ids, np.full(shape, -np.inf, np.float32), no_ids

        def search(vectors: Array, log_gate: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            queries, gate = np.asarray(vectors), np.asarray(log_gate)
            finite = np.isfinite(queries).all(axis=1, keepdims=True) & np.isfinite(gate).all(axis=1, keepdims=True)
            queries, gate = np.where(finite, queries, 0), np.where(finite, gate, 0)
            try:
                hits = engine.search(queries, self.k, sources=self.sources, log_gate=gate)
            except Exception as error:  # raised in here, it would end the program without a message
                self.failures.append(error)
                return nothing
            ids = np.where(finite, hits.ids, NOTHING)
            return ids.astype(np.int32), hits.scores.astype(np.float32), hits.sources.astype(np.int32)

        shapes = [jax.ShapeDtypeStruct(shape, array.dtype) for array in nothing]
        inputs = jax.lax.stop_gradient((query.vector.astype(jnp.float32), query.log_gate))
        ids, score, sources = jax.pure_callback(search, shapes, *inputs)
        return Hits(device_memory.rows_of(contents, ids), score, sources)

    def read(
        self,
        model: Reveal,
        query: Query,
        hits: Hits,
        contents: Contents,
        encoded: Encoded,
        batch: Batch,
        context: Context,
    ) -> tuple[Float[Array, "b k c d"], Float[Array, "b k"]]:
        """Values and scores of the hits, the first ones re-encoded."""
        keys, values = device_memory.gather(encoded, jnp.maximum(hits.rows[:, self.fresh :], 0), context.mesh)
        if self.fresh:
            items = device_memory.take(contents, hits.rows[:, : self.fresh], context.mesh)
            item = self.encode(model, items, batch, context.key)
            keys = jnp.concatenate([item.key, keys], axis=1)
            values = jnp.concatenate([item.value, values], axis=1)
        return values, scores(query.vector, keys, query.log_gate, jnp.maximum(hits.sources, 0))

    def recall(self, hits: Hits, contents: Contents, batch: Batch) -> dict[str, Array]:
        if "gold" not in batch or self.k == 0:
            return {}
        ids: Int[Array, "b k"] = jnp.where(hits.rows >= 0, jnp.asarray(contents.id)[jnp.maximum(hits.rows, 0)], -1)
        correct = ids == jnp.asarray(batch["gold"])[:, None]
        return {"recall_1": jnp.mean(correct[:, 0]), f"recall_{self.k}": jnp.mean(correct.any(axis=1))}
