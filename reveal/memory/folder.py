"""A memory's folder: its files, a lock on it, and how one memory takes another's place.

.lock           held by the program that builds or changes the memory
build.json      until a build is complete: what it is built of
manifest.json   since then (`manifest.py`)
encoder.json    where the published networks are that made it, if any (`cli/commands.py`)
v00001-00000/   shards (`shards.py`), by the version that wrote them and a number
faiss/          indexes (`engines/faiss_engine.py`): no manifest names them, and a missing one is made again
.partial-...    left by a writer that was killed
"""

import contextlib
import math
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

from common.io.files import HOST, remove_leftovers, sync, try_lock
from reveal.memory.manifest import NAME, WRITTEN
from reveal.memory.shards import CHECKSUMS, INFO

PAUSE = 0.05  # seconds between two tries to get the lock
LOCK, RECIPE, PARTIAL, ENCODER = ".lock", "build.json", ".partial-", "encoder.json"
SHARD_NAME, INDEXES = re.compile(r"v\d{5,}-\d{5,}"), "faiss"
INDEX = re.compile(r"((hnsw|ivfpq)-\d+|\.partial-.*)\.index")
IN_SHARD = "|".join(map(re.escape, (*WRITTEN, CHECKSUMS, INFO))) + r"|deleted-\d+\.npy"
OURS = re.compile(  # a file, or a folder with a slash at its end
    rf"{'|'.join(map(re.escape, (NAME, RECIPE, LOCK, ENCODER)))}|{re.escape(PARTIAL)}.*"
    rf"|{INDEXES}/({INDEX.pattern})?|{SHARD_NAME.pattern}/({IN_SHARD})?"
)


def shard_name(version: int, number: int) -> str:
    return f"v{version:05d}-{number:05d}"


class Busy(ValueError):
    """Another program holds the lock."""


class Lock:
    """The lock of a folder, or of the one that takes its place meanwhile, until it is closed or its program ends. A
    file system without locks keeps nobody out.

    Raises OSError that names the file, and `Busy` if another program, `doing` something ("building"), still holds it
    after `wait` seconds."""

    def __init__(self, folder: Path, doing: str, wait: int | float = 0):
        self._path, self._file = folder / LOCK, -1
        end = time.monotonic() + wait
        while not self._taken():
            if self._file < 0:  # the program that had it until now has removed it
                if not folder.is_dir():
                    raise Busy(f"another program was {doing} {folder} until now; try again")
                continue
            if time.monotonic() >= end:
                holder = os.read(self._file, 200).decode("utf-8", "replace") or "another program"
                self.close()
                raise Busy(f"{holder} is {doing} {folder}; try again when it is done, or --wait SECONDS")
            time.sleep(PAUSE)
        with contextlib.suppress(OSError):  # a full disk: others hear of "another program"
            os.ftruncate(self._file, 0)
            os.write(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode())

    def _taken(self) -> bool:
        """Whether the lock is held now. A file that no longer has this path is closed."""
        if self._file < 0:
            try:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            except OSError as error:
                raise type(error)(f"cannot write {self._path}: {error.strerror}; give a writable place") from error
        if not try_lock(self._file):
            return False
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._file), self._path.stat()):
                return True
        self.close()
        return False

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def remove(self) -> None:
        if self._file >= 0:
            self._path.unlink(missing_ok=True)
        self.close()

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def bytes_on_disk(folder: Path) -> int:
    """The size of all files in the folder and below; other programs may remove some meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += Path(place, name).stat().st_size
    return size


def remove_partial(folder: Path) -> None:
    for entry in os.scandir(folder):
        if entry.name.startswith(PARTIAL):
            shutil.rmtree(entry) if entry.is_dir() else Path(entry).unlink()


def remove_indexes(folder: Path) -> None:
    """Removes the saved indexes of a memory, and those being saved."""
    for path in (folder / INDEXES).glob("*.index"):
        with contextlib.suppress(OSError):  # open on Windows
            path.unlink()


def check_ours(folder: Path) -> None:
    """Raises FileExistsError if there is anything in the folder that no memory has; nothing is touched."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not OURS.fullmatch(f"{name}/" if path.is_dir() else name):
            raise FileExistsError(f"{folder} holds {name}, which is no memory's: give another folder")


def discard(folder: Path) -> None:
    """Removes a memory, finished or begun. Raises as `check_ours`, and `Busy` while another program builds it."""
    check_ours(folder)
    with Lock(folder, "building"):
        shutil.rmtree(folder)


def replace(old: Path, new: Path, waiting: Callable[[], None] = lambda: None) -> None:
    """Puts the memory `new` in the place of `old` when no program changes that any more; `waiting` is called if one
    does. Raises as `check_ours`."""
    check_ours(old)
    try:
        lock = Lock(old, "changing")
    except Busy:
        waiting()
        lock = Lock(old, "changing", wait=math.inf)
    with lock:
        remove_leftovers(old.parent)
        away = old.rename(old.with_name(f"{PARTIAL}{HOST}-{os.getpid()}-{secrets.token_hex(4)}"))
        try:
            new.rename(old)
        except BaseException:
            away.rename(old)
            raise
        sync(old.parent)
        shutil.rmtree(away, ignore_errors=True)
