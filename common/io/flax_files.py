"""Parameters in the files of flax programs, without the programs: {name joined by "/": array}.

| file | written by |
| --- | --- |
| `x.npz` | big_vision, and vision_transformer before it |
| a folder with `checkpoint` and `target.*` | t5x: large arrays lie in the folder as zarr, a folder each |
| any other file | flax's and scenic's checkpoints, in msgpack |

Of a training state only the parameters are kept (`params`, or `target` of an optimiser); the prefix goes. Nothing is
unpickled.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from common.io.arrays import open_arrays
from common.io.files import require_file

INDEX = "checkpoint"  # of a t5x folder
PLACEHOLDER = "PLACEHOLDER://"  # what an index has instead of an array that lies in the folder
STATES = (("optimizer", "target"), ("target",), ("params",), ("opt", "target"))  # where parameters are, in this order


def read_flax(path: str | Path) -> dict[str, np.ndarray]:
    """All parameters. Raises FileNotFoundError; ValueError for a damaged file, and one without arrays."""
    path = Path(path)
    if path.suffix == ".npz":
        with open_arrays(path) as arrays:
            return {re.sub(r"^(opt/target/|target/|params/)", "", name): array for name, array in arrays.items()}
    from flax import serialization

    index = require_file(path / INDEX if path.is_dir() else path)
    try:
        state: Any = serialization.msgpack_restore(index.read_bytes())
    except Exception as error:  # msgpack's own errors have no common class
        raise ValueError(f"{index}: expected flax's checkpoint in msgpack, found something else ({error})") from error
    arrays = {}
    for name, value in _leaves(_parameters(state), ""):
        if isinstance(value, str) and value.startswith(PLACEHOLDER):
            value = _read_zarr(index.parent / value.removeprefix(PLACEHOLDER))
        if isinstance(value, np.ndarray) and value.dtype.kind != "O":
            arrays[name] = value
    if not arrays:
        raise ValueError(f"{index}: holds no arrays; name a checkpoint with parameters")
    return arrays


def _parameters(state: Any) -> Any:
    for names in STATES:
        inner = state
        for name in names:
            inner = inner.get(name) if isinstance(inner, Mapping) else None
        if isinstance(inner, Mapping):
            return _parameters(inner)
    return state


def _leaves(state: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(state, Mapping):
        yield prefix, state
    elif "driver" in state and isinstance(state.get("kvstore"), Mapping):
        yield prefix, PLACEHOLDER + Path(str(state["kvstore"].get("path", ""))).name
    else:
        for name, value in state.items():
            yield from _leaves(value, f"{prefix}/{name}" if prefix else str(name))


def _read_zarr(folder: Path) -> np.ndarray:
    import tensorstore

    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is missing: copy the whole checkpoint")
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(folder)}}
    return np.asarray(tensorstore.open(spec, read=True).result().read().result())
