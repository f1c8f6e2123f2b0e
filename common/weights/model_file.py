"""Weights that describe themselves: one safetensors file with what is needed to rebuild and judge the model.

The file holds the parameters under dotted names ("extractor.convs.0.kernel") and, in its header, as text:

| key | value |
| --- | --- |
| format_version | of this layout; a reader refuses a newer one |
| kind | which system the weights are of, e.g. "film" |
| config | the architecture's fields as JSON: enough to build the model |
| dtype | of the stored floats: float32, float16, bfloat16, or mixed |
| value_range | of the pictures the model takes and gives, "[0, 1]" |
| git_commit | of the code that wrote it, "-dirty" after it if files had changed; or "unknown" |
| libraries | versions of jax, flax, numpy, safetensors as JSON |
| created_by | project and version |
| metadata | whatever the caller adds (data, steps, scores), as JSON |

There is no date in it: the same parameters, config and code give the same bytes. Reading never unpickles.
"""

import json
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from common.io.files import atomic_output, check_output_file, require_file
from common.weights.porting import Tree, all_finite, flatten, is_float

FORMAT_VERSION = 1
PROJECT = "film-plugins-reveal"
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Metadata:
    """The header of a weights file; the fields are the table in the module's docstring."""

    kind: str
    config: dict[str, Any]
    dtype: str
    value_range: str
    git_commit: str
    libraries: dict[str, str]
    created_by: str
    metadata: dict[str, Any]
    format_version: int = FORMAT_VERSION


def save_weights(
    path: str | Path,
    params: Tree,
    *,
    kind: str,
    config: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write parameters (a pure nested dict, or flat by dotted names) to `path`; returns the path.

    `dtype` converts the float leaves (None keeps each as it is); integers and booleans are never converted.
    Raises FileExistsError unless `overwrite`, and ValueError for an unknown dtype, no parameters at all, a
    leaf that is (or becomes, in float16) NaN or infinite, and a config or metadata that JSON cannot hold."""
    check_output_file(path, overwrite)
    tensors = _tensors(params, dtype)
    header = Metadata(
        kind=kind,
        config=dict(config),
        dtype=_common_dtype(tensors),
        value_range="[0, 1]",
        git_commit=git_commit(),
        libraries={name: packages.version(name) for name in ("flax", "jax", "numpy", "safetensors")},
        created_by=f"{PROJECT} {_project_version()}",
        metadata=dict(metadata or {}),
    )
    data = _with_sorted_header(safetensors.numpy.save(tensors, metadata=_to_text(header)))
    with atomic_output(path, overwrite) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def load_weights(
    path: str | Path, *, expect_kind: str | None = None, dtype: str | None = "float32"
) -> tuple[dict[str, np.ndarray], Metadata]:
    """Read what `save_weights` wrote: ({dotted name: array}, header). Float leaves come back as `dtype`
    ("float32" by default, whatever the file stores; None keeps the stored one).

    Raises FileNotFoundError for a missing file, IsADirectoryError for a folder, and ValueError for a file
    that is damaged or no safetensors, weights of another program, of a newer layout, or of another kind
    than `expect_kind`; each in one line."""
    tensors, text = _read(Path(path))
    header = _from_text(text, path)
    if expect_kind is not None and header.kind != expect_kind:
        raise ValueError(
            f"{path}: weights of another model: kind is {header.kind!r}, not {expect_kind!r};"
            f" name a file of {expect_kind} weights"
        )
    target = None if dtype is None else _numpy_dtype(dtype)
    return {name: _as_float(value, target) for name, value in sorted(tensors.items())}, header


def git_commit() -> str:
    """Commit of the checkout that this very file belongs to, with "-dirty" if tracked files differ from it;
    "unknown" if there is no git, no checkout, or the file is only installed inside somebody else's."""
    here = Path(__file__).resolve()
    tracked = ["git", "ls-files", "--error-unmatch", here.name]
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        for command in (tracked, describe):
            done = subprocess.run(command, cwd=here.parent, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip() or "unknown"


def _tensors(params: Tree, dtype: str | None) -> dict[str, np.ndarray]:
    target = None if dtype is None else _numpy_dtype(dtype)
    tensors = {}
    for name, leaf in flatten(params).items():
        value = _as_float(np.asarray(leaf), target)
        if not all_finite(value):
            raise ValueError(
                f"{name} holds NaN or infinity as {value.dtype}; weights must be finite"
                " (float16 ends at 65504: try bfloat16 or float32)"
            )
        tensors[name] = np.asarray(value, order="C")
    if not tensors:
        raise ValueError("no parameters to save: the tree has no leaves")
    return tensors


def _numpy_dtype(name: str) -> Any:
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not known; choose one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _as_float(value: np.ndarray, dtype: Any) -> np.ndarray:
    if dtype is None or not is_float(value.dtype):
        return value
    with np.errstate(over="ignore"):  # the caller checks for what overflowed
        return value.astype(dtype, copy=False)


def _common_dtype(tensors: Mapping[str, np.ndarray]) -> str:
    names = {value.dtype.name for value in tensors.values() if is_float(value.dtype)}
    return names.pop() if len(names) == 1 else "mixed"


def _project_version() -> str:
    try:
        return packages.version(PROJECT)
    except packages.PackageNotFoundError:  # run from a folder that was never installed
        return "unknown"


def _to_text(header: Metadata) -> dict[str, str]:
    """safetensors keeps text only: a str stays as it is, all else becomes JSON."""
    try:
        return {
            key: value if isinstance(value, str) else json.dumps(value, sort_keys=True, allow_nan=False)
            for key, value in vars(header).items()
        }
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"config and metadata must be plain JSON values (finite numbers, text, lists): {error}"
        ) from error


def _from_text(text: Mapping[str, str], path: str | Path) -> Metadata:
    if "kind" not in text or "format_version" not in text:
        raise ValueError(f"{path}: not written by this project; use `film convert SRC DST` to make it so")
    fields = dict(text)
    try:
        version = int(fields["format_version"])
        if version > FORMAT_VERSION:
            raise ValueError(f"format version {version} is newer than {FORMAT_VERSION}; update this program")
        for key in ("config", "libraries", "metadata"):
            fields[key] = json.loads(fields[key])
            if not isinstance(fields[key], dict):
                raise ValueError(f"{key} is no JSON object")
        known = {key: fields[key] for key in Metadata.__dataclass_fields__}
        return Metadata(**{**known, "format_version": version})
    except KeyError as error:
        raise ValueError(f"{path}: its header lacks {error}; the file is damaged, save it again") from error
    except ValueError as error:
        raise ValueError(f"{path}: its header cannot be read: {error}") from error


def _with_sorted_header(data: bytes) -> bytes:
    """The library writes the header's text in a random order, so two runs would differ: sort it. Offsets in
    the header count from its end, so its length may change; spaces pad it to a multiple of 8."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    try:
        with safetensors.safe_open(require_file(path), framework="np") as file:
            return file.get_tensors(), dict(file.metadata() or {})
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file, or cut short: {error}") from error
