"""Paths of weights and memories: the shipped ones (`reveal/weights/countries/`), or a user's. Needs no JAX."""

from pathlib import Path

from common.weights.shipped import Shipped

DATA = Path(__file__).parent / "weights" / "countries"
WEIGHTS, MEMORY = "weights.safetensors", "memory"


def weights(name: str | Path | None = None) -> Path:
    """The shipped weights for None or their name, else the file of a run's folder or of an address, or the path itself.
    Raises FileNotFoundError for a missing one, and as `Shipped.find`."""
    if name is None and not (DATA / WEIGHTS).is_file():
        raise FileNotFoundError("no weights come with the program: name a file, or a run's folder, with --weights")
    path = Shipped(DATA.parent, WEIGHTS, DATA.name, "weights", "a file, the folder of a run").find(name)
    if path.is_dir() and not (path / WEIGHTS).is_file():
        raise FileNotFoundError(f"{path} has no {WEIGHTS}, which a run writes at its end: name another")
    return path / WEIGHTS if path.is_dir() else path


def memory(name: str | Path | None = None) -> Path:
    """The folder of the shipped memory for None or its name, else the path itself. Raises FileNotFoundError."""
    if not is_shipped(name):
        return Path(str(name))
    if not (DATA / MEMORY / "manifest.json").is_file():
        raise FileNotFoundError("no memory comes with the program: build one, and name it with --memory")
    return DATA / MEMORY


def is_shipped(name: str | Path | None) -> bool:
    """Whether it names what comes with the program; files and folders of the user come first."""
    return name is None or (str(name) == DATA.name and not Path(name).exists())
