"""An answer with the items that it was read from, for people and for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from reveal.memory.items import Item

COLUMNS = ("id", "source", "score", "prior", "attention", "left out", "text")
LONGEST = 60  # letters of an item's text in a table


@dataclasses.dataclass(frozen=True, eq=False)
class RetrievedItem:
    """An item that an answer was read from."""

    item: Item
    score: float  # cosine of its key with the query, plus the log-probability of its source
    prior: float  # retrieval prior, mean 1 over the items
    attention: float  # share of the question's attention, 0 to 1; items and the question itself share 1
    effect: float  # of leaving it out, on the answer's log-probability: below 0, it supported the answer


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence:
    """An answer and its items."""

    question: str
    answer: str
    log_probability: float  # of the answer, its end included
    items: tuple[RetrievedItem, ...]  # best first
    gate: Mapping[str, float]  # probability of each source
    version: int  # of the memory; 0: there was none
    first_hop: Evidence | None = None  # the question before, whose answer is part of this question

    def as_json(self) -> dict[str, Any]:
        """Plain values; of an image only whether there is one."""
        numbers = ("score", "prior", "attention", "effect")
        items = [as_json(one.item) | {name: getattr(one, name) for name in numbers} for one in self.items]
        plain = {name: getattr(self, name) for name in ("question", "answer", "log_probability", "version")}
        first = None if self.first_hop is None else self.first_hop.as_json()
        return plain | {"gate": dict(self.gate), "items": items, "first_hop": first}

    def line(self) -> str:
        """Question, answer, and the items' ids."""
        ids = ", ".join(str(one.item.id) for one in self.items)
        return f"{self.question} {self.answer or '(nothing)'}" + (f" (items {ids})" if ids else "")

    def table(self) -> str:
        """The items in columns."""
        rows = []
        for one in self.items:
            numbers = f"{one.score:.3f}", f"{one.prior:.2f}", f"{100 * one.attention:.1f} %", f"{one.effect:+.3f}"
            rows.append((str(one.item.id), one.item.source, *numbers, short(text_of(one.item))))
        return columns(COLUMNS, rows)


def as_json(item: Item) -> dict[str, Any]:
    """An item in plain values."""
    return {"id": item.id, "source": item.source, "fields": dict(item.fields), "picture": item.picture is not None}


def text_of(item: Item) -> str:
    """All fields, for people."""
    return " | ".join(map(str, item.fields.values()))


def short(text: str, longest: int = LONGEST) -> str:
    """The beginning, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells under each other: numbers to the right, the last column as it is."""
    widths = [max(len(cell) for cell in column) for column in zip(titles, *rows, strict=True)]
    lines = []
    for row in (titles, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)
