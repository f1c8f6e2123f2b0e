"""Read the tensors of a PyTorch file without PyTorch, and without running code of the file.

A `.pt`/`.pth` file is a pickle plus raw storages, and a pickle is a program. The unpickler here accepts only a short
list of names (`_ALLOWED`), each with a stand-in that can only rebuild an array. Three containers are known:

| container | object graph | storages |
| --- | --- | --- |
| zip, by `torch.save` since 1.6 | `<name>/data.pkl` | `<name>/data/<key>` |
| TorchScript, by `torch.jit.save` | the same; modules are objects of classes `__torch__...` | the same |
| legacy, by `torch.save` before 1.6 | five pickles in a row | after them, in the order of the fifth |

A tensor is (storage, offset, size, stride), all counted in elements; several may share one storage. Names of nested
dicts and module attributes are joined with dots ("extract.convs.0.weight"), other objects are left out, and a dict
under the key "state_dict" replaces the whole file, as in training checkpoints. A small file can claim much (expanded
storages, dicts that hold one another twice), so all that is made of it has budgets by its size.
"""

import itertools
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BufferedReader, BytesIO
from pathlib import Path
from re import fullmatch
from typing import Any

import ml_dtypes
import numpy as np

from common.io.files import in_place_of_data, require_file

_DTYPES = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_DEEPEST = 64  # nested modules; a pickle can also hold a loop
_BASE_BYTES, _BYTES_PER_BYTE = 64 << 20, 4  # of all tensors: at least, and for each byte of the file
_MOST_ENTRIES = 100_000  # of dicts and modules, each time it is met
_RESAVE = "re-save it as torch.save(model.state_dict(), 'weights.pth')"


def read_torch(path: str | Path) -> dict[str, np.ndarray]:
    """{dotted name: array} of every tensor in a PyTorch file, in the order of the file, dtypes as stored (bfloat16 as
    ml_dtypes'). The arrays are copies in C order, also of strided, expanded or shared tensors."""
    path = require_file(path)
    try:
        root = _read_zip(path) if zipfile.is_zipfile(path) else _read_legacy(path)
        if isinstance(root, Mapping) and isinstance(root.get("state_dict"), Mapping):
            root = root["state_dict"]
        tensors: dict[str, np.ndarray] = {}
        total = 0
        for name, view in _walk(root, "", _DEEPEST, itertools.count()):
            if name in tensors:
                raise _Refused(f"two tensors are called {name}; {_RESAVE}")
            if (total := total + view.nbytes) > _budget(path):
                raise _Refused(f"its tensors are of more than {_budget(path):,} bytes; {_RESAVE}")
            tensors[name] = np.array(view, order="C")
    except _Refused as error:
        raise ValueError(f"{path}: {error}") from error
    except Exception as error:  # a damaged pickle can fail with nearly any type
        if found := in_place_of_data(path):
            raise ValueError(f"{path}: expected a file of PyTorch, found {found}") from error
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path}: cut short, damaged or no PyTorch file ({reason}); {_RESAVE}") from error
    if not tensors:
        raise ValueError(f"{path}: holds no tensor; {_RESAVE}")
    return tensors


def _budget(path: Path) -> int:
    """Bytes that may become of a file."""
    return _BASE_BYTES + _BYTES_PER_BYTE * path.stat().st_size


class _Refused(ValueError):
    """A well-formed file that is not read; the text has the reason in one line."""


class _ScriptModule:
    """A TorchScript object of any class, reduced to the dict of its attributes."""

    __slots__ = ("attributes",)

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, Mapping) else {}


class _Unpickler(pickle.Unpickler):
    """Accepts `_ALLOWED` names only; `storage(dtype, key, size)` gives the flat array of a storage."""

    def __init__(self, file: BytesIO | BufferedReader, storage: Callable[[Any, str, int], np.ndarray]):
        super().__init__(file, encoding="utf-8")
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return _ScriptModule
        if module == "torch" and name in _DTYPES:
            return name
        if (module, name) in _ALLOWED:
            allowed = _ALLOWED[module, name]
            # A pickle can also set attributes of what it names: give it a function of its own.
            return allowed if isinstance(allowed, type) else lambda *args: allowed(*args)
        raise _Refused(f"refused to load: it asks for {module}.{name}, which is no tensor; {_RESAVE}")

    def persistent_load(self, pid: Any) -> np.ndarray:
        kind, storage_type, key, _location, size, *view = pid
        if kind != "storage" or storage_type not in _DTYPES or any(v is not None for v in view):
            raise _Refused(f"unknown kind of storage {pid!r}; {_RESAVE}")
        return self._storage(np.dtype(_DTYPES[storage_type]), str(key), int(size))


