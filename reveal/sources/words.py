"""A source of knowledge in a word of a command line.

    birds/                                          a folder of pictures and texts, or one that holds items.jsonl
    items.jsonl                                     the general format
    wit:wit_v1.train.tsv.gz,images=pictures         a reader of the package's table, what it reads, its options
    vqa:questions.json,annotations=answers.json,leave_out=OpenEnded_mscoco_val2014_questions.json,strict=true

A comma begins an option only where a name and an equals sign follow, so paths may have commas. An option is read as
what its default is: a number, true or false, else a text. `leave_out` may be given several times.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from reveal.sources.registry import Items

OPTION = re.compile(r",(?=[a-z_]+=)")
GENERAL = "items.jsonl"
SWITCH = {"true": True, "false": False}


def items_of(word: str, source: str | None = None) -> Items:
    """The source of a word; `source` is the name of its items' source, where the word gives none.

    Raises FileNotFoundError for a path that is not there; ValueError for a word that names no reader, and for options
    that the reader has not or needs."""
    reader, path, given = _parted(word)
    known = inspect.signature(Items.READERS[reader]).parameters
    options: dict[str, Any] = {} if source is None or "source" not in known else {"source": source}
    leave_out, strict = [], False
    for name, text in given:
        if name == "leave_out":
            leave_out.append(text)
        elif name == "strict":
            strict = bool(_value(name, text, False, word))
        else:
            default = known[name].default if name in known else None
            options[name] = _value(name, text, default, word)
    return Items(reader, path, options, tuple(leave_out), strict)


def _parted(word: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Reader, path, options."""
    before, colon, rest = word.partition(":")
    named = bool(colon) and before in Items.READERS
    path, *given = OPTION.split(rest if named else word)
    options = [(name, text) for name, _, text in (part.partition("=") for part in given)]
    if named:
        return before, path, options
    place = Path(path)
    if (place / GENERAL).is_file():
        return "jsonl", str(place / GENERAL), options
    if place.is_dir():
        return "folder", path, options
    if ".jsonl" in place.suffixes:
        return "jsonl", path, options
    if not place.exists():
        raise FileNotFoundError(f"{path} does not exist; give a folder, an {GENERAL}, or READER:PATH")
    raise ValueError(f"{path}: say what reads it, as in wit:{path}; readers are {', '.join(Items.READERS)}")


def _value(name: str, text: str, default: Any, word: str) -> Any:
    if isinstance(default, bool):
        if text not in SWITCH:
            raise ValueError(f"{word}: {name}={text}: give true or false")
        return SWITCH[text]
    if isinstance(default, int):
        if not text.isdigit():
            raise ValueError(f"{word}: {name}={text}: give a whole number from 0")
        return int(text)
    return text
