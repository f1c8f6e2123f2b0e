"""Batched answering with a memory: encode the questions, search, read what was retrieved, decode the answers.

    reader = Reader(model, memory, read_item)
    output = reader.ask(tokens, image, k=4)                 # any number of questions
    memory.items(output.retrieved.ids[0])                   # what the first answer was read from
    reader.add([Item("kg", {"text": "..."})])               # encoded with this network; the next question finds it

A `ReadItem` turns items into the network's input, as `Reveal.encode_item` takes it. All is computed in batches of one
size, so that each function compiles once for any number of rows.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from common.nn.init import split
from reveal.memory.builder import Builder
from reveal.memory.engines.engine import Engine, SearchResult
from reveal.memory.items import Item
from reveal.memory.manifest import Layout, fingerprint
from reveal.memory.memory import Memory
from reveal.network.config import PAD, RevealConfig
from reveal.network.fusion import Fused
from reveal.network.generator import Decoding
from reveal.network.model import Query, Reveal
from reveal.processing.doubt import Signals
from reveal.processing.images import Views

ReadItem = Callable[[Sequence[Item]], Mapping[str, np.ndarray]]
BATCH = 64  # rows that are computed at a time
EIGHT_TOKENS = Decoding(8)


class ReaderOutput(NamedTuple):
    """Answers and the items that they were read from."""

    tokens: Int[np.ndarray, "b o"]  # of the answers
    retrieved: SearchResult  # the items, best first
    prior: Float[np.ndarray, "b k"]  # retrieval prior, mean 1 over the items that were found
    shares: Float[np.ndarray, "b k"]  # of the question's attention in the fusion
    log_gate: Float[np.ndarray, "b s"]  # log-probability of each source
    likelihood: Float[np.ndarray, " b"]  # log-probability of the answer, its end included, per token
    empty: Float[np.ndarray, " b"]  # log-odds of no answer at all
    picture: Float[np.ndarray, " b"]  # the part of the best item's score that is the pictures' similarity
    no_picture: Float[np.ndarray, " b"]  # what that part would be of an item without a picture
    text: Float[np.ndarray, "b d"]  # mean of the encoded question's tokens

    def signals(self) -> Signals:
        """What calibrated doubt is computed from."""
        score = self.retrieved.scores[:, 0] if self.retrieved.scores.shape[1] else np.zeros(len(self.tokens))
        gate = self.log_gate.max(axis=1)
        return Signals(score, self.picture, self.no_picture, gate, self.likelihood, self.empty, self.text)


class Reader:
    """A trained network with a memory that it encoded (`Memory.load(folder, encoder=reader_fingerprint(model))` checks
    that), or without; `read_item` is for changes of the memory, `batch` the rows computed at a time."""

    def __init__(
        self, model: Reveal, memory: Memory | None = None, read_item: ReadItem | None = None, batch: int = BATCH
    ):
        self.model, self.memory, self.read_item, self._batch = model, memory, read_item, batch
        self._graph, self._params = split(model)

    def ask(
        self,
        tokens: Int[np.ndarray, "b n"],
        image: Float[np.ndarray, "b h w 3"] | None = None,
        k: int = 4,
        *,
        sources: Sequence[str] | None = None,
        decoding: Decoding = EIGHT_TOKENS,
        answers: Int[np.ndarray, "b o"] | None = None,
    ) -> ReaderOutput:
        """Answers questions, of which `tokens` and `image` are as `Reveal.encode_query` takes them, from k items of
        some sources (names; None: all); `answers` are scored instead of decoded ones. Raises ValueError as
        `Memory.search`, and for k above 0 without a memory."""
        if not len(tokens):
            raise ValueError("no questions to answer: give one or more")
        rows, outputs = {"tokens": tokens, "image": image, "answers": answers}, []
        for batch in batches({name: row for name, row in rows.items() if row is not None}, self._batch):
            given = batch.pop("answers", None)
            query = call(self._graph, "encode_query", self._params, **batch)
            retrieved, values, scores, picture = retrieve(self.memory, query, k, sources, self.model.config)
            fused = _fuse(self._graph, self._params, query, values, scores, retrieved.present)
            written = np.asarray(self.model.generate(fused, decoding).tokens) if given is None else given
            sureness = _likelihoods(self._graph, self._params, fused, written)
            others = fused.prior, fused.shares, query.log_gate, *sureness, picture, query.no_picture
            others = map(np.asarray, (*others, text_mean(query, tokens.shape[1])))
            outputs.append(ReaderOutput(written, retrieved, *others))
        return jax.tree.map(lambda *x: np.concatenate(x)[: len(tokens)] if np.ndim(x[0]) else x[0], *outputs)

    def best_views(
        self,
        tokens: Int[np.ndarray, "b n"],
        images: Iterable[Float[np.ndarray, "v s s 3"]],
        views: Views,
        sources: Sequence[str] | None = None,
    ) -> Float[np.ndarray, "b s s 3"]:
        """The view of each question's image that the memory knows best (`best_view`). `images` are the views of each,
        consumed a batch at a time: those of all may not fit in memory."""
        left, chosen = iter(images), []
        for start in range(0, len(tokens), self._batch):
            part = np.stack(list(itertools.islice(left, self._batch)))
            if self.memory is None or part.shape[1] == 1:
                chosen += list(part[:, 0])
                continue
            (batch,) = batches({"tokens": tokens[start : start + self._batch], "image": part[:, 0]}, self._batch)
            queries = call(self._graph, "encode_query", self._params, **batch)
            for row, own in enumerate(part):
                query = jax.tree.map(lambda x, row=row: x[row : row + 1], queries)
                vectors, no_picture = jax.device_get(call(self._graph, "view_vectors", self._params, query, own))
                best = best_view(views, self.memory, vectors, no_picture, np.asarray(query.log_gate), sources)
                chosen.append(own[best])
        return np.stack(chosen)

    def encode(self, items: Sequence[Item]) -> tuple[np.ndarray, np.ndarray]:
        if self.read_item is None:
            raise ValueError("this reader cannot encode items: give read_item")
        return self.encode_rows(self.read_item(items))

    def encode_rows(self, rows: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        encoded = [call(self._graph, "encode_item", self._params, **batch) for batch in batches(rows, self._batch)]
        count = len(rows["tokens"])
        keys, values = (np.concatenate([np.asarray(x[i], np.float32) for x in encoded])[:count] for i in (0, 1))
        return keys, values

    def build(
        self, folder: str | Path, items: Sequence[Item], sources: Sequence[str], engine: Engine | None = None
    ) -> Memory:
        """A new memory of these items, which this reader searches from now on. Raises as `Builder`."""
        layout = layout_of(self.model, sources)
        with Builder(folder, layout) as builder:
            for start in range(builder.count, len(items), 16 * BATCH):
                part = items[start : start + 16 * BATCH]
                builder.add(part, *self.encode(part))
        self.memory = Memory.load(folder, engine, layout.encoder)
        return self.memory

    def add(self, items: Sequence[Item]) -> list[int]:
        return self._changed().add(items, *self.encode(items))

    def edit(self, items: Sequence[Item]) -> None:
        self._changed().edit(items, *self.encode(items))

    def delete(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> None:
        self._changed().delete(ids)

    def _changed(self) -> Memory:
        if self.memory is None:
            raise ValueError("there is no memory to change: build or load one")
        return self.memory


def retrieve(
    memory: Memory | None, query: Query, k: int, sources: Sequence[str] | None, config: RevealConfig
) -> tuple[SearchResult, Float[np.ndarray, "b k c d"], Float[np.ndarray, "b k"], Float[np.ndarray, " b"]]:
    """The k best items of each query, their values, their scores with 0 where there is none, and the part of each best
    score that is the similarity of two pictures. Raises ValueError as `Reader.ask`."""
    if k == 0:
        shape = len(query.vector), 0
        scores, ids = np.zeros(shape, np.float32), np.zeros(shape, np.int64)
        values = np.zeros((*shape, config.value_tokens, config.width), np.float32)
        return SearchResult(ids, scores, ids, 0), values, scores, np.zeros(len(scores), np.float32)
    if memory is None:
        raise ValueError(f"k is {k}, but there is no memory: give one, or ask with k=0")

    def found() -> tuple[Any, ...]:
        result = memory.search(np.asarray(query.vector), k, sources, np.asarray(query.log_gate))
        seen = result.present[:, 0] & (config.tower is not None)
        return result, seen, memory.values(result.ids), memory.keys(result.ids[seen, 0])

    result, seen, values, keys = memory.of_one_version(found)
    picture = np.zeros(len(seen), np.float32)
    picture[seen] = (np.asarray(query.vector)[seen] * keys)[:, config.key_dim :].sum(axis=1)
    scores = np.where(result.present, result.scores, 0).astype(np.float32)
    return result, np.asarray(values, np.float32), scores, picture


def text_mean(query: Query, length: int) -> Float[Array, "b d"]:
    """Mean of the encoded tokens of each question, which are the first `length` states; 0 without any."""
    written = query.mask[:, :length, None]
    return jnp.where(written, query.states[:, :length], 0).sum(axis=1) / jnp.maximum(written.sum(axis=1), 1)


@partial(jax.jit, static_argnums=0)
def _likelihoods(graph: nnx.GraphDef, params: Any, fused: Fused, tokens: Array) -> Any:
    model = nnx.merge(graph, params)
    return sureness(jax.nn.log_softmax(model.text_logits(fused, tokens)), tokens, model.config.eos)


def log_likelihood(every: Float[Array, "b o v"], tokens: Int[Array | np.ndarray, "b o"]) -> Float[Array, " b"]:
    """Of each answer, by the log-probabilities of every token after those before it."""
    per_token = jnp.take_along_axis(every, tokens[..., None], axis=-1)[..., 0]
    return jnp.where(tokens == PAD, 0, per_token).sum(axis=1)


def sureness(
    log_probabilities: Float[Array, "b o v"], tokens: Int[Array, "b o"], eos: int
) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """Each answer's log-probability per token, and the log-odds of an empty one."""
    empty = log_probabilities[:, 0, eos]
    odds = empty - jnp.log(jnp.maximum(-jnp.expm1(empty), 1e-9))
    return log_likelihood(log_probabilities, tokens) / jnp.maximum((tokens != PAD).sum(axis=1), 1), odds


