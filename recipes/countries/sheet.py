"""Right and wrong answers in one picture, each with the items that it was read from.

A row is a question: the picture that was shown, what was asked, answered and right; then the best items in the order
in which they were found, with the share of the question's attention that each got.
"""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from jaxtyping import Bool, Float, Int
from PIL import Image, ImageDraw, ImageFont

from common.io.images import contact_sheet, from_uint8
from reveal.evidence_sheet import bare
from reveal.memory.items import Item
from reveal.reader import Reader, ReaderOutput

SIDE, LINES, LETTERS = 192, 6, 34  # pixels of a picture, lines under it, letters in a line
ITEMS = 3  # of a question
GREY = np.full((3, 4, 3), 0.5, np.float32)


def answer_sheet(
    data: Any,
    reader: Reader,
    questions: dict[str, np.ndarray],
    answers: ReaderOutput,
    right: Bool[np.ndarray, " n"],
    count: int = 5,
) -> Float[np.ndarray, "h w 3"]:
    """An image of `count` right answers and then as many wrong ones, if there are; different relations first.

    `data` is a `CountriesConfig`. Raises ValueError when nothing was asked."""
    assert reader.memory is not None  # what was found was in it
    rows = [
        row for kind in (True, False) for row in spread(np.flatnonzero(right == kind), questions["relation"], count)
    ]
    cells, best = [], min(ITEMS, answers.retrieved.ids.shape[1])
    for row in rows:
        country, relation = data.of(questions["id"][row])
        said = [
            data.vocabulary.decode(questions["tokens"][row]),
            f"{'RIGHT' if right[row] else 'WRONG'}: {data.vocabulary.decode(answers.tokens[row])}",
            f"known: {', '.join(data.atlas.answers(country, relation))}",
        ]
        cells.append(noted(questions["image"][row], said))
        items = reader.memory.items(answers.retrieved.ids[row, :best])
        shares = answers.shares[row, :best]
        cells += [noted(_picture(item), _says(item, share)) for item, share in zip(items, shares, strict=True)]
    return contact_sheet(cells, columns=1 + best, gap=8)


def spread(rows: Int[np.ndarray, " n"], kind: Int[np.ndarray, " m"], count: int) -> list[int]:
    """Some of the rows, in any order, of as many kinds as there are: one of each kind, then a second of each."""
    seen: collections.Counter[int] = collections.Counter()
    order = []
    for row in np.random.default_rng(0).permutation(rows).tolist():
        order.append((seen[int(kind[row])], int(kind[row]), row))
        seen[int(kind[row])] += 1
    return [row for _, _, row in sorted(order)[:count]]


def noted(picture: Float[np.ndarray, "h w 3"], texts: Sequence[str]) -> Float[np.ndarray, "h2 w2 3"]:
    """A picture with texts under it, each begun on a line of its own; what takes more lines than there are is cut."""
    height = round(SIDE * picture.shape[0] / picture.shape[1])
    shown = cv2.resize(picture, (SIDE, height), interpolation=cv2.INTER_NEAREST)
    font = ImageFont.load_default()
    strip = Image.new("RGB", (SIDE, 14 * LINES), "white")
    lines = [line for text in texts for line in textwrap.wrap(bare(text), LETTERS)][:LINES]
    ImageDraw.Draw(strip).multiline_text((2, 1), "\n".join(lines), fill="black", font=font, spacing=3)
    square = np.ones((SIDE, SIDE, 3), np.float32)
    square[:height] = shown[:SIDE]
    return np.concatenate([square, from_uint8(np.asarray(strip))])


def _picture(item: Item) -> Float[np.ndarray, "h w 3"]:
    return GREY if item.picture is None or isinstance(item.picture, bytes) else from_uint8(item.picture)


def _says(item: Item, share: float | np.floating) -> list[str]:
    return [f"{item.source}, {100 * float(share):.0f} %", str(item.fields.get("text", ""))]
