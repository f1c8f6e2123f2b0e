"""CLIP's byte-pair tokenizer: text to token ids, equal to Hugging Face's `CLIPTokenizer`.

A prompt becomes `length` (77) ids: start, at most 75 tokens of text, end, padding. Stages of the library `tokenizers`,
for "A Café!" with the full vocabulary:

1. special tokens in the text ("<|endoftext|>", in exactly this case) are split off and keep their ids;
2. normalisation composes accents (Unicode NFC), collapses white space and lower-cases: "a café!";
3. words are contractions ('s 't 're 've 'm 'll 'd), runs of letters, single numerals, runs of anything else;
4. each word's UTF-8 bytes are written with 256 printable characters, and "</w>" marks the word's end: "cafÃ©</w>";
5. neighbours are merged in the order of the list of merges (Sennrich et al., 2016, section 3.2).

A vocabulary numbers the 256 bytes, the same at a word's end, one token per merge, start (49,406) and end (49,407).
Padding is the end token for SD 1.x and "!" (0) for SD 2.x, where every "!" of a prompt is padding, as of Hugging Face.

| files | written by |
| --- | --- |
| vocab.json, merges.txt (+ tokenizer_config.json, special_tokens_map.json) | every published SD folder |
| tokenizer.json (+ tokenizer_config.json) | transformers 5 and later |
| bpe_simple_vocab_16e6.txt.gz | OpenAI and OpenCLIP: merges alone; the vocabulary follows from their order |
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Int, Int32
from tokenizers import decoders, models, normalizers, pre_tokenizers

from common.io.files import atomic_output, require_file
from common.io.tensor_files import about, read_json

START, END, WORD_END = "<|startoftext|>", "<|endoftext|>", "</w>"
BYTE_CHARACTERS = sorted(pre_tokenizers.ByteLevel.alphabet())  # in the order of their ids
CLIP_MERGES = 49152 - 256 - 2  # OpenAI's file holds more than CLIP uses
SPECIALS = {"bos_token": START, "eos_token": END, "pad_token": END, "unk_token": END}  # CLIP's, by Hugging Face's names
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
NORMALIZER = normalizers.Sequence(
    [normalizers.NFC(), normalizers.Replace(tokenizers.Regex(r"\s+"), " "), normalizers.Lowercase()]
)
PRE_TOKENIZER = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(tokenizers.Regex(WORDS), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)
Merges = list[tuple[str, str]]


class Tokenizer:
    """Callable: texts to int32 ids. Build it with `from_folder` or `from_bpe_file`."""

    def __init__(
        self,
        vocab: Mapping[str, int],
        merges: Merges,
        *,
        pad: str = END,
        specials: Mapping[str, str] = MappingProxyType({}),
        words: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ):
        """`specials` precede `SPECIALS` and `pad`. `words` have ids of their own beyond the vocabulary, one or several
        each, and are found in any case."""
        self.specials = {**SPECIALS, "pad_token": pad, **specials}
        needed = [*dict.fromkeys(self.specials.values()), *(token for a, b in merges for token in (a, b, a + b))]
        if missing := [token for token in needed if token not in vocab]:
            found = f"the vocabulary of {len(vocab)} tokens lacks {missing[0]!r} ({len(missing)} tokens in all)"
            raise ValueError(f"{found} of the merges or special tokens; take both files from one tokenizer")
        self.vocab, self.merges = dict(vocab), list(merges)
        self.tokens = {number: token for token, number in vocab.items()}
        self.start_id, self.end_id, self.pad_id, _ = (vocab[self.specials[name]] for name in SPECIALS)
        self.words = {word.lower(): list(ids) for word, ids in words.items()}
        bounded = [  # a word of letters is not found inside of another; the longest of several is
            r"(?<!\w)" * word[0].isalnum() + re.escape(word) + r"(?!\w)" * word[-1].isalnum()
            for word in sorted(self.words, key=len, reverse=True)
        ]
        self._word = re.compile(f"({'|'.join(bounded)})", re.IGNORECASE) if bounded else None
        unknown = self.specials["unk_token"]
        model = models.BPE(self.vocab, self.merges, unk_token=unknown, end_of_word_suffix=WORD_END)
        self._encoder: Any = tokenizers.Tokenizer(model)
        self._encoder.normalizer, self._encoder.pre_tokenizer = NORMALIZER, PRE_TOKENIZER
        self._encoder.decoder = decoders.ByteLevel()
        added = [tokenizers.AddedToken(token, normalized=False, special=True) for token in set(self.specials.values())]
        self._encoder.add_special_tokens(added)

    def with_words(self, words: Mapping[str, Sequence[int]]) -> Tokenizer:
        """The same tokenizer, which knows these words too."""
        return Tokenizer(self.vocab, self.merges, specials=self.specials, words={**self.words, **words})

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """From vocab.json and merges.txt, or tokenizer.json, in `path` or in its folder `tokenizer`."""
        folder = Path(path)
        folder = folder / "tokenizer" if (folder / "tokenizer").is_dir() else folder
        files = [folder / name for name in ("tokenizer_config.json", "special_tokens_map.json")]
        config, special_map = (read_json(file) if file.exists() else {} for file in files)
        kind = config.get("tokenizer_class", "CLIPTokenizer")
        if kind not in ("CLIPTokenizer", "CLIPTokenizerFast"):
            raise ValueError(f"{folder}: its tokenizer_class is {kind!r}; only CLIPTokenizer is supported")
        given = config | special_map  # the map has precedence, as in transformers
        tokens = {name: given[name] for name in SPECIALS if name in given}
        tokens = {name: x.get("content") if isinstance(x, Mapping) else x for name, x in tokens.items()}
        with about(folder):
            specials = {name: token for name, token in tokens.items() if token is not None}
            return cls(*_read_vocabulary(folder), specials=specials)

    @classmethod
    def from_bpe_file(cls, path: str | Path, *, pad: str = END) -> Tokenizer:
        """From OpenAI's gzipped list of merges, which determines the vocabulary."""
        try:
            with gzip.open(require_file(path), "rt", encoding="utf-8") as file:
                lines = file.read().split("\n")
        except (gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: not a gzipped list of merges, or cut short ({error}); copy it again") from error
        merges = _parse_merges(lines, Path(path))[:CLIP_MERGES]
        ends = [character + WORD_END for character in BYTE_CHARACTERS]
        tokens = [*BYTE_CHARACTERS, *ends, *(a + b for a, b in merges), START, END]
        return cls({token: number for number, token in enumerate(tokens)}, merges, pad=pad)

    def save(self, folder: Path, length: int, *, overwrite: bool = False) -> None:
        """Write vocab.json, merges.txt and tokenizer_config.json, as Hugging Face's CLIPTokenizer reads them, without
        `words`."""
        config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": length, "do_lower_case": True}
        contents = {
            "vocab.json": json.dumps(self.vocab, ensure_ascii=False),
            "merges.txt": "\n".join(["#version: 0.2", *map(" ".join, self.merges)]),
            "tokenizer_config.json": json.dumps(config | self.specials, indent=2, ensure_ascii=False),
        }
        for name, text in contents.items():
            with atomic_output(folder / name, overwrite) as temporary:
                temporary.write_text(text + "\n", "utf-8")

    def __call__(self, texts: str | Sequence[str], length: int = 77) -> Int32[np.ndarray, "b n"]:
        """One row of `length` ids per text: start, tokens (cut after `length - 2`, see `truncated`), end, padding."""
        if length < 2:
            raise ValueError(f"length is {length}; start and end alone need 2")
        texts = [texts] if isinstance(texts, str) else texts
        batch = np.full((len(texts), length), self.pad_id, np.int32)
        for row, text in zip(batch, texts, strict=True):
            ids = self.encode(text)[:-1][: length - 1]
            row[: len(ids) + 1] = [*ids, self.end_id]
        return batch

    def encode(self, text: str) -> list[int]:
        """All ids of one text, start and end included, neither cut nor padded; a lone surrogate is read as "?"."""
        text = text.encode("utf-8", "replace").decode("utf-8")
        ids = [self.start_id]
        for i, part in enumerate([text] if self._word is None else self._word.split(text)):
            ids += self.words[part.lower()] if i % 2 else self._encoder.encode(part, add_special_tokens=False).ids
        return [*ids, self.end_id]

    def truncated(self, text: str, length: int = 77) -> str:
        """The end of a text that `__call__` cuts off, as `decode` returns it; "" for a text that fits."""
        return self.decode(self.encode(text)[length - 1 : -1])

    def decode(self, ids: Iterable[int] | Int[np.ndarray, " n"], *, specials: bool = False) -> str:
        """Ids to text: lower case, a space after each word. Special tokens are dropped unless `specials`."""
        ids = [int(number) for number in ids]
        if own := {number: word for word, numbers in self.words.items() for number in numbers}:
            runs = itertools.groupby(ids, key=lambda number: own.get(number))
            texts = [word or self._decode(list(run), specials) for word, run in runs]
            return " ".join(filter(None, texts))
        return self._decode(ids, specials)

    def _decode(self, ids: list[int], specials: bool) -> str:
        if unknown := [number for number in ids if number not in self.tokens]:
            raise ValueError(f"token {unknown[0]} is not in this vocabulary of {len(self.tokens)}; wrong tokenizer?")
        return self._encoder.decode(ids, skip_special_tokens=not specials).replace(WORD_END, " ").strip()


def _read_vocabulary(folder: Path) -> tuple[dict[str, int], Merges]:
    """The vocabulary and merges of a Hugging Face folder, from either of its two formats."""
    pair, single = [folder / "vocab.json", folder / "merges.txt"], folder / "tokenizer.json"
    if any(file.exists() for file in pair) or not single.exists():
        if missing := [file.name for file in pair if not file.exists()]:
            expected = "a CLIP tokenizer's folder holds vocab.json and merges.txt, or tokenizer.json"
            raise FileNotFoundError(f"{folder} lacks {' and '.join(missing)}: {expected}")
        source, vocab = pair[0], read_json(pair[0])
        merges = _parse_merges(pair[1].read_text("utf-8").splitlines(), pair[1])
    else:
        content = read_json(single)
        model = content.get("model")
        if not isinstance(model, Mapping) or model.get("type") != "BPE" or model.get("end_of_word_suffix") != WORD_END:
            raise ValueError(f"{single}: expected CLIP's byte pairs (model BPE with {WORD_END!r}), found another model")
        # Special tokens may lie beside the vocabulary; merges are "a b" or ["a", "b"].
        source, vocab = single, model["vocab"] | {t["content"]: t["id"] for t in content.get("added_tokens", [])}
        merges = _parse_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]], single)
    if not vocab or not all(isinstance(number, int) and 0 <= number < 2**31 for number in vocab.values()):
        raise ValueError(f"{source}: expected a JSON object of token: id; copy it again")
    return vocab, merges


def _parse_merges(lines: list[str], path: Path) -> Merges:
    """Lines "a b" to pairs; a first line with the version and blank lines are skipped."""
    body = lines[1:] if lines and (lines[0].startswith("#version") or "bpe_simple_vocab" in lines[0]) else lines
    pairs = [tuple(line.split()) for line in body if line.strip()]
    if wrong := [pair for pair in pairs if len(pair) != 2]:
        raise ValueError(f"{path}: a merge is two tokens in a line, found {' '.join(wrong[0])!r}; is it a merges file?")
    return [(pair[0], pair[1]) for pair in pairs]
