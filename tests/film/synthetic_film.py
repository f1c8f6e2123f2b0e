"""A tiny film whose every motion is known: a textured square that moves over a textured ground."""

from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np

HEIGHT, WIDTH, SIDE, SPEED, START = 160, 256, 80, 4, 16  # SPEED: px to the right per frame


def texture(seed: int, height: int, width: int) -> np.ndarray:
    """Smooth random RGB, uint8: blobs of some 8 px, so that flow methods have something to hold on to."""
    noise = np.random.default_rng(seed).random((height // 8 + 1, width // 8 + 1, 3)).astype(np.float32)
    big = cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
    return (np.clip(big, 0, 1) * 180 + 40).astype(np.uint8)


def draw(number: int, speed: int = SPEED, seed: int = 0) -> np.ndarray:
    """Frame `number` of the film, uint8 [HEIGHT WIDTH 3]."""
    frame = texture(seed, HEIGHT, WIDTH)
    x = START + speed * number
    frame[40 : 40 + SIDE, x : x + SIDE] = texture(seed + 1, SIDE, SIDE)[:, : WIDTH - x]
    return frame


def write_film(path: Path, frames: list[np.ndarray]) -> Path:
    """All but lossless H.264 with BT.709 tags absent, as in many small files."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(24), options={"crf": "4", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = frames[0].shape[1], frames[0].shape[0], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return path
