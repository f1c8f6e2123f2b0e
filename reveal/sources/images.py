"""The folder of images that records name, and the names by which evaluation images are kept out (the leak rule).

VQA-v2 and COCO share images with OK-VQA's validation set, and so may the web. `held_out.py` reads the names of images
that knowledge and questions must not have; `all_names` adds what other files call the same image. Names are the same

- with suffix and without, and in whatever folder: `q/gull.jpg`, `birds/gull.png` and `gull` are one image
- with blanks and with the underscores that Commons has for them: `Flag of France.png`, `Flag_of_France.png`
- with COCO's number and in its names: `42`, `000000000042.jpg`, `COCO_val2014_000000000042.jpg`

Of an address only the whole counts, and the number of COCO's that it may end in.
"""

import functools
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from common.data.files import walk
from common.io.images import READABLE

COCO_NUMBER = re.compile(r"(\d{12})$")
COCO_SPLITS = ("train2014", "val2014", "test2014", "test2015")
SUFFIX = re.compile(r"\.[A-Za-z]\w{1,4}$")


class ImageFolder:
    """The images in a folder and below, found by path or name, with or without suffix, with blanks or underscores for
    them; by the number in COCO's names; and by an address whose last part is the name, or of which the stem is the MD5,
    SHA-1 or SHA-256 in hexadecimal digits. Where names are alike, the first in order counts."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def find(self, name: str | int) -> Path | None:
        """The file, or None. Raises FileNotFoundError without the folder."""
        return next((self._index[key] for key in _keys(name) if key in self._index), None)

    @functools.cached_property
    def _index(self) -> dict[str, Path]:
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


def _keys(name: str | int) -> Iterator[str]:
    """The file names that a name, a number or an address may stand for."""
    if isinstance(name, int):
        yield from (f"{name:012d}", str(name))
        return
    yield from (name, _underscored(name))
    if "://" in name:
        try:
            path = urlsplit(name).path
        except ValueError:  # brackets that are no IPv6 address
            path = name
        last = unquote(path).rpartition("/")[2]
        for one in (last, last.rpartition(".")[0] or last):
            yield from (one, _underscored(one))
        yield from (hashlib.new(how, name.encode()).hexdigest() for how in ("md5", "sha1", "sha256"))


def all_names(name: str) -> frozenset[str]:
    """The names of the same image in any file (module docstring)."""
    names = {name}
    if "://" not in name:
        last = name.rpartition("/")[2] or name
        names |= {last, SUFFIX.sub("", last) or last}
        names |= {_underscored(one) for one in names}
    return frozenset(names) | coco_names(name)


def coco_names(name: str) -> frozenset[str]:
    """The number of an image of COCO's, and the names with it; nothing for another image."""
    digits = name if name.isdigit() else next(iter(COCO_NUMBER.findall(Path(name).stem)), "")
    if not digits or len(digits) > 12:
        return frozenset()
    padded = digits.zfill(12)
    return frozenset({str(int(digits)), padded, *(f"COCO_{split}_{padded}" for split in COCO_SPLITS)})


def _underscored(name: str) -> str:
    return name.replace(" ", "_")
