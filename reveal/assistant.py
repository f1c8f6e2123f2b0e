"""A trained network with its tokenizer and its memory: questions and items as people have them.

    assistant = Assistant.load("runs/world_joint", memory="facts")
    told = assistant.ask("gull.jpg", "what does it eat?", k=4)        # `Evidence`: answer, items, what each did
    assistant.search(text="seabirds", k=10)
    assistant.encode([Item("wiki", {"text": "..."})])            # keys and values, as memories take them

A question is one program to encode it, the search, and one program that answers and leaves out each item
(`attribution.py`), each compiled once for each k.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float

from reveal import attribution, pretrained
from reveal.evidence import Evidence, Piece
from reveal.memory.engines.engine import Engine, Found
from reveal.memory.items import Item
from reveal.memory.manifest import Layout, check_encoder
from reveal.memory.memory import Memory
from reveal.memory.store import Store
from reveal.network import weights
from reveal.network.generator import Decoding, likeliest
from reveal.network.model import Query, Reveal
from reveal.processing.processor import Processor, processor_of
from reveal.reader import Reader, reader_fingerprint

MOST_READ, MOST_FOUND = 4, 10  # items, where nobody says how many
BEAMS = 4  # beginnings of an answer, likewise
SMALL = 50_000_000  # parameters; up to here a processor compiles for longer than it computes
Picture = str | Path | Float[np.ndarray, "s s 3"]


class Assistant:
    """A network that is asked in words.

    Args:
      model: trained.
      processor: how it reads.
      memory: made by it; None: it answers alone.
    """

    def __init__(self, model: Reveal, processor: Processor, memory: Memory | None = None):
        self.model, self.processor, self.memory = model, processor, memory
        graph, state = nnx.split(model)
        self._params = nnx.to_pure_dict(state)
        self._encode_query, self._answer = _programs(graph, sum(x.size for x in jax.tree.leaves(self._params)))

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        tokenizer: str | Path | None = None,
        memory: str | Path | Store | None = None,
        *,
        engine: Engine | None = None,
        sources: Sequence[str] = (),
        default_sources: Sequence[str] = (),
    ) -> Assistant:
        """Opens files.

        Args:
          path: weights, or the folder of a run; None: those that come with the program.
          tokenizer, sources, default_sources: as in `processor_of`; the sources' names are by default the memory's.
          memory: its folder, or the opened store; None: none.
          engine: that searches it; None: the exact one.

        Raises:
          OSError, ValueError: in one line; a memory that another network made is one.
        """
        file = pretrained.weights() if path is None else weights.file_of(path)
        model, header = weights.load_with_metadata(file)
        opened = None
        if memory is not None:
            store = memory if isinstance(memory, Store) else Store(memory)
            check_encoder(store.layout, reader_fingerprint(model), store.folder)
            opened = Memory(store, engine)
            sources = sources or opened.store.layout.sources
        return cls(model, processor_of(file, model.config, header, tokenizer, sources, default_sources), opened)

    def ask(
        self,
        image: Picture | None,
        question: str,
        k: int | None = None,
        sources: Sequence[str] | None = None,
        how: Decoding | None = None,
    ) -> Evidence:
        """Answers, in two hops what `Processor.two_hops` takes apart: `Evidence.first_hop` is the first of them.

        Args:
          image: a file, or a picture of the network's size in [0, 1]; None: the question is all there is.
          question: "" asks for a description, of networks that were trained to give one.
          k: items to read; None: 4, or as many as there are; 0: none, as without a memory.
          sources: names of those to look in; None: all.
          how: to write; None: the likeliest text of four beams.

        Raises:
          ValueError: a question that is too long, more items than there are, an unknown source, a damaged picture.
          OSError: no such picture.
        """
        hops = self.processor.two_hops(question) if image is not None else None
        if hops is None:
            return self._ask(image, question, k, sources, how)
        first = self._ask(image, hops.about_image, k, sources, how)
        second = self._ask(None, hops.about_answer.format(first.answer), k, sources, how)
        return dataclasses.replace(second, first_hop=first)

    def _ask(
        self,
        image: Picture | None,
        question: str,
        k: int | None,
        sources: Sequence[str] | None,
        how: Decoding | None,
    ) -> Evidence:
        """In one hop."""
        query = self.query(image, question)
        found, values = self._read(query, k, sources)
        scores = np.where(found.present, found.scores, 0).astype(np.float32)
        how = how or likeliest(self.processor.answer_length, BEAMS)
        told = jax.device_get(self._answer(self._params, query, values, scores, found.present, how))
        items = self._memory.items(found.ids[found.present]) if found.present.any() else []
        numbers = zip(*(x.tolist() for x in (scores[0], told.prior, told.shares, told.effects)), strict=True)
        pieces = tuple(Piece(item, *number) for item, number in zip(items, numbers, strict=False))
        gate = np.exp(np.asarray(query.log_gate[0], np.float64)).tolist()
        names = dict(zip(self.processor.sources, gate, strict=True))
        text = self.processor.tokenizer.decode(told.tokens)
        return Evidence(question, text, float(told.log_probability), pieces, names, found.version)

    def search(
        self,
        image: Picture | None = None,
        text: str = "",
        k: int | None = None,
        sources: Sequence[str] | None = None,
    ) -> list[tuple[Item, float]]:
        """The items that answer best, and their scores; k None: 10, or all there are. Raises as `ask`."""
        if image is None and not text.strip():
            raise ValueError("nothing to search by: give a text, a picture, or both")
        found = self._found(self.query(image, text), self.items_to_find(k, MOST_FOUND, sources), sources)
        items = self._memory.items(found.ids[found.present])
        return list(zip(items, found.scores[found.present].tolist(), strict=True))

    def query(self, image: Picture | None, text: str) -> Query:
        """What is looked up: the question as the network encodes it, with no token for what is not there, but for the
        picture where the network knows one of nothing."""
        rows: dict[str, Any] = {}
        image = self.processor.blank if image is None else image
        tokens = self.processor.question(text)
        if tokens.any():
            rows["tokens"] = tokens[None]
        if image is not None:
            rows["image"] = (self.processor.image(image) if isinstance(image, str | Path) else image)[None]
        return self._encode_query(self._params, rows)

    def encode(self, items: Sequence[Item]) -> tuple[np.ndarray, np.ndarray]:
        """Keys [n e] and values [n c d] of some items, one at a time. Raises ValueError for a damaged picture."""
        return self._one_by_one.encode(items)

    def reader(self, part: int) -> Reader:
        """For many items, `part` at a time."""
        return Reader(self.model, self.memory, self.processor.items, part)

    @functools.cached_property
    def _one_by_one(self) -> Reader:
        return self.reader(1)

    def layout(self) -> Layout:
        """Of a memory of this network."""
        config = self.model.config
        values = config.value_tokens, config.width
        return Layout(reader_fingerprint(self.model), self.processor.sources, config.key_dim, values)

    def items_to_find(self, k: int | None, default: int, sources: Sequence[str] | None) -> int:
        """How many. Raises ValueError for k below 1, or above what there is."""
        counts = self._memory.sources
        for name in sources or ():
            self._memory.store.layout.number(name)
        there = sum(counts[name] for name in set(sources or counts))
        if k is not None and not 1 <= k <= there:
            of = f" of {', '.join(sources)}" if sources else ""
            raise ValueError(f"k is {k}, the memory has {there:,} items{of}: ask for 1 to {there}")
        if there == 0:
            raise ValueError("there is nothing to look in: the memory, or what --sources names of it, is empty")
        return min(default, there) if k is None else k

    def _read(self, query: Query, k: int | None, sources: Sequence[str] | None) -> tuple[Found, np.ndarray]:
        """What is found for a question, and the values [1 k c d] of it."""
        config = self.model.config
        if k == 0 or (k is None and self.memory is None):
            nothing = np.zeros((1, 0), np.int64)
            none = np.zeros((1, 0, config.value_tokens, config.width), np.float32)
            return Found(nothing, np.zeros((1, 0), np.float32), nothing, 0), none
        found = self._found(query, self.items_to_find(k, MOST_READ, sources), sources)
        return found, np.asarray(self._memory.values(found.ids), np.float32)

    def _found(self, query: Query, k: int, sources: Sequence[str] | None) -> Found:
        return self._memory.search(np.asarray(query.vector), k, sources, np.asarray(query.log_gate))

    @property
    def _memory(self) -> Memory:
        if self.memory is None:
            raise ValueError("there is no memory to look in: name one, or ask with k=0")
        return self.memory


@functools.lru_cache(maxsize=4)
def _programs(graph: nnx.GraphDef, parameters: int) -> tuple[Any, Any]:
    """To encode a query, and to answer; compiled once for all networks of a shape.

    On a processor, LLVM's optimisations of a small network take longer than its computations ever will."""
    small = jax.default_backend() == "cpu" and parameters <= SMALL
    options = {"xla_backend_optimization_level": "0"} if small else None
    encode = jax.jit(functools.partial(_encode_query, graph), compiler_options=options)
    return encode, jax.jit(functools.partial(_answer, graph), static_argnums=5, compiler_options=options)


def _encode_query(graph: nnx.GraphDef, params: Any, rows: Any) -> Query:
    return nnx.merge(graph, params).encode_query(**rows)


def _answer(graph: nnx.GraphDef, params: Any, query: Any, values: Any, scores: Any, present: Any, how: Decoding) -> Any:
    return attribution.answer(nnx.merge(graph, params), query, values, scores, present, how)
