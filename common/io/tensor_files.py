"""Tensors of one or several safetensors files, read one at a time.

`TensorFiles` is a lazy mapping from key to array: each look-up reads one tensor, so a network of 3.4 GB is converted
with one tensor in memory. Pages of a mapped file that were read count as the program's own until the mapping is
dropped, so it is dropped after every 4 MB (measured: 205 MB for a file of 200 MB, against 401).

`find_weights` finds the files of diffusers and transformers: `STEM.safetensors`, a variant (`STEM.fp16.safetensors`),
shards with an index (`STEM.safetensors.index[.fp16].json`). Pickles, which can run code, are refused there;
`open_folder` reads transformers' `pytorch_model.bin` too, by the restricted reader.

This project's weights are safetensors files whose header has the SHA-256 of all that follows it (`write_tensors`).
"""

import contextlib
import json
import os
import re
import struct
from collections.abc import Iterator, Mapping
from hashlib import file_digest
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from common.io.files import in_place_of_data, require_file
from common.io.json_text import parse_json

BUDGET = 4 * 2**20  # bytes read before a mapping is dropped
PICKLES = (".bin", ".ckpt", ".pt", ".pth", ".pkl")
VARIANTS = (None, "fp16", "bf16")  # in order of preference


class TensorFiles(Mapping[str, np.ndarray]):
    """{key: array} of the files, read on look-up; bfloat16 is ml_dtypes'.

    The constructor raises FileNotFoundError, and ValueError for a pickle, a file that is damaged, cut short or not
    safetensors, and a key in two of the files."""

    def __init__(self, *paths: str | Path):
        self._where: dict[str, Path] = {}
        self._sizes = {path: require_file(path).stat().st_size for path in map(Path, paths)}
        self._open: tuple[Path, Any] | None = None
        self._read = 0
        for path in map(Path, paths):
            keys = list(_open(path).keys())
            if twice := sorted(key for key in keys if key in self._where):
                raise ValueError(f"{path}: {len(twice)} keys lie in another shard too, {twice[0]} first; copy it again")
            self._where.update(dict.fromkeys(keys, path))

    def __getitem__(self, key: str) -> np.ndarray:
        value = self._handle(self._where[key]).get_tensor(key)
        self._read += value.nbytes
        if self._read > BUDGET:
            self._open, self._read = None, 0
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, key: object) -> bool:  # Mapping's own would read the tensor
        return key in self._where

    def shape(self, key: str) -> tuple[int, ...]:
        """Without reading the tensor."""
        return tuple(self._handle(self._where[key]).get_slice(key).get_shape())

    def metadata(self) -> dict[str, str]:
        """The last file's header."""
        return dict(self._handle(list(self._where.values())[-1]).metadata() or {}) if self._where else {}

    def check(self) -> None:
        """Raises ValueError for a file whose tensors are not of the SHA-256 in its header, if that has one."""
        for path in self._sizes:
            check_digest(path, (_open(path).metadata() or {}).get("sha256", ""))

    def _handle(self, path: Path) -> Any:
        if (found := path.stat().st_size) != self._sizes[path]:  # reading past its end would end the process (SIGBUS)
            raise ValueError(f"{path} has {found:,} bytes now, {self._sizes[path]:,} when it was opened: copy it again")
        if self._open is None or self._open[0] != path:
            self._open = (path, _open(path))
        return self._open[1]


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], text: Mapping[str, str]) -> None:
    """Writes a safetensors file with `text` and its digest in the header; equal arguments give equal bytes."""
    try:
        safetensors.numpy.save_file(dict(tensors), path, {**text, "sha256": "0" * 64})
    except safetensors.SafetensorError as error:
        if number := re.search(r"os error (\d+)", str(error)):  # a full disk, among others
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise
    with path.open("r+b") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        # sorted, since the library orders the text at random
        header["__metadata__"] = dict(sorted((header["__metadata__"] | {"sha256": digest_of(path)}).items()))
        data = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(data) <= length
        file.seek(8)
        file.write(data.ljust(length))


