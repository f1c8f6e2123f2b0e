"""Arrays in .npy and .npz files, read without pickles."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from common.io.files import require_file


@contextlib.contextmanager
def open_arrays(path: str | Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays of an .npz by name, each read at its look-up; the array of an .npy has the name "".
    Raises FileNotFoundError; ValueError for whatever cannot be read, also inside the block: a damaged file, a pickled
    object, a missing name."""
    path = require_file(path)
    try:
        with path.open("rb") as file:  # NumPy would leave its own open where an archive is damaged
            loaded = np.load(file, allow_pickle=False)
            with contextlib.nullcontext({"": loaded}) if isinstance(loaded, np.ndarray) else loaded as arrays:
                yield arrays
    except Exception as error:  # a damaged header or archive fails with nearly any type
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise ValueError(f"{path} has no such plain arrays ({reason}); write it again with NumPy") from error


def mapped(path: str | Path) -> np.ndarray:
    """The array of an .npy, left on the disk until it is read; ask `check_whole` before. Raises as `open_arrays`."""
    path = require_file(path)
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:
        raise ValueError(f"{path} is no plain array ({' '.join(str(error).split())[:100]}); write it again") from error


def check_whole(array: np.ndarray) -> None:
    """Raises ValueError if the file of a `mapped` array has become shorter: reading there would end the process
    (SIGBUS)."""
    path = getattr(array, "filename", None)
    if path is not None and Path(path).stat().st_size < array.offset + array.nbytes:  # type: ignore[attr-defined]
        raise ValueError(f"{path} became shorter while it was in use; copy it again")
