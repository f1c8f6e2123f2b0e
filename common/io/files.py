"""Outputs that appear whole or not at all.

A program that stops half-way must not leave half an image under the final name, and one that runs twice must not
destroy the first result. So every writer of this project uses one of three context managers:

    with atomic_output("out/clip.mp4") as temporary:    # a hidden file in out/, renamed on success
        encode(temporary)
    with atomic_folder("out/frames") as temporary:      # a hidden folder in out/, renamed on success
        write_many(temporary)
    with workspace("out/clip.mp4", job, resume) as folder:    # out/.clip.mp4.part/, for work that may be resumed
        write_parts(folder)

Missing parents are created; on any exception, Ctrl-C included, they and the temporary are removed, and nothing else;
only a `workspace` may stay. An existing file is replaced only with ``overwrite=True``, an existing folder only when all
its files also have names that this writer gives. Errors are OSErrors of one line with the path.

A rename protects from programs that stop, not from a power cut: the disk may have the new name and not yet the bytes.
What cannot be made again in a minute (memories, weights) is written with ``durable=True``: bytes, then name, reach the
disk before the block ends (`sync`), which costs some milliseconds a file.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FRAME_PATTERN = r"frame_\d+\.png"
_CLEANED: set[Path] = set()
HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]  # in the names of temporary files
_JOB, _SHOWN = ".job", ".shown"  # files of a workspace: what it works for; the output that it made before the end


def check_output_file(path: str | Path, overwrite: bool = False) -> None:
    """Raises the errors of `atomic_output` early (FileExistsError, IsADirectoryError, other OSErrors); leaves
    no trace on disk."""
    target = _resolve(path)
    _check_file(target, overwrite)
    _check_writable(target)


def check_output_folder(path: str | Path, overwrite: bool = False, pattern: str = FRAME_PATTERN) -> None:
    """`check_output_file` for `atomic_folder`."""
    target = _resolve(path)
    _check_folder(target, overwrite, pattern)
    _check_writable(target)


def cache_folder() -> Path:
    """The user's cache folder of this project: compiled programs, downloads, converted weights."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "film-plugins-reveal"


def require_file(path: str | Path) -> Path:
    """`path` as a Path. Raises FileNotFoundError, IsADirectoryError; ValueError for an empty file."""
    path = Path(path)
    try:
        status = path.stat()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; check the name") from None
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder where one file is needed; name a file in it")
    if path.is_file() and status.st_size == 0:
        raise ValueError(f"{path} is empty (0 bytes); copy or download it again")
    return path


def in_place_of_data(path: Path) -> str:
    """What people often save in place of data, and the way out; "" for anything else."""
    with path.open("rb") as file:
        head = file.read(64).lstrip().lower()
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer (run `git lfs pull`)"
    page = head.startswith((b"<!doctype", b"<html"))
    return "a web page (download the file itself, on the hub .../resolve/... and not .../blob/...)" if page else ""


def contained(folder: str | Path, name: str) -> Path:
    """The file `name` of a folder or below, as data call it. Raises ValueError for one that lies elsewhere, by its name
    or by links; the folder itself may be one."""
    try:
        path, inside = Path(folder, name).resolve(), Path(folder).resolve()
        if path.is_symlink():  # Python 3.13 leaves a circle as it is, those before raise
            raise RuntimeError("its links lead in a circle")
    except (OSError, ValueError, RuntimeError) as error:  # NUL, links in a circle
        raise ValueError(f"{name!r} is no name of a file ({error})") from error
    if not path.is_relative_to(inside):
        raise ValueError(f"{name!r} leads out of {folder}; name the folder that holds the files")
    return Path(folder, name)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """The error of a full disk, which has no name when it comes from writing, gets this one."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync(*paths: Path) -> None:
    """Returns when the disk has these files, and the names in these folders. Raises OSError that names one."""

    def one(path: Path) -> None:
        if os.name == "nt":  # which syncs no folders, and only files that are open to write
            return
        with _plain_errors(path):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            except OSError as error:
                if error.errno != errno.EINVAL:  # of file systems that have nothing to sync there
                    raise
            finally:
                os.close(descriptor)

    with ThreadPoolExecutor(8) as pool:  # a disk writes side by side what is asked for side by side
        list(pool.map(one, paths))


@contextlib.contextmanager
def atomic_output(path: str | Path, overwrite: bool = False, durable: bool = False) -> Iterator[Path]:
    """Yields a hidden, empty file beside `path`, with its suffix, which becomes `path` when the body succeeds.

    A symbolic link is written through. `durable`: the module's last paragraph. Raises as `check_output_file`."""
    target = _resolve(path)
    _check_file(target, overwrite)
    with _beside(target, target.suffix, durable) as temporary:
        with _plain_errors(target):
            temporary.touch(exist_ok=False)
            mode = temporary.stat().st_mode
        yield temporary
        _check_file(target, overwrite)  # another program may have written it meanwhile
        temporary.chmod(mode)  # some writers replace it by a file that only its owner may read
        if durable:
            sync(temporary)
        temporary.replace(target)
        if durable:
            sync(target.parent)


