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
| checksums.npy | uint32 | of each block of the files above, in turn; absent if each has one block alone |
| deleted-V.npy | uint8 [ceil(n / 8)] | one bit a row, set for those deleted at version V; absent while all are live |
| shard.json | | the manifest's entry of the shard, by which an interrupted build resumes |

A reader opens a file when it is asked for an array and closes it with the array, so a memory of a thousand shards
needs no thousand open files. A writer appends to files of a hidden folder, which gets its name at the end: RAM holds
the rows of one call, and a shard that can be seen is whole.

**Checksums.** A disk may give other bytes than it got. The manifest has the CRC-32C of each file, `checksums.npy` those
of its blocks of 64 KiB. A `Shard` compares each block that it reads, once, and anew if another file has got the name,
as after `reveal build --overwrite`; that takes some 10 microseconds a block. Larger files of a shard from before
2026-11-24, which has no `checksums.npy`, are one block each.
"""

import contextlib
import copy
import dataclasses
import functools
import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
from jaxtyping import Bool, Int

from common.io.files import atomic_folder, naming, sync
from reveal.memory.items import Item, pack
from reveal.memory.manifest import DTYPES, PAYLOAD, WRITTEN, Layout, ShardInfo

INFO, CHECKSUMS = "shard.json", "checksums.npy"
SHARD = 65536  # rows, unless a builder says otherwise
BLOCK = 2**16  # bytes of a checksum
HEADER = 128  # bytes, of an array of any length


class Shard:
    """A shard of a memory, to read. No file is read to make one.

    Raises FileNotFoundError for a missing file, ValueError for one of another size than the manifest and the layout
    say. Reading raises ValueError that names a file whose bytes have changed."""

    def __init__(self, folder: Path, info: ShardInfo, layout: Layout):
        self.folder, self.info, self._layout = folder / info.name, info, layout
        self._unread: dict[str, tuple[tuple[int, ...], np.ndarray]] = {}  # a file, and its blocks not compared yet
        types = _file_types(layout, info.rows)
        for name, (size, _) in info.files.items():
            path = self.folder / name
            if not path.is_file():
                raise FileNotFoundError(f"{path} is missing: the shard is damaged; copy the memory again")
            if (found := path.stat().st_size) != size:
                raise ValueError(f"{path} has {found} bytes, the manifest says {size}: copy the memory again")
            dtype, shape = types.get(name.removesuffix(".npy"), (None, ()))
            if dtype is not None and size != HEADER + dtype.itemsize * math.prod(shape):
                raise ValueError(f"{path} has {size} bytes, not those of {dtype}{list(shape)}: copy the memory again")

    def array(self, name: str, rows: Sequence[int] | Int[np.ndarray, " m"] | None = None) -> np.ndarray:
        """One of `ARRAYS`, mapped; the bytes of these rows (None: of all) are what was written."""
        dtype, shape = _file_types(self._layout, self.info.rows)[name]
        width = dtype.itemsize * math.prod(shape[1:])
        parts = () if rows is None else (HEADER + np.asarray(rows, np.int64) * width, width)
        array = np.frombuffer(self._read(f"{name}.npy", *parts), dtype, offset=HEADER).reshape(shape)
        if name in ("keys", "values"):
            return array.view(DTYPES[self._layout.key_dtype if name == "keys" else self._layout.value_dtype])
        return array

    def live(self) -> Bool[np.ndarray, " n"]:
        """Which rows are not deleted."""
        if self.info.deleted is None:
            return np.ones(self.info.rows, bool)
        bits = np.frombuffer(self._read(self.info.deleted), np.uint8, offset=HEADER)
        return ~np.unpackbits(bits, count=self.info.rows).astype(bool)

    def payloads(self, rows: Sequence[int] | Int[np.ndarray, " m"]) -> list[bytes]:
        rows = np.asarray(rows, np.int64)
        offsets = self.array("offsets", np.concatenate([rows, rows + 1]))
        start, stop = offsets[rows], offsets[rows + 1]
        blob = self._read(PAYLOAD, start, stop - start)
        return [blob[first:last] for first, last in zip(start.tolist(), stop.tolist(), strict=True)]

    def find(self, ids: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
        """The rows of the ids; -1 for those that are not here, or deleted."""
        own = self.array("ids")
        rows = np.minimum(np.searchsorted(own, ids), self.info.rows - 1)
        return np.where((own[rows] == ids) & self.live()[rows], rows, -1)

    def delete(self, rows: Int[np.ndarray, " m"], version: int) -> "Shard":
        """Writes that live rows are deleted from `version` on; the shard as that version has it."""
        live = self.live()
        live[rows] = False
        name = f"deleted-{version}.npy"
        with naming(self.folder / name), (self.folder / name).open("w+b") as file:
            np.save(file, np.packbits(~live))
            files = {key: value for key, value in self.info.files.items() if key != self.info.deleted}
            files[name], _ = _checksums(file)
        sync(self.folder / name, self.folder)
        counts = np.bincount(self.array("source")[live], minlength=len(self.info.counts)).tolist()
        shard = copy.copy(self)
        shard.info = dataclasses.replace(self.info, counts=tuple(counts), deleted=name, files=files)
        return shard

    def damaged(self) -> list[Path]:
        """Reads every file; returns those whose bytes have changed."""
        found = []
        for name, expected in self.info.files.items():
            with (self.folder / name).open("rb") as file:
                if _checksums(file)[0] != expected:
                    found.append(self.folder / name)
        return found

    def _read(self, name: str, start: Any = None, length: Any = 0) -> mmap.mmap:
        """A mapped file. Compares the blocks of these parts with their checksums first; `start` None: all blocks."""
        path, (size, crc) = self.folder / name, self.info.files[name]
        with path.open("rb") as file:  # `np.memmap` takes three times as long
            status = os.fstat(file.fileno())
            if (found := status.st_size) != size:
                raise ValueError(f"{path} has {found} bytes now, not {size}: copy the memory again")
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        block = BLOCK if size > BLOCK and name in WRITTEN and CHECKSUMS in self.info.files else size
        identity = status.st_dev, status.st_ino, status.st_ctime_ns
        if name not in self._unread or self._unread[name][0] != identity:
            self._unread[name] = identity, np.ones(-(-size // block), bool)
        unread = self._unread[name][1]
        if not unread.any():
            return data
        touched = unread
        if start is not None:
            begun = np.zeros(len(unread) + 1, np.int64)  # parts that begin in a block, less those that have ended
            np.add.at(begun, start // block, 1)
            np.add.at(begun, (start + length - 1) // block + 1, -1)
            touched = unread & (np.cumsum(begun[:-1]) > 0)
        expected = [crc] if block == size else self._block_checksums[name]
        for number in np.flatnonzero(touched).tolist():
            within = range(number * block, min((number + 1) * block, size), BLOCK)
            if functools.reduce(google_crc32c.extend, (data[at : at + BLOCK] for at in within), 0) != expected[number]:
                raise ValueError(f"{path} has changed since it was written: copy the memory again")
        unread[touched] = False
        return data

    @functools.cached_property
    def _block_checksums(self) -> dict[str, np.ndarray]:
        ends = np.cumsum([-(-self.info.files[name][0] // BLOCK) for name in WRITTEN])
        parts = np.split(np.frombuffer(self._read(CHECKSUMS), np.uint32, offset=HEADER), ends[:-1])
        return dict(zip(WRITTEN, parts, strict=True))


def stored_rows(
    layout: Layout,
    items: Sequence[Item],
    ids: Int[np.ndarray, " n"],
    version: int | Int[np.ndarray, " n"],
    keys: Any,
    values: Any,
) -> dict[str, np.ndarray]:
    """Columns of items with their keys [n k] and values [n c d]. Raises ValueError for other numbers or shapes of them,
    an unknown source, keys and values that are not finite in the layout's dtype, and as `pack`."""
    n = len(items)
    source = np.array([layout.number(item.source) for item in items], np.uint8)
    payloads = np.array([pack(item) for item in items], object)
    keys = _stored("keys", keys, (n, layout.key_dim), layout.key_dtype, ids)
    values = _stored("values", values, (n, *layout.value_shape), layout.value_dtype, ids)
    versions = np.broadcast_to(np.int32(version), n)
    return {"ids": ids, "source": source, "version": versions, "keys": keys, "values": values, "payloads": payloads}


