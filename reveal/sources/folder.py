"""A folder of pictures and texts: what has the same name belongs together.

    gulls/herring gull.jpg      gulls/herring gull.txt      a picture with its text
    gulls/moult.txt                                         a text alone
    tern.png                                                a picture alone

Subfolders are read too. Items come in natural order of their names (`a2` before `a10`), and have `first_id` and the
numbers after it, those that are left out counted too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from natsort import natsorted

from common.data.files import walk
from common.io.images import READABLE
from reveal.memory.items import Item
from reveal.sources.image_names import is_among
from reveal.sources.records import Skips, file_bytes, file_text

TEXT = ".txt"


def items(
    path: str | Path,
    source: str = "own",
    first_id: int = 0,
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Item]:
    """The items of a folder.

    Args:
      path: of the folder.
      source: name of the items' source.
      first_id: of the first item.
      without: names of pictures, without suffix, that must not be there.
      skips: where files that are empty or cannot be read, and pictures beyond the first of a name, are counted.

    Raises:
      FileNotFoundError: no such folder, or nothing in it that could be an item.
    """
    skips, folder = skips or Skips(), Path(path)
    for number, files in enumerate(groups(folder)):
        pictures = [file for file in files if file.suffix.lower() != TEXT]
        texts = [file for file in files if file not in pictures]
        where = str(files[0])
        if is_among(files[0].name, without):
            skips.held_out()
            continue
        for spare in pictures[1:]:
            skips.add("that share their name with another picture", str(spare))
        text = file_text(texts[0], skips, where) if texts else ""
        if text is None:
            continue
        if not (text or pictures) or any(map(_is_empty, pictures[:1])):
            skips.add("that are empty", where)
            continue
        data = file_bytes(pictures[0], skips, where) if pictures else None
        if data is not None or not pictures:
            yield Item(source, {"text": text} if text else {}, data, first_id + number)


def _is_empty(file: Path) -> bool:
    try:
        return not file.stat().st_size
    except OSError:  # `file_bytes` will tell
        return False


def groups(folder: Path) -> list[list[Path]]:
    """The files of each item, in order. Raises as `items`."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; check the name")
    found: dict[Path, list[Path]] = {}
    for file in walk(folder, (TEXT, *READABLE)):
        found.setdefault(file.with_suffix(""), []).append(file)
    if not found:
        raise FileNotFoundError(f"{folder} has no {TEXT} and no {' '.join(READABLE)}; name another folder")
    return [found[name] for name in natsorted(found, key=str)]