@contextlib.contextmanager
def atomic_folder(
    path: str | Path, overwrite: bool = False, pattern: str = FRAME_PATTERN, durable: bool = False
) -> Iterator[Path]:
    r"""Yields a hidden, empty folder beside `path`, which becomes `path` when the body succeeds.

    `pattern` is a regular expression for the whole name of a file of this writer, such as ``r"frame_\d+\.png"``. With
    ``overwrite`` a folder that holds only such files stays: new files move in, stale ones are deleted. A folder with
    any other file raises FileExistsError. `durable`: the module's last paragraph, for a folder of files.
    """
    target = _resolve(path)
    _check_folder(target, overwrite, pattern)
    with _beside(target, durable=durable) as temporary:
        with _plain_errors(target):
            temporary.mkdir()
        yield temporary
        _check_folder(target, overwrite, pattern)
        names = {entry.name for entry in temporary.iterdir()}
        changed = target if target.exists() else target.parent
        if durable:
            sync(*temporary.iterdir(), temporary)
        if changed != target:
            temporary.replace(target)
        else:
            for name in sorted(names):
                (temporary / name).replace(target / name)
            for entry in target.iterdir():
                if entry.name not in names and _matches(entry, pattern):
                    entry.unlink()
        if durable:
            sync(changed)


@contextlib.contextmanager
def workspace(path: str | Path, job: str = "", resume: bool = False) -> Iterator[Path]:
    """Yields the hidden folder ``.NAME.part`` beside the output `path`, for the parts of a long job.

    `job` names the work, for instance by a hash of its inputs and options. With ``resume`` the parts that an earlier
    run of the same job left are there; without it they are removed first. The folder goes when the body succeeds. After
    an exception it stays if there is a `job` and any finished part: a name without a dot in front. Raises ValueError if
    the parts are of another job, FileExistsError if another process works on them or if the folder is not of this
    program, and OSErrors as `atomic_output`."""
    target = _resolve(path)
    folder = _workspace(target)
    with _parents(target):
        with _plain_errors(target):
            folder.mkdir(exist_ok=True)
        note = folder / _JOB
        if not note.exists() and any(folder.iterdir()):
            raise FileExistsError(f"{folder} is in the way and not of this program; move it or give another name")
        with _plain_errors(target):
            file = note.open("a+")
        with file:
            if not try_lock(file.fileno()):
                raise FileExistsError(f"{target} is being written by another process; wait, or give another name")
            file.seek(0)
            earlier = file.read()
            if resume and earlier and earlier != job:
                raise ValueError(f"{path}: its unfinished parts are of other inputs or options; start without resume")
            if not (resume and earlier):
                for entry in folder.iterdir():
                    if entry != note:
                        entry.unlink()
                file.truncate(0)
                file.write(job)
                file.flush()
            try:
                yield folder
            except BaseException:
                if not job or all(entry.name.startswith(".") for entry in folder.iterdir()):
                    shutil.rmtree(folder, ignore_errors=True)
                raise
            shutil.rmtree(folder, ignore_errors=True)


def try_lock(descriptor: int) -> bool:
    """Whether this process now holds the open file, until it is closed; another that holds it makes this False."""
    try:
        import fcntl  # there is none on Windows

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # some systems' EACCES
        return False
    except (ImportError, OSError):  # a file system without locks
        pass
    return True


def unfinished_job(path: str | Path) -> str:
    """The `job` of the `workspace` that a stopped run left for `path`; empty: there is none."""
    try:
        return (_workspace(_resolve(path)) / _JOB).read_text()
    except OSError:
        return ""


def finished_parts(path: str | Path) -> int:
    """How many finished parts the `workspace` of `path` holds."""
    folder = _workspace(_resolve(path))
    return sum(not entry.name.startswith(".") for entry in folder.iterdir()) if folder.is_dir() else 0


def move_into_place(temporary: Path, path: str | Path, overwrite: bool = False) -> None:
    """Renames a file of a `workspace` to its output. Raises as `check_output_file`."""
    target = _resolve(path)
    _check_file(target, overwrite)
    with _plain_errors(target):
        temporary.replace(target)