class ShardWriter:
    """Appends rows to the files of a new shard, given empty by their names."""

    def __init__(self, files: Mapping[str, BinaryIO], layout: Layout):
        self._files, self._layout, self.rows = files, layout, 0
        self._first, self._last, self._blob, self._counts = 0, -1, 0, np.zeros(len(layout.sources), np.int64)
        self._write_headers()
        self._files["offsets.npy"].write(np.zeros(1, np.int64).tobytes())

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """Appends `stored_rows`; their ids rise, also from call to call."""
        ids, ends = rows["ids"], self._blob + np.cumsum([len(payload) for payload in rows["payloads"]], dtype=np.int64)
        assert len(ids) and self._last < ids[0] and (np.diff(ids) > 0).all()
        for name, (dtype, _) in _file_types(self._layout, len(ids)).items():
            column = ends if name == "offsets" else rows[name]
            self._files[f"{name}.npy"].write(np.ascontiguousarray(column, dtype).data)
        self._files[PAYLOAD].write(b"".join(rows["payloads"]))
        self._first = self._first if self.rows else int(ids[0])
        self.rows, self._last, self._blob = self.rows + len(ids), int(ids[-1]), int(ends[-1])
        self._counts += np.bincount(rows["source"], minlength=len(self._counts))

    def finish(self, folder: Path, name: str) -> ShardInfo:
        """Writes the headers and, into `folder`, the checksums; the manifest's entry of a shard called `name`."""
        self._write_headers()
        files, blocks = {}, []
        for file_name, file in self._files.items():
            files[file_name], own = _checksums(file)
            blocks += own
        if len(blocks) > len(files):
            with (folder / CHECKSUMS).open("w+b") as file:
                np.save(file, np.array(blocks, np.uint32))
                files[CHECKSUMS], _ = _checksums(file)
        self.info = ShardInfo(name, self.rows, self._first, self._last, tuple(self._counts.tolist()), None, files)
        return self.info

    def _write_headers(self) -> None:
        """Writes the headers of the arrays, twice: NumPy leaves room in them for any length."""
        for name, (dtype, shape) in _file_types(self._layout, self.rows).items():
            fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            self._files[f"{name}.npy"].seek(0)
            np.lib.format.write_array_header_1_0(self._files[f"{name}.npy"], fields)


