"""FILM frame interpolation: two photos in, the moments between them out.

import film
model = film.load()                                           # the default weights
frames = list(film.interpolate(model, [x0, x1], times=3))     # 9 frames, RGB float32 in [0, 1]
middle = model(x0[None], x1[None]).image                      # one call on batches

Names are imported when they are first used (PEP 562), submodules too (`film.flow`, `film.warp`): `import film` costs
nothing, and the command answers `--help` and mistyped words without waiting for JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.lazy import lazy

if TYPE_CHECKING:
    from film import porting, warp
    from film.loading import load, save_model
    from film.model import Film, FilmConfig, FilmOutput
    from film.recursion import interpolate

__all__ = ["Film", "FilmConfig", "FilmOutput", "interpolate", "load", "porting", "save_model", "warp"]

_HOMES = {
    "Film": "model",
    "FilmConfig": "model",
    "FilmOutput": "model",
    "interpolate": "recursion",
    "load": "loading",
    "save_model": "loading",
}

__getattr__, __dir__ = lazy(__name__, __all__, _HOMES)
