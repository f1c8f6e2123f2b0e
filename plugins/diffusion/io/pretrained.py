"""From the name of a base to its path, without opening anything or importing JAX.

The package ships a base as `plugins/weights/NAME/`, a diffusers folder with a `model_index.json`.
"""

from pathlib import Path

WEIGHTS = Path(__file__).parents[2] / "weights"
DEFAULT = "diffusion-small"
INDEX = "model_index.json"  # lists a pipeline's components


def names() -> list[str]:
    """Names of the shipped bases."""
    return sorted(path.parent.name for path in WEIGHTS.glob(f"*/{INDEX}"))


def find(name_or_path: str | Path | None = None) -> Path:
    """The folder of a shipped name, or the path itself; None: the default. Raises FileNotFoundError with the names."""
    wanted = DEFAULT if name_or_path is None else str(name_or_path)
    if wanted in names():
        return WEIGHTS / wanted
    path = Path(wanted)
    if name_or_path is not None and path.exists():
        return path
    shipped = ", ".join(names()) or "none is shipped"
    missing = "no base is named" if name_or_path is None else f"no base {wanted!r}"
    raise FileNotFoundError(f"{missing}: give a diffusers folder, a safetensors file, or a shipped name ({shipped})")
