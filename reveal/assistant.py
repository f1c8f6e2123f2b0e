"""A trained network with its tokenizer and its memory: questions and items as texts and image files.

    assistant = Assistant.load("runs/world_joint", memory="facts")
    evidence = assistant.ask("gull.jpg", "what does it eat?", k=4)    # `Evidence`: answer and items
    assistant.search(text="seabirds", k=10)
    assistant.encode([Item("wiki", {"text": "..."})])                 # keys and values, as memories take them

**Leave-one-out attribution**: how much less likely the same answer becomes without an item,

    effect_i = log p(answer | all items but i) - log p(answer | all items)

Below 0 the item supported the answer, above 0 it spoke against it. Its place stays empty, so that the others keep their
positions, no other item comes in, and the prior is shared among the rest. `LEFT_OUT` items are left out at a time, each
in a row of its own. Attention shares (`fusion.attention_shares`) show what was attended to, which need not have changed
the answer.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from common.nn.init import split
from reveal import pretrained
from reveal.memory.items import Item, is_text
from reveal.memory.manifest import Layout, check_encoder
from reveal.memory.memory import Memory
from reveal.network import weights
from reveal.network.fusion import Fused
from reveal.network.generator import Decoding
from reveal.network.model import Query, Reveal
from reveal.processing.doubt import Signals
from reveal.processing.processor import Processor, processor_of
from reveal.reader import (
    Reader,
    best_view,
    layout_of,
    log_likelihood,
    reader_fingerprint,
    retrieve,
    sureness,
    text_mean,
)

MOST_READ, MOST_FOUND = 4, 10  # default k of `ask` and `search`
BEAMS = 4  # default beam width
LEFT_OUT = 8  # items that are left out at a time, each in a row of its own
SMALL = 50_000_000  # parameters; up to here a CPU compiles for longer than it computes
Picture = str | Path | Float[np.ndarray, "s s 3"]
LONGEST = 60  # letters of an item's text in a table


@dataclasses.dataclass(frozen=True, eq=False)
class RetrievedItem:
    item: Item
    score: float  # its key times the query, plus the log-probability of its source
    prior: float  # retrieval prior, mean 1 over the items
    attention: float  # share of the question's attention, 0 to 1; items and the question itself share 1
    effect: float  # of leaving it out, on the answer's log-probability: below 0, it supported the answer


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence:
    """An answer and its items."""

    question: str
    answer: str
    log_probability: float  # of the answer, its end included
    items: tuple[RetrievedItem, ...]  # best first
    gate: Mapping[str, float]  # probability of each source
    version: int  # of the memory; 0: there was none
    first_hop: "Evidence | None" = None  # the question before, whose answer is part of this question
    probability: float | None = None  # that the answer is right, calibrated; None: the network has no calibration
    doubted: bool = False  # it is not in this memory, as far as the network can tell
    view: int = 0  # which view of the image was asked about; 0: the whole

    def as_json(self) -> dict[str, Any]:
        """The evidence in plain values, for JSON; of an image, only whether there is one."""
        items = [as_json(one.item) | {name: x for name, x in vars(one).items() if name != "item"} for one in self.items]
        first = None if self.first_hop is None else self.first_hop.as_json()
        return vars(self) | {"gate": dict(self.gate), "items": items, "first_hop": first}

    def line(self) -> str:
        """Question, answer, and the items' ids."""
        ids = ", ".join(str(one.item.id) for one in self.items)
        return f"{self.question} {self.answer or '(nothing)'}" + (f" (items {ids})" if ids else "")

    def verdict(self) -> str:
        """How far to trust the answer, "" without a calibration."""
        if self.probability is None:
            return ""
        said = "not in this memory, as far as it can tell" if self.doubted else "found in this memory"
        return f"{said}: right with a probability of {100 * self.probability:.0f} %"

    def table(self) -> str:
        titles, rows = ("id", "source", "score", "prior", "attention", "left out", "text"), []
        for one in self.items:
            numbers = f"{one.score:.3f}", f"{one.prior:.2f}", f"{100 * one.attention:.1f} %", f"{one.effect:+.3f}"
            rows.append((str(one.item.id), one.item.source, *numbers, short(text_of(one.item))))
        return columns(titles, rows)


