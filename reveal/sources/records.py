"""What all readers share: questions, where pictures lie, which files a name means, and what was left out.

A reader is a generator. It reads its file from the beginning to the end and holds one record, so a source may be larger
than the RAM; and it opens no picture that nobody asks for.

**What cannot be read** (a line that is no JSON, a picture that is not there) is left out and counted in a `Skips`, or
with `Skips(strict=True)` raised. A file that is missing, or no file of that kind at all, is raised always.

**The leak rule.** VQA-v2 and COCO share pictures with OK-VQA's validation set, and so may the web. `without` names the
pictures that knowledge and questions must not have, as their file calls them (`held_out.image_ids` reads such names,
`all_names` adds what other files call the same picture). They are counted too. Names are the same

- with suffix and without: `gull.jpg`, `gull`
- whatever folder they are in: `q/gull.jpg` and `birds/gull.png` are one picture, so call different ones differently
- with blanks and with the underscores that Commons has for them: `Flag of France.png`, `Flag_of_France.png`
- with COCO's number and in its names: `42`, `000000000042.jpg`, `COCO_val2014_000000000042.jpg`

Of an address only the whole counts, and the number of COCO's that it may end in.
"""

from __future__ import annotations

import bz2
import collections
import contextlib
import errno
import functools
import glob
import gzip
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
from jaxtyping import UInt8
from natsort import natsorted
from PIL.JpegImagePlugin import JpegImageFile

from common.io.files import require_file
from common.io.images import MAX_PIXELS, READABLE, read_image, to_uint8

COCO_NUMBER = re.compile(r"(\d{12})$")
COCO_SPLITS = ("train2014", "val2014", "test2014", "test2015")
HELD_OUT = "whose picture is in an evaluation set"
UNREADABLE = "whose picture cannot be read"
SUFFIX = re.compile(r"\.[A-Za-z]\w{1,4}$")
HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair
NO_HANDLES = (errno.EMFILE, errno.ENFILE)  # too many open files: no fault of the one that is to be opened
PLAIN = ("RGB", "L")  # kinds of JPEG that need no more than to be decoded


PACKED: Mapping[str, Callable[[Path], Any]] = {".gz": gzip.GzipFile, ".bz2": bz2.BZ2File}


class Member(NamedTuple):
    """A file inside a tar that is not compressed."""

    path: Path
    start: int
    length: int


Picture = Path | bytes | Member  # a file, its bytes, or where they lie


class Question(NamedTuple):
    """Something to answer: a question, or a picture to describe.

    Attributes:
      id: its number in its source.
      image: the picture.
      text: the question; "" for a picture to describe.
      answers: of all annotators, equal ones as often as they were given; or all captions.
      group: a part that scores are told for: a split, NoCaps' domain, "difficult" of A-OKVQA; "" if there is none.
      gold: the number of the item that has the answer, where somebody knows it.
      negatives: numbers of items that have not, and are easily taken for it.
    """

    id: int
    image: Picture
    text: str = ""
    answers: tuple[str, ...] = ()
    group: str = ""
    gold: int | None = None
    negatives: tuple[int, ...] = ()


class Skips:
    """Counts records that are left out, by reason; `strict` raises ValueError for the first one instead."""

    def __init__(self, strict: bool = False):
        self.strict, self.counts = strict, collections.Counter[str]()

    def add(self, reason: str, where: str) -> None:
        if self.strict:
            raise ValueError(f"{where}: {reason}; mend it, or set strict=false to leave it out")
        self.counts[reason] += 1

    def held_out(self) -> None:
        """Counts a record whose picture must not be there; that is no fault, and `strict` does not mind."""
        self.counts[HELD_OUT] += 1

    def merge(self, others: Mapping[str, int]) -> None:
        """Adds what somebody else has counted."""
        self.counts.update(others)

    def __str__(self) -> str:
        told = ", ".join(f"{count} {reason}" for reason, count in self.counts.most_common())
        return f"{self.counts.total()} records left out" + (f" ({told})" if told else "")


