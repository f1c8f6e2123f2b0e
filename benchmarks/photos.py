"""How well photos are aligned and their exposure matched: shakes and exposures that are known, over real photographs.

    python -m benchmarks.photos PHOTO...

Each photo is seen again by a camera that turned up to 2 degrees, moved up to 4 % and came up to 3 % nearer, with other
exposure (up to 0.8 EV, a tenth per channel) and noise of 1 %. A subject, the photo upside down and smaller, covers a
share of both and moves by 5 % on its own. Printed: the error of the homography at the worst corner, in pixels of an
image whose longer side has 1024; the error of the gain of the worst channel, in EV.
"""

import time
from pathlib import Path

import cv2
import numpy as np
from tyro.conf import Positional

from common import terminal
from common.io.images import read_image, shrink
from common.io.srgb import from_linear, to_linear
from film.alignment import SIDE, corners, grey_thumbnail, register, rescaled, transform
from film.photos import exposure_gains, light_thumbnail

SUBJECTS = (0.0, 0.15, 0.3, 0.4, 0.6)
SEEDS = 2


def shake(generator: np.random.Generator, width: int, height: int) -> np.ndarray:
    """A homography as the module describes it, about the centre."""
    angle, zoom = np.radians(generator.uniform(-2, 2)), 1 + generator.uniform(-0.03, 0.03)
    shift = generator.uniform(-0.04, 0.04, 2) * [width, height]
    turn = zoom * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix, centre = np.eye(3), np.array([width, height]) / 2
    matrix[:2, :2], matrix[:2, 2] = turn, centre + shift - turn @ centre
    matrix[2, :2] = generator.uniform(-0.02, 0.02, 2) / [width, height]
    return matrix


def measure(photo: np.ndarray, subject: float, seed: int) -> tuple[float, float, float]:
    """Corner error in pixels (NaN if refused), error of the gains in EV, CPU seconds of `register`."""
    generator = np.random.default_rng(seed)
    height, width = photo.shape[:2]
    truth, margin = shake(generator, width, height), max(width, height) // 8
    wide = cv2.copyMakeBorder(photo, margin, margin, margin, margin, cv2.BORDER_REFLECT)
    offset = np.array([[1, 0, -margin], [0, 1, -margin], [0, 0, 1]], float)
    first = photo.copy()
    second = cv2.warpPerspective(wide, truth @ offset, (width, height), flags=cv2.INTER_CUBIC)
    if subject:
        part = cv2.resize(photo[::-1, ::-1], None, fx=subject**0.5, fy=subject**0.5, interpolation=cv2.INTER_AREA)
        top, left, step = (height - len(part)) // 2, int(0.6 * (width - part.shape[1])), int(0.05 * width)
        for image, start in ((first, left - step), (second, left)):
            start = max(start, 0)
            image[top : top + len(part), start : start + part.shape[1]] = part[:, : width - start]
    gains = np.float32(2 ** generator.uniform(-0.8, 0.8) * np.exp(generator.uniform(-0.1, 0.1, 3)))
    second = from_linear(np.clip(to_linear(np.clip(second, 0, 1)) * gains, 0, 1))
    first, second = (np.clip(x + generator.normal(0, 0.01, x.shape), 0, 1).astype(np.float32) for x in (first, second))
    grey = grey_thumbnail(first)
    began = time.process_time()
    found = register(grey, grey_thumbnail(second)).matrix
    seconds = time.process_time() - began
    light, error, matrix = light_thumbnail(first), float("nan"), None
    if found is not None:
        ends, small = corners((width, height)), grey.shape[::-1]
        moved = transform(ends, rescaled(found, small, (width, height))) - transform(ends, truth)
        error = float(np.linalg.norm(moved, axis=1).max()) * min(1, SIDE / max(width, height))
        matrix = rescaled(found, small, light.shape[1::-1])
    estimated = exposure_gains(light, light_thumbnail(second), matrix)
    assert estimated is not None
    exposure = float(np.abs(np.log2(estimated * gains)).max())
    return error, exposure, seconds


def main(files: Positional[tuple[Path, ...]]) -> None:
    """Print the table of some photos."""
    if not files:
        raise ValueError("no photos: name one or more")
    photos = [shrink(read_image(path), 2048) for path in files]
    print("| subject | aligned | corner error, median | worst | exposure error, median | worst | CPU s |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for subject in SUBJECTS:
        rows = np.array([measure(photo, subject, seed) for photo in photos for seed in range(SEEDS)])
        errors = rows[~np.isnan(rows[:, 0]), 0]
        middle, worst = (np.median(errors), errors.max()) if len(errors) else (np.nan, np.nan)
        pixels = f"{middle:.2f} | {worst:.2f}"
        stops = f"{np.median(rows[:, 1]):.3f} | {rows[:, 1].max():.3f}"
        print(
            f"| {subject:.0%} | {len(errors)} of {len(rows)} | {pixels} | {stops} | {rows[:, 2].mean():.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    terminal.program(main)