class Assistant:
    """A trained network, its processor, and a memory that it made; None: it answers alone."""

    def __init__(self, model: Reveal, processor: Processor, memory: Memory | None = None):
        self.model, self.processor, self.memory = model, processor, memory
        graph, self._params = split(model)
        size = sum(x.size for x in jax.tree.leaves(self._params))
        self._encode_query, self._answer, self._view_vectors = _compiled(graph, size)

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        tokenizer: str | Path | None = None,
        memory: str | Path | Memory | None = None,
        *,
        sources: Sequence[str] = (),
        default_sources: Sequence[str] = (),
    ) -> "Assistant":
        """Opens files; raises OSError and ValueError, also for a memory that another network made.

        Args:
          path: weights, the folder of a run, an address or a shipped name; None: the shipped weights.
          memory: its folder, for the exact engine, or an opened memory; None: none.
          tokenizer, sources, default_sources: as in `processor_of`; the sources' names are by default the memory's.
        """
        file = pretrained.weights(path)
        model, header = weights.load_with_metadata(file)
        if memory is not None:
            memory = memory if isinstance(memory, Memory) else Memory(pretrained.memory(memory))
            check_encoder(memory.layout, reader_fingerprint(model), memory.folder)
            sources = sources or memory.layout.sources
        return cls(model, processor_of(file, model.config, header, tokenizer, sources, default_sources), memory)

    def ask(
        self,
        image: Picture | None,
        question: str,
        k: int | None = None,
        sources: Sequence[str] | None = None,
        decoding: Decoding | None = None,
    ) -> Evidence:
        """Answers, in two hops where `Processor.two_hops` has them: `Evidence.first_hop` is the first of them.

        Args:
          image: a file, or an image of the network's size in [0, 1]; None: a question about no image.
          question: "" asks for a description, of networks that were trained to give one.
          k: items to read; None: 4, or as many as there are; 0: none, as without a memory.
          sources: names of those to search; None: all.
          decoding: None: beam search of width 4, up to the network's length of an answer.

        Raises ValueError for a question that is too long, more items than there are, an unknown source, a damaged
        image; OSError for a missing one.
        """
        hops = self.processor.two_hops(question) if image is not None else None
        if hops is not None:
            first = self.ask(image, hops.about_image, k, sources, decoding)
            second = self.ask(None, hops.about_answer.format(first.answer), k, sources, decoding)
            known = [hop.probability for hop in (first, second) if hop.probability is not None]
            sure, doubted = math.prod(known) if len(known) == 2 else None, first.doubted or second.doubted
            return dataclasses.replace(second, first_hop=first, probability=sure, doubted=doubted, view=first.view)
        if k != 0:
            k = 0 if k is None and self.memory is None else items_to_find(self.memory, k, MOST_READ, sources)
        query, view = self.query_of_best_view(image, question, sources if k else ())
        found, retrieved, values, scores, picture = self._retrieve(query, k, sources)
        decoding = decoding or Decoding(self.processor.answer_length, BEAMS)
        output = jax.device_get(self._answer(self._params, query, values, scores, retrieved.present, decoding))
        numbers = np.stack([scores[0], output.prior, output.shares, output.effects], axis=1)
        numbers = numbers[retrieved.present[0]].tolist()
        items = tuple(RetrievedItem(item, *row) for item, row in zip(found, numbers, strict=True))
        log_gate = np.asarray(query.log_gate[0], np.float64)
        gate = dict(zip(self.processor.sources, np.exp(log_gate).tolist(), strict=True))
        text, log_probability = self.processor.tokenizer.decode(output.tokens), float(output.log_probability)
        evidence = Evidence(question, text, log_probability, items, gate, retrieved.version, view=view)
        if (doubt := self.processor.doubt) is None or not items:
            return evidence
        tokens = self.processor.question(question)
        mean = text_mean(query, len(tokens) if tokens.any() else 0)[0]
        seen = picture[0], query.no_picture[0]
        signals = items[0].score, *seen, log_gate.max(), output.likelihood, output.empty, mean
        probability = float(doubt.probability(Signals(*map(np.asarray, signals)))) if text else 0.0
        doubted = probability < doubt.threshold or not text
        return dataclasses.replace(evidence, probability=probability, doubted=doubted)

    def search(
        self, image: Picture | None = None, text: str = "", k: int | None = None, sources: Sequence[str] | None = None
    ) -> list[tuple[Item, float]]:
        """The items that match best, and their scores; k None: 10, or all there are. Raises as `ask`."""
        if image is None and not text.strip():
            raise ValueError("nothing to search by: give a text, a picture, or both")
        k = items_to_find(self.memory, k, MOST_FOUND, sources)
        query, _ = self.query_of_best_view(image, text, sources)
        found, retrieved, _, scores, _ = self._retrieve(query, k, sources)
        return list(zip(found, scores[retrieved.present].tolist(), strict=True))

    def query(self, image: Picture | None, text: str) -> Query:
        """The encoded question; in place of no image a network may have a blank one."""
        rows: dict[str, Any] = {}
        image = self.processor.blank if image is None else image
        tokens = self.processor.question(text)
        if tokens.any():
            rows["tokens"] = tokens[None]
        if image is not None:
            rows["image"] = self.processor.image(image)[None]
        return self._encode_query(self._params, rows)

    def query_of_best_view(self, image: Picture | None, text: str, sources: Sequence[str] | None) -> tuple[Query, int]:
        """`query` about the view of an image file that the memory knows best, and which it is (`Processor.views`)."""
        whole = self.query(image, text)
        if not self.processor.views.windows or not isinstance(image, str | Path) or not self.memory or sources == ():
            return whole, 0
        views = self.processor.views_of(image)
        vectors, no_picture = jax.device_get(self._view_vectors(self._params, whole, views))
        best = best_view(self.processor.views, self.memory, vectors, no_picture, np.asarray(whole.log_gate), sources)
        return (whole, 0) if best == 0 else (self.query(views[best], text), best)

    def encode(self, items: Sequence[Item]) -> tuple[np.ndarray, np.ndarray]:
        """Keys [n e] and values [n c d] of some items, one at a time. Raises ValueError for a damaged image."""
        return self.reader(1).encode(items)

    def reader(self, batch: int) -> Reader:
        return Reader(self.model, self.memory, self.processor.items, batch)

    def layout(self) -> Layout:
        return layout_of(self.model, self.processor.sources)

    def _retrieve(self, query: Query, k: int, sources: Sequence[str] | None) -> tuple[Any, ...]:
        """The items for one query, and what `retrieve` returns: of one version of the memory."""
        memory = self.memory
        if memory is None:
            return [], *retrieve(None, query, k, sources, self.model.config)

        def found() -> tuple[Any, ...]:
            result, *rest = retrieve(memory, query, k, sources, self.model.config)
            return memory.items(result.ids[result.present]), result, *rest

        return memory.of_one_version(found)


