"""Trains a small vocabulary in CLIP's format: byte-pair encoding (Sennrich et al., 2016, section 3.2).

A word is a sequence of bytes, the last one marked `</w>`. The most frequent pair of neighbours becomes a token, of
equally frequent pairs the alphabetically first (`tokenizers.trainers.BpeTrainer` takes another), until the vocabulary
is full. Token ids: the 256 bytes, the 256 bytes at a word's end, the merges in order, start, end: as in CLIP, so
`Tokenizer` reads the files. Most of CLIP's 49,408 tokens never occur in a few thousand captions; all of these 2,048 do.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from common.io.clip_tokenizer import BYTE_CHARACTERS, END, NORMALIZER, PRE_TOKENIZER, START, WORD_END, Merges, Tokenizer

SMALLEST = 2 * 256 + 2  # bytes, bytes at a word's end, start, end
MIN_COUNT = 2  # of a merged pair
Pair = tuple[str, str]


def train_bpe(captions: Iterable[str], size: int) -> tuple[dict[str, int], Merges]:
    """(vocabulary, merges) of at most `size` tokens, `SMALLEST` or more; fewer when no further pair occurs twice."""
    words = (PRE_TOKENIZER.pre_tokenize_str(NORMALIZER.normalize_str(text)) for text in captions)
    counts = Counter((*word[:-1], word[-1] + WORD_END) for found in words for word, _ in found)
    tokens = dict.fromkeys([*BYTE_CHARACTERS, *(character + WORD_END for character in BYTE_CHARACTERS)])
    merges: Merges = []
    for pair in _learn(counts):
        if len(tokens) + 2 >= size:
            break
        merges.append(pair)
        tokens[pair[0] + pair[1]] = None  # two pairs may spell the same token
    return {token: number for number, token in enumerate([*tokens, START, END])}, merges


def write_tokenizer(folder: str | Path, vocab: Mapping[str, int], merges: Merges) -> None:
    Path(folder).mkdir(parents=True)
    Tokenizer(vocab, merges).save(Path(folder), 77)


def _learn(words: Mapping[tuple[str, ...], int]) -> Iterable[Pair]:
    """Pairs in the order of merging. Only words with the merged pair are recounted."""
    symbols, times = list(words), list(words.values())
    counts: Counter[Pair] = Counter()
    places: defaultdict[Pair, set[int]] = defaultdict(set)

    def count(number: int, sign: int) -> None:
        for pair in itertools.pairwise(symbols[number]):
            counts[pair] += sign * times[number]
            if sign > 0:
                places[pair].add(number)

    for number in range(len(symbols)):
        count(number, +1)
    while counts:
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        if counts[best] < MIN_COUNT:
            return
        yield best
        for number in places.pop(best):
            count(number, -1)
            symbols[number] = _merge(symbols[number], best)
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
