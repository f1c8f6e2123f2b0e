"""A training batch with exact flow: smooth textures that move at constant speed."""

import cv2
import jax
import jax.numpy as jnp
import numpy as np

SIDE, MOTION = 32, (4.0, -2.0)  # px; from x0 to x1


def moved(shift: tuple[float, float], size: tuple[int, int] = (SIDE, SIDE), seed: int = 0, cell: int = 4) -> np.ndarray:
    """A smooth texture, with blobs of `cell` px, moved by `shift` = (dx, dy) px; `*size 3` in [0, 1]."""
    noise = np.random.default_rng(seed).random((size[0] // cell + 9, size[1] // cell + 9, 3)).astype(np.float32)
    big = cv2.resize(noise, None, fx=cell, fy=cell, interpolation=cv2.INTER_CUBIC)
    matrix = np.array([[1, 0, shift[0] - 4 * cell], [0, 1, shift[1] - 4 * cell]], np.float32)
    return np.clip(cv2.warpAffine(big, matrix, size[::-1]), 0, 1)


def batch(motion: tuple[float, float] = MOTION, side: int = SIDE, count: int = 2) -> dict[str, jax.Array]:
    """Frames at 0, 1/2 and 1, and the exact teacher: from the middle to either side."""
    dx, dy = motion
    frames = {
        name: np.stack([moved((t * dx, t * dy), (side, side), seed) for seed in range(count)]).astype(np.float32)
        for name, t in (("x0", 0), ("y", 0.5), ("x1", 1))
    }
    flow = np.broadcast_to(np.array(motion, np.float32) / 2, (count, side // 4, side // 4, 2))
    valid = np.ones((count, side // 4, side // 4), np.float32)
    teacher = dict(flow0=-flow, flow1=flow, valid0=valid, valid1=valid, time=np.full((count, 1), 0.5, np.float32))
    return {name: jnp.asarray(value) for name, value in (frames | teacher).items()}


def partly_valid() -> dict[str, jax.Array]:
    """A teacher that is wrong, and not valid, from its third column on: within the cells of coarser levels."""
    truth = batch()
    for side in ("0", "1"):
        truth["flow" + side] = truth["flow" + side].at[:, :, 3:].set(50)
        truth["valid" + side] = truth["valid" + side].at[:, :, 3:].set(0)
    return truth
