"""Vary a training triplet without breaking it: three frames, two flows and two masks, changed as one.

1. Crop at random and shrink with INTER_AREA, pictures and teacher flow alike; flow vectors shrink with them.
2. Turn by k x 90 degrees, mirror, play backwards. Turning a picture turns the *vectors* of its flow, not only
   their places; playing backwards swaps x0 with x1, and their flows.
3. One gain and gamma for all three frames, and sometimes another order of the colour channels.

Shapes: S pixels and s = S // 4 flow cells on a side before, c and c // 4 after. Flow is (dx, dy), pixels.
"""

import cv2
import numpy as np
from jaxtyping import Float

Example = dict[str, np.ndarray]
CELL = 4  # picture pixels per flow cell, as `film.data.cutting` writes it


def augment(
    example: Example,
    rng: np.random.Generator,
    crop: int,
    scale: float = 1.0,
    turn: bool = True,
    mirror: bool = True,
    backwards: bool = True,
    colour: bool = True,
) -> Example:
    """One example of `film.data.triplet_batches.TripletPatches`, cropped and varied; the last four arguments are switches.

    Returns images float32 [3 c c 3] in [0, 1], flows float32 [2 c/4 c/4 2] in crop pixels and valid float32
    [2 c/4 c/4] of zeros and ones.
    """
    images, flows, valid = crop_and_shrink(example, rng, crop, scale)
    turns = int(rng.integers(4)) if turn else 0
    images, valid = np.rot90(images, turns, axes=(1, 2)), np.rot90(valid, turns, axes=(1, 2))
    flows = np.rot90(flows, turns, axes=(1, 2))
    for _ in range(turns):  # a quarter turn anticlockwise takes right to up, and up is -y
        flows = np.stack([flows[..., 1], -flows[..., 0]], axis=-1)
    if mirror and rng.random() < 0.5:
        images, flows, valid = (
            images[:, :, ::-1],
            flows[:, :, ::-1] * np.array([-1, 1], np.float32),
            valid[:, :, ::-1],
        )
    if backwards and rng.random() < 0.5:
        images, flows, valid = images[::-1], flows[::-1], valid[::-1]
    tinted = tint(images, rng) if colour else images.astype(np.float32) / np.float32(255)
    return dict(images=tinted, flows=np.ascontiguousarray(flows), valid=np.ascontiguousarray(valid))


def crop_and_shrink(
    example: Example, rng: np.random.Generator, crop: int, scale: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A random region of about crop / scale pixels, brought to `crop`: images uint8, flows and valid float32.

    The region is a whole number of flow cells; flow is scaled by the exact ratio. A shrunken cell is valid
    only if all cells under it are.
    """
    region = CELL * round(crop / scale / CELL)
    y, x = rng.integers(0, (example["images"].shape[1] - region) // CELL + 1, 2)
    cells, side = region // CELL, crop // CELL
    images = example["images"][:, CELL * y : CELL * y + region, CELL * x : CELL * x + region]
    flows = example["flows"][:, y : y + cells, x : x + cells].astype(np.float32) * np.float32(crop / region)
    valid = example["valid"][:, y : y + cells, x : x + cells].astype(np.float32)
    if region == crop:
        return images, flows, valid
    return _shrink(images, crop), _shrink(flows, side), (_shrink(valid, side) > 0.999).astype(np.float32)


def tint(images: np.ndarray, rng: np.random.Generator) -> Float[np.ndarray, "n h w 3"]:
    """uint8 [n h w 3] -> [0, 1]: one gain, one gamma (both about 1 +- 0.1); one in ten swaps channels."""
    gain, gamma = rng.uniform(0.9, 1.1), np.exp(rng.uniform(-0.14, 0.14))
    table = np.clip(gain * np.linspace(0, 1, 256) ** gamma, 0, 1).astype(np.float32)
    if rng.random() < 0.1:
        images = images[..., rng.permutation(3)]
    return table[images]


def _shrink(stack: np.ndarray, side: int) -> np.ndarray:
    return np.stack([cv2.resize(item, (side, side), interpolation=cv2.INTER_AREA) for item in stack])