def best_view(
    views: Views,
    memory: Memory,
    vectors: Float[np.ndarray, "v e"],
    no_picture: Float[np.ndarray, " v"],
    log_gate: Float[np.ndarray, "1 s"],
    sources: Sequence[str] | None,
) -> int:
    """The view of a query's image to ask about, of which `vectors` and `no_picture` are (`Reveal.view_vectors`)."""
    gates = np.repeat(log_gate, len(vectors), axis=0)
    return views.best(memory.search(vectors, 1, sources, gates).scores[:, 0], no_picture)


def reader_fingerprint(model: Reveal) -> str:
    """Identifies the network that made a memory's keys."""
    return fingerprint(split(model)[1])


def layout_of(model: Reveal, sources: Sequence[str]) -> Layout:
    """The layout of a memory of this network, for sources in the order of its gate."""
    config = model.config
    return Layout(reader_fingerprint(model), tuple(sources), config.vector_dim, (config.value_tokens, config.width))


def batches(rows: Mapping[str, np.ndarray], size: int) -> Iterator[dict[str, np.ndarray]]:
    """Rows, `size` at a time; the last batch is filled up with its first row."""
    count = len(next(iter(rows.values())))
    for start in range(0, count, size):
        at = np.arange(start, start + size)
        yield {name: array[np.where(at < count, at, start)] for name, array in rows.items()}


@partial(jax.jit, static_argnums=(0, 1))
def call(graph: nnx.GraphDef, method: str, params: Any, *arrays: Any, **named: Any) -> Any:
    """A method of a network, compiled."""
    return getattr(nnx.merge(graph, params), method)(*arrays, **named)


@partial(jax.jit, static_argnums=0)
def _fuse(graph: nnx.GraphDef, params: Any, *inputs: Any) -> Fused:
    return nnx.merge(graph, params).fuse(*inputs, shares=True)
