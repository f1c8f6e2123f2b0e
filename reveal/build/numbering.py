"""Which number an item of a new memory gets.

In a build numbers rise (`memory/builder.py`), and they have to be the same when an interrupted build goes on. So

- items keep the numbers that their source gives them, for questions and people name items by them
- a source whose numbers begin below those before it goes on behind them, all of it by the same amount
- VQA's and COCO's pictures lie in any order of their numbers; those are numbered as they come, and so is everything
  with `anew`
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from reveal.memory.items import Item
from reveal.sources import Items, Skips
from reveal.sources.folder import groups
from reveal.sources.jsonl import objects

UNORDERED = ("vqa", "coco")
RISE = "in a build they rise: sort them, or number all anew with --renumber"


def numbered(sources: Sequence[Items], skips: Skips, anew: bool = False) -> Iterator[Item]:
    """All items with their numbers. Raises ValueError where a source's do not rise."""
    last = -1
    for source in sources:
        shift = None
        for place, item in enumerate(source.read(skips)):
            own = place if anew or source.reader in UNORDERED or item.id is None else item.id
            if shift is None:
                shift = 0 if own > last else last + 1
            if own + shift <= last:
                raise ValueError(f"{source.path}: id {own} comes after {last - shift}; {RISE}")
            last = own + shift
            yield dataclasses.replace(item, id=last)


def expected(source: Items, anew: bool = False) -> int | None:
    """About how many items a source has, where that is soon known; looks ahead for ids that do not rise."""
    if source.reader == "folder":
        return len(groups(Path(source.path)))
    if source.reader != "jsonl":
        return None
    count, last = 0, -1
    for number, _, entry in objects(source.path, Skips()):
        own = entry.get("id", number)
        if not anew and isinstance(own, int):
            if own <= last:
                raise ValueError(f"{source.path}: id {own} comes after {last}; {RISE}")
            last = own
        count += 1
    return count
