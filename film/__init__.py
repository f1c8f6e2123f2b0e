"""FILM frame interpolation: two photos in, the moments between them out."""

from film.model import Film, FilmConfig, FilmOutput

__all__ = ["Film", "FilmConfig", "FilmOutput"]
