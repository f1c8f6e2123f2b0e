"""Pictures in tar files, as WebDataset packs them, read at random without extracting anything.

Members that belong together share their name up to the first dot:

    000007.jpg          the picture: .jpg .jpeg .png .webp
    000007.txt          captions, one a line; or
    000007.json         {"caption": "..."}, also text, prompt or captions, a text or a list
    000007.canny.png    a condition picture, by its kind

Other members are passed over. A tar keeps each member as a header of 512 bytes and then its bytes as they are. So one
pass over the headers, when the source is first used, gives the place of every member, and a record is read by seeking.
A compressed tar cannot be read so: unpack it (`gunzip`). A file that is damaged or cut short is told at once, by name.
The key of a record has its tar's name in front, "train-0003/000007": tars may number anew.
"""

from __future__ import annotations

import functools
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from natsort import natsorted

from common.io.files import require_file
from plugins.data.record import Listed, Record, Stored, captions_in, lines_of, text_of

PICTURES = ("jpg", "jpeg", "png", "webp")
BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Member(Stored):
    """A file inside a tar."""

    path: Path
    member: str
    start: int
    length: int

    @property
    def name(self) -> str:
        return f"{self.path} member {self.member}"

    def read(self) -> bytes:
        with self.path.open("rb") as file:  # opened each time: no handle per tar, no lock between threads
            file.seek(self.start)
            data = file.read(self.length)
        if len(data) != self.length:
            raise ValueError(f"{self.name}: the tar became shorter while it was in use; copy it again")
        return data


@dataclass(frozen=True)
class WebDatasetPictures(Listed):
    """The pictures of one tar, of all in a folder, or of those that a pattern names.

    Attributes:
      files: shard.tar, a folder, shards/*.tar, or shards/train-{0000..0099}.tar, of which each has to be there.
    """

    files: str | Path

    @functools.cached_property
    def records(self) -> tuple[Record, ...]:
        """Raises FileNotFoundError (no tar), ValueError (a damaged or compressed one, no picture in any)."""
        records = tuple(record for path in find_tars(self.files) for record in _records(path))
        if not records:
            raise ValueError(f"{self.files}: no picture in it; members are called key.jpg, key.txt, key.canny.png")
        return records


def find_tars(files: str | Path) -> list[Path]:
    """The tars that a name, a folder or a pattern means. Raises FileNotFoundError."""
    path, text = Path(files), str(files)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [tar for tar in path.iterdir() if tar.suffix == ".tar"]
    elif BRACES.search(text):
        return [tar for name in expand(text) for tar in ([require_file(name)] if "*" not in name else find_tars(name))]
    else:
        found = [tar for tar in Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))) if tar.is_file()]
    if not found:
        raise FileNotFoundError(
            f"{files}: no tar there; give one, a folder of them, or a pattern such as x-{{00..09}}.tar"
        )
    return natsorted(found, key=str)


def expand(pattern: str) -> list[str]:
    """The names that braces stand for, as a shell has them: {00..12} keeps its zeros, {a,b} lists."""
    match = BRACES.search(pattern)
    if match is None:
        return [pattern]
    head, tail = pattern[: match.start()], pattern[match.end() :]
    if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", match[1]):
        first, last = numbers.groups()
        choices = [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    else:
        choices = match[1].split(",")
    return [name for choice in choices for name in expand(f"{head}{choice}{tail}")]


def _records(path: Path) -> Iterator[Record]:
    """The records of one tar in its order; samples without a picture are left out."""
    samples: dict[str, dict[str, Member]] = {}
    for member in scan(path):
        folder, _, base = member.member.removeprefix("./").rpartition("/")
        stem, _, extension = base.partition(".")
        if stem and extension:
            samples.setdefault(f"{folder}/{stem}".lstrip("/"), {})[extension.lower()] = member
    for key, parts in samples.items():
        picture = next((parts[suffix] for suffix in PICTURES if suffix in parts), None)
        if picture is not None:
            kinds = [(name.rpartition("."), member) for name, member in parts.items()]
            stored = {kind: member for (kind, _, suffix), member in kinds if kind and suffix in PICTURES}
            yield Record(f"{path.stem}/{key}", picture, _texts(parts), stored)


def _texts(parts: Mapping[str, Member]) -> tuple[()] | functools.partial[tuple[str, ...]]:
    if "txt" in parts:
        return functools.partial(lines_of, parts["txt"])
    return functools.partial(_json_captions, parts["json"]) if "json" in parts else ()


def _json_captions(member: Member) -> tuple[str, ...]:
    try:
        entry = json.loads(text_of(member))
    except json.JSONDecodeError as error:
        raise ValueError(f"{member.name}: no JSON ({error}); pack it again") from error
    return captions_in(entry if isinstance(entry, dict) else {"caption": entry}, member.name)


def scan(path: Path) -> Iterator[Member]:
    """The plain files in a tar, by its headers alone. Raises ValueError when it is compressed, damaged or cut short."""
    size = require_file(path).stat().st_size
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            while (info := tar.next()) is not None:
                if info.offset_data + info.size > size:
                    raise ValueError(f"{path} is cut short in member {info.name}; copy it again")
                if info.isreg():
                    yield Member(path, info.name, info.offset_data, info.size)
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE).strip(b"\0"):  # it takes a header that it cannot read for the end
                raise ValueError(f"{path} is damaged at byte {tar.offset}; copy it again")
    except tarfile.TarError as error:
        raise ValueError(f"{path} is compressed, damaged or cut short ({error}); unpack it or copy it again") from error
