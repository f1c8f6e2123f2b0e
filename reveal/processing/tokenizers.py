"""Text <-> token ids, for networks that are trained on your own data.

    python -m reveal.processing.tokenizers train items.jsonl questions.jsonl -o spiece.model --size 8000
    python -m reveal.processing.tokenizers show spiece.model "Question: what is it?"

| file | class | what it is |
| --- | --- | --- |
| x.model | `Pieces` | SentencePiece: any text as pieces of words; T5's own `spiece.model`, or one trained here |
| x.json | `Words` | one id per known word: for small worlds and tests |

`load` opens either. `encode` gives as many ids as it is asked for, padded or cut, without start and end; `decode` the
text before the end. `len` is the size of the vocabulary, unused ids included; `digest`, a hash of the mapping, is equal
for equal tokenizers, wherever their files are. Ids mean nothing without the file, so it is kept beside the weights.

**Ids of words.** 0 padding, 1 end, 2 start, as in `RevealConfig.tiny`; 3 to 6 four of T5's sentinels; then the words.

**T5's ids.** A T5 1.1 has 32,000 pieces (0 padding, 1 end, 2 unknown), then 100 sentinels in descending order:
`<extra_id_99>` is 32,000 and `<extra_id_0>` 32,099. These 32,100 are padded to a multiple of 128, the size of the
embedding: 32,128. REVEAL uses three of the sentinels (`knowledge_visual_language` of scenic):

| | sentinel | T5's id |
| --- | --- | --- |
| `mask`: where the text continues, in prefix language modelling | `<extra_id_0>` | 32,099 |
| `bos`: begins an answer | `<extra_id_98>` | 32,001 |
| `separator`: between the fields of an item | `<extra_id_99>` | 32,000 |

A SentencePiece model of another size follows the same rule, so a network for it needs `vocab_size=len(...)` and
`bos=...bos`, which `show` prints. A sentinel that a text spells out, `<extra_id_7>`, is encoded as that sentinel.
"""

import collections
import functools
import hashlib
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import sentencepiece
import tyro
from jaxtyping import Int

from common import terminal
from common.io.files import atomic_output, check_output_file, require_file
from common.io.tensor_files import read_json

PAD, END, START = 0, 1, 2
SPECIAL = ("<pad>", "</s>", "<s>", *(f"<extra_id_{number}>" for number in range(4)))  # the first of `Words`
SENTINELS, MULTIPLE = 100, 128
SENTINEL = re.compile(r"<extra_id_(\d{1,2})>")
WORD = re.compile(r"<extra_id_\d>|[^\W_]+(?:'[^\W_]+)*|[^\w\s]|_")
MAX_LINE = 2**30  # bytes; SentencePiece drops longer lines, by default those above 4,192
UNKNOWN_WORD = SPECIAL.index("<extra_id_1>")


