"""A memory without training: a published CLIP or SigLIP finds, the passage that it finds is the answer.

    assistant = TwoTowerAssistant.load("clip-vit-base-patch32", memory="mine", reader="flan-t5-base")
    assistant.search(text="a dog on a beach")
    assistant.ask("vase.jpg", "who made this?")             # `Evidence`, as `Assistant.ask` gives it

**Keys.** An item may have an image, a text, or both, and cosines of a text with texts are far above those with images
(the modality gap, Liang et al., NeurIPS 2022): one vector an item would find texts alone. A key has a place for each,

    [image vector | text vector | 1 with an image | 1 with a text]                    2 e + 2 numbers, 0 where missing

and a question is several searches, of its image and its text in the image vectors and in the text vectors. A search
asks for the last two numbers as well (`LIFT`), so that an item without that modality is below all that have it. Values
are not used.

**Several vectors** (`reveal build --vectors N`). One vector of a photograph hardly shows what is small in it. With N
above 1 a key is N of the vectors above: of the whole image and N - 1 crops that overlap, of the whole text and its
first N - 1 sentences. A search takes the largest of an item's N cosines (late interaction, `memory/engines/engine.py`).
A question has one vector of its image and one of its text, as before.

**Ranks.** Cosines of different modalities cannot be compared, so ranks are merged, by their reciprocals (Cormack et
al., SIGIR 2009). A question has up to three parts: its image, its text, and the words of its text (BM25). For each part
an item has the better rank of its image and its text,

    score(item) = mean over the parts of (1 + RANKS) / (rank + RANKS), 0 where it was not found; 1: first in all

and of equal scores the larger cosine comes first, before it what only the words have found.

**Answers.** Without a reader: the sentence of the best item with a text that is nearest to the question; of images
without any text the name of the file. A T5 (FLAN-T5) reads the passages and writes; effects are as in `assistant.py`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from common.io.files import require_file
from common.nn.init import blank, split
from common.nn.two_towers import TwoTowers
from common.weights.porting import unflatten_like
from common.weights.two_tower_files import load_two_towers
from reveal.assistant import BEAMS, MOST_FOUND, MOST_READ, Assistant, Evidence, Picture, RetrievedItem, items_to_find
from reveal.memory.items import Item
from reveal.memory.manifest import Layout, check_encoder, fingerprint
from reveal.memory.memory import Memory
from reveal.network.config import PAD
from reveal.network.generator import Decoding
from reveal.network.published import read_t5
from reveal.network.t5_model import T5
from reveal.processing.tokenizers import Pieces
from reveal.processing.two_tower_processor import TwoTowerProcessor, sentences_of
from reveal.reader import batches, call, log_likelihood
from reveal.sources.documents import origin_of
from reveal.sources.records import Skips

LIFT = 4.0  # above twice the largest cosine
RANKS = 60  # of the merge: how slowly a rank's weight falls
DEPTH = 50  # items that each search finds
SENTENCES = 16  # that are compared with a question at a time
MOST = 200_000  # items whose words are indexed
PAYLOADS = 4096  # that are read at a time
CONTEXT = 512  # tokens that a reader reads
PROMPT = "Answer the question with the help of the text.\n\nText: {}\n\nQuestion: {}\n\nAnswer:"
DESCRIBE = "What is this?"  # asked for no question


class T5Reader:
    """A T5 1.1 or FLAN-T5 that answers from passages, with the `spiece.model` of its folder."""

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        self.tokenizer = Pieces(require_file(folder / "spiece.model"))
        published = read_t5(folder)
        graph, shapes = blank(T5, published.config)
        self.model = nnx.merge(graph, unflatten_like(published.params, shapes))

    def answer(
        self, question: str, passages: Sequence[str], decoding: Decoding
    ) -> tuple[str, float, Float[np.ndarray, " k"]]:
        """The answer, its log-probability, and the effect of leaving out each passage."""
        kept = [passages, *([*passages[:i], *passages[i + 1 :]] for i in range(len(passages)))]
        rows = np.stack([self._prompt(question, texts) for texts in kept])
        tokens = np.asarray(self.model.generate(rows[:1], decoding).tokens)
        inputs = np.concatenate([np.full((1, 1), PAD, np.int32), tokens[:, :-1]], axis=1)
        graph, params = split(self.model)
        logits = call(graph, "logits", params, rows, np.repeat(inputs, len(rows), axis=0))
        likely = np.asarray(log_likelihood(jax.nn.log_softmax(logits), np.repeat(tokens, len(rows), axis=0)))
        return self.tokenizer.decode(tokens[0]), float(likely[0]), likely[1:] - likely[0]

    def _prompt(self, question: str, passages: Sequence[str]) -> Int[np.ndarray, " n"]:
        """The prompt's ids; of passages that are too long the end is cut."""
        text = "\n".join(passages)
        room = CONTEXT - 1 - int((self.tokenizer.encode(PROMPT.format("", question), CONTEXT) != PAD).sum())
        ids = self.tokenizer.encode(text, max(room, 0))
        text = self.tokenizer.decode(ids) if ids[-1:].any() else text
        row = self.tokenizer.encode(PROMPT.format(text, question), CONTEXT)
        row[min(int((row != PAD).sum()), CONTEXT - 1)] = self.tokenizer.eos
        return row


