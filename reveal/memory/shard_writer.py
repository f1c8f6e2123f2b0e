"""Writes shards (`shards.py` has the layout).

A writer appends to the files of a hidden folder; their headers get their lengths at the end, and the folder its name.
So RAM holds the rows of one call, and a shard that can be seen is whole. Beside its arrays lies `shard.json`, what the
manifest is going to say about it: an interrupted build goes on by it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int, Integer

from common.io.files import atomic_folder
from reveal.memory.manifest import DTYPES, Layout, ShardInfo
from reveal.memory.shards import ARRAYS, PAYLOAD, file_type, form, summary

INFO = "shard.json"


def stored(layout: Layout, ids: Int[np.ndarray, " n"], keys: Any, values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Keys [n k] and values [n c d] as the files hold them. Raises ValueError for another shape, and for numbers that
    are not finite, or not any more in the layout's dtype."""
    n = len(ids)
    return (
        _as_file("keys", keys, (n, layout.key_dim), layout.key_dtype, ids),
        _as_file("values", values, (n, *layout.value_shape), layout.value_dtype, ids),
    )


class ShardWriter:
    """Appends rows to a new shard in an empty folder."""

    def __init__(self, folder: Path, layout: Layout):
        self._layout, self.rows, self._blob = layout, 0, 0
        self._counts, self._first, self._last = [0] * len(layout.sources), 0, -1
        self._files: dict[str, BinaryIO] = {name: (folder / f"{name}.npy").open("w+b") for name in ARRAYS}
        self._files["payload"] = (folder / PAYLOAD).open("w+b")
        for name in ARRAYS:
            self._header(name)
        self._files["offsets"].write(np.zeros(1, np.int64).tobytes())

    def append(
        self,
        ids: Int[np.ndarray, " n"],
        source: Integer[np.ndarray, " n"],
        version: Integer[np.ndarray, " n"],
        keys: np.ndarray,
        values: np.ndarray,
        payloads: Sequence[bytes],
    ) -> None:
        """`ids` rise, also from call to call; keys and values are from `stored`."""
        n = len(ids)
        assert n and self._last < ids[0] and (np.diff(ids) > 0).all()
        arrays = {
            "keys": keys,
            "values": values,
            "ids": ids.astype(np.int64),
            "source": source.astype(np.uint8),
            "version": version.astype(np.int32),
            "offsets": self._blob + np.cumsum([len(payload) for payload in payloads], dtype=np.int64),
        }
        for name, array in arrays.items():
            self._files[name].write(np.ascontiguousarray(array).data)
        self._files["payload"].write(b"".join(payloads))
        self._first = self._first if self.rows else int(ids[0])
        self.rows, self._last, self._blob = self.rows + n, int(ids[-1]), int(arrays["offsets"][-1])
        for number, count in zip(*np.unique(source, return_counts=True), strict=True):
            self._counts[int(number)] += int(count)

    def finish(self, name: str) -> ShardInfo:
        """Writes the headers; the shard as the manifest will know it, called `name`."""
        files = {}
        for array, file in self._files.items():
            if array != "payload":
                self._header(array)
            file.flush()
            files[PAYLOAD if array == "payload" else f"{array}.npy"] = summary(file)
        return ShardInfo(name, self.rows, self._first, self._last, tuple(self._counts), None, files)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _header(self, name: str) -> None:
        """At the beginning of the file; NumPy leaves room for any length, so that it can be written twice."""
        shape, dtype = form(self._layout, name)
        rows = self.rows + (name == "offsets")
        fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, *shape)}
        self._files[name].seek(0)
        np.lib.format.write_array_header_1_0(self._files[name], fields)


@contextlib.contextmanager
def new_shard(folder: Path, name: str, layout: Layout) -> Iterator[ShardWriter]:
    """A writer; the shard appears as `folder / name`, with its `shard.json`, when the body has ended well."""
    with atomic_folder(folder / name) as temporary:
        writer = ShardWriter(temporary, layout)
        try:
            yield writer
            info = writer.finish(name)
        finally:
            writer.close()
        (temporary / INFO).write_text(json.dumps(dataclasses.asdict(info)), "utf-8")


def read_info(folder: Path) -> ShardInfo:
    """What `new_shard` left in the shard's folder. No shard without: it would not have got its name."""
    return ShardInfo.from_json(json.loads((folder / INFO).read_text("utf-8")))


def _as_file(name: str, array: Any, shape: tuple[int, ...], dtype: str, ids: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    if array.shape != shape:
        raise ValueError(f"{name} are {list(array.shape)}, this memory's are {list(shape)}; use the encoder it names")
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is an infinity, which is reported
        cast = array.astype(DTYPES[dtype], copy=False)
    finite = np.isfinite(cast.astype(np.float32, copy=False)).reshape(len(ids), -1).all(1)
    if not finite.all():
        raise ValueError(
            f"{name} of item {ids[~finite][0]} are not finite as {dtype}; nothing of this call was written"
        )
    return cast.view(file_type(dtype))
