"""A shard: some thousand items of a memory as plain arrays in a folder, mapped and never read whole.

| file | holds | |
| --- | --- | --- |
| keys.npy | [n k] | float32, float16, or bfloat16 as uint16 (.npy has no name for it; the manifest has) |
| values.npy | [n c d] | likewise |
| ids.npy | int64 [n] | rising, so that an item is found by bisection |
| source.npy | uint8 [n] | numbers of the layout's sources |
| version.npy | int32 [n] | of the memory when the row was written |
| offsets.npy | int64 [n + 1] | payload i is blob[offsets[i] : offsets[i + 1]] |
| payload.bin | bytes | the payloads, one after the other (`items.py`) |
| deleted-V.npy | uint8 [ceil(n / 8)] | one bit a row, set for those gone at version V; absent while all live |

A reader opens a file when it is asked for an array and lets it go with the array, so a memory of a thousand shards
needs no thousand open files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
from jaxtyping import Bool, Int

from reveal.memory.manifest import DTYPES, Layout, ShardInfo

ARRAYS = ("keys", "values", "ids", "source", "version", "offsets")
PAYLOAD = "payload.bin"
CHUNK = 2**20  # bytes read at a time where a whole file is


class Shard:
    """A shard of a memory, to read.

    Raises (when it is made): FileNotFoundError for a file that is missing; ValueError for one of another size or shape
    than the manifest says. Only headers are read; `verify` reads all."""

    def __init__(self, folder: Path, info: ShardInfo, layout: Layout):
        self.folder, self.info, self._layout = folder / info.name, info, layout
        for name, (size, _) in info.files.items():
            path = self.folder / name
            if not path.is_file():
                raise FileNotFoundError(f"{path} is missing: the shard is damaged; copy the memory again")
            if (found := path.stat().st_size) != size:
                raise ValueError(f"{path} has {found} bytes, the manifest says {size}: copy the memory again")
        for name in ARRAYS:
            rows = info.rows + (name == "offsets")
            shape, dtype = form(layout, name)
            array = self._array(name)
            if array.shape != (rows, *shape) or array.dtype != dtype:
                said = f"{dtype}{[rows, *shape]}"
                raise ValueError(
                    f"{self.folder / name}.npy holds {array.dtype}{list(array.shape)}, not {said}: copy it"
                )

    @property
    def keys(self) -> np.ndarray:
        """[n k], mapped."""
        return self._array("keys").view(DTYPES[self._layout.key_dtype])

    @property
    def values(self) -> np.ndarray:
        """[n c d], mapped."""
        return self._array("values").view(DTYPES[self._layout.value_dtype])

    @property
    def ids(self) -> Int[np.ndarray, " n"]:
        return self._array("ids")

    @property
    def source(self) -> np.ndarray:
        return self._array("source")

    @property
    def version(self) -> np.ndarray:
        return self._array("version")

    def live(self) -> Bool[np.ndarray, " n"]:
        """Which rows are not deleted."""
        if self.info.deleted is None:
            return np.ones(self.info.rows, bool)
        bits = np.load(self.folder / self.info.deleted, allow_pickle=False)
        return ~np.unpackbits(bits, count=self.info.rows).astype(bool)

    def payloads(self, rows: Sequence[int] | Int[np.ndarray, " m"]) -> list[bytes]:
        offsets, blob = self._array("offsets"), None
        if self.info.files[PAYLOAD][0]:
            blob = np.memmap(self.folder / PAYLOAD, np.uint8, "r")
        return [b"" if blob is None else blob[offsets[row] : offsets[row + 1]].tobytes() for row in rows]

    def find(self, ids: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
        """The rows of the ids; -1 for those that are not here, or deleted."""
        own = self.ids
        rows = np.minimum(np.searchsorted(own, ids), self.info.rows - 1)
        return np.where((own[rows] == ids) & self.live()[rows], rows, -1)

    def verify(self) -> None:
        """Reads every file. Raises ValueError that names one whose bytes have changed."""
        for name, (_, crc) in self.info.files.items():
            with (self.folder / name).open("rb") as file:
                if summary(file)[1] != crc:
                    raise ValueError(f"{self.folder / name} has changed since it was written: copy the memory again")

    def _array(self, name: str) -> Any:
        try:
            return np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{self.folder / name}.npy is damaged ({error}): copy the memory again") from error


def tombstones(shard: Shard, rows: Int[np.ndarray, " m"], version: int) -> ShardInfo:
    """Writes that `rows`, live until now, are gone from `version` on; the shard as the manifest will know it."""
    live = shard.live()
    live[rows] = False
    name = f"deleted-{version}.npy"
    with (shard.folder / name).open("w+b") as file:
        np.save(file, np.packbits(~live))
        file.flush()
        written = summary(file)
    counts = np.bincount(shard.source[live], minlength=len(shard.info.counts))
    files = {key: value for key, value in shard.info.files.items() if key != shard.info.deleted}
    info = shard.info
    named = {**files, name: written}
    return ShardInfo(info.name, info.rows, info.first, info.last, tuple(counts.tolist()), name, named)


def form(layout: Layout, name: str) -> tuple[tuple[int, ...], Any]:
    """Shape of a row, and dtype, of an array of a shard."""
    return {
        "keys": ((layout.key_dim,), file_type(layout.key_dtype)),
        "values": (tuple(layout.value_shape), file_type(layout.value_dtype)),
        "ids": ((), np.dtype(np.int64)),
        "source": ((), np.dtype(np.uint8)),
        "version": ((), np.dtype(np.int32)),
        "offsets": ((), np.dtype(np.int64)),
    }[name]


def summary(file: BinaryIO) -> tuple[int, int]:
    """(bytes, CRC-32C) of a file."""
    file.seek(0)
    crc, size = google_crc32c.Checksum(), 0
    while chunk := file.read(CHUNK):
        crc.update(chunk)
        size += len(chunk)
    return size, int.from_bytes(crc.digest(), "big")


def file_type(dtype: str) -> Any:
    return np.dtype(np.uint16) if dtype == "bfloat16" else np.dtype(DTYPES[dtype])
