"""Text to numbers: the byte-pair tokenizer of CLIP, as Hugging Face's `CLIPTokenizer` runs it.

A prompt becomes `length` (77) whole numbers: start, at most 75 pieces, end, padding. Stages, for
"A Café!" with the full vocabulary:

1. special tokens written out in the text ("<|endoftext|>", any other case is plain text) are cut out and keep their
   numbers; HTML entities stay as typed (OpenAI's own code would turn "&amp;" into "&");
2. `normalise`: compose accents (Unicode NFC), collapse white space, lower-case letter by letter: "a café!";
3. `split_words`: contractions ('s 't 're 've 'm 'll 'd), runs of letters, single numerals, runs of anything else;
4. each word's UTF-8 bytes are written with 256 printable characters (`BYTE_CHARACTERS`), the last one marked as the
   word's end: `["c", "a", "f", "Ã", "©</w>"]`;
5. neighbours are merged in the order in which the merges were learnt, until no pair is known (Sennrich et al., 2016,
   section 3.2): `["café</w>"]`.

A vocabulary numbers the 256 bytes, the same as word ends, then one token per merge (48,894 for the published one),
then start (49,406) and end (49,407). Padding is the end token for SD 1.x and "!" (0) for SD 2.x. A padding token is
special too: with SD 2.x's, Hugging Face reads every "!" of a prompt as padding, and so do we.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, Int32

from plugins.diffusion.io.tokenizer_files import BYTE_CHARACTERS, END, START, WORD_END, read_bpe, read_folder

# Unicode's White_Space property. Python's \s would also take the separators U+001C to U+001F.
WHITE_SPACE = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
FIXED_WORD = re.compile(r"<\|(?:start|end)oftext\|>|'(?:s|t|re|ve|m|ll|d)")
RUN = re.compile("L+|N|S+| +")  # over the kinds of the characters, see `kind`


class Tokenizer:
    """Callable: texts to int32 numbers. Build it with `from_folder` or `from_bpe_file`."""

    def __init__(
        self,
        vocab: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        *,
        start: str = START,
        end: str = END,
        pad: str = END,
        unknown: str = END,
    ):
        """Raises ValueError when a special token or the result of a merge is not in the vocabulary."""
        specials = dict.fromkeys((start, end, pad, unknown))
        missing = [token for token in specials if token not in vocab]
        missing += [left + right for left, right in merges if left + right not in vocab]
        if missing:
            raise ValueError(
                f"the vocabulary of {len(vocab)} tokens lacks {missing[0]!r} ({len(missing)} tokens in all) which the"
                f" merges or the special tokens need; take both files from one tokenizer"
            )
        self.vocab = dict(vocab)
        self.tokens = {number: token for token, number in vocab.items()}
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.start_id, self.end_id, self.pad_id = vocab[start], vocab[end], vocab[pad]
        self.special_ids = {vocab[token] for token in specials}
        self.unknown_id = vocab[unknown]
        longest_first = sorted(specials, key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        self._word_ids = functools.lru_cache(maxsize=1 << 16)(self._merge_word)

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """From vocab.json and merges.txt (or the newer tokenizer.json) in `path` or in its folder `tokenizer`.

        Raises FileNotFoundError when they are missing, ValueError when they hold something else; one line each."""
        vocab, merges, specials = read_folder(path)
        return cls(vocab, merges, **specials)

    @classmethod
    def from_bpe_file(cls, path: str | Path, *, pad: str = END) -> Tokenizer:
        """From OpenAI's list of merges, `bpe_simple_vocab_16e6.txt.gz`, which gives the vocabulary as well.

        Raises FileNotFoundError or ValueError in one line."""
        vocab, merges = read_bpe(path)
        return cls(vocab, merges, pad=pad)

    def __call__(self, texts: str | Sequence[str], length: int = 77) -> Int32[np.ndarray, "b n"]:
        """One row of `length` numbers per text: start, pieces (cut after `length - 2`, see `truncated`), end, padding.

        Raises ValueError for a length below 2."""
        rows = [self._pieces(text, length) for text in ([texts] if isinstance(texts, str) else texts)]
        batch = np.full((len(rows), length), self.pad_id, np.int32)
        for row, pieces in zip(batch, rows, strict=True):
            kept = pieces[: length - 2]
            row[: len(kept) + 2] = [self.start_id, *kept, self.end_id]
        return batch

    def encode(self, text: str) -> list[int]:
        """All numbers of one text, start and end included, neither cut nor padded."""
        return [self.start_id, *self._pieces(text), self.end_id]

    def truncated(self, text: str, length: int = 77) -> str:
        """What `__call__` leaves out of a text that is too long, as `decode` shows it; "" when nothing."""
        return self.decode(self._pieces(text, length)[length - 2 :])

    def decode(self, ids: Iterable[int] | Int[np.ndarray, " n"], *, specials: bool = False) -> str:
        """Numbers to text: lower case, a space after each word. Special tokens are dropped unless `specials`.

        Raises ValueError for a number that is not in the vocabulary."""
        kept = [number for number in map(int, ids) if specials or number not in self.special_ids]
        unknown = [number for number in kept if number not in self.tokens]
        if unknown:
            raise ValueError(f"token {unknown[0]} is not in this vocabulary of {len(self.tokens)}; wrong tokenizer?")
        characters = "".join(self.tokens[number] for number in kept)
        text = bytes(map(BYTE_CHARACTERS.index, characters)).decode("utf-8", errors="replace")
        return text.replace(WORD_END, " ").strip()

    def _pieces(self, text: str, length: int = 77) -> list[int]:
        """Stages 1 to 5: all numbers of a text but start, end and padding."""
        if length < 2:
            raise ValueError(f"length is {length}; start and end alone need 2")
        pieces: list[int] = []
        for i, part in enumerate(self._special.split(text)):
            if i % 2:  # what the group of the pattern matched
                pieces.append(self.vocab[part])
            else:
                pieces += [number for word in split_words(normalise(part)) for number in self._word_ids(word)]
        return pieces

    def _merge_word(self, word: str) -> tuple[int, ...]:
        """Stages 4 and 5 for one word: merges the earliest learnt pair, leftmost first, one at a time."""
        symbols = [BYTE_CHARACTERS[byte] for byte in word.encode("utf-8", errors="replace")]
        symbols[-1] += WORD_END
        while len(symbols) > 1:
            ranks = [self.ranks.get(pair, len(self.ranks)) for pair in itertools.pairwise(symbols)]
            best = min(ranks)
            if best == len(self.ranks):
                break
            i = ranks.index(best)
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        return tuple(self.vocab.get(symbol, self.unknown_id) for symbol in symbols)


def normalise(text: str) -> str:
    """Composed accents, single blanks, lower case.

    Lower case goes letter by letter: `str.lower` would look at a Greek sigma's place in the word."""
    collapsed = WHITE_SPACE.sub(" ", unicodedata.normalize("NFC", text))
    return "".join(character.lower() for character in collapsed)


def split_words(text: str) -> list[str]:
    r"""Words of a normalised text: CLIP's `'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+`.

    Python's `re` has no Unicode categories, so the runs are found in a shadow of the text that holds one letter for
    each character's kind."""
    kinds, words, at = "".join(map(kind, text)), [], 0
    while at < len(text):
        found = FIXED_WORD.match(text, at) or RUN.match(kinds, at)
        assert found is not None  # RUN takes every kind
        word, blank, at = text[at : found.end()], kinds[at] == " ", found.end()
        if word.startswith("<|") and word.endswith("text|>"):  # a special token in other case: three words
            words += ["<|", word[2:-2], "|>"]
        elif not blank:
            words.append(word)
    return words


def kind(character: str) -> str:
    """L for a letter, N for a numeral, " " for a blank, S for all else: combining marks, symbols, emoji, controls."""
    category = unicodedata.category(character)[0]
    return category if category in "LN" else " " if character == " " else "S"
