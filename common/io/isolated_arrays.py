"""Arrays of MATLAB and HDF5 files, read in a process of their own.

scipy's reader of MATLAB files and the HDF5 library are C code that trusts what a file says of itself: a flipped bit can
crash Python, or ask for all memory. So a child process with limits of memory and processor time runs them, and hands
its arrays over in a safetensors file:

    python -m common.io.isolated_arrays matconvnet SOURCE TARGET
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from common.io.files import require_file

SECONDS, BYTES_PER_SECOND = 3, 50_000_000  # of processor time: of the libraries, and for the bytes of the file
BASE_BYTES, BYTES_PER_BYTE = 3 << 30, 4  # address space: of the libraries, and for each byte of the file


def read_isolated(kind: str, path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name; `kind` is a key of `READERS`. Raises FileNotFoundError, and ValueError for a file
    that the reader refuses, or that crashes it or breaks its limits."""
    path = require_file(path)
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "arrays"
        # -P: this package is imported from where it is now, not from the folder that the user is in
        command = [sys.executable, "-P", "-m", __name__, kind, str(path), str(target)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            late = done.returncode == -getattr(signal, "SIGXCPU", 0)
            ended = "it took too long for its size" if late else f"the reader crashed with {done.returncode}"
            reason = (done.stderr.strip() or ended).splitlines()[-1]
            raise ValueError(f"{path}: damaged, or not of the kind {kind} ({reason})")
        return load_file(target)


def matconvnet(path: Path) -> dict[str, np.ndarray]:
    """Kernels and biases of MatConvNet's `layers`, a row of structs, some with `weights`, {kernel, bias}; without
    fully connected layers."""
    from scipy.io import loadmat

    arrays = {}
    for cell in loadmat(path, variable_names=["layers"])["layers"].ravel():
        layer = cell[0, 0]
        name = str(layer["name"].item()) if "weights" in layer.dtype.names and layer["weights"].size else "fc"
        if not name.startswith("fc"):
            kernel, bias = layer["weights"].ravel()
            arrays |= {f"{name}.kernel": kernel, f"{name}.bias": bias.ravel()}
    return arrays


def hdf5(path: Path) -> dict[str, np.ndarray]:
    """All numeric datasets by path, but those of an optimiser."""
    import h5py

    items: dict[str, Any] = {}
    with h5py.File(path, "r") as file:
        file.visititems(items.__setitem__)
        sets = {
            name: item for name, item in items.items() if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiu"
        }
        return {name: np.asarray(item) for name, item in sets.items() if not name.startswith("optimizer")}


READERS = {"matconvnet": matconvnet, "hdf5": hdf5}


def main(kind: str, source: str, target: str) -> None:
    with contextlib.suppress(ImportError):
        import resource  # there is none on Windows

        size = Path(source).stat().st_size
        most, seconds = BASE_BYTES + BYTES_PER_BYTE * size, SECONDS + size // BYTES_PER_SECOND
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    try:
        save_file({name: np.ascontiguousarray(value) for name, value in READERS[kind](Path(source)).items()}, target)
    except Exception as error:  # a damaged file can fail with nearly any type
        raise SystemExit(str(error).partition("\n")[0] or type(error).__name__) from None


if __name__ == "__main__":
    main(*sys.argv[1:])
