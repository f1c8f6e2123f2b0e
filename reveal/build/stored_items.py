"""Items as a new memory stores them: their ids, and images no larger than needed.

**Ids.** In a build they rise (`memory/builder.py`), and they are the same when an interrupted build resumes. So items
keep the ids of their source; a source whose ids begin below those before it is shifted behind them; VQA's and COCO's
images, which lie in any order of their ids, are numbered as they come, and so is everything with `renumber`.

**Images.** A network sees 32 to 224 pixels, a person who asks where an answer is from a few hundred. The stored image
is also the encoded one, so that encoding a memory again with the same network gives the same keys.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2

from common.data.stored import decode_picture
from common.io.images import from_uint8, image_size, shrink, to_uint8
from reveal.memory.items import Item
from reveal.sources import Items, Skips
from reveal.sources.folder import TEXT, groups
from reveal.sources.jsonl import objects

UNORDERED = ("vqa", "coco")
RISE = "in a build they rise: sort them, or number all anew with --renumber"
QUALITY = 90  # of JPEG


def numbered(sources: Sequence[Items], skips: Skips, renumber: bool = False) -> Iterator[Item]:
    """All items with their ids. Raises ValueError for a source whose ids do not rise."""
    last = -1
    for source in sources:
        shift = None
        for place, item in enumerate(source.read(skips)):
            own = place if renumber or source.reader in UNORDERED or item.id is None else item.id
            if shift is None:
                shift = 0 if own > last else last + 1
            if own + shift <= last:
                raise ValueError(f"{source.path}: id {own} comes after {last - shift}; {RISE}")
            last = own + shift
            yield dataclasses.replace(item, id=last)


def expected(source: Items, renumber: bool = False) -> int | None:
    """About how many items a source has; None where counting takes long. Raises ValueError for ids that do not rise."""
    if source.reader == "folder":
        return len(groups(Path(source.path), (TEXT,), Skips()))
    if source.reader != "jsonl":
        return None
    count, last = 0, -1
    for number, _, entry in objects(source.path, Skips()):
        own = entry.get("id", number)
        if not renumber and isinstance(own, int):
            if own <= last:
                raise ValueError(f"{source.path}: id {own} comes after {last}; {RISE}")
            last = own
        count += 1
    return count


def shrunk(item: Item, longest: int) -> Item:
    """The item with an image of at most `longest` pixels a side, if it can be read; 0: as it is."""
    if not isinstance(item.picture, bytes) or not longest:
        return item
    try:
        if max(image_size(item.picture)) <= longest:
            return item
        image = decode_picture(item.picture, f"item {item.id} of {item.source}")
    except (ValueError, OSError):
        return item
    small = to_uint8(shrink(from_uint8(image), longest))
    data = cv2.imencode(".jpg", small[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()
    return dataclasses.replace(item, picture=data)