@contextlib.contextmanager
def new_shard(folder: Path, name: str, layout: Layout) -> Iterator[ShardWriter]:
    """A writer. When the body ends well, the shard appears as `folder / name`, and the writer has its `info`."""
    with atomic_folder(folder / name, durable=True) as temporary, contextlib.ExitStack() as stack:
        writer = ShardWriter({one: stack.enter_context((temporary / one).open("w+b")) for one in WRITTEN}, layout)
        yield writer
        (temporary / INFO).write_text(json.dumps(vars(writer.finish(temporary, name))), "utf-8")


def _file_types(layout: Layout, rows: int) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Dtype and shape of each of `ARRAYS` in its file."""
    return {
        "keys": (_file_dtype(layout.key_dtype), (rows, layout.key_dim)),
        "values": (_file_dtype(layout.value_dtype), (rows, *layout.value_shape)),
        "ids": (np.dtype(np.int64), (rows,)),
        "source": (np.dtype(np.uint8), (rows,)),
        "version": (np.dtype(np.int32), (rows,)),
        "offsets": (np.dtype(np.int64), (rows + 1,)),
    }


def _file_dtype(dtype: str) -> np.dtype:
    return np.dtype(np.uint16 if dtype == "bfloat16" else DTYPES[dtype])


def _stored(name: str, array: Any, shape: tuple[int, ...], dtype: str, ids: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    if array.shape[:1] != shape[:1]:
        raise ValueError(f"{shape[0]} items, {name} are {list(array.shape)}: give one row for each item")
    if array.shape != shape:
        shapes = f"{name} are {list(array.shape)}, this memory's are {list(shape)}"
        raise ValueError(f"{shapes}: use the encoder it names, and load it again if another took its place")
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is an infinity, which is reported
        cast = array.astype(DTYPES[dtype], copy=False)
    finite = np.isfinite(cast.astype(np.float32, copy=False)).reshape(len(ids), -1).all(1)
    if not finite.all():
        raise ValueError(f"{name} of item {ids[~finite][0]} are not finite as {dtype}; nothing was written")
    return cast.view(_file_dtype(dtype))


def _checksums(file: BinaryIO) -> tuple[tuple[int, int], list[int]]:
    """(bytes, CRC-32C) of a file, and the CRC-32C of each block."""
    file.seek(0)  # and flush
    whole, blocks = 0, []
    while block := file.read(BLOCK):
        whole = google_crc32c.extend(whole, block)
        blocks.append(google_crc32c.value(block))
    return (file.tell(), whole), blocks