class Keywords:
    """BM25 (Robertson & Zaragoza, 2009) over the texts of one version of a memory, of up to `MOST` items: all texts are
    read into RAM. For names, numbers and rare words, which embeddings blur."""

    def __init__(self, memory: Memory):
        import bm25s

        self.manifest, rows = memory.manifest, memory.rows()
        self._ids, self._sources = rows.ids, rows.source
        starts = range(0, len(rows), PAYLOADS)
        texts = [" ".join(one.texts()) for start in starts for one in memory.items(rows.ids[start : start + PAYLOADS])]
        tokens: Any = bm25s.tokenize(texts, stopwords="en", show_progress=False)
        self._index, self._index.vocab_dict = bm25s.BM25(), {}
        if tokens.vocab:
            self._index.index(tokens, show_progress=False)

    def search(self, text: str, k: int, sources: Sequence[int] | None = None) -> Int[np.ndarray, " n"]:
        """Ids of the at most k best items that have a word of the text, best first."""
        import bm25s

        words: Any = bm25s.tokenize(text, stopwords="en", return_ids=False, show_progress=False)[0]
        known = [word for word in words if word in self._index.vocab_dict]
        if not known:
            return np.zeros(0, np.int64)
        scores = self._index.get_scores(known)
        if sources is not None:
            scores = np.where(np.isin(self._sources, sources), scores, 0)
        best = np.argsort(-scores, kind="stable")[:k]
        return self._ids[best[scores[best] > 0]]


