"""An answer and its items as one image: the question on top, below it a row for each item that was read.

A row has the item's image, its id, source and text, and three bars:

    prior        retrieval prior, up to the largest of all
    attention    share of the question's attention, up to the whole
    left out     how much less likely the answer is without it (to the right), or more likely (to the left, in red)

Letters are drawn without their accents, which Pillow's font lacks, as it lacks all but Latin ones.
"""

import textwrap
import unicodedata
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont

from common.io.images import from_uint8, shrink, to_uint8
from reveal.assistant import Evidence, RetrievedItem, short, text_of

WIDTH, MARGIN, GAP = 960, 24, 16
ASKED, FOUND = 240, 112  # sides of the question's picture, and of the items'
BAR, BARS_AT = 150, 660  # length of a bar, and where bars begin
INK, PALE, GOOD, BAD, LINE = "#1c1c1c", "#767676", "#2f6fb0", "#b8433a", "#dddddd"
font = ImageFont.load_default  # of a size in pixels


def sheet(evidence: Evidence, image: Float[np.ndarray, "_ _ 3"] | None) -> Float[np.ndarray, "h w 3"]:
    """The page: an answer, and the image of its question."""
    head, left = 2 * MARGIN + ASKED, MARGIN
    page = Image.new("RGB", (WIDTH, head + (FOUND + GAP) * len(evidence.items) + MARGIN), "white")
    draw = ImageDraw.Draw(page)
    if image is not None:
        _paste(page, image, (MARGIN, MARGIN), ASKED)
        left += ASKED + GAP
    texts = [evidence.question] if evidence.first_hop is None else [evidence.first_hop.line(), evidence.question]
    lines = [line for text in texts for line in textwrap.wrap(bare(text), 44)][:3] or ["(a description)"]
    draw.multiline_text((left, MARGIN), "\n".join(lines), INK, font(22), spacing=6)
    answer = textwrap.wrap(bare(evidence.answer), 30)[:3] or ["(nothing)"]
    draw.multiline_text((left, MARGIN + 100), "\n".join(answer), BAD if evidence.doubted else GOOD, font(32), spacing=6)
    largest_sources = sorted(evidence.gate.items(), key=lambda entry: -entry[1])[:4]
    gate = ", ".join(f"{short(name, 16)} {100 * probability:.0f} %" for name, probability in largest_sources)
    verdict = f"{evidence.verdict()}\n" if evidence.verdict() else ""
    note = f"{verdict}log-probability {evidence.log_probability:.2f}\nsources: {gate}"
    draw.multiline_text((left, MARGIN + ASKED - (64 if verdict else 40)), note, PALE, font(15), spacing=6)
    most = max((one.prior for one in evidence.items), default=1.0)
    largest = max((abs(one.effect) for one in evidence.items), default=1.0)
    for place, one in enumerate(evidence.items):
        _row(page, draw, one, head + place * (FOUND + GAP), most, largest)
    return from_uint8(np.asarray(page))


def _row(
    page: Image.Image, draw: ImageDraw.ImageDraw, one: RetrievedItem, top: int, most: float, largest: float
) -> None:
    draw.line([(MARGIN, top - GAP // 2), (WIDTH - MARGIN, top - GAP // 2)], LINE)
    pixels = one.item.pixels()
    if pixels is None:
        draw.rectangle([(MARGIN, top), (MARGIN + FOUND - 1, top + FOUND - 1)], outline=LINE)
        draw.text((MARGIN + FOUND // 2, top + FOUND // 2), "text only", PALE, font(14), anchor="mm")
    else:
        _paste(page, from_uint8(pixels), (MARGIN, top), FOUND)
    left = MARGIN + FOUND + GAP
    draw.text((left, top), f"{one.item.id}  {short(one.item.source, 24)}", INK, font(17))
    draw.text((left, top + 24), f"score {one.score:.3f}", PALE, font(14))
    lines = textwrap.wrap(bare(text_of(one.item)), 58, max_lines=3, placeholder=" ...")
    draw.multiline_text((left, top + 46), "\n".join(lines), INK, font(15), spacing=5)
    _bar(draw, top + 8, "prior", one.prior / max(most, 1e-9), f"{one.prior:.2f}")
    _bar(draw, top + 42, "attention", one.attention, f"{100 * one.attention:.1f} %")
    _bar(draw, top + 76, "left out", -one.effect / max(largest, 1e-9), f"{one.effect:+.2f}", start=BAR // 2)


def _bar(draw: ImageDraw.ImageDraw, top: int, name: str, value: float, label: str, start: int = 0) -> None:
    """A bar that begins at `start`; `value` is -1 to 1 of the room beside it."""
    draw.text((BARS_AT - 8, top + 9), name, PALE, font(14), anchor="rm")
    draw.rectangle([(BARS_AT, top), (BARS_AT + BAR, top + 18)], outline=LINE)
    begin = BARS_AT + start
    ends = sorted((begin, begin + (BAR - start) * float(np.clip(value, -1, 1))))
    if ends[1] - ends[0] >= 1:
        draw.rectangle([(ends[0], top + 1), (ends[1], top + 17)], fill=GOOD if value >= 0 else BAD)
    draw.text((BARS_AT + BAR + 10, top + 9), label, INK, font(15), anchor="lm")


def _paste(page: Image.Image, image: Float[np.ndarray, "_ _ 3"], at: Sequence[int], side: int) -> None:
    """Pastes an image into the middle of a square; a small one is enlarged by a whole factor: its pixels show."""
    small = Image.fromarray(to_uint8(shrink(image, side)))
    factor = max(1, side // max(small.size))
    small = small.resize((small.width * factor, small.height * factor), Image.Resampling.NEAREST)
    page.paste(small, (at[0] + (side - small.width) // 2, at[1] + (side - small.height) // 2))


def bare(text: str) -> str:
    """The text without its accents: "Yaounde"."""
    return "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
