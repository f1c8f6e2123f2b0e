"""From the name of weights to their file. Needs no JAX, and opens no more than a header.

The package ships weights as `film/weights/NAME/weights.safetensors`; a run's folder holds a file of the same name.
"""

from __future__ import annotations

from pathlib import Path

import safetensors

WEIGHTS = Path(__file__).parents[1] / "weights"
DEFAULT = "film-small"
FILE = "weights.safetensors"
HEADER_KEY = "format_version"  # in the header of our files, see common/weights/model_file.py


def names() -> list[str]:
    """Names of the shipped weights."""
    return sorted(path.parent.name for path in WEIGHTS.glob(f"*/{FILE}"))


def find(name_or_path: str | Path | None = None) -> Path:
    """The file of a shipped name, of a folder that holds `weights.safetensors`, or the path itself."""
    name = str(name_or_path or DEFAULT)
    path = WEIGHTS / name if name in names() else Path(name)
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(
            f"no weights {name!r}: give a .safetensors file, a run's folder or a shipped name ({', '.join(names())})"
        )
    return path


def is_ours(name_or_path: str | Path) -> bool:
    """Whether it names weights of this project: a shipped name, a folder with a weights file, or a .safetensors file
    without the header of another program."""
    path = Path(name_or_path)
    if str(name_or_path) in names() or (path / FILE).is_file():
        return True
    if path.suffix.lower() != ".safetensors":
        return False
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return HEADER_KEY in (file.metadata() or {})
    except (OSError, safetensors.SafetensorError):
        return True  # missing or damaged: `load` says so
