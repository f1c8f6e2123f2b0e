"""Right and wrong answers in one picture, each with the items that were read.

A row is a question: its image, its text, the answer and the right answers; then the best items in order of retrieval,
each with its share of the question's attention.
"""

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
from reveal.reader import Reader, ReaderOutput

SIDE, LINES, LETTERS = 192, 6, 34  # pixels of a cell, lines of its caption, letters of a line
ROWS, ITEMS = 5, 3  # questions answered right, and as many wrong; items of each
GREY = np.full((3, 4, 3), 0.5, np.float32)


def answer_sheet(
    data: Any, reader: Reader, questions: dict[str, np.ndarray], answers: ReaderOutput, right: Bool[np.ndarray, " n"]
) -> Float[np.ndarray, "h w 3"]:
    """`ROWS` right answers, then as many wrong ones, of as many relations as possible; `data`: a `CountriesConfig`.

    Raises ValueError without questions."""
    assert reader.memory is not None  # the items come from it
    rows = [
        row for kind in (True, False) for row in diverse(np.flatnonzero(right == kind), questions["relation"], ROWS)
    ]
    cells, best = [], min(ITEMS, answers.retrieved.ids.shape[1])
    for row in rows:
        texts = [
            data.vocabulary.decode(questions["tokens"][row]),
            f"{'RIGHT' if right[row] else 'WRONG'}: {data.vocabulary.decode(answers.tokens[row])}",
            f"known: {', '.join(data.right_answers(questions['id'][row]))}",
        ]
        cells.append(captioned(questions["image"][row], texts))
        items = reader.memory.items(answers.retrieved.ids[row, :best])
        for item, share in zip(items, answers.shares[row, :best], strict=True):
            pixels = item.pixels()
            picture = GREY if pixels is None else from_uint8(pixels)
            texts = [f"{item.source}, {100 * float(share):.0f} %", str(item.fields.get("text", ""))]
            cells.append(captioned(picture, texts))
    return contact_sheet(cells, columns=1 + best, gap=8)


def diverse(rows: Int[np.ndarray, " n"], kind: Int[np.ndarray, " m"], count: int) -> list[int]:
    """`count` of the rows in random order: one of each kind, then a second of each."""
    seen: collections.Counter[int] = collections.Counter()
    order = []
    for row in np.random.default_rng(0).permutation(rows).tolist():
        order.append((seen[int(kind[row])], int(kind[row]), row))
        seen[int(kind[row])] += 1
    return [row for _, _, row in sorted(order)[:count]]


def captioned(picture: Float[np.ndarray, "h w 3"], texts: Sequence[str]) -> Float[np.ndarray, "h2 w2 3"]:
    """A picture with wrapped texts below, cut after `LINES` lines."""
    height = round(SIDE * picture.shape[0] / picture.shape[1])
    shown = cv2.resize(picture, (SIDE, height), interpolation=cv2.INTER_NEAREST)
    font = ImageFont.load_default()
    strip = Image.new("RGB", (SIDE, 14 * LINES), "white")
    lines = [line for text in texts for line in textwrap.wrap(bare(text), LETTERS)][:LINES]
    ImageDraw.Draw(strip).multiline_text((2, 1), "\n".join(lines), fill="black", font=font, spacing=3)
    square = np.ones((SIDE, SIDE, 3), np.float32)
    square[:height] = shown[:SIDE]
    return np.concatenate([square, from_uint8(np.asarray(strip))])
