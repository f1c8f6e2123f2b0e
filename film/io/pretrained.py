"""Where weights lie: from a name to a file, without opening more than a header. Needs no JAX.

The package ships weights as `film/weights/NAME/weights.safetensors`; a run's folder holds a file of the same name.
"""

from __future__ import annotations

from pathlib import Path

import safetensors

WEIGHTS = Path(__file__).parents[1] / "weights"
DEFAULT = "film-small"
FILE = "weights.safetensors"
OUR_MARK = "format_version"  # a key of our files' headers, see common/weights/model_file.py


def names() -> list[str]:
    """Names of the weights that come with the package."""
    return sorted(path.parent.name for path in WEIGHTS.glob(f"*/{FILE}"))


def find(name_or_path: str | Path | None = None) -> Path:
    """The file of a shipped name, or the path itself (a file, or a folder that holds `weights.safetensors`).

    Raises FileNotFoundError that lists the names.
    """
    wanted = name_or_path or DEFAULT
    if str(wanted) in names():
        return WEIGHTS / str(wanted) / FILE
    path = Path(wanted)
    if path.is_dir():
        path = path / FILE
    if not path.is_file():
        shipped_names = ", ".join(names()) or "none is shipped"
        raise FileNotFoundError(
            f"no weights {str(wanted)!r}: give a .safetensors file, a run's folder or a name ({shipped_names})"
        )
    return path


def is_ours(name_or_path: str | Path) -> bool:
    """Whether this should be read as our weights: a shipped name, a folder that holds one of ours, or a .safetensors
    file, unless its header shows that another program wrote it."""
    path = Path(name_or_path)
    if str(name_or_path) in names() or (path / FILE).is_file():
        return True
    return path.suffix.lower() == ".safetensors" and not _is_foreign(path)


def _is_foreign(path: Path) -> bool:
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return OUR_MARK not in (file.metadata() or {})
    except (OSError, safetensors.SafetensorError):
        return False  # missing or damaged: whoever reads it next says so
