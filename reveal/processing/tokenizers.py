"""Texts <-> numbers for networks that are trained on data of one's own.

    python -m reveal.processing.tokenizers train items.jsonl questions.jsonl -o spiece.model --size 8000
    python -m reveal.processing.tokenizers show spiece.model "Question: what is it?"

| file | class | what it is |
| --- | --- | --- |
| x.model | `Pieces` | SentencePiece: any text, in pieces of words; T5's own `spiece.model`, or one trained here |
| x.json | `Words` | one number a word, others are unknown: for small worlds and tests, and without any package |

`load` opens either. All have the properties of `Tokenizer`, so that nobody asks which one it is.

**T5's numbers.** A T5 1.1 has 32,000 pieces (0 padding, 1 end, 2 unknown), then 100 sentinels, the first at the top:
`<extra_id_0>` is 32,099 and `<extra_id_99>` 32,000. That makes 32,100, filled up to a multiple of 128 as the embedding
has it: 32,128, of which 28 are spare. REVEAL uses three of the sentinels (`knowledge_visual_language` of scenic):

| | sentinel | T5's number |
| --- | --- | --- |
| `mask`: here the text goes on, prefix language modelling | `<extra_id_0>` | 32,099 |
| `bos`: an answer begins | `<extra_id_98>` | 32,001 |
| `separator`: between the fields of an item | `<extra_id_99>` | 32,000 |

A SentencePiece model of another size is numbered by the same rule, so a network for it needs `vocab_size=len(...)` and
`bos=...bos`, which `show` prints. A sentinel that a text spells out, `<extra_id_7>`, is read as that sentinel.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
import sentencepiece
import tyro
from jaxtyping import Int

from common import terminal
from common.io.files import atomic_output, check_output_file, require_file
from reveal.network.config import PAD
from reveal.processing.vocabulary import END, SPECIAL, START, Vocabulary
from reveal.sources.jsonl import lines_of

SENTINELS, MULTIPLE = 100, 128
SENTINEL = re.compile(r"<extra_id_(\d{1,2})>")
WORD = re.compile(r"<extra_id_\d>|[^\W_]+(?:'[^\W_]+)*|[^\w\s]|_")
LONGEST = 2**30  # bytes of a line; SentencePiece drops longer ones, by default those above 4,192
WORD_UNKNOWN = SPECIAL.index("<extra_id_1>")


@runtime_checkable
class Tokenizer(Protocol):
    """What training and reading need. `len` counts the numbers, spare ones included."""

    @property
    def pad(self) -> int:
        """Fills rows up."""
        ...

    @property
    def bos(self) -> int:
        """Begins an answer."""
        ...

    @property
    def eos(self) -> int:
        """Ends an answer."""
        ...

    @property
    def mask(self) -> int:
        """Stands where a text goes on."""
        ...

    @property
    def separator(self) -> str:
        """What stands between the fields of an item, as text."""
        ...

    @property
    def digest(self) -> str:
        """Names the numbering: equal for equal tokenizers, wherever their files are."""
        ...

    def __len__(self) -> int: ...

    def encode(self, text: str, length: int) -> Int[np.ndarray, " length"]:
        """Numbers, filled up; what is longer is cut. No start and no end are added."""
        ...

    def decode(self, tokens: Iterable[int | np.integer]) -> str:
        """The text up to the end; padding and start are left out."""
        ...


class Pieces:
    """A SentencePiece model with T5's numbers (module docstring).

    Args:
      path: of the model, as `train` writes it or T5 publishes it.

    Raises:
      ImportError: the package is missing.
      OSError, ValueError: no such file, no such model, or one whose padding, end and unknown are not 0, 1 and 2.
    """

    pad, eos = PAD, END

    def __init__(self, path: str | Path):
        self.path = require_file(path)
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(self.path.read_bytes())
        except RuntimeError as error:
            raise ValueError(f"{path} is no SentencePiece model; give T5's spiece.model, or train one") from error
        found = self._model.pad_id(), self._model.eos_id(), self._model.unk_id()
        if found != (self.pad, self.eos, 2):
            raise ValueError(f"{path} numbers padding, end and unknown {found}, T5 0, 1, 2: train one with this module")
        self.pieces = len(self._model)
        self._top = self.pieces + SENTINELS - 1
        self.mask, self.bos = self._top, self.pieces + 1
        self.separator = f"<extra_id_{SENTINELS - 1}>"

    @property
    def digest(self) -> str:
        return _digest(self._model.serialized_model_proto())

    def __len__(self) -> int:
        return -(-(self.pieces + SENTINELS) // MULTIPLE) * MULTIPLE

    def spelling(self, number: int) -> str:
        """How a piece is written, with "\u2581" for a blank; "" for one that stands for no text, or for a byte."""
        special = self._model.is_control(number) or self._model.is_unknown(number) or self._model.is_byte(number)
        return "" if special else self._model.id_to_piece(number)

    def encode(self, text: str, length: int) -> Int[np.ndarray, " length"]:
        numbers: list[int] = []
        for place, part in enumerate(SENTINEL.split(_whole(text))):  # texts at even places, sentinels between them
            numbers += [self._top - int(part)] if place % 2 else self._model.encode(part)
        return _filled(numbers, length)

    def decode(self, tokens: Iterable[int | np.integer]) -> str:
        parts, run = [], []
        for token in _until_end(tokens, self.eos, (self.pad, self.bos)):
            if token < self.pieces:
                run.append(token)
            elif token <= self._top:
                parts, run = [*parts, self._model.decode(run), f"<extra_id_{self._top - token}>"], []
        return " ".join(part for part in [*parts, self._model.decode(run)] if part)


class Words:
    """A number a word, in small letters; punctuation is words too. A word that is not in the vocabulary is unknown.

    Args:
      vocabulary: whose start, end and sentinels count.
    """

    pad, bos, eos = PAD, START, END
    mask, separator = SPECIAL.index("<extra_id_0>"), SPECIAL[-1]

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary

    @property
    def digest(self) -> str:
        return _digest(json.dumps(self.vocabulary.words).encode())

    @classmethod
    def of_texts(cls, texts: Iterable[str], size: int = 32000) -> Words:
        """The commonest words of some texts; `size` counts the special ones too."""
        counts = collections.Counter(word for text in texts for word in WORD.findall(text.lower()))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        words = [word for word in ranked if word not in SPECIAL]
        return cls(Vocabulary((*SPECIAL, *words[: max(size - len(SPECIAL), 0)])))

    @classmethod
    def load(cls, path: str | Path) -> Words:
        """Raises as `Vocabulary.load`."""
        return cls(Vocabulary.load(path))

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        self.vocabulary.save(path, overwrite)

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str, length: int) -> Int[np.ndarray, " length"]:
        known = self.vocabulary.numbers
        return _filled([known.get(word, WORD_UNKNOWN) for word in WORD.findall(text.lower())], length)

    def decode(self, tokens: Iterable[int | np.integer]) -> str:
        known, words = range(len(self)), self.vocabulary.words  # a network may have more numbers than there are words
        return " ".join(words[t] for t in _until_end(tokens, self.eos, (self.pad, self.bos)) if t in known)


class Later:
    """The tokenizer in a file, opened when it is first used: a config may name a file that is not there yet."""

    def __init__(self, path: str | Path):
        self.path = path

    @functools.cached_property
    def opened(self) -> Pieces | Words:
        return load(self.path)

    def __len__(self) -> int:
        return len(self.opened)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.opened, name)


def load(path: str | Path) -> Pieces | Words:
    """The tokenizer in a file, by its suffix. Raises as the classes."""
    return Words.load(path) if Path(path).suffix == ".json" else Pieces(path)


def train(
    texts: tyro.conf.Positional[tuple[Path, ...]],
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    size: int = 32000,
    overwrite: bool = False,
) -> None:
    """Make a tokenizer of texts.

    Args:
      texts: files of a text a line, or .jsonl whose texts are all read; either may be .gz.
      output: x.model (SentencePiece) or x.json (words).
      size: pieces or words at most. T5 has 32000.
      overwrite: replace the file that is there.
    """
    if not texts or output.suffix not in (".model", ".json"):
        raise ValueError(f"{len(texts)} texts into {output}: give 1 file or more, and -o x.model or -o x.json")
    check_output_file(output, overwrite)
    if output.suffix == ".json":
        Words.of_texts(lines_of(texts), size).save(output, overwrite)
    else:
        with atomic_output(output, overwrite) as temporary:
            temporary.write_bytes(trained(lines_of(texts), size))
    show(output)


def trained(lines: Iterator[str], size: int, **options: bool | float) -> bytes:
    """A SentencePiece model (unigram, as T5's) of at most so many pieces; `options` are SentencePiece's, such as
    byte_fallback. Raises ValueError for too few texts, and what `lines` raises."""
    fixed: Mapping[str, Any] = dict(pad_id=PAD, eos_id=END, unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2)
    model, stopped = io.BytesIO(), []

    def texts() -> Iterator[str]:
        try:
            yield from map(_whole, lines)
        except (Exception, KeyboardInterrupt) as error:  # of which the package makes a RuntimeError
            stopped.append(error)
            raise

    how = dict[str, Any](fixed, **{"max_sentence_length": LONGEST} | options)
    try:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=texts(), model_writer=model, vocab_size=size, **how)
    except RuntimeError as error:
        if stopped:
            raise stopped[0] from None
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(
            f"no SentencePiece model of size {size} ({reason}): give more texts, or another size"
        ) from error
    return model.getvalue()


def show(file: tyro.conf.Positional[Path], text: tyro.conf.Positional[str] = "") -> None:
    """Say how large a tokenizer is, and what it makes of a text."""
    tokenizer = load(file)
    terminal.say(f"{file}: vocab_size={len(tokenizer)} bos={tokenizer.bos} eos={tokenizer.eos} mask={tokenizer.mask}")
    if text:
        numbers = tokenizer.encode(text, 4 * len(text) + 4)
        numbers = numbers[numbers != tokenizer.pad]
        terminal.say(f"{len(numbers)} tokens: {' '.join(map(str, numbers))}\n{tokenizer.decode(numbers)}")


def main(arguments: Sequence[str] | None = None, prog: str = "python -m reveal.processing.tokenizers") -> None:
    """The program; `arguments` defaults to the command line."""
    with terminal.exits(prog, out_of_memory="give fewer texts"):
        tyro.extras.subcommand_cli_from_dict({"train": train, "show": show}, prog=prog, args=arguments)


def _whole(text: str) -> str:
    """The text, with U+FFFD for halves of surrogate pairs, which JSON may hold and UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _filled(numbers: Sequence[int], length: int) -> Int[np.ndarray, " length"]:
    kept = numbers[:length]
    return np.array([*kept, *[PAD] * (length - len(kept))], np.int32)


def _until_end(tokens: Iterable[int | np.integer], end: int, without: Sequence[int]) -> list[int]:
    found: list[int] = []
    for token in map(int, tokens):
        if token == end:
            break
        if token not in without:
            found.append(token)
    return found


if __name__ == "__main__":
    main()
