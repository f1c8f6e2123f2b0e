"""All texts in some files, one after the other: what a tokenizer is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common.data.text import open_text, parse_json

NO_TEXTS = ("image", "image_id", "source", "group")


def lines_of(paths: Sequence[Path]) -> Iterator[str]:
    """The texts in files: lines, and of .jsonl every text in each object, without those that name pictures."""
    for path in paths:
        json_lines = ".jsonl" in path.suffixes
        with open_text(path) as file:
            for line in file:
                if line.strip():
                    yield from _strings(_parsed(line, path)) if json_lines else [line.strip()]


def _parsed(line: str, path: Path) -> Any:
    try:
        return parse_json(line)
    except ValueError as error:
        raise ValueError(f"{path}: {line.strip()[:40]!r} is no JSON ({error}); write one object a line") from error


def _strings(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for name, value in entry.items():
            if name not in NO_TEXTS:
                yield from _strings(value)
    elif isinstance(entry, list):
        for value in entry:
            yield from _strings(value)
