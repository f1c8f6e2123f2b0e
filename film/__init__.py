"""FILM frame interpolation: two photos in, the moments between them out.

import film
model = film.load()                                           # the default weights
frames = list(film.interpolate(model, [x0, x1], times=3))     # 9 frames, RGB float32 in [0, 1]
middle = model(x0[None], x1[None]).image                      # one call on batches
"""

from film import porting, warp
from film.loading import load, save_model
from film.model import Film, FilmConfig, FilmOutput
from film.recursion import interpolate

__all__ = ["Film", "FilmConfig", "FilmOutput", "interpolate", "load", "porting", "save_model", "warp"]
