"""Text files of any size: lines of UTF-8, packed or plain, and JSON as found in practice."""

import bz2
import gzip
import io
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common.io.files import require_file

PACKED: Mapping[str, Callable[[Path], Any]] = {".gz": gzip.GzipFile, ".bz2": bz2.BZ2File}


class _Packed(io.RawIOBase):
    """A packed file, unpacked; damage is a ValueError on reading."""

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
    """Lines of UTF-8, unpacked if the name ends in .gz or .bz2; other bytes become U+FFFD. A line ends with `newline`,
    so that a carriage return alone is part of it; "": with any line end. Raises as `require_file`; ValueError when the
    reading reaches damage of a packed file."""
    if path.suffix in PACKED:
        binary: Any = io.BufferedReader(_Packed(path, PACKED[path.suffix](require_file(path))), 1 << 18)
    else:
        binary = require_file(path).open("rb")
    return io.TextIOWrapper(binary, encoding="utf-8-sig", errors="replace", newline=newline)  # type: ignore[arg-type]
