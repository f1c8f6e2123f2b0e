"""Asking a trained network: encode the question, look it up, read what was found, write the answer.

    reader = Reader(model, memory, read_item)
    told = reader.ask(tokens, image, k=4)                   # of any number of questions
    memory.items(told.found.ids[0])                         # what the first answer was read from
    reader.add([Item("kg", {"text": "..."})])          # encoded with this network; the next question has it

A `ReadItem` makes of items what the network reads: {"tokens", "image", "has_image"}, as `Reveal.encode_item` takes
them. Everything is computed in parts of one size, so that a program compiles once, whatever number of rows is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from reveal.memory.engines.engine import Engine, Found
from reveal.memory.items import Item
from reveal.memory.manifest import Layout, fingerprint
from reveal.memory.memory import Memory
from reveal.network.generator import Decoding, Greedy
from reveal.network.model import Query, Reveal

ReadItem = Callable[[Sequence[Item]], Mapping[str, np.ndarray]]
PART = 64  # rows that are computed at a time


class Told(NamedTuple):
    """Answers, and where they are from.

    Attributes:
      tokens: of the answers.
      found: the items that were read, best first.
      prior: what each item counted, mean 1 over those that were found.
      shares: of the question's attention in the fusion, what each item got.
      log_gate: trust in each source.
    """

    tokens: Int[np.ndarray, "b o"]
    found: Found
    prior: Float[np.ndarray, "b k"]
    shares: Float[np.ndarray, "b k"]
    log_gate: Float[np.ndarray, "b s"]


class Reader:
    """A network with a memory that it made the keys of.

    Args:
      model: trained.
      memory: encoded by this network (`Memory.load(folder, encoder=reader_fingerprint(model))` checks that), or None
        to answer without.
      read_item: for changes of the memory.
      part: rows that are computed at a time.
    """

    def __init__(
        self, model: Reveal, memory: Memory | None = None, read_item: ReadItem | None = None, part: int = PART
    ):
        self.model, self.memory, self.read_item, self.part = model, memory, read_item, part
        graph, state = nnx.split(model)
        self._params = nnx.to_pure_dict(state)
        self._ask, self._item, self._fuse = (partial(f, graph) for f in (_encode_query, _encode_item, _fuse))

    def ask(
        self,
        tokens: Int[np.ndarray, "b n"],
        image: Float[np.ndarray, "b h w 3"] | None = None,
        k: int = 4,
        *,
        sources: Sequence[str] | None = None,
        how: Decoding | None = None,
    ) -> Told:
        """Answers. Raises ValueError as `Memory.search`, and for k above 0 without a memory.

        Args:
          tokens, image: as `Reveal.encode_query`.
          k: items to read; 0: none.
          sources: names of those to look in; None: all.
          how: `Greedy` or `Beam`; None: 8 tokens greedily.
        """
        if k and self.memory is None:
            raise ValueError(f"k is {k}, but there is no memory: give one, or ask with k=0")
        rows = {"tokens": tokens} | ({} if image is None else {"image": image})
        told = [self._part(part, k, sources, how or Greedy(8)) for part in _parts(rows, self.part)]
        whole = jax.tree.map(lambda *x: np.concatenate(x)[: len(tokens)] if np.ndim(x[0]) else x[0], *told)
        return Told(*whole)

    def encode(self, items: Sequence[Item]) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of items, as memories take them."""
        if self.read_item is None:
            raise ValueError("this reader cannot encode items: give read_item")
        return self.encode_rows(self.read_item(items))

    def encode_rows(self, rows: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """`encode` of what `read_item` made."""
        made = [self._item(self._params, part) for part in _parts(rows, self.part)]
        count = len(rows["tokens"])
        keys, values = (np.concatenate([np.asarray(x[i], np.float32) for x in made])[:count] for i in (0, 1))
        return keys, values

    def build(
        self, folder: str | Path, items: Sequence[Item], sources: Sequence[str], engine: Engine | None = None
    ) -> Memory:
        """A new memory of these items, which this reader asks from now on. Raises as `Builder`."""
        from reveal.memory.builder import Builder

        config = self.model.config
        values = config.value_tokens, config.width
        layout = Layout(reader_fingerprint(self.model), tuple(sources), config.key_dim, values)
        with Builder(folder, layout) as builder:
            for start in range(builder.count, len(items), 16 * PART):
                part = items[start : start + 16 * PART]
                builder.add(part, *self.encode(part))
        self.memory = Memory.load(folder, engine, layout.encoder)
        return self.memory

    def add(self, items: Sequence[Item]) -> list[int]:
        """New items; their ids."""
        return self._memory.add(items, *self.encode(items))

    def edit(self, items: Sequence[Item]) -> None:
        """Items in the place of those with their ids."""
        self._memory.edit(items, *self.encode(items))

    def delete(self, ids: Sequence[int] | Int[np.ndarray, " n"]) -> None:
        """Takes items out."""
        self._memory.delete(ids)

    @property
    def _memory(self) -> Memory:
        if self.memory is None:
            raise ValueError("there is no memory to change: build or load one")
        return self.memory

    def _part(self, rows: Mapping[str, np.ndarray], k: int, sources: Sequence[str] | None, how: Decoding) -> Told:
        query: Query = self._ask(self._params, rows)
        b, config = len(query.vector), self.model.config
        if k:
            gate = np.asarray(query.log_gate)
            found = self._memory.search(np.asarray(query.vector), k, sources, gate)
            values = np.asarray(self._memory.values(found.ids), np.float32)
        else:
            nothing = np.zeros((b, 0), np.int64)
            found = Found(nothing, np.zeros((b, 0), np.float32), nothing, 0)
            values = np.zeros((b, 0, config.value_tokens, config.width), np.float32)
        scores = np.where(found.present, found.scores, 0)
        fused = self._fuse(self._params, query, values, scores.astype(np.float32), found.present)
        shares = np.zeros((b, 0), np.float32) if fused.shares is None else fused.shares
        tokens = self.model.generate(fused, how).tokens
        prior, shares, gate = (np.asarray(x) for x in (fused.prior, shares, query.log_gate))
        return Told(np.asarray(tokens), found, prior, shares, gate)


def reader_fingerprint(model: Reveal) -> str:
    """Names the network that made a memory's keys."""
    return fingerprint(nnx.to_pure_dict(nnx.state(model)))


def _parts(rows: Mapping[str, np.ndarray], size: int) -> Iterator[dict[str, np.ndarray]]:
    """Rows, `size` at a time; the last part is filled up with its first row."""
    count = len(rows["tokens"])
    for start in range(0, count, size):
        at = np.arange(start, start + size)
        yield {name: array[np.where(at < count, at, start)] for name, array in rows.items()}


@partial(jax.jit, static_argnums=0)
def _encode_query(graph: nnx.GraphDef, params: Any, rows: Mapping[str, Array]) -> Query:
    return nnx.merge(graph, params).encode_query(**rows)


@partial(jax.jit, static_argnums=0)
def _encode_item(graph: nnx.GraphDef, params: Any, rows: Mapping[str, Array]) -> Any:
    return nnx.merge(graph, params).encode_item(**rows)


@partial(jax.jit, static_argnums=0)
def _fuse(graph: nnx.GraphDef, params: Any, query: Query, values: Array, scores: Array, present: Array) -> Any:
    if values.shape[1] == 0:
        return nnx.merge(graph, params).fuse(query)
    return nnx.merge(graph, params).fuse(query, values, scores, jnp.asarray(present), shares=True)
