"""Tars in WebDataset's layout, read at random without extraction.

Members that share their name up to the first dot form one sample: `000007.jpg`, `000007.txt`, `000007.canny.png`. One
pass over the headers finds all members. (The `webdataset` package only streams tars, and `tarfile` by itself takes a
damaged header for the end of the archive.)
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path

from common.data.stored import Member
from common.io.files import require_file

IMAGES = ("jpg", "jpeg", "png", "webp")  # suffixes of a sample's image, by preference


def members(path: Path) -> Iterator[Member]:
    """The plain files in a tar. Raises ValueError when it is compressed, damaged or cut short."""
    size = require_file(path).stat().st_size
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            while (info := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # or it keeps every one
                if info.offset_data + info.size > size:
                    raise ValueError(f"{path} is cut short in member {info.name}; copy it again")
                if info.isreg():
                    yield Member(path, info.name, info.offset_data, info.size)
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE).strip(b"\0"):  # the header that tarfile took for the end
                raise ValueError(f"{path} is damaged at byte {tar.offset}; copy it again")
    except tarfile.TarError as error:
        raise ValueError(f"{path} is compressed, damaged or cut short ({error}); unpack it or copy it again") from error


def key_and_suffix(name: str) -> tuple[str, str]:
    """ "a/07.canny.png" -> ("a/07", "canny.png"): the name of a member, split at the first dot of its base name."""
    folder, _, base = name.removeprefix("./").rpartition("/")
    stem, _, suffix = base.partition(".")
    return f"{folder}/{stem}".lstrip("/"), suffix.lower()
