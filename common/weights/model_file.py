"""Weights with their description: one safetensors file with all that is needed to rebuild the model.

The file holds the parameters under dotted names ("extractor.convs.0.kernel") and, in its header, `Metadata` as text.
There is no date: the same parameters, config and code give the same bytes. Reading compares the digest, and refuses NaN
and infinity.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import numpy as np

from common.io.files import atomic_output, check_output_file
from common.io.json_text import parse_json
from common.io.tensor_files import TensorFiles, check_digest, write_tensors
from common.weights.porting import Tree, all_finite, dtype_name, flatten, is_float

FORMAT_VERSION = 1
PROJECT = "film-plugins-reveal"


@dataclass(frozen=True)
class Metadata:
    """The header of a weights file; what is no text is JSON there."""

    kind: str  # of model, e.g. "film"
    config: dict[str, Any]  # the architecture's fields
    dtype: str  # of the stored floats: float32, float16, bfloat16, or mixed
    value_range: str  # of the images that the model takes and gives, "[0, 1]"
    git_commit: str  # of the code that wrote it, with "-dirty" if files had changed; or "unknown"
    libraries: dict[str, str]  # versions of jax, flax, numpy, safetensors
    created_by: str  # project and version
    metadata: dict[str, Any]  # of the caller (data, steps, scores)
    format_version: int = FORMAT_VERSION  # of this layout; a reader refuses a newer one
    sha256: str = ""  # of all that follows the header


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
    """Writes parameters (a pure nested dict, or flat by dotted names) to `path`, which it returns.

    `dtype` converts the float leaves (None keeps them). Raises ValueError for a leaf with (or, in float16, becoming)
    NaN or infinity, and a config or metadata that is not JSON."""
    check_output_file(path, overwrite)
    target = None if dtype is None else np.dtype(dtype_name(dtype))
    tensors = {name: _as_float(np.asarray(leaf, order="C"), target) for name, leaf in flatten(params).items()}
    if not tensors:
        raise ValueError("no parameters to save: the tree has no leaves")
    for name, value in tensors.items():
        if not all_finite(value):
            raise ValueError(f"{name} holds NaN or infinity as {value.dtype}; float16 ends at 65504: try bfloat16")
    dtypes = {value.dtype.name for value in tensors.values() if is_float(value.dtype)}
    try:
        version = packages.version(PROJECT)
    except packages.PackageNotFoundError:  # not installed
        version = "unknown"
    header = Metadata(
        kind=kind,
        config=dict(config),
        dtype=dtypes.pop() if len(dtypes) == 1 else "mixed",
        value_range="[0, 1]",
        git_commit=git_commit(),
        libraries={name: packages.version(name) for name in ("flax", "jax", "numpy", "safetensors")},
        created_by=f"{PROJECT} {version}",
        metadata=dict(metadata or {}),
    )
    try:  # safetensors stores text only
        encoder = json.JSONEncoder(sort_keys=True, allow_nan=False)
        text = {key: value if isinstance(value, str) else encoder.encode(value) for key, value in vars(header).items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"config and metadata must be JSON (finite numbers, text, lists): {error}") from error
    with atomic_output(path, overwrite, durable=True) as temporary:
        write_tensors(temporary, tensors, text)
    return Path(path)


def load_weights(path: str | Path, *, expect_kind: str | None = None) -> tuple[dict[str, np.ndarray], Metadata]:
    """Reads what `save_weights` wrote: ({dotted name: array}, header). Floats become float32. Raises ValueError for a
    damaged file, one of another program or a newer layout, or another kind than `expect_kind`."""
    files = TensorFiles(path)
    header, tensors = _from_text(files.metadata(), path), dict(files)
    if expect_kind is not None and header.kind != expect_kind:
        raise ValueError(f"{path}: weights of another model: kind is {header.kind!r}, not {expect_kind!r}")
    _check_tensors(Path(path), header.sha256, tensors)
    return {name: _as_float(value, np.float32) for name, value in sorted(tensors.items())}, header


@dataclass(frozen=True)
class Verified:
    """A file of which every tensor was read."""

    file: str
    tensors: int
    bytes: int
    sha256: str  # of the header, with which the tensors agree; "": the header has none

    def __str__(self) -> str:
        known = f"sha256 {self.sha256[:16]}... as written" if self.sha256 else "no sha256 to compare with"
        return f"{self.file}: {self.tensors:,} tensors, {self.bytes / 1e6:,.1f} MB, {known}, all numbers finite"


def verify_weights(path: Path) -> Iterator[Verified]:
    """Reads all of a safetensors file, or of those in a folder and below, ours or not.

    Raises FileNotFoundError; ValueError for tensors that are not of the digest in the header, if it has one, and for
    NaN and infinity."""
    files = sorted(path.rglob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"{path} holds no .safetensors file; name a file, or another folder")
    for file in files:
        tensors = TensorFiles(file)
        digest = tensors.metadata().get("sha256", "")
        _check_tensors(file, digest, tensors)
        yield Verified(str(file), len(tensors), file.stat().st_size, digest)


def _check_tensors(path: Path, digest: str, tensors: Mapping[str, np.ndarray]) -> None:
    check_digest(path, digest)
    for name, value in tensors.items():
        if not all_finite(value):
            raise ValueError(f"{path}: {name} holds NaN or infinity; copy or download it again")


def git_commit() -> str:
    """Commit of the checkout of this file, with "-dirty" if tracked files differ from it; "unknown" without git or a
    checkout, or if the file is installed inside another project's."""
    here = Path(__file__).resolve()
    tracked = ["git", "ls-files", "--error-unmatch", here.name]
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        for command in (tracked, describe):
            done = subprocess.run(command, cwd=here.parent, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip() or "unknown"


def _as_float(value: np.ndarray, dtype: Any) -> np.ndarray:
    if dtype is None or not is_float(value.dtype):
        return value
    with np.errstate(over="ignore"):  # `save_weights` checks the result
        return value.astype(dtype, copy=False)


def _from_text(text: Mapping[str, str], path: str | Path) -> Metadata:
    if "kind" not in text or "format_version" not in text:
        ways = "`film convert SRC DST` or `reveal convert SRC DST`"
        raise ValueError(f"{path}: not written by this project; published weights become ours by {ways}")
    fields: dict[str, Any] = {"sha256": "", **text}
    try:
        fields["format_version"] = version = int(text["format_version"])
        if version > FORMAT_VERSION:
            raise ValueError(f"format version {version} is newer than {FORMAT_VERSION}; update this program")
        for key in ("config", "libraries", "metadata"):
            fields[key] = parse_json(fields[key], key, dict)
        return Metadata(**{key: fields[key] for key in Metadata.__dataclass_fields__})
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: its header cannot be read or lacks an entry: {error}; save it again") from error
