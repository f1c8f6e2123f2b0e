"""A folder of photographs as textures, cached in memory.

    FOLDER/*.jpg, *.png, *.webp   the photographs
    FOLDER/index.json             optional: the split of each photograph, as a list, or an object with a list, of
                                  {"file": NAME, "split": SPLIT, ...} (`photographs.py`); without it all photographs
                                  belong to every split

Decoding takes longer than drawing a scene. So the last `CACHED` photographs stay in memory, reduced to `MAX_SIDE`, and
from a larger album scenes with neighbouring numbers choose from the same random subset.
"""

import functools
import json
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from natsort import natsorted

from common.io.images import shrink
from film.data.triplet import decode

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
MAX_SIDE = 1280  # px
CACHED = 128  # photographs, 3 MB each
SUBSET, TURNOVER = 32, 256  # photographs in a subset, scenes that share it


class Album:
    """The photographs of one split, in natural order of their names. FileNotFoundError without the folder, else
    ValueError."""

    def __init__(self, folder: str | Path, split: str = "train") -> None:
        self.paths = natsorted(_paths(Path(folder), split), key=str)
        if not self.paths:
            raise ValueError(f"{folder}: no photographs ({', '.join(SUFFIXES)}) of split {split!r} here: add some")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> UInt8[np.ndarray, "h w 3"]:
        """RGB. Raises OSError or ValueError, with its name, for a file that cannot be read."""
        return _read(self.paths[number])

    def subset(self, seed: int, scene: int) -> list[int]:
        """The numbers of the photographs that scene number `scene` of this seed chooses from."""
        if len(self) <= CACHED:
            return list(range(len(self)))
        rng = np.random.default_rng([seed, scene // TURNOVER, SUBSET])
        return rng.choice(len(self), SUBSET, replace=False).tolist()


def _paths(folder: Path, split: str) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder of photographs: make it, or name another")
    index = folder / "index.json"
    if not index.is_file():
        return [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES]
    try:
        found = json.loads(index.read_text("utf-8"))
        entries = found if isinstance(found, list) else next(v for v in found.values() if isinstance(v, list))
        return [folder / entry["file"] for entry in entries if entry.get("split", split) == split]
    except (ValueError, KeyError, AttributeError, StopIteration) as error:
        raise ValueError(f'{index}: needs a list of {{"file": NAME, "split": SPLIT}}; remove or mend it') from error


@functools.lru_cache(maxsize=CACHED)
def _read(path: Path) -> UInt8[np.ndarray, "h w 3"]:
    return shrink(decode(path.read_bytes(), str(path)), MAX_SIDE)