def digest_of(path: Path) -> str:
    """SHA-256, hexadecimal, of what follows the header of a safetensors file."""
    with path.open("rb") as file:
        file.seek(struct.unpack("<Q", file.read(8))[0], os.SEEK_CUR)
        return file_digest(file, "sha256").hexdigest()


def check_digest(path: Path, digest: str) -> None:
    """Raises ValueError unless `digest` is that of the file, or empty."""
    if digest and digest != digest_of(path):
        raise ValueError(f"{path}: damaged: its tensors have not the sha256 of its header; copy or download it again")


def find_weights(folder: Path, stem: str, variant: str | None = None) -> list[Path]:
    """The file, or the shards, of the network in `folder`; without `variant` full precision first."""
    for tag in VARIANTS if variant is None else (variant,):
        tag = f".{tag}" if tag else ""
        single, index = folder / f"{stem}{tag}.safetensors", folder / f"{stem}.safetensors.index{tag}.json"
        if single.exists():
            return [single]
        if index.exists():
            return _shards(index)
    expected = f"{stem}.{variant or '[fp16.]'}{'.' if variant else ''}safetensors"
    refuse_pickle(*sorted(folder.glob("*")), instead=f"expected {expected}; ")
    raise FileNotFoundError(f"{folder}: expected {expected} or its index; found {listing(folder)}")


def open_folder(folder: Path) -> Mapping[str, np.ndarray]:
    """The tensors of a transformers folder: `model.safetensors`, else `pytorch_model.bin`, whole or in shards. Raises
    as `find_weights`, and ValueError as `torch_file.read_torch`."""
    single, index = folder / "pytorch_model.bin", folder / "pytorch_model.bin.index.json"
    if any(folder.glob("model*.safetensors*")) or not (single.is_file() or index.is_file()):
        return TensorFiles(*find_weights(folder, "model"))
    from common.io.torch_file import read_torch

    tensors: dict[str, np.ndarray] = {}
    for path in [single] if single.is_file() else _shards(index):
        tensors |= read_torch(path)
    return tensors


def read_json(path: str | Path, kind: type = dict) -> Any:
    """The JSON object, or the value of another `kind`, in a file. Raises ValueError for anything else."""
    return parse_json(require_file(path).read_bytes(), path, kind)


def refuse_pickle(*paths: Path, instead: str = "") -> None:
    for path in paths:
        if path.suffix.lower() in PICKLES:
            way = "convert it to safetensors first (safetensors.torch.save_file), a pickle can run code"
            raise ValueError(f"{path.parent}: {instead}found the PyTorch pickle {path.name}; {way}")


def listing(folder: Path, most: int = 8) -> str:
    """Names in a folder, for a message."""
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    return (", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")) or "nothing"


@contextlib.contextmanager
def about(path: Path) -> Iterator[None]:
    """Put the path before the message of a ValueError that does not name it yet."""
    try:
        yield
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from error


def _shards(index: Path) -> list[Path]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ValueError(f"{index}: expected a weight_map of tensor names to files, found none; copy it again")
    files = sorted({str(name) for name in names.values()})
    if odd := [name for name in files if Path(name).name != name]:
        raise ValueError(f"{index}: expected names of files beside it, found {odd[0]!r}; copy it again")
    if missing := [name for name in files if not (index.parent / name).exists()]:
        raise FileNotFoundError(f"{index}: {len(missing)} missing: {', '.join(missing)}; copy them too")
    return [index.parent / name for name in files]


def _open(path: Path) -> Any:
    refuse_pickle(require_file(path))
    try:
        return safetensors.safe_open(path, framework="np")
    except safetensors.SafetensorError as error:
        found = in_place_of_data(path) or f"another format, or one cut short ({error})"
        raise ValueError(f"{path}: expected a safetensors file, found {found}; copy or download it again") from error
