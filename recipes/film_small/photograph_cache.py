"""A folder of photographs as textures: read when needed, kept while they are likely to be needed again.

    FOLDER/*.jpg, *.png, *.webp   the photographs
    FOLDER/index.json             optional; tells training from test photographs: a list, or an object with a list, of
                                  {"file": NAME, "split": SPLIT, ...} (`recipes.film_small.photographs`). Without it all pictures
                                  are of every split.

Decoding takes longer than drawing a scene. So the photographs read last stay in memory, shrunk to `LONGEST`; and if
there are more than fit, scenes that follow each other share a `shelf` of a few, which the scene's number decides.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import UInt8
from natsort import natsorted

from film.data.triplet import decode

ENDINGS = (".jpg", ".jpeg", ".png", ".webp")
LONGEST = 1280  # px of the longer side in memory
KEPT = 128  # photographs in memory, 3 MB each
SHELF, TURNOVER = 32, 256  # photographs that scenes choose from, and for how many scenes before others take their place


class Album:
    """The photographs of one split, in natural order of their names.

    Raises FileNotFoundError (no such folder) and ValueError (nothing in it for this split, or an unreadable index).
    """

    def __init__(self, folder: str | Path, split: str = "train") -> None:
        self.paths = natsorted(_listed(Path(folder), split), key=str)
        if not self.paths:
            raise ValueError(f"{folder}: no photographs ({', '.join(ENDINGS)}) of split {split!r} here: add some")
        self._kept: OrderedDict[int, UInt8[np.ndarray, "h w 3"]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> UInt8[np.ndarray, "h w 3"]:
        """Photograph `number`, RGB. Raises OSError or ValueError, with its name, when it cannot be read."""
        with self._lock:
            if number in self._kept:
                self._kept.move_to_end(number)
                return self._kept[number]
        path = self.paths[number]
        photograph = _shrunk(decode(path.read_bytes(), str(path)))
        with self._lock:
            self._kept[number] = photograph
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return photograph

    def shelf(self, seed: int, scene: int) -> list[int]:
        """The numbers of the photographs that scene number `scene` of this seed chooses from."""
        if len(self) <= KEPT:
            return list(range(len(self)))
        rng = np.random.default_rng([seed, scene // TURNOVER, SHELF])
        return rng.choice(len(self), SHELF, replace=False).tolist()


def _listed(folder: Path, split: str) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder of photographs: make it, or name another")
    index = folder / "index.json"
    if not index.is_file():
        return [path for path in folder.iterdir() if path.suffix.lower() in ENDINGS]
    try:
        found = json.loads(index.read_text("utf-8"))
        entries = found if isinstance(found, list) else next(v for v in found.values() if isinstance(v, list))
        return [folder / entry["file"] for entry in entries if entry.get("split", split) == split]
    except (ValueError, KeyError, AttributeError, StopIteration) as error:
        raise ValueError(f'{index}: needs a list of {{"file": NAME, "split": SPLIT}}; remove or mend it') from error


def _shrunk(photograph: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "h2 w2 3"]:
    height, width = photograph.shape[:2]
    if max(height, width) <= LONGEST:
        return photograph
    scale = LONGEST / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(photograph, size, interpolation=cv2.INTER_AREA))
