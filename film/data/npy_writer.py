"""Write a NumPy array to disk item by item when nobody knows yet how many there will be.

The `.npy` format is a header that tells the shape, then the bytes. NumPy pads the header so that the first
axis may grow within it; so items are appended and the header is written again, in place, at the end. Readers
open the result with `np.load(path, mmap_mode="r")` and pay only for what they touch.
"""

from pathlib import Path

import numpy as np


class NpyWriter:
    """An `.npy` file that grows by `append`: its header keeps room for the count, filled in on leaving."""

    def __init__(self, path: Path) -> None:
        self._file, self._count, self._form = path.open("wb"), 0, None

    def __enter__(self) -> "NpyWriter":
        return self

    def append(self, array: np.ndarray) -> None:
        """Raises ValueError when shape or dtype differ from the first item's."""
        form = (array.dtype, array.shape)
        if self._form is None:
            self._form = form
            self._header()
        if form != self._form:
            raise ValueError(f"item {self._count} is {form}, the ones before are {self._form}: keep one shape")
        self._file.write(np.ascontiguousarray(array).data)
        self._count += 1

    def _header(self) -> None:
        dtype, shape = self._form or (np.dtype(np.uint8), ())
        fields = dict(descr=dtype.str, fortran_order=False, shape=(self._count, *shape))
        np.lib.format.write_array_header_1_0(self._file, fields)  # as long for any count

    def __exit__(self, *_: object) -> None:
        self._file.seek(0)
        self._header()
        self._file.close()
