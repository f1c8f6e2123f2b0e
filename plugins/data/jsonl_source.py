"""Images listed in a file of JSON lines, one object a line; paths are relative to that file.

| written by                         | image       | captions  | condition images                                  |
| ---------------------------------- | ----------- | --------- | ------------------------------------------------- |
| you                                | `image`     | `caption` | `conditions`: {"canny": "edges/1.png"}            |
| Hugging Face, `metadata.jsonl`     | `file_name` | `text`    | `conditioning_image_file_name`, `depth_file_name` |
| ControlNet's fill50k `prompt.json` | `target`    | `prompt`  | `source`                                          |

Captions are a text or a list of texts, in caption, captions, text or prompt. A condition image of the last two without
a kind (`source` beside `target`, `conditioning_image`, with or without `_file_name`) stands for any. `X_file_name` of a
kind of your own counts where the file is there. Other fields are ignored. A key is the image's path as written.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.data.stored import File
from common.io.files import contained, require_file
from common.io.json_text import parse_json
from plugins.conditions.registry import CONDITIONS
from plugins.data.record import UNNAMED, Record, Source, captions_in

NAMES = ("metadata.jsonl", "prompt.json")  # looked for in a folder
PICTURES = ("image", "file_name", "image_file_name", "target")
SUFFIX = "_file_name"
NO_KIND = ("conditioning_image", "conditioning_image_file_name", "conditioning", "source")


@dataclass(frozen=True)
class JsonlPictures(Source):
    """The images of one file."""

    file: str | Path

    @functools.cached_property
    def records(self) -> tuple[Record, ...]:
        """Raises FileNotFoundError, ValueError; both name the line."""
        path = require_file(self.file)
        lines = enumerate(File(path).text().split("\n"), 1)  # not splitlines: a caption may hold U+2028
        records = tuple(_record(line, path.parent, f"{path} line {number}") for number, line in lines if line.strip())
        if not records:
            raise ValueError(f"{path} has no line; write one JSON object a line")
        return records


def _record(line: str, folder: Path, where: str) -> Record:
    entry = parse_json(line, where, dict)
    image = next((entry[name] for name in PICTURES if entry.get(name) is not None), None)
    if image is None:
        fields = ", ".join(entry) or "nothing"
        raise ValueError(f"{where}: no image; name it as one of {', '.join(PICTURES)} (it has {fields})")
    conditions = {kind: _file(folder, path, where) for kind, path in _conditions(entry, folder, where)}
    return Record(str(image), _file(folder, image, where), captions_in(entry, where), conditions)


def _conditions(entry: Mapping[str, Any], folder: Path, where: str) -> Iterator[tuple[str, Any]]:
    """(kind, path) of the condition images; null is none."""
    named = entry.get("conditions") or {}
    if not isinstance(named, dict):
        raise ValueError(f'{where}: conditions is {named!r}; write {{"canny": "edges/1.png"}}')
    yield from ((kind, path) for kind, path in named.items() if path is not None)
    for name, path in entry.items():
        if path is not None and name in NO_KIND and (name != "source" or "target" in entry):
            yield UNNAMED, path
        elif path is not None and name.endswith(SUFFIX) and name not in PICTURES:
            kind = name.removesuffix(SUFFIX)
            named = kind in CONDITIONS  # else another field, as original_file_name, unless there is such a file
            with contextlib.suppress(OSError):  # a text too long for a path
                named = named or (folder / str(path)).is_file()
            if named:
                yield kind, path


def _file(folder: Path, path: Any, where: str) -> File:
    if not isinstance(path, str):
        raise ValueError(f"{where}: {path!r} is no path of an image; write it as a text")
    try:
        found = contained(folder, path)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if not found.is_file():
        raise FileNotFoundError(f"{where}: {found} does not exist; paths are relative to {folder}")
    return File(found)