def items_to_find(memory: Memory | None, k: int | None, default: int, sources: Sequence[str] | None) -> int:
    """k, or for None the default or all there are, in the memory's present version, which it opens. Raises ValueError
    for k out of its range."""
    if memory is None:
        raise ValueError("there is no memory to search: name one, or ask with k=0")
    memory.reopen()
    counts = memory.sources
    if sources is not None and not len(sources):
        raise ValueError(f"no source is named to search in: name some of {', '.join(counts)}")
    for name in sources or ():
        memory.layout.number(name)
    available = sum(counts[name] for name in set(sources or counts))
    if k is not None and not 1 <= k <= available:
        where = f" of {', '.join(sources)}" if sources else ""
        raise ValueError(f"k is {k}, the memory has {available:,} items{where}: ask for 1 to {available}")
    if available == 0:
        raise ValueError("there is nothing to search: the memory, or what --sources names of it, is empty")
    return min(default, available) if k is None else k


class Attributed(NamedTuple):
    """An answer and its attribution to the items."""

    tokens: Int[Array, " o"]  # of the answer, its end included
    log_probability: Float[Array, ""]  # of those tokens, with all items
    prior: Float[Array, " k"]  # retrieval prior, mean 1 over the items that are there
    shares: Float[Array, " k"]  # of the question's attention in the fusion
    effects: Float[Array, " k"]  # of leaving each item out; 0 where there is none
    likelihood: Float[Array, ""]  # log-probability per token
    empty: Float[Array, ""]  # log-odds of no answer at all


