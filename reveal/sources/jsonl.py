"""The general format: JSON lines and a folder of images.

Items of knowledge, one a line; every text that is not named here is a field of the item:

    {"id": 7, "source": "wiki", "image": "gull.jpg", "title": "Gull", "text": "A seabird ..."}
    {"id": 8, "source": "graph", "image": null, "text": "gull eats fish"}

Questions, one a line; `answers` are those of all annotators, `gold` and `negatives` are ids of items:

    {"id": 0, "image": "q/1.jpg", "text": "what does it eat", "answers": ["fish", "fish", "worms"], "gold": 8}
    {"image": "q/2.jpg", "answer": "a gull over the sea", "group": "near", "negatives": [7, 9]}

Without `id` the number of the line, from 0, counts, and without `source` the reader's; null is as if nothing were said.
Images are sought in `images`, by default the folder of the file; a name that leads out of it, also by links, is as if
there were no file. `image_id` may say what the image is called elsewhere, for the leak rule; else `image` does.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.data.text import open_text
from common.io.files import contained, require_file
from common.io.json_text import parse_json
from reveal.memory.items import MOST_IDS
from reveal.sources.records import MISSING, Record, Skips

NO_FIELDS = ("id", "image", "image_id", "source")
NO_TEXTS = ("image", "image_id", "source", "group")


def items(path: str | Path, images: str | Path | None = None, *, skips: Skips) -> Iterator[Record]:
    for number, where, entry in objects(path, skips):
        image = _image(entry, path, images)
        fields = {name: value for name, value in entry.items() if name not in NO_FIELDS and value != ""}
        number, source = entry.get("id", number), entry.get("source", "")
        fault = ""
        if image is None and (entry.get("image", "") != "" or not fields):
            fault = MISSING if entry.get("image", "") != "" else "with neither text nor picture"
        elif not _is_id(number) or not isinstance(source, str):
            fault = "whose id is no whole number from 0 to 2^62 - 1, or whose source is no text"
        yield Record(number, where, image, names=(image_name(entry),), fault=fault, fields=fields, source=source)


def questions(path: str | Path, images: str | Path | None = None, *, skips: Skips) -> Iterator[Record]:
    for number, where, entry in objects(path, skips):
        number, gold = entry.get("id", number), entry.get("gold")
        text, group = entry.get("text", ""), entry.get("group", "")
        answers = entry.get("answers", entry.get("answer", []))
        answers = answers if isinstance(answers, list) else [answers]
        negatives = entry.get("negatives", [])
        negatives = negatives if isinstance(negatives, list) else [None]
        fault = ""
        if not all(isinstance(one, str) for one in (*answers, text, group)):
            fault = "whose text, answers or group are no texts"
        elif not all(map(_is_id, [number, 0 if gold is None else gold, *negatives])):
            fault = "whose id, gold or negatives are no whole numbers from 0 to 2^62 - 1"
        record = Record(number, where, _image(entry, path, images), names=(image_name(entry),), fault=fault)
        yield record._replace(text=text, answers=tuple(answers), group=group, gold=gold, negatives=tuple(negatives))


def objects(path: str | Path, skips: Skips) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """(number of the line from 0, its name in messages, the object without nulls) of each line that is not empty."""
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


def image_name(entry: Mapping[str, Any]) -> str:
    """The name of an entry's image for the leak rule; "": it has none."""
    named = (entry.get(name) for name in ("image_id", "image"))
    return next((str(name) for name in named if name not in (None, "")), "")


def lines_of(paths: Sequence[Path]) -> Iterator[str]:
    """All texts in some files, for a tokenizer: lines, and of .jsonl the texts in each object, but for names of images.
    Raises ValueError for a line of .jsonl that is no JSON."""
    for path in paths:
        with open_text(path) as file:
            for line in filter(None, map(str.strip, file)):
                yield from _texts(parse_json(line, f"{path}, {line[:40]!r}") if ".jsonl" in path.suffixes else line)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for name, one in entries:
            if name not in NO_TEXTS:
                yield from _texts(one)


def _image(entry: Mapping[str, Any], path: str | Path, images: str | Path | None) -> Path | None:
    """The image file of an entry; None: it names none, or one that is not there."""
    if entry.get("image", "") == "":
        return None
    try:
        image = contained(Path(path).parent if images is None else images, str(entry["image"]))
        return image if image.is_file() else None
    except (OSError, ValueError):  # such as a name that is too long for any file, or leads out of the folder
        return None


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_IDS


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number of JSON's")
    return number
