"""A memory's folder as files: how large it is, whether all of it is ours, and how one takes another's place."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from reveal.memory.builder import RECIPE
from reveal.memory.lock import LOCK, Busy, Lock
from reveal.memory.manifest import NAME
from reveal.memory.shard_writer import INFO
from reveal.memory.shards import ARRAYS, PAYLOAD

SHARD_NAME = re.compile(r"v\d{5,}-\d{5,}")
TOMBSTONES = re.compile(r"deleted-\d+\.npy")
PARTIAL = ".partial-"  # what a writer that was killed left
IN_FOLDER, IN_SHARD = (NAME, RECIPE, LOCK), (*(f"{name}.npy" for name in ARRAYS), PAYLOAD, INFO)


def bytes_on_disk(folder: Path) -> int:
    """Of all files in the folder and below."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def check_ours(folder: Path) -> None:
    """Raises FileExistsError if there is anything in the folder that no memory has; nothing is touched."""
    for entry in sorted(folder.iterdir()):
        if entry.name in IN_FOLDER or entry.name.startswith(PARTIAL):
            continue
        inside = sorted(entry.iterdir()) if entry.is_dir() and SHARD_NAME.fullmatch(entry.name) else [entry]
        foreign = [file for file in inside if file.name not in IN_SHARD and not TOMBSTONES.fullmatch(file.name)]
        if foreign or entry in inside:
            raise FileExistsError(
                f"{folder} holds {(foreign or inside)[0].relative_to(folder)}, which is no memory's; nothing was"
                " touched: give another folder"
            )


def discard(folder: Path) -> None:
    """Removes a memory, finished or begun. Raises as `check_ours`, and `Busy` while another program builds it."""
    check_ours(folder)
    with Lock(folder, "building"):
        shutil.rmtree(folder)


def replace(old: Path, new: Path, waiting: Callable[[], None] = lambda: None) -> None:
    """Puts the memory `new` in the place of `old`, when no program changes that any more; `waiting` is called if one
    does. Raises as `check_ours`."""
    check_ours(old)
    try:
        lock = Lock(old, "changing")
    except Busy:
        waiting()
        lock = Lock(old, "changing", wait=True)
    with lock:
        away = Path(tempfile.mkdtemp(prefix=".replaced-", dir=old.parent))
        old.rename(away / old.name)
        try:
            new.rename(old)
        except BaseException:
            (away / old.name).rename(old)
            away.rmdir()
            raise
        shutil.rmtree(away)
