"""From the name of weights to their file. Opens no more than a header, and needs no JAX but to convert.

The package ships weights as `film/weights/NAME/weights.safetensors`; a run's folder holds a file of the same name. An
address (`common.weights.remote`) is downloaded. Weights of another program, such as the published SavedModels and the
PyTorch port's file, are converted once and kept in the user's cache folder.
"""

import dataclasses
import hashlib
from pathlib import Path

import safetensors

from common.io.files import cache_folder
from common.weights.shipped import Shipped
from film.config import FilmConfig

FILE = "weights.safetensors"
SHIPPED = Shipped(Path(__file__).parents[1] / "weights", FILE, "film-small-style", "weights", "a file, a run's folder")
HEADER_KEY = "format_version"  # in the header of our files, see common/weights/model_file.py
FOREIGN = (".safetensors", ".pt", ".pth")  # and the folders of TensorFlow


def find(name_or_path: str | Path | None = None, config: FilmConfig | None = None) -> Path:
    """The file that a path, a folder, a shipped name or an address gives (`Shipped.find`); of another program's
    weights, that of the converted ones, of the shape `config` (None: the published one). Raises as
    `film.porting.read_reference`."""
    path = SHIPPED.find(name_or_path, pickles=True)
    if path.is_dir():
        files = [one for one in sorted(path.iterdir()) if one.suffix.lower() in FOREIGN]
        path = path / FILE if (path / FILE).is_file() else files[0] if len(files) == 1 else path
    tensorflow = path.is_dir() and (any(path.glob("*.pb")) or any(path.glob("*.index")))
    if not (path.is_file() or tensorflow):
        raise FileNotFoundError(f"{path} has no {FILE}, which a run writes at its end: name another")
    return path if is_ours(path) else _converted(path, config or FilmConfig.paper(), str(name_or_path))


def is_ours(name_or_path: str | Path) -> bool:
    """Whether it names weights of this project: a shipped name, a folder with a weights file, or a .safetensors of
    ours."""
    path = Path(name_or_path)
    if (path / FILE).is_file() or (str(path) in SHIPPED.names() and not path.exists()):
        return True
    if path.suffix.lower() != ".safetensors":
        return False
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return HEADER_KEY in (file.metadata() or {})
    except (OSError, safetensors.SafetensorError):
        return True  # missing or damaged: `load` says so


def _converted(path: Path, config: FilmConfig, name: str) -> Path:
    """The converted weights of another program, from the cache or made now."""
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    state = [(str(one.resolve()), one.stat().st_size, one.stat().st_mtime_ns) for one in files]
    key = hashlib.sha256(repr((state, config)).encode()).hexdigest()[:16]
    target = cache_folder() / "converted" / f"film-{key}.safetensors"
    if not target.is_file():
        from flax import nnx

        from common.weights.model_file import save_weights
        from film.porting import read_reference

        params = nnx.to_pure_dict(nnx.state(read_reference(path, config)))
        about = {"ported_from": name}
        save_weights(target, params, kind="film", config=dataclasses.asdict(config), metadata=about, overwrite=True)
    return target
