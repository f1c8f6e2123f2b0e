"""The files that a path names: itself, those of a folder, or those that match a pattern, in natural order (9 < 10)."""

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

from natsort import natsorted

from common.io.files import require_file

BRACES = re.compile(r"\{([^{}]*)\}")


def files_of(path: str | Path, *suffixes: str) -> list[Path]:
    """The file; those of a folder that end in one of `suffixes`; or those of a pattern with `*` or braces. Raises
    FileNotFoundError if there are none, or one of the names in braces is missing."""
    path, text = Path(path), str(path)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [one for one in path.iterdir() if one.name.endswith(suffixes) and one.name[0] != "."]
    elif BRACES.search(text):
        names = expand(text)
        return [one for name in names for one in (files_of(name, *suffixes) if "*" in name else [require_file(name)])]
    else:
        found = [Path(one) for one in glob.glob(text)]  # noqa: PTH207, a pattern may begin anywhere
    if not found:
        what = " or ".join(suffixes)
        raise FileNotFoundError(f"{path}: no such file, and no {what} there; a pattern is x-{{00..09}} or *")
    return natsorted(found, key=str)


def expand(pattern: str) -> list[str]:
    """The names of a pattern with braces, as in a shell: {00..12} keeps its zeros, {a,b} lists."""
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


def walk(folder: Path, suffixes: tuple[str, ...], hidden: bool = False, leave: tuple[str, ...] = ()) -> Iterator[Path]:
    """Files with these suffixes in a folder and below, sorted within each folder; none if it is missing. Links are
    followed, but none into a folder that it is in. `hidden`: also names with a dot first; `leave`: subfolders of
    `folder` itself to skip."""

    def identity(path: str | Path) -> tuple[int, int]:
        status = os.stat(path)  # noqa: PTH116, called for every folder
        return status.st_dev, status.st_ino

    if not folder.is_dir():
        return
    above = {str(folder): frozenset([identity(folder)])}  # of each folder to come: itself and those that it is in
    for place, folders, names in os.walk(folder, followlinks=True):
        top, inside, kept = Path(place) == folder, above.pop(place), []
        for one in sorted(folders):
            if (hidden or one[0] != ".") and not (top and one in leave):
                path = os.path.join(place, one)  # noqa: PTH118, the key of `os.walk`
                if (own := identity(path)) not in inside:
                    above[path] = inside | {own}
                    kept.append(one)
        folders[:] = kept
        for name in sorted(names):
            if (hidden or name[0] != ".") and name.lower().endswith(suffixes):
                yield Path(place) / name
