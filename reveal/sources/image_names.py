"""Names of images: the folder index that finds them, and the leak rule that keeps evaluation images out.

**The leak rule.** VQA-v2 and COCO share images with OK-VQA's validation set, and so may the web. `without` names the
images that knowledge and questions must not have, as their file calls them (`held_out.image_ids` reads such names,
`all_names` adds what other files call the same image). They are counted too. Names are the same

- with suffix and without: `gull.jpg`, `gull`
- whatever folder they are in: `q/gull.jpg` and `birds/gull.png` are one image, so call different ones differently
- with blanks and with the underscores that Commons has for them: `Flag of France.png`, `Flag_of_France.png`
- with COCO's number and in its names: `42`, `000000000042.jpg`, `COCO_val2014_000000000042.jpg`

Of an address only the whole counts, and the number of COCO's that it may end in.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from common.data.files import walk
from common.data.stored import Member
from common.io.images import READABLE
from reveal.sources.records import Question, Skips, file_bytes

COCO_NUMBER = re.compile(r"(\d{12})$")
COCO_SPLITS = ("train2014", "val2014", "test2014", "test2015")
SUFFIX = re.compile(r"\.[A-Za-z]\w{1,4}$")


class Pictures:
    """The pictures in a folder and below, found by whatever name a source uses.

    A file is found by its path or its name, with or without suffix, with blanks or underscores for them; by the number
    in COCO's names; and by an address whose last part is its name, or of which its stem is the MD5, SHA-1 or SHA-256 in
    hexadecimal digits. Where names are alike, the first in order counts.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def find(self, name: str | int) -> Path | None:
        """The file, or None."""
        return next((self._index[key] for key in _keys(name) if key in self._index), None)

    @functools.cached_property
    def _index(self) -> dict[str, Path]:
        """Raises FileNotFoundError without the folder."""
        if not self.folder.is_dir():
            raise FileNotFoundError(f"{self.folder}: no such folder of pictures; check the name")
        index: dict[str, Path] = {}
        underscored: dict[str, Path] = {}
        for path in walk(self.folder, READABLE, hidden=True):
            relative = path.relative_to(self.folder)
            number = COCO_NUMBER.findall(path.stem)
            for key in (relative.as_posix(), relative.with_suffix("").as_posix(), path.name, path.stem, *number):
                index.setdefault(key, path)
                if " " in key:
                    underscored.setdefault(_underscored(key), path)
        return underscored | index


def folder_of(images: str | Path | None) -> Pictures | None:
    return None if images is None else Pictures(images)


def _keys(name: str | int) -> Iterator[str]:
    """What a file may be called that is meant by a name, a number or an address."""
    if isinstance(name, int):
        yield from (f"{name:012d}", str(name))
        return
    yield from (name, _underscored(name))
    if "://" in name:
        last = unquote(urlsplit(name).path).rpartition("/")[2]
        for one in (last, last.rpartition(".")[0] or last):
            yield from (one, _underscored(one))
        yield from (hashlib.new(how, name.encode()).hexdigest() for how in ("md5", "sha1", "sha256"))


def all_names(name: str) -> frozenset[str]:
    """What a picture is called in one file or another, `coco_names` too (module docstring)."""
    called = {name}
    if "://" not in name:
        last = name.rpartition("/")[2] or name
        called |= {last, SUFFIX.sub("", last) or last}
        called |= {_underscored(one) for one in called}
    return frozenset(called) | coco_names(name)


def is_among(name: str, names: Collection[str]) -> bool:
    """Whether a picture is one of those that are called so."""
    return bool(names) and any(one in names for one in all_names(name))


def _underscored(name: str) -> str:
    return name.replace(" ", "_")


def coco_names(name: str) -> frozenset[str]:
    """A picture of COCO's, of which a file may have the number alone: the number, and the names with it. Of another
    picture nothing."""
    digits = name if name.isdigit() else next(iter(COCO_NUMBER.findall(Path(name).stem)), "")
    if not digits or len(digits) > 12:
        return frozenset()
    padded = digits.zfill(12)
    return frozenset({str(int(digits)), padded, *(f"COCO_{split}_{padded}" for split in COCO_SPLITS)})


def contents(folders: Sequence[Path]) -> frozenset[bytes]:
    """SHA-256 of every picture file in some folders and below; a link to nothing has no content. Raises OSError."""
    found = set()
    for path in (path for folder in folders for path in walk(folder, READABLE, hidden=True)):
        with contextlib.suppress(FileNotFoundError):
            found.add(hashlib.sha256(path.read_bytes()).digest())
    return frozenset(found)


def picture_hash(record: Any) -> bytes | None:
    """That of an item's, or a question's, picture; None: it has none in a file that can be read."""
    picture = record.image if isinstance(record, Question) else record.picture
    data = file_bytes(picture, Skips(), "") if isinstance(picture, Path | bytes | Member) else None
    return None if data is None else hashlib.sha256(data).digest()