def _rebuild_tensor(storage: np.ndarray, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any):
    """A view, not a copy: the legacy container fills its storages after the tensors are rebuilt."""
    if not isinstance(storage, np.ndarray) or storage.ndim != 1 or not storage.flags.c_contiguous:
        raise ValueError("a tensor of something else than a storage")  # the size of an expanded tensor is not real
    if len(size) != len(stride) or min((offset, *size, *stride)) < 0:
        raise ValueError(f"tensor of size {size}, stride {stride}, offset {offset}")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 not in size and last >= storage.size:  # as_strided would read foreign memory
        raise ValueError(f"tensor ends at element {last} of a storage of {storage.size}")
    bytes_stride = [step * storage.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], size, bytes_stride, writeable=False)


def _first(value: Any, *_: Any) -> Any:
    return value


_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): tuple,
    ("torch", "device"): _first,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _first,
    ("torch._utils", "_rebuild_parameter_with_state"): _first,
    **{("torch.jit._pickle", f"build_{kind}list"): _first for kind in ("int", "double", "bool", "tensor")},
    ("torch.jit._pickle", "restore_type_tag"): _first,
}


def _load(file: BytesIO | BufferedReader, storage: Callable[[Any, str, int], np.ndarray]) -> Any:
    """The next pickle of a file."""
    start = file.tell()
    for code, value, _ in pickletools.genops(file):
        if code.name.endswith("PUT") and (value or 0) > file.tell() - start:  # fewer bytes before it than objects
            raise ValueError(f"a memo of {value} objects")
    file.seek(start)
    return _Unpickler(file, storage).load()


def _read_zip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        if sum(member.file_size for member in archive.infolist()) > _budget(path):
            raise _Refused(f"its members unpack to more than {_budget(path):,} bytes; {_RESAVE}")
        names = [name for name in archive.namelist() if fullmatch(r"([^/]+/)?data\.pkl", name)]
        if len(names) != 1:
            raise _Refused(f"a zip file without data.pkl, so not a PyTorch file; {_RESAVE}")
        folder = names[0].removesuffix("data.pkl")
        if f"{folder}byteorder" in archive.namelist() and archive.read(f"{folder}byteorder") != b"little":
            raise _Refused(f"written on a big-endian machine; {_RESAVE} on another one")
        shared: dict[tuple[str, Any], np.ndarray] = {}

        def storage(dtype: Any, key: str, size: int) -> np.ndarray:
            if (key, dtype) not in shared:
                shared[key, dtype] = np.frombuffer(archive.read(f"{folder}data/{key}"), dtype, count=size)
            return shared[key, dtype]

        return _load(BytesIO(archive.read(names[0])), storage)


def _read_legacy(path: Path) -> Any:
    size_of_file = path.stat().st_size
    storages: dict[str, np.ndarray] = {}

    def storage(dtype: Any, key: str, size: int) -> np.ndarray:
        if key not in storages:
            claimed = size * dtype.itemsize + sum(one.nbytes for one in storages.values())
            if not 0 <= claimed <= size_of_file:  # before memory is allocated
                raise ValueError(f"storages of {claimed} bytes in a file of {size_of_file} bytes")
            storages[key] = np.zeros(size, dtype)
        return storages[key]

    with path.open("rb") as file:
        magic, _protocol, system, root, keys = (_load(file, storage) for _ in range(5))
        if magic != _LEGACY_MAGIC:
            raise ValueError("not a PyTorch file by its first bytes")
        if not system["little_endian"]:
            raise _Refused(f"written on a big-endian machine; {_RESAVE} on another one")
        for key in keys:
            file.read(8)  # the number of elements, known from the graph
            if file.readinto(storages[key].view(np.uint8).data) != storages[key].nbytes:
                raise ValueError(f"the data of storage {key} end early")
    return root


def _walk(value: Any, name: str, depth: int, count: Iterator[int]) -> Iterator[tuple[str, np.ndarray]]:
    """Tensors of dicts and modules; lists are skipped (an optimiser has its groups in one)."""
    if next(count) > _MOST_ENTRIES:
        raise _Refused(f"more than {_MOST_ENTRIES:,} entries; {_RESAVE}")
    if isinstance(value, np.ndarray):
        yield name or "tensor", value
    children = getattr(value, "attributes", None) if isinstance(value, _ScriptModule) else value
    if isinstance(children, Mapping):
        if depth == 0:
            raise _Refused(f"modules nested deeper than {_DEEPEST} at {name}; {_RESAVE}")
        for key, child in children.items():
            yield from _walk(child, f"{name}.{key}" if name else str(key), depth - 1, count)
