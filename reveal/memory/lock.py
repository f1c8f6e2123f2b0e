"""One program at a time: a lock on a memory's folder. It goes with the program that holds it, killed or not."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK = ".lock"


class Busy(ValueError):
    """Another program holds the lock."""


class Lock:
    """The lock of a folder, held until it is closed.

    Args:
      folder: that is there.
      what: what is done to the folder, for the message: "building".
      wait: until the program that holds it is done.

    Raises:
      Busy: another program holds it.
    """

    def __init__(self, folder: Path, what: str, wait: bool = False):
        self._path, self._file = folder / LOCK, -1
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except (BlockingIOError, PermissionError) as error:
            self.close()
            raise Busy(f"another program is {what} {folder}; try again when it is done") from error
        if not os.fstat(self._file).st_nlink:  # removed by the program that had it until now
            self.close()
            raise Busy(f"another program was {what} {folder} until now; try again")

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def remove(self) -> None:
        """Closes it, and leaves no file."""
        if self._file >= 0:
            self._path.unlink(missing_ok=True)
        self.close()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