class TwoTowerAssistant:
    """Two towers, their processor, a memory that they made, and maybe a reader; as `Assistant` for all commands."""

    def __init__(
        self,
        towers: TwoTowers,
        processor: TwoTowerProcessor,
        memory: Memory | None = None,
        reader: T5Reader | None = None,
    ):
        self.processor, self.memory, self.t5 = processor, memory, reader
        self.config = towers.config
        self._graph, self._params = split(towers)
        self._scale = float(np.exp(np.ravel(towers.logit_scale[...])[0]))
        self._fingerprint = fingerprint(self._params)
        self._keywords: Keywords | None = None

    @classmethod
    def load(
        cls,
        folder: str | Path,
        memory: str | Path | Memory | None = None,
        reader: str | Path | None = None,
        *,
        sources: Sequence[str] = (),
        vectors: int = 1,
    ) -> "TwoTowerAssistant":
        """Opens files; raises OSError and ValueError, also for a memory that another encoder made.

        Args:
          folder: a CLIP or SigLIP as transformers saves it, with its tokenizer.
          memory: its folder, for the exact engine, or an opened memory; None: none.
          reader: a T5 1.1 or FLAN-T5 as transformers saves it, with its `spiece.model`; None: the answer is quoted.
          sources, vectors: names of a new memory's sources, vectors of its keys; by default those of `memory`.
        """
        towers = load_two_towers(folder)
        if memory is not None:
            memory = memory if isinstance(memory, Memory) else Memory(memory)
            sources, vectors = sources or memory.layout.sources, memory.layout.key_vectors
        processor = TwoTowerProcessor.of_folder(Path(folder), towers.config, sources, vectors)
        assistant = cls(towers, processor, memory, None if reader is None else T5Reader(reader))
        if memory is not None:
            check_encoder(memory.layout, assistant._fingerprint, memory.folder)
        return assistant

    def layout(self) -> Layout:
        vectors, dim = self.processor.vectors, 2 * self.config.projection_dim + 2
        return Layout(self._fingerprint, self.processor.sources, vectors * dim, (1, 1), key_vectors=vectors)

    def reader(self, batch: int) -> "_Encoder":
        return _Encoder(self, batch)

    def encode(self, items: Sequence[Item]) -> tuple[np.ndarray, np.ndarray]:
        """Keys [n k] and empty values of some items. Raises ValueError for one that cannot be used."""
        return self.reader(1).encode(items)

    def search(
        self, image: Picture | None = None, text: str = "", k: int | None = None, sources: Sequence[str] | None = None
    ) -> list[tuple[Item, float]]:
        """The items that match best, and their scores; k None: 10, or all there are. Raises as `Assistant.search`."""
        if image is None and not text.strip():
            raise ValueError("nothing to search by: give a text, a picture, or both")
        k, memory = items_to_find(self.memory, k, MOST_FOUND, sources), self.memory
        assert memory is not None
        items, scores = memory.of_one_version(self._ranked, memory, image, text, k, sources)
        return list(zip(items, scores.tolist(), strict=True))

    def ask(
        self,
        image: Picture | None,
        question: str,
        k: int | None = None,
        sources: Sequence[str] | None = None,
        decoding: Decoding | None = None,
    ) -> Evidence:
        """Answers from the k best items (4); `decoding` is the reader's, and the gate the share of each source in what
        was found. Raises as `Assistant.ask`, and without a memory."""
        if image is None and not question.strip():
            raise ValueError("neither an image nor a question: give one, or both")
        k, memory = items_to_find(self.memory, k, MOST_READ, sources), self.memory
        assert memory is not None
        items, scores = memory.of_one_version(self._ranked, memory, image, question, k, sources)
        passages = [". ".join(item.texts()) for item in items]
        if self.t5 is not None and any(passages):
            decoding = decoding or Decoding(self.processor.answer_length, BEAMS)
            answer, likely, effects = self.t5.answer(question.strip() or DESCRIBE, passages, decoding)
            weight = np.maximum(-effects, 0)
        else:
            answer, likely, chosen = self._quote(image, question, items)
            effects, weight = np.zeros(len(items)), np.eye(len(items))[chosen]
        shares = weight / max(weight.sum(), 1e-9)
        priors = scores / max(scores.mean(), 1e-9)
        numbers = zip(scores.tolist(), priors.tolist(), shares.tolist(), effects.tolist(), strict=True)
        read = tuple(RetrievedItem(item, *row) for item, row in zip(items, numbers, strict=True))
        counts = {name: sum(item.source == name for item in items) / len(items) for name in self.processor.sources}
        return Evidence(question, answer, likely, read, counts, memory.version)

    def _quote(self, image: Picture | None, question: str, items: Sequence[Item]) -> tuple[str, float, int]:
        """The sentence that answers, its log-probability among those of its item, and the item's place."""
        place, sentences = next(((n, found) for n, item in enumerate(items) if (found := sentences_of(item))), (0, []))
        if not sentences:
            origin = origin_of(items[0])
            return ("" if origin is None else origin["file"]), 0.0, 0
        asked = self._query(image if not question.strip() else None, question)
        rows = np.stack([self.processor.tokenizer(one)[0] for one in sentences])
        cosines = self.vectors({"tokens": rows}, SENTENCES)["text"] @ asked[0]
        logits = self._scale * cosines
        best = int(np.argmax(cosines))
        return sentences[best], float(logits[best] - np.logaddexp.reduce(logits)), place

    def _query(self, image: Picture | None, text: str) -> list[Float[np.ndarray, " e"]]:
        """The unit vectors of the text and of the image, as far as there are any."""
        rows: dict[str, np.ndarray] = {}
        if text.strip():
            rows["tokens"] = self.processor.question(text)[None]
        if image is not None:
            rows["image"] = self.processor.image(image)[None]
        vectors = self.vectors(rows, 1)
        return [vectors[name][0] for name in ("text", "image") if name in vectors]

    def _ranked(
        self, memory: Memory, image: Picture | None, text: str, k: int, sources: Sequence[str] | None
    ) -> tuple[list[Item], Float[np.ndarray, " k"]]:
        """The k best items and their scores, by merged ranks."""
        dim, rows = self.config.projection_dim, []
        for vector in self._query(image, text):
            for place in (0, 1):
                row = np.zeros(2 * dim + 2, np.float32)
                row[place * dim : (place + 1) * dim], row[2 * dim + place] = vector, LIFT
                rows.append(row)
        depth = max(DEPTH, k)
        result = memory.search(np.stack(rows), depth, sources)
        cosines: dict[int, float] = {}
        parts: list[dict[int, int]] = [{} for _ in rows[::2]]  # the best rank of each item
        for number, (ids, scores) in enumerate(zip(result.ids.tolist(), result.scores.tolist(), strict=True)):
            ranks = parts[number // 2]
            for rank, (one, score) in enumerate(zip(ids, scores, strict=True)):
                if score > LIFT / 2:  # it has this modality
                    ranks[one] = min(rank, ranks.get(one, rank))
                    cosines[one] = max(score - LIFT, cosines.get(one, -1.0))
        if text.strip() and len(memory) <= MOST:
            if self._keywords is None or self._keywords.manifest != memory.manifest:
                self._keywords = Keywords(memory)
            numbers = None if sources is None else [memory.layout.number(name) for name in sources]
            ranked = self._keywords.search(text, depth, numbers).tolist()
            parts += [{one: rank for rank, one in enumerate(ranked)}] if ranked else []
        weights: dict[int, float] = {}
        for ranks in parts:
            for one, rank in ranks.items():
                weights[one] = weights.get(one, 0.0) + (1 + RANKS) / (1 + rank + RANKS) / len(parts)
        best = sorted(weights, key=lambda one: (-weights[one], -cosines.get(one, 1.0), one))[:k]
        return memory.items(best), np.array([weights[one] for one in best], np.float32)

    def vectors(self, rows: Mapping[str, np.ndarray], batch: int) -> dict[str, Float[np.ndarray, "n e"]]:
        """Unit vectors "text" of `tokens` and "image" of `image`, `batch` rows at a time, compiled once for it."""
        vectors, prepare = {}, {"text": np.asarray, "image": self.processor.preparation.normalised}
        for name, given in (("text", "tokens"), ("image", "image")):
            if given in rows:
                parts = (prepare[name](part[given]) for part in batches({given: rows[given]}, batch))
                found = [np.asarray(call(self._graph, f"embed_{name}", self._params, part)) for part in parts]
                vectors[name] = np.concatenate(found)[: len(rows[given])]
        return vectors


AnyAssistant = Assistant | TwoTowerAssistant


class _Encoder:
    """Keys of items, `batch` at a time, as `Reader` gives them to a build."""

    def __init__(self, assistant: TwoTowerAssistant, batch: int):
        self._assistant, self._batch = assistant, batch

    def encode(self, items: Sequence[Item]) -> tuple[np.ndarray, np.ndarray]:
        processor = self._assistant.processor
        rows = [processor.row(item, Skips(strict=True)) for item in items]
        return self.encode_rows(processor.batch([row for row in rows if row is not None]))

    def encode_rows(self, rows: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Keys [n k] and values [n 1 1] of items from their views; a tower that no view needs does not run."""
        dim, views = self._assistant.config.projection_dim, self._assistant.processor.vectors
        keys = np.zeros((len(rows["tokens"]), 2 * dim + 2), np.float32)
        for place, (name, given) in enumerate((("image", "image"), ("text", "tokens"))):
            there = np.flatnonzero(rows[f"has_{name}"])
            if len(there):
                vectors = self._assistant.vectors({given: rows[given][there]}, self._batch)[name]
                keys[there, place * dim : (place + 1) * dim], keys[there, 2 * dim + place] = vectors, 1
        n = len(keys) // views
        return keys.reshape(n, -1), np.zeros((n, 1, 1), np.float32)
