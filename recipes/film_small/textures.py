"""Textures of layers: random pieces of photographs, or repeated patterns of them.

Repeated patterns (windows, bricks, fences, stripes) match themselves at every period, and the right match follows only
from the surroundings or from larger structure: a network that has not been trained on them takes the nearest match.
Photographs of nature have few such patterns, so some textures are laid out on a lattice.
"""

import cv2
import numpy as np
from jaxtyping import Float, UInt8

PSF = 0.7  # standard deviation of the blur against aliasing, texture pixels
FINEST, COARSEST = 1.0, 3.0  # photograph pixels per picture pixel
SHORTEST, LONGEST = 6.0, 40.0  # period of a pattern, px of the picture
STRIPES = 1 / 3  # share of patterns with a much longer period along one axis
FAINT, CLEAR = 0.05, 0.4  # share of the original texture, which makes cells distinguishable
CONTRAST = (20.0, 60.0)  # standard deviation of a cell, of 255
MAX_GAIN = 6.0  # of a cell's contrast

Texture = UInt8[np.ndarray, "h w 3"]
Vector = Float[np.ndarray, "2"]


def random_texture(
    rng: np.random.Generator,
    photograph: UInt8[np.ndarray, "_ _ 3"],
    extent: Vector,
    detail: float,
    repeated_share: float,
) -> tuple[Texture, tuple[float, float]]:
    """A random piece for `extent` = (width, height) in u, with about `detail` pixels per px of u; the exact density."""
    limits = np.array(photograph.shape[1::-1])
    shrink = np.exp(rng.uniform(np.log(FINEST), np.log(np.clip((limits / extent).min(), FINEST, COARSEST))))
    need = np.ceil(shrink * extent).astype(int)
    missing = np.maximum(need - limits, 0)
    if missing.any():  # a small photograph: mirrored as often as needed
        photograph = np.pad(photograph, ((0, missing[1]), (0, missing[0]), (0, 0)), mode="symmetric")
    x, y = rng.integers(0, np.array(photograph.shape[1::-1]) - need + 1)
    piece = photograph[y : y + need[1], x : x + need[0]]
    columns, rows = np.maximum(np.rint(detail * extent), 2).astype(int)
    interpolation = cv2.INTER_AREA if columns < need[0] else cv2.INTER_CUBIC
    texture = cv2.resize(piece, (int(columns), int(rows)), interpolation=interpolation)
    if repeated_share:
        chance, pattern = rng.random(), np.random.default_rng(rng.integers(2**63))
        texture = repeated(pattern, np.asarray(texture), detail) if chance < repeated_share else texture
    texture = cv2.GaussianBlur(texture, (5, 5), PSF)
    if rng.random() < 0.5:
        texture = cv2.flip(texture, 1)
    return np.asarray(texture), (float(columns / extent[0]), float(rows / extent[1]))


def repeated(rng: np.random.Generator, texture: Texture, density: float) -> Texture:
    """One random cell of `texture` on a lattice at a random angle, mixed with the texture; a texture too small for
    three cells is returned unchanged. `density`: texture pixels per pixel of the picture."""
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
    tiles = mean + np.clip(rng.uniform(*CONTRAST) / max(deviation, 1e-3), 1, MAX_GAIN) * (tiles - mean)
    share = rng.uniform(FAINT, CLEAR)
    return np.clip((1 - share) * tiles + share * texture + 0.5, 0, 255).astype(np.uint8)
