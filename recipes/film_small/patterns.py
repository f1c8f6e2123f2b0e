"""Repeated patterns: windows, bricks, fences, stripes.

A picture of a facade matches itself at every window. Which match is the right one is known only from what is around
the pattern, or from its larger structure; a network that has never seen it takes the nearest one, at the coarse levels
of a pyramid already, where stripes turn into other, slower stripes. Photographs of nature hold little of that, so some
layers of the moving scenes (`recipes.film_small.moving_photographs`) get their texture laid out on a lattice.
"""

from __future__ import annotations

import cv2
import numpy as np
from jaxtyping import UInt8

SHORTEST, LONGEST = 6.0, 40.0  # px of the picture from one cell to the next
STRIPES = 1 / 3  # share of patterns that repeat along one axis much faster than along the other
FAINT, CLEAR = 0.05, 0.4  # how much of the texture is left to tell the cells apart
CONTRAST = (20.0, 60.0)  # standard deviation of a cell, of 255
LOUDEST = 6.0  # most that a cell's contrast is raised


def repeated(
    rng: np.random.Generator, texture: UInt8[np.ndarray, "h w 3"], density: float
) -> UInt8[np.ndarray, "h w 3"]:
    """One random cell of `texture` on a lattice at a random angle, mixed with the texture itself.

    `density` is texture pixels per pixel of the picture. A texture too small for three cells is given back.
    """
    height, width = texture.shape[:2]
    sides = density * np.exp(rng.uniform(np.log(SHORTEST), np.log(LONGEST), 2))
    if rng.random() < STRIPES:
        sides[0] = rng.uniform(3, 10) * sides[1]
    sides = np.minimum(sides, min(height, width) / 3)
    if sides.min() < density * SHORTEST / 2:
        return texture
    angle, (left, top) = rng.uniform(0, np.pi), rng.uniform(0, np.array([width, height]) - sides)
    x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    along, across = (cos * x + sin * y) % sides[0], (cos * y - sin * x) % sides[1]
    places = np.stack([left + along, top + across], axis=-1).astype(np.float32)
    tiles = cv2.remap(texture, places, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)  # pyright: ignore
    tiles = tiles.astype(np.float32)
    mean, deviation = tiles.mean(axis=(0, 1)), float(tiles.std(axis=(0, 1)).mean())
    tiles = mean + np.clip(rng.uniform(*CONTRAST) / max(deviation, 1e-3), 1, LOUDEST) * (tiles - mean)
    share = rng.uniform(FAINT, CLEAR)
    return np.clip((1 - share) * tiles + share * texture + 0.5, 0, 255).astype(np.uint8)