def mark_shown(path: str | Path) -> None:
    """Notes in the workspace of `path` that `path` now holds the part that was done: see `is_unfinished`."""
    target = _resolve(path)
    (_workspace(target) / _SHOWN).write_text(_identity(target))


def is_unfinished(path: str | Path) -> bool:
    """Whether `path` is the output, untouched since, of a job that was stopped and can be resumed."""
    target = _resolve(path)
    try:
        return (_workspace(target) / _SHOWN).read_text() == _identity(target)
    except OSError:
        return False


def _identity(target: Path) -> str:
    status = target.stat()
    return f"{status.st_ino} {status.st_mtime_ns}"


def _workspace(target: Path) -> Path:
    name = f".{target.name}.part"
    if len(os.fsencode(name)) > 255:
        name = f".{hashlib.sha256(os.fsencode(name)).hexdigest()}.part"
    return target.parent / name


def _check_file(target: Path, overwrite: bool) -> None:
    if not _exists(target):
        return
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; give the name of a file in it")
    if not target.is_file():
        raise OSError(f"{target} is not a regular file; give another output name")
    if not overwrite:
        raise FileExistsError(f"{target} exists; give another name or --overwrite (overwrite=True)")


def _check_folder(target: Path, overwrite: bool, pattern: str) -> None:
    if not _exists(target):
        return
    if not target.is_dir():
        raise NotADirectoryError(f"{target} is a file, not a folder; give another output name")
    with _plain_errors(target):
        entries = sorted(target.iterdir())
    if foreign := [entry.name for entry in entries if not _matches(entry, pattern)]:
        raise FileExistsError(f"{target} holds {foreign[0]!r}, which is not a frame; give an empty or a new folder")
    if entries and not overwrite:
        way = "give another name or --overwrite (overwrite=True)"
        raise FileExistsError(f"{target} holds {len(entries)} frames; {way}")


def _check_writable(target: Path) -> None:
    with _beside(target, keep=False) as temporary, _plain_errors(target):  # permission bits let root write anywhere
        temporary.touch(exist_ok=False)


def _matches(entry: Path, pattern: str) -> bool:
    return bool(re.fullmatch(pattern, entry.name)) and entry.is_file() and not entry.is_symlink()


def _exists(target: Path) -> bool:
    """Like Path.exists, but a parent that is a file, or a name too long for the disk, is an error."""
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


def remove_leftovers(folder: Path) -> None:
    """Removes what killed programs of this machine have left in a folder."""
    for entry in list(folder.iterdir()):
        if left := re.fullmatch(rf"\.partial-{HOST}-(\d+)-[0-9a-f]{{8}}(\.\w+)?", entry.name):
            import psutil  # 20 ms, when there is something left

            if not psutil.pid_exists(int(left[1])):
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)


@contextlib.contextmanager
def _beside(target: Path, suffix: str = "", durable: bool = False, keep: bool = True) -> Iterator[Path]:
    """A new name beside the target, on the same disk; what is there goes at the end, and the parents as of `_parents`.
    Leftovers of other programs are removed, once a folder."""
    folder = target.parent
    with _parents(target, keep, durable):
        if folder not in _CLEANED:
            _CLEANED.add(folder)
            remove_leftovers(folder)
        # without the stem of the target: a long name must stay within the limit of the disk
        temporary = folder / f".partial-{HOST}-{os.getpid()}-{secrets.token_hex(4)}{suffix}"
        try:
            with naming(target):
                yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True) if temporary.is_dir() else temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _parents(target: Path, keep: bool = True, durable: bool = False) -> Iterator[None]:
    """Creates the missing parents, and removes those again, if empty, on any exception or without `keep`."""
    made: list[Path] = []
    try:
        for folder in reversed([parent for parent in target.parents if not parent.exists()]):
            with _plain_errors(target), contextlib.suppress(FileExistsError):  # another process was faster
                folder.mkdir()
                made.append(folder)
        if durable:
            sync(*(folder.parent for folder in made))
        yield
        if keep:
            made.clear()
    finally:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def _plain_errors(target: Path) -> Iterator[None]:
    """Turns a system error into one line of the same class, with the output and the way out."""
    try:
        yield
    except FileNotFoundError as error:  # also what mkdir in /proc raises
        raise FileNotFoundError(f"cannot create {target}: {error.strerror}; give a folder that exists") from error
    except OSError as error:
        raise type(error)(f"cannot write {target}: {error.strerror or error}; give a writable place") from error
