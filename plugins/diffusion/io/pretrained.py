"""Where bases lie: from a name to a path, without opening anything. Needs no JAX.

The package ships a base as `plugins/weights/NAME/`, a pipeline's folder as diffusers saves it; its `model_index.json`
marks it as one.
"""

from __future__ import annotations

from pathlib import Path

WEIGHTS = Path(__file__).parents[2] / "weights"
DEFAULT = "diffusion-small"
INDEX = "model_index.json"  # lists a pipeline's components


def names() -> list[str]:
    """Names of the bases that come with the package."""
    return sorted(path.parent.name for path in WEIGHTS.glob(f"*/{INDEX}"))


def find(name_or_path: str | Path | None = None) -> Path:
    """The folder of a shipped name, or the path itself: a pipeline's folder or a single file. None: the default.

    Raises FileNotFoundError that lists the names.
    """
    wanted = DEFAULT if name_or_path is None else str(name_or_path)
    if wanted in names():
        return WEIGHTS / wanted
    path = Path(wanted)
    if name_or_path is not None and path.exists():
        return path
    shipped = ", ".join(names()) or "none is shipped"
    missing = "no base is named" if name_or_path is None else f"no base {wanted!r}"
    raise FileNotFoundError(
        f"{missing}: give a folder of diffusers, a single safetensors file, or a shipped name ({shipped})"
    )
