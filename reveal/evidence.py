"""An answer with what it was read from, for people and for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from reveal.memory.items import Item

COLUMNS = ("id", "source", "score", "prior", "attention", "left out", "text")
LONGEST = 60  # letters of an item's text in a table


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """An item that was found.

    Attributes:
      item: itself, with text and picture.
      score: cosine of its key with the query, plus the logarithm of the trust in its source.
      prior: what it counted in reading, mean 1.
      share: of the question's attention, 0 to 1; items and the question itself share 1.
      effect: of leaving it out, on the logarithm of the answer's probability: below 0, it spoke for the answer.
    """

    item: Item
    score: float
    prior: float
    share: float
    effect: float


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence:
    """An answer and where it is from.

    Attributes:
      question, answer: texts.
      log_probability: of the answer, its end included.
      pieces: the items that were read, best first.
      gate: the trust in each source, 1 together.
      version: of the memory; 0: there was none.
      first_hop: what was asked before, and its answer put into this question; None: this is all that was asked.
    """

    question: str
    answer: str
    log_probability: float
    pieces: tuple[Piece, ...]
    gate: Mapping[str, float]
    version: int
    first_hop: Evidence | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values; a picture is only told to be there."""
        pieces = [
            as_json(piece.item)
            | {"score": piece.score, "prior": piece.prior, "attention": piece.share, "effect": piece.effect}
            for piece in self.pieces
        ]
        told = {name: getattr(self, name) for name in ("question", "answer", "log_probability", "version")}
        first = None if self.first_hop is None else self.first_hop.as_json()
        return told | {"gate": dict(self.gate), "items": pieces, "first_hop": first}

    def line(self) -> str:
        """Question, answer, and the items' ids."""
        ids = ", ".join(str(piece.item.id) for piece in self.pieces)
        return f"{self.question} {self.answer or '(nothing)'}" + (f" (items {ids})" if ids else "")

    def table(self) -> str:
        """The items in columns."""
        return columns(
            COLUMNS,
            [
                (
                    str(piece.item.id),
                    piece.item.source,
                    f"{piece.score:.3f}",
                    f"{piece.prior:.2f}",
                    f"{100 * piece.share:.1f} %",
                    f"{piece.effect:+.3f}",
                    short(text_of(piece.item)),
                )
                for piece in self.pieces
            ],
        )


def as_json(item: Item) -> dict[str, Any]:
    """An item in plain values."""
    return {"id": item.id, "source": item.source, "fields": dict(item.fields), "picture": item.picture is not None}


def text_of(item: Item) -> str:
    """All fields, for people."""
    return " | ".join(value if isinstance(value, str) else str(value) for value in item.fields.values())


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
