"""Learns a small vocabulary in CLIP's format from captions: byte-pair encoding (Sennrich et al., 2016, section 3.2).

Each word is written with one character per byte, the last one marked `</w>`. Then, until the vocabulary is full, the
most frequent pair of neighbours becomes a token of its own; of equally frequent pairs the first in the alphabet, so
that the same captions always give the same vocabulary. Numbers go to the 256 bytes, the 256 bytes at a word's end, the
merges in the order in which they were learnt, start and end: the order of CLIP, so that `Tokenizer` reads the files.

A model trained on a few thousand captions would see most of CLIP's 49,408 tokens never; of 2,048 learnt here each
occurs, and the embedding is 24 times smaller. Words that never occurred are still spelt out of the bytes.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from plugins.diffusion.io.tokenizer import normalise, split_words
from plugins.diffusion.io.tokenizer_files import BYTE_CHARACTERS, END, START, WORD_END, Merges

SMALLEST = 2 * 256 + 2  # bytes, bytes at a word's end, start, end
RARE = 2  # a pair that occurs less often is not worth a token
Pair = tuple[str, str]


def train_bpe(captions: Iterable[str], size: int) -> tuple[dict[str, int], Merges]:
    """(vocabulary, merges) of at most `size` tokens: fewer when the captions have no more pairs that occur twice.

    Raises ValueError for a size below 514."""
    if size < SMALLEST:
        raise ValueError(f"size {size} leaves no room for the bytes: give {SMALLEST} or more")
    counts = Counter(word for text in captions for word in split_words(normalise(text)))
    letters = sorted(BYTE_CHARACTERS)
    tokens = dict.fromkeys([*letters, *(letter + WORD_END for letter in letters)])
    merges: Merges = []
    for pair in _learn({_spell(word): count for word, count in counts.items()}):
        if len(tokens) + 2 >= size:
            break
        merges.append(pair)
        tokens[pair[0] + pair[1]] = None  # two pairs may spell the same token
    return {token: number for number, token in enumerate([*tokens, START, END])}, merges


def write_tokenizer(folder: str | Path, vocab: Mapping[str, int], merges: Sequence[Pair]) -> None:
    """vocab.json, merges.txt and tokenizer_config.json, as CLIP's tokenizers are stored, into a new folder."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    names = dict(bos_token=START, eos_token=END, pad_token=END, unk_token=END)
    config = dict(tokenizer_class="CLIPTokenizer", **names)
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def _spell(word: str) -> tuple[str, ...]:
    *first, last = (BYTE_CHARACTERS[byte] for byte in word.encode("utf-8", errors="replace"))
    return (*first, last + WORD_END)


def _learn(words: Mapping[tuple[str, ...], int]) -> Iterable[Pair]:
    """Pairs in the order in which they are merged. Only words that hold the merged pair are counted anew."""
    spelt, times = list(words), list(words.values())
    counts: Counter[Pair] = Counter()
    places: defaultdict[Pair, set[int]] = defaultdict(set)

    def count(number: int, sign: int) -> None:
        for pair in itertools.pairwise(spelt[number]):
            counts[pair] += sign * times[number]
            if sign > 0:
                places[pair].add(number)

    for number in range(len(spelt)):
        count(number, +1)
    while counts:
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        if counts[best] < RARE:
            return
        yield best
        for number in places.pop(best):
            count(number, -1)
            spelt[number] = _merge(spelt[number], best)
            count(number, +1)
        del counts[best]  # all its places are merged


def _merge(symbols: tuple[str, ...], pair: Pair) -> tuple[str, ...]:
    merged: list[str] = []
    for symbol in symbols:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return tuple(merged)