class Pictures:
    """The pictures in a folder and below, found by whatever a source calls them.

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
        for path in _pictures(self.folder):
            relative = path.relative_to(self.folder)
            number = COCO_NUMBER.findall(path.stem)
            for key in (relative.as_posix(), relative.with_suffix("").as_posix(), path.name, path.stem, *number):
                index.setdefault(key, path)
                if " " in key:
                    underscored.setdefault(_underscored(key), path)
        return underscored | index


def _pictures(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        yield from (Path(place) / name for name in sorted(names) if name.lower().endswith(READABLE))


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


def folder_of(images: str | Path | None) -> Pictures | None:
    return None if images is None else Pictures(images)


def picture_bytes(picture: Picture) -> bytes:
    """The bytes of the file. Raises OSError, and ValueError for an empty one or a tar that became shorter."""
    if isinstance(picture, bytes):
        return picture
    if isinstance(picture, Path):
        return require_file(picture).read_bytes()
    with picture.path.open("rb") as file:  # opened each time: no handle per tar, no lock between threads
        file.seek(picture.start)
        data = file.read(picture.length)
    if len(data) != picture.length:
        raise ValueError(f"{picture.path} became shorter while it was in use; copy it again")
    return data


def file_bytes(picture: Picture, skips: Skips, where: str, reason: str = UNREADABLE) -> bytes | None:
    """As `picture_bytes`; None, and counted, for a file that is empty, or cannot be read."""
    try:
        return picture_bytes(picture)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in NO_HANDLES:
            raise
        skips.add(reason, f"{where} ({error})")
        return None


def file_text(path: Path, skips: Skips, where: str) -> str | None:
    """The text of a file of UTF-8, without blanks around it; None, and counted, if it cannot be read."""
    try:
        return path.read_text("utf-8-sig", "replace").strip()
    except OSError as error:
        if error.errno in NO_HANDLES:
            raise
        skips.add("whose text cannot be read", f"{where} ({error})")
        return None


def contents(folders: Sequence[Path]) -> frozenset[bytes]:
    """SHA-256 of every picture file in some folders and below; a link to nothing has no content. Raises OSError."""
    found = set()
    for path in (path for folder in folders for path in _pictures(folder)):
        with contextlib.suppress(FileNotFoundError):
            found.add(_hash(path.read_bytes()))
    return frozenset(found)


def picture_hash(record: Any) -> bytes | None:
    """That of an item's, or a question's, picture; None: it has none in a file that can be read."""
    picture = record.image if isinstance(record, Question) else record.picture
    data = file_bytes(picture, Skips(), "") if isinstance(picture, Path | bytes | Member) else None
    return None if data is None else _hash(data)


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def decode_picture(picture: Picture, name: str) -> UInt8[np.ndarray, "h w 3"]:
    """The picture, which messages call `name`. Raises OSError, ValueError."""
    if isinstance(picture, Path):
        return to_uint8(read_image(picture))
    data = picture_bytes(picture)
    if (plain := _plain_jpeg(data)) is not None:
        return plain
    return to_uint8(read_image(data, f"the picture of {name}"))


def _plain_jpeg(data: bytes) -> UInt8[np.ndarray, "h w 3"] | None:
    """What `read_image` makes of the commonest pictures, in a quarter of its time: JPEGs that nobody turned. None:
    another kind, or damaged, so that `read_image` has to say what it is."""
    try:
        with JpegImageFile(io.BytesIO(data)) as picture:  # not `Image.open`, whose limits and warnings are global
            width, height = picture.size
            turned = "exif" in picture.info or "xmp" in picture.info
            if picture.mode not in PLAIN or turned or width * height > MAX_PIXELS:
                return None
            return np.array(picture.convert("RGB"))
    except Exception:  # decoders fail in many classes
        return None


def files_of(path: str | Path, *suffixes: str) -> list[Path]:
    """The file, those of a folder that end so, or those that a pattern matches, in natural order.

    Raises FileNotFoundError if there are none."""
    path = Path(path)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [one for one in path.iterdir() if one.name.endswith(suffixes) and one.name[0] != "."]
    else:
        found = [Path(one) for one in glob.glob(str(path))]  # noqa: PTH207, a pattern may begin anywhere
    if not found:
        raise FileNotFoundError(f"{path}: no such file, and no {' or '.join(suffixes)} there; check the name")
    return natsorted(found, key=str)


class _Packed(io.RawIOBase):
    """A packed file, unpacked. What is wrong with it is one ValueError when it is read."""

    def __init__(self, path: Path, file: gzip.GzipFile | bz2.BZ2File):
        self._path, self._file = path, file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return self._file.readinto(buffer)
        except (EOFError, zlib.error, OSError) as error:
            raise ValueError(f"{self._path} is damaged or cut short ({error}); copy it again") from error

    def close(self) -> None:
        self._file.close()
        super().close()


def open_text(path: Path, newline: str = "\n") -> io.TextIOWrapper:
    """Lines of UTF-8, unpacked if the name ends in .gz or .bz2; what is none becomes U+FFFD. A line ends with
    `newline`, so that a carriage return alone is part of it; "": with any of the three ends. Raises as `require_file`;
    ValueError, where it is reached, for the place where a packed file is damaged."""
    if path.suffix in PACKED:
        binary: Any = io.BufferedReader(_Packed(path, PACKED[path.suffix](require_file(path))), 1 << 18)
    else:
        binary = require_file(path).open("rb")
    return io.TextIOWrapper(binary, encoding="utf-8-sig", errors="replace", newline=newline)  # type: ignore[arg-type]


def parsed(text: str, **hooks: Any) -> Any:
    """What JSON says, as `json.loads` with these hooks; halves of surrogate pairs become U+FFFD. Raises ValueError."""
    try:
        said = json.loads(text, **hooks)
        return _whole(said) if "\\ud" in text or "\\uD" in text else said
    except RecursionError:
        raise ValueError("too deep") from None


def _whole(said: Any) -> Any:
    if isinstance(said, str):
        return HALF.sub("\ufffd", said)
    if isinstance(said, list):
        return [_whole(one) for one in said]
    return {_whole(name): _whole(one) for name, one in said.items()} if isinstance(said, dict) else said
