"""Paths of weights and memories: the shipped ones (`reveal/weights/countries/`), or a user's. Needs no JAX."""

from __future__ import annotations

from pathlib import Path

from common.weights.remote import local

DATA = Path(__file__).parent / "weights" / "countries"
WEIGHTS, MEMORY = "weights.safetensors", "memory"


def weights(name: str | Path | None = None) -> Path:
    """The file of the shipped weights for None or their name, of a run's folder, of an address, or the path itself.
    Raises FileNotFoundError for a missing one, and as `common.weights.remote.local`."""
    if not is_shipped(name):
        path = local(str(name))
        path = path / WEIGHTS if path.is_dir() else path
        if not path.is_file():
            ways = f"a file, the folder of a run, hf:OWNER/NAME, or the shipped name {DATA.name}"
            raise FileNotFoundError(f"no weights {str(name)!r} ({path} is not there): give {ways}")
        return path
    if not (DATA / WEIGHTS).is_file():
        raise FileNotFoundError("no weights come with the program: name a file, or a run's folder, with --weights")
    return DATA / WEIGHTS


def memory(name: str | Path | None = None) -> Path:
    """The folder of the shipped memory for None or its name, else the path itself. Raises FileNotFoundError if nothing
    is shipped."""
    if not is_shipped(name):
        return Path(str(name))
    if not (DATA / MEMORY / "manifest.json").is_file():
        raise FileNotFoundError("no memory comes with the program: build one, and name it with --memory")
    return DATA / MEMORY


def is_shipped(name: str | Path | None) -> bool:
    """Whether it names what comes with the program; files and folders of the user come first."""
    return name is None or (str(name) == DATA.name and not Path(name).exists())
