"""Where a CLIP vocabulary comes from: the files of Hugging Face and of OpenAI, read into plain tables.

| files | who writes them |
| --- | --- |
| vocab.json, merges.txt (+ tokenizer_config.json, special_tokens_map.json) | every published SD folder |
| tokenizer.json (+ tokenizer_config.json) | transformers 5 and later, on its own |
| bpe_simple_vocab_16e6.txt.gz | OpenAI and OpenCLIP: merges alone; vocabulary and numbers follow from their order |
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.io.files import require_file

START, END, WORD_END = "<|startoftext|>", "<|endoftext|>", "</w>"
CLIP_MERGES = 49152 - 256 - 2  # OpenAI's file goes on after those that CLIP uses
SPECIALS = {"bos_token": "start", "eos_token": "end", "pad_token": "pad", "unk_token": "unknown"}
Merges = list[tuple[str, str]]


def _visible(byte: int) -> bool:
    return 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or 0xAE <= byte <= 0xFF


def _byte_characters() -> str:
    """A printable character for each byte, at the byte's place: itself if visible, else the next free one from
    U+0100 (GPT-2's code, which CLIP took over)."""
    hidden = [byte for byte in range(256) if not _visible(byte)]
    return "".join(chr(byte) if _visible(byte) else chr(256 + hidden.index(byte)) for byte in range(256))


BYTE_CHARACTERS = _byte_characters()


def read_folder(path: str | Path) -> tuple[dict[str, int], Merges, dict[str, str]]:
    """(vocabulary, merges, special tokens as `Tokenizer` names them) of a Hugging Face tokenizer folder.

    Raises FileNotFoundError for missing files, ValueError for a tokenizer of another kind or damaged files."""
    folder = Path(path)
    folder = folder / "tokenizer" if (folder / "tokenizer").is_dir() else folder
    config = _json(folder / "tokenizer_config.json", optional=True)
    kind = config.get("tokenizer_class", "CLIPTokenizer")
    if kind not in ("CLIPTokenizer", "CLIPTokenizerFast"):
        raise ValueError(f"{folder}: its tokenizer_class is {kind!r}; only CLIPTokenizer is supported")
    pair = [folder / "vocab.json", folder / "merges.txt"]
    if not any(file.exists() for file in pair) and (folder / "tokenizer.json").exists():
        vocab, merges = _read_single(folder / "tokenizer.json")
    else:
        missing = [file.name for file in pair if not file.exists()]
        if missing:
            raise FileNotFoundError(
                f"{folder} lacks {' and '.join(missing)}: a CLIP tokenizer's folder holds vocab.json and merges.txt,"
                f" or tokenizer.json"
            )
        vocab, merges = _numbers(_json(pair[0]), pair[0]), _merges(pair[1].read_text("utf-8").splitlines(), pair[1])
    named = config | _json(folder / "special_tokens_map.json", optional=True)  # the map wins, as in transformers
    texts = {ours: _content(named.get(theirs)) for theirs, ours in SPECIALS.items()}
    return vocab, merges, {name: text for name, text in texts.items() if text is not None}


def read_bpe(path: str | Path) -> tuple[dict[str, int], Merges]:
    """(vocabulary, merges) from OpenAI's gzipped list of merges. Raises FileNotFoundError, ValueError."""
    try:
        with gzip.open(require_file(path), "rt", encoding="utf-8") as file:
            lines = file.read().split("\n")
    except (gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a gzipped list of merges, or cut short ({error}); copy it again") from error
    merges = _merges(lines, Path(path))[:CLIP_MERGES]
    letters = sorted(BYTE_CHARACTERS)  # visible bytes first, as their characters have the lower code points
    tokens = [*letters, *(letter + WORD_END for letter in letters), *(a + b for a, b in merges), START, END]
    return {token: number for number, token in enumerate(tokens)}, merges


def _read_single(path: Path) -> tuple[dict[str, int], Merges]:
    """tokenizer.json: merges as "a b" or ["a", "b"]; special tokens may lie beside the vocabulary."""
    content = _json(path)
    model = content.get("model")
    if not isinstance(model, Mapping) or model.get("type") != "BPE" or model.get("end_of_word_suffix") != WORD_END:
        raise ValueError(f"{path}: not CLIP's byte-pair encoding (model BPE with {WORD_END!r}); is it another model's?")
    added = {entry["content"]: entry["id"] for entry in content.get("added_tokens", [])}
    lines = [line if isinstance(line, str) else " ".join(line) for line in model["merges"]]
    return _numbers({**model["vocab"], **added}, path), _merges(lines, path)


def _merges(lines: list[str], path: Path) -> Merges:
    """ "a b" lines to pairs; a first line that tells the version and blank lines are passed over."""
    body = lines[1:] if lines and (lines[0].startswith("#version") or "bpe_simple_vocab" in lines[0]) else lines
    pairs = [tuple(line.split()) for line in body if line.strip()]
    wrong = [pair for pair in pairs if len(pair) != 2]
    if wrong:
        raise ValueError(f"{path}: a merge is two tokens in a line, found {' '.join(wrong[0])!r}; is it a merges file?")
    return [(pair[0], pair[1]) for pair in pairs]


def _numbers(vocab: Mapping[str, Any], path: Path) -> dict[str, int]:
    if not vocab or not all(isinstance(number, int) for number in vocab.values()):
        raise ValueError(f"{path}: not a vocabulary (a JSON object of token: number); copy it again")
    return dict(vocab)


def _content(token: Any) -> str | None:
    """A special token is text, or an object that holds the text as "content"."""
    return token.get("content") if isinstance(token, Mapping) else token


def _json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not path.exists():
        return {}
    try:
        content = json.loads(require_file(path).read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON, or cut short ({error}); copy it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds no JSON object; copy it again")
    return content
