"""Outputs that appear whole or not at all.

A program that dies half-way must not leave half a picture under the final name, and one that runs twice must
not eat the first result. So every writer of this project goes through one of two context managers:

    with atomic_output("out/clip.mp4") as temporary:    # a hidden file in out/, renamed on success
        encode(temporary)
    with atomic_folder("out/frames") as temporary:      # a hidden folder in out/, renamed on success
        write_many(temporary)

Stages: check the target -> create missing parents -> create the temporary beside the target (same disk, so
that the rename is one atomic step) -> run the body -> rename. When anything is raised, Ctrl-C included, the
temporary and the parents made for it are removed again, and nothing else.

Checks happen by doing: permission bits let root write everywhere, yet not in /proc or on a read-only disk.
Every refusal is an OSError of one line that names the path. An existing file gives way only with
``overwrite=True``, an existing folder only when it also holds nothing but files that this writer would make.
"""

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

FRAME_PATTERN = r"frame_\d+\.png"


def check_output_file(path: str | Path, overwrite: bool = False) -> None:
    """Refuse early what `atomic_output` would refuse later; leaves no trace on disk.

    Raises: FileExistsError (exists; the message tells ``--overwrite``), IsADirectoryError, other OSErrors.
    """
    target = _resolve(path)
    _refuse_file(target, overwrite)
    _rehearse(target)


def check_output_folder(path: str | Path, overwrite: bool = False, pattern: str = FRAME_PATTERN) -> None:
    """Refuse early what `atomic_folder` would refuse later; leaves no trace on disk."""
    target = _resolve(path)
    _refuse_folder(target, overwrite, pattern)
    _rehearse(target)


def require_file(path: str | Path) -> Path:
    """`path` as a Path, if it is a file with something in it.

    Raises: FileNotFoundError, IsADirectoryError; ValueError for an empty file.
    """
    path = Path(path)
    try:
        status = path.stat()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; check the name") from None
    except OSError as error:
        raise type(error)(f"cannot read {path}: {error.strerror}; check the name and its permissions") from error
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder where one file is needed; name a file in it")
    if path.is_file() and status.st_size == 0:
        raise ValueError(f"{path} is empty (0 bytes); copy or download it again")
    return path


@contextlib.contextmanager
def atomic_output(path: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a hidden, empty file beside `path`, with its suffix; it becomes `path` when the body ends well.

    A symbolic link is written through. Raises: as `check_output_file`.
    """
    target = _resolve(path)
    _refuse_file(target, overwrite)
    with _parents(target):
        temporary = _temporary(target)
        with _plain_errors(target):
            temporary.touch(exist_ok=False)
            mode = temporary.stat().st_mode
        try:
            yield temporary
            _refuse_file(target, overwrite)  # somebody may have written it while we computed
            temporary.chmod(mode)  # some writers put a file of their own in its place, for its owner alone
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def atomic_folder(path: str | Path, overwrite: bool = False, pattern: str = FRAME_PATTERN) -> Iterator[Path]:
    r"""Yield a hidden, empty folder beside `path`; it becomes `path` when the body ends well.

    `pattern` is a regular expression for the whole name of a file that this writer makes, such as
    ``r"frame_\d+\.png"``. With ``overwrite`` a folder that holds only such files stays: new files move in,
    stale ones go. A foreign file is never deleted: its presence is a FileExistsError.
    """
    target = _resolve(path)
    _refuse_folder(target, overwrite, pattern)
    with _parents(target):
        temporary = _temporary(target, suffix="")
        with _plain_errors(target):
            temporary.mkdir()
        try:
            yield temporary
            _refuse_folder(target, overwrite, pattern)
            _install(temporary, target, pattern)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)  # everything in it is ours
            raise


def _install(temporary: Path, target: Path, pattern: str) -> None:
    if not target.exists():
        temporary.replace(target)
        return
    fresh = {entry.name for entry in temporary.iterdir()}
    for name in sorted(fresh):
        (temporary / name).replace(target / name)
    for entry in target.iterdir():
        if entry.name not in fresh and _is_ours(entry, pattern):
            entry.unlink()
    temporary.rmdir()


def _refuse_file(target: Path, overwrite: bool) -> None:
    if not _exists(target):
        return
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; give the name of a file in it")
    if not target.is_file():
        raise OSError(f"{target} is not a regular file; give another output name")
    if not overwrite:
        raise FileExistsError(f"{target} exists; give another name or --overwrite (overwrite=True)")


def _refuse_folder(target: Path, overwrite: bool, pattern: str) -> None:
    if not _exists(target):
        return
    if not target.is_dir():
        raise NotADirectoryError(f"{target} is a file, not a folder; give another output name")
    with _plain_errors(target):
        entries = sorted(target.iterdir())
    foreign = [e.name for e in entries if not _is_ours(e, pattern)]
    if foreign:
        raise FileExistsError(
            f"{target} holds {foreign[0]!r}, which is not one of the frames this command writes; "
            "nothing was touched: give an empty or a new folder"
        )
    if entries and not overwrite:
        raise FileExistsError(
            f"{target} holds {len(entries)} frames already; give another name or --overwrite (overwrite=True)"
        )


def _is_ours(entry: Path, pattern: str) -> bool:
    return bool(re.fullmatch(pattern, entry.name)) and entry.is_file() and not entry.is_symlink()


def _exists(target: Path) -> bool:
    """Like Path.exists, but a parent that is a file, or a name too long for the disk, is an error at once."""
    with _plain_errors(target):
        try:
            target.lstat()
        except FileNotFoundError:
            return False
    return True


def _resolve(path: str | Path) -> Path:
    if not str(path) or "\0" in str(path):
        raise ValueError(f"{str(path)!r} is no output name; give the name of a file or a folder")
    with _plain_errors(Path(path)):
        return Path(os.path.realpath(path))


def _temporary(target: Path, suffix: str | None = None) -> Path:
    # Not the target's stem: a long name must stay within the disk's limit. The number tells whose it is.
    suffix = target.suffix if suffix is None else suffix
    return target.parent / f".partial-{os.getpid()}-{secrets.token_hex(4)}{suffix}"


def _make_parents(target: Path) -> list[Path]:
    """Create the missing parent folders; the ones made, outermost first."""
    made: list[Path] = []
    try:
        for folder in reversed([p for p in target.parents if not p.exists()]):
            with _plain_errors(target), contextlib.suppress(FileExistsError):  # somebody else was quicker
                folder.mkdir()
                made.append(folder)
    except BaseException:
        _remove_empty(made)
        raise
    return made


def _remove_empty(folders: list[Path]) -> None:
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def _parents(target: Path) -> Iterator[None]:
    """Create the missing parents; on any exception remove those again, and only those, and only if empty."""
    made = _make_parents(target)
    try:
        yield
    except BaseException:
        _remove_empty(made)
        raise


def _rehearse(target: Path) -> None:
    """Create and remove a temporary where the output will go, and its parents with it."""
    made = _make_parents(target)
    try:
        temporary = _temporary(target)
        with _plain_errors(target):
            temporary.touch(exist_ok=False)
            temporary.unlink()
    finally:
        _remove_empty(made)


@contextlib.contextmanager
def _plain_errors(target: Path) -> Iterator[None]:
    """Turn a system error into one of the same class whose single line names the output and the way out."""
    try:
        yield
    except FileNotFoundError as error:  # also what /proc answers to mkdir
        raise FileNotFoundError(f"cannot create {target}: {error.strerror}; give a folder that exists") from error
    except OSError as error:
        message = f"cannot write {target}: {error.strerror or error}; give a place where you may write"
        raise type(error)(message) from error
