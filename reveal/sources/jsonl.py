"""The general format: JSON lines and a folder of pictures.

Items of knowledge, one a line; every text that is not named here is a field of the item:

    {"id": 7, "source": "wiki", "image": "gull.jpg", "title": "Gull", "text": "A seabird ..."}
    {"id": 8, "source": "graph", "image": null, "text": "gull eats fish"}

Questions, one a line; `answers` are those of all annotators, `gold` and `negatives` are ids of items:

    {"id": 0, "image": "q/1.jpg", "text": "what does it eat", "answers": ["fish", "fish", "worms"], "gold": 8}
    {"image": "q/2.jpg", "answer": "a gull over the sea", "group": "near", "negatives": [7, 9]}

Without `id` the number of the line, from 0, counts, and without `source` the reader's; null is as if nothing were said.
Pictures are sought in `images`, by default the folder of the file. `image_id` may say what the picture is called
elsewhere, for the leak rule; else `image` does. A file may end in .gz. Lines with NaN or Infinity are no JSON.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from common.data.text import open_text, parse_json
from common.io.files import require_file
from reveal.memory.items import MOST_IDS, Item
from reveal.sources.image_names import is_among
from reveal.sources.records import Question, Skips, file_bytes

OWN = ("id", "image", "image_id", "source")  # what is no field of an item


def items(
    path: str | Path,
    images: str | Path | None = None,
    source: str = "own",
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Item]:
    """The items of a file (module docstring)."""
    skips = skips or Skips()
    folder = Path(images) if images is not None else Path(path).parent
    for number, where, entry in objects(path, skips):
        picture = _picture(entry, folder)
        fields = {name: value for name, value in entry.items() if name not in OWN and value != ""}
        if is_among(picture_name(entry), without):
            skips.held_out()
            continue
        if picture is not None and not _is_there(picture):
            skips.add("whose picture is not there", where)
        elif not fields and picture is None:
            skips.add("with neither text nor picture", where)
        elif not _is_number(entry.get("id", number)) or not isinstance(entry.get("source", source), str):
            skips.add("whose id is no whole number from 0 to 2^62 - 1, or whose source is no text", where)
        else:
            data = None if picture is None else file_bytes(picture, skips, where)
            if data is not None or picture is None:
                yield Item(entry.get("source", source), fields, data, entry.get("id", number))


def questions(
    path: str | Path,
    images: str | Path | None = None,
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Question]:
    """The questions of a file (module docstring)."""
    skips = skips or Skips()
    folder = Path(images) if images is not None else Path(path).parent
    for number, where, entry in objects(path, skips):
        picture = _picture(entry, folder)
        if is_among(picture_name(entry), without):
            skips.held_out()
            continue
        if picture is None or not _is_there(picture):
            skips.add("whose picture is not there", where)
            continue
        reason = _wrong(entry)
        if reason:
            skips.add(reason, where)
            continue
        about = entry.get("text", ""), _answers(entry), entry.get("group", ""), entry.get("gold")
        yield Question(entry.get("id", number), picture, *about, tuple(entry.get("negatives", ())))


def objects(path: str | Path, skips: Skips) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """(number of the line from 0, what messages call it, the object without nulls) of each line that is not empty."""
    with open_text(require_file(path)) as file:
        for number, line in enumerate(file):
            where = f"{path} line {number + 1}"
            if not line.strip():
                continue
            try:
                entry = parse_json(line, parse_constant=_finite, parse_float=_finite)
            except ValueError:
                entry = None
            if isinstance(entry, dict):
                yield number, where, {name: value for name, value in entry.items() if value is not None}
            else:
                skips.add("that is no JSON object", where)


def picture_name(entry: Mapping[str, Any]) -> str:
    """What the picture of an entry is called for the leak rule; "": it has none."""
    named = (entry.get(name) for name in ("image_id", "image"))
    return next((str(name) for name in named if name not in (None, "")), "")


def _wrong(entry: Mapping[str, Any]) -> str:
    """Why a question cannot be used; "" if it can."""
    texts = [*_answers(entry), entry.get("text", ""), entry.get("group", "")]
    if not all(isinstance(text, str) for text in texts):
        return "whose text, answers or group are no texts"
    negatives = entry.get("negatives", [])
    numbers = [entry.get("id", 0), entry.get("gold", 0), *(negatives if isinstance(negatives, list) else [None])]
    return (
        "" if all(map(_is_number, numbers)) else "whose id, gold or negatives are no whole numbers from 0 to 2^62 - 1"
    )


def _answers(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    answers = entry.get("answers", entry.get("answer", []))
    return tuple(answers) if isinstance(answers, list) else (answers,)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_IDS


def _finite(text: str) -> float:
    """Raises ValueError."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number of JSON's")
    return number


def _picture(entry: Mapping[str, Any], folder: Path) -> Path | None:
    return folder / str(entry["image"]) if entry.get("image", "") != "" else None


def _is_there(picture: Path) -> bool:
    try:
        return picture.is_file()
    except OSError:  # such as a name that is too long for any
        return False