class Pieces:
    """A SentencePiece model with T5's ids (module docstring). Raises ValueError for a file that is none, or one whose
    padding, end and unknown are not 0, 1 and 2."""

    pad, eos = PAD, END

    def __init__(self, path: str | Path):
        self.path = require_file(path)
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(self.path.read_bytes())
        except RuntimeError as error:
            raise ValueError(f"{path} is no SentencePiece model; give T5's spiece.model, or train one") from error
        special = self._model.pad_id(), self._model.eos_id(), self._model.unk_id()
        if special != (self.pad, self.eos, 2):
            raise ValueError(f"{path} has padding, end and unknown {special}, T5 0, 1, 2: train one with this module")
        self.pieces = len(self._model)
        self.mask, self.bos = self.pieces + SENTINELS - 1, self.pieces + 1
        self.separator = f"<extra_id_{SENTINELS - 1}>"

    @property
    def digest(self) -> str:
        return _digest(self._model.serialized_model_proto())

    def __len__(self) -> int:
        return -(-(self.pieces + SENTINELS) // MULTIPLE) * MULTIPLE

    def spelling(self, number: int) -> str:
        """A piece's text, with "\u2581" for a blank; "" for a special piece or a byte."""
        special = self._model.is_control(number) or self._model.is_unknown(number) or self._model.is_byte(number)
        return "" if special else self._model.id_to_piece(number)

    def encode(self, text: str, length: int) -> Int[np.ndarray, " length"]:
        ids: list[int] = []
        for n, part in enumerate(SENTINEL.split(_valid_unicode(text))):  # texts at even places, sentinels between them
            ids += [self.mask - int(part)] if n % 2 else self._model.encode(part)
        return padded(ids, length)

    def decode(self, tokens: Iterable[int | np.integer]) -> str:
        parts, run = [], []
        for token in _until_end(tokens, self.eos, (self.pad, self.bos)):
            if token < self.pieces:
                run.append(token)
            elif token <= self.mask:
                parts, run = [*parts, self._model.decode(run), f"<extra_id_{self.mask - token}>"], []
        return " ".join(part for part in [*parts, self._model.decode(run)] if part)


@dataclass(frozen=True)
class Words:
    """Lower-case words and punctuation in order of their ids; all unknown words have one id. Raises ValueError unless
    `SPECIAL` comes first and words are unique."""

    words: tuple[str, ...]

    pad, bos, eos = PAD, START, END
    mask, separator = SPECIAL.index("<extra_id_0>"), SPECIAL[-1]

    def __post_init__(self):
        repeated = sorted(word for word, count in collections.Counter(self.words).items() if count > 1)
        if self.words[: len(SPECIAL)] != SPECIAL or repeated:
            raise ValueError(f"a vocabulary begins with {' '.join(SPECIAL)} and has unique words; repeated: {repeated}")

    @classmethod
    def of_texts(cls, texts: Iterable[str], size: int = 32000) -> "Words":
        """The most frequent words of some texts; `size` includes the special ones."""
        counts = collections.Counter(word for text in texts for word in WORD.findall(text.lower()))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        words = [word for word in ranked if word not in SPECIAL]
        return cls((*SPECIAL, *words[: max(size - len(SPECIAL), 0)]))

    @classmethod
    def load(cls, path: str | Path) -> "Words":
        """Raises OSError, and ValueError for a file that holds something else."""
        try:
            return cls(tuple(read_json(Path(path))["words"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no vocabulary ({error}): give a file that `Words.save` wrote") from None

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        with atomic_output(path, overwrite) as temporary:
            temporary.write_text(json.dumps({"words": self.words}, indent=0) + "\n", "utf-8")

    @property
    def digest(self) -> str:
        return _digest(json.dumps(self.words).encode())

    def __len__(self) -> int:
        return len(self.words)

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, text: str, length: int) -> Int[np.ndarray, " length"]:
        return padded([self.numbers.get(word, UNKNOWN_WORD) for word in WORD.findall(text.lower())], length)

    def decode(self, tokens: Iterable[int | np.integer]) -> str:
        ids = _until_end(tokens, self.eos, (self.pad, self.bos))
        return " ".join(self.words[number] for number in ids if number < len(self))


Tokenizer = Pieces | Words


def load(path: str | Path) -> Tokenizer:
    """The tokenizer in a file, by its suffix. Raises as the classes."""
    return Words.load(path) if Path(path).suffix == ".json" else Pieces(path)


def train(
    texts: tyro.conf.Positional[tuple[Path, ...]],
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    size: int = 32000,
    overwrite: bool = False,
) -> None:
    """Train a tokenizer on texts.

    Args:
      texts: files with one text per line, or .jsonl, of which all texts are read; either may be .gz.
      output: x.model (SentencePiece) or x.json (words).
      size: largest number of pieces or words. T5 has 32000.
      overwrite: replace an existing file.
    """
    if not texts or output.suffix not in (".model", ".json"):
        raise ValueError(f"{len(texts)} texts into {output}: give 1 file or more, and -o x.model or -o x.json")
    from reveal.sources.jsonl import lines_of

    check_output_file(output, overwrite)
    if output.suffix == ".json":
        Words.of_texts(lines_of(texts), size).save(output, overwrite)
    else:
        with atomic_output(output, overwrite) as temporary:
            temporary.write_bytes(trained(lines_of(texts), size))
    show(output)


def trained(lines: Iterator[str], size: int, **options: bool | float) -> bytes:
    """A SentencePiece model (unigram, as T5's) of at most `size` pieces; `options` are SentencePiece's, such as
    byte_fallback. Raises ValueError for too few texts, and what `lines` raises."""
    settings: dict[str, Any] = dict(vocab_size=size, pad_id=PAD, eos_id=END, unk_id=2, bos_id=-1)
    settings |= {"hard_vocab_limit": False, "minloglevel": 2, "max_sentence_length": MAX_LINE, **options}
    model, raised = io.BytesIO(), []

    def texts() -> Iterator[str]:
        try:
            yield from map(_valid_unicode, lines)
        except (Exception, KeyboardInterrupt) as error:  # which SentencePiece turns into a RuntimeError
            raised.append(error)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=texts(), model_writer=model, **settings)
    except RuntimeError as error:
        if raised:
            raise raised[0] from None
        why = str(error).strip().splitlines()[-1]
        raise ValueError(f"no SentencePiece model of size {size} ({why}): give more texts, or another size") from error
    return model.getvalue()


def show(
    file: tyro.conf.Positional[Path],
    text: tyro.conf.Positional[str] = "",
    json: tyro.conf.FlagCreatePairsOff[bool] = False,
) -> None:
    """Print the size of a tokenizer and its tokens of a text; `--json`: as one JSON object."""
    tokenizer = load(file)
    data: dict[str, Any] = {"vocab_size": len(tokenizer)}
    data |= {name: getattr(tokenizer, name) for name in ("bos", "eos", "mask")}
    lines = [f"{file}: {' '.join(f'{name}={value}' for name, value in data.items())}"]
    if text:
        ids = tokenizer.encode(text, 4 * len(text) + 4)
        ids = ids[ids != tokenizer.pad].tolist()
        data |= {"tokens": ids, "text": tokenizer.decode(ids)}
        lines += [f"{len(ids)} tokens: {' '.join(map(str, ids))}", data["text"]]
    terminal.Printing(json=json).write("\n".join(lines), data)


def main(arguments: Sequence[str] | None = None, prog: str = "python -m reveal.processing.tokenizers") -> None:
    with terminal.exits(prog, out_of_memory="give fewer texts"):
        tyro.extras.subcommand_cli_from_dict({"train": train, "show": show}, prog=prog, args=arguments)


def _valid_unicode(text: str) -> str:
    """The text, with U+FFFD for halves of surrogate pairs, which JSON may hold and UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _until_end(tokens: Iterable[int | np.integer], end: int, skipped: Sequence[int]) -> list[int]:
    """The tokens before `end`, without the `skipped` ones."""
    before = itertools.takewhile(lambda token: token != end, map(int, tokens))
    return [token for token in before if token not in skipped]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def padded(ids: Sequence[int | np.integer] | Int[np.ndarray, " _n"], length: int) -> Int[np.ndarray, " length"]:
    return np.array([*ids[:length], *[PAD] * (length - len(ids))], np.int32)


if __name__ == "__main__":
    main()
