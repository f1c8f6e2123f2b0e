"""The general format: JSON lines and a folder of pictures.

Items of knowledge, one a line; every text that is not named here is a field of the item:

    {"id": 7, "source": "wiki", "image": "gull.jpg", "title": "Gull", "text": "A seabird ..."}
    {"id": 8, "source": "graph", "image": null, "text": "gull eats fish"}

Questions, one a line; `answers` are those of all annotators, `gold` and `negatives` are ids of items:

    {"id": 0, "image": "q/1.jpg", "text": "what does it eat", "answers": ["fish", "fish", "worms"], "gold": 8}
    {"image": "q/2.jpg", "answer": "a gull over the sea", "group": "near", "negatives": [7, 9]}

Without `id` the number of the line, from 0, counts, and without `source` the reader's. Pictures are sought in `images`,
by default the folder of the file. `image_id` may say what the picture is called elsewhere, for the leak rule; else
`image` does. A file may end in .gz.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from common.files import require_file
from reveal.memory.items import Knowledge
from reveal.sources.records import Question, Skips, coco_names, file_bytes, open_text

OWN = ("id", "image", "image_id", "source")  # what is no field of an item


def items(
    path: str | Path,
    images: str | Path | None = None,
    source: str = "own",
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Knowledge]:
    """The items of a file (module docstring)."""
    skips = skips or Skips()
    folder = Path(images) if images is not None else Path(path).parent
    for number, where, entry in objects(path, skips):
        picture = _picture(entry, folder)
        fields = {name: value for name, value in entry.items() if name not in OWN and value not in (None, "")}
        if _is_among(entry, without):
            skips.held_out()
            continue
        if picture is not None and not picture.is_file():
            skips.add("whose picture is not there", where)
        elif not fields and picture is None:
            skips.add("with neither text nor picture", where)
        elif not _is_number(entry.get("id", number)) or not isinstance(entry.get("source", source), str):
            skips.add("whose id is no whole number from 0, or whose source is no text", where)
        else:
            data = None if picture is None else file_bytes(picture, skips, where)
            if data is not None or picture is None:
                yield Knowledge(entry.get("source", source), fields, data, entry.get("id", number))


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
        if _is_among(entry, without):
            skips.held_out()
            continue
        if picture is None or not picture.is_file():
            skips.add("whose picture is not there", where)
            continue
        reason = _wrong(entry)
        if reason:
            skips.add(reason, where)
            continue
        answers = entry.get("answers", entry.get("answer")) or ()
        answers = (answers,) if isinstance(answers, str) else tuple(answers)
        about = entry.get("text") or "", answers, entry.get("group") or "", entry.get("gold")
        yield Question(entry.get("id", number), picture, *about, tuple(entry.get("negatives") or ()))


def objects(path: str | Path, skips: Skips) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """(number of the line from 0, what messages call it, the object) of each line that is not empty."""
    with open_text(require_file(path)) as file:
        for number, line in enumerate(file):
            where = f"{path} line {number + 1}"
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                entry = None
            if isinstance(entry, dict):
                yield number, where, entry
            else:
                skips.add("that is no JSON object", where)


def _wrong(entry: Mapping[str, Any]) -> str:
    """Why a question cannot be used; "" if it can."""
    answers = entry.get("answers", entry.get("answer")) or ()
    if not all(isinstance(answer, str) for answer in answers) or not isinstance(entry.get("text") or "", str):
        return "whose text or answers are no texts"
    numbers = [entry.get("id", 0), *(entry.get("negatives") or ())]
    numbers += [] if entry.get("gold") is None else [entry["gold"]]
    return "" if all(map(_is_number, numbers)) else "whose id, gold or negatives are no whole numbers from 0"


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_among(entry: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether it has one of these pictures."""
    name = entry.get("image_id", entry.get("image"))
    return bool(names) and name is not None and any(one in names for one in (str(name), *coco_names(str(name))))


def _picture(entry: Mapping[str, Any], folder: Path) -> Path | None:
    return None if entry.get("image") is None else folder / str(entry["image"])