def answer(
    model: Reveal,
    query: Query,
    values: Float[Array | np.ndarray, "1 k c d"],
    scores: Float[Array | np.ndarray, "1 k"],
    present: Bool[Array | np.ndarray, "1 k"],
    decoding: Decoding,
) -> Attributed:
    """Answers one question with k items, 0 included, and leaves each out; inside `jit`, where `decoding` is static."""
    k = values.shape[1]
    values, scores, present = (jnp.asarray(x) for x in (values, scores, present))
    fused = model.fuse(query, values, scores, present, shares=True)
    tokens = model.generate(fused, decoding).tokens[0]

    def likely(fused: Fused) -> tuple[Float[Array, "r o v"], Float[Array, " r"]]:
        """Log-probabilities of every token after those before it, and of the answer."""
        rows = jnp.broadcast_to(tokens, (len(fused.states), len(tokens)))
        every_token = jax.nn.log_softmax(model.text_logits(fused, rows))
        return every_token, log_likelihood(every_token, rows)

    def without(kept: Bool[Array, "r k"]) -> Float[Array, " r"]:
        rows, every, score = jax.tree.map(lambda x: jnp.repeat(x, len(kept), axis=0), (query, values, scores))
        return likely(model.fuse(rows, every, score, kept & present))[1]

    every_token, whole = likely(fused)
    effects, shares = jnp.zeros((k,)), jnp.zeros((k,)) if fused.shares is None else fused.shares[0]
    if k:
        at_once = min(k, LEFT_OUT)
        kept = ~jnp.eye(-(-k // at_once) * at_once, k, dtype=bool)
        others = jax.lax.map(without, kept.reshape(-1, at_once, k)).reshape(-1)[:k]
        effects = jnp.where(present[0], others - whole[0], 0)
    likelihood, empty = sureness(every_token, tokens[None], model.config.eos)
    return Attributed(tokens, whole[0], fused.prior[0], shares, effects, likelihood[0], empty[0])


@functools.lru_cache(maxsize=4)
def _compiled(graph: nnx.GraphDef, parameters: int) -> tuple[Any, Any, Any]:
    """The functions that encode a query, answer, and embed views; compiled once for all networks of a shape. On a CPU,
    LLVM's optimisations of a small network take longer than its computations ever will."""
    small = jax.default_backend() == "cpu" and parameters <= SMALL
    options = {"xla_backend_optimization_level": "0"} if small else None

    def compiled(function: Callable[..., Any], *static: int) -> Any:
        def of_params(params: Any, *inputs: Any) -> Any:
            return function(nnx.merge(graph, params), *inputs)

        return jax.jit(of_params, static_argnums=static, compiler_options=options)

    return compiled(lambda model, rows: model.encode_query(**rows)), compiled(answer, 5), compiled(Reveal.view_vectors)


def as_json(item: Item) -> dict[str, Any]:
    """An item in plain values, for JSON."""
    return {"id": item.id, "source": item.source, "fields": dict(item.fields), "picture": item.picture is not None}


def text_of(item: Item) -> str:
    values = item.fields.values()
    return " | ".join(", ".join(one) if isinstance(one, list) and is_text(one) else str(one) for one in values)


def short(text: str, longest: int = LONGEST) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells under each other: numbers to the right, the last column as it is."""
    *widths, _ = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = ([*map(str.rjust, row[:-1], widths), row[-1]] for row in (titles, *rows))
    return "\n".join("  ".join(cells).rstrip() for cells in lines)
