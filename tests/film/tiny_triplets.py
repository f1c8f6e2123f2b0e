"""Small image files in the layouts of the test sets."""

import json
from pathlib import Path

import cv2
import numpy as np


def picture(number: int, height: int = 12, width: int = 16) -> np.ndarray:
    """uint8 [height width 3], noise that differs for each number."""
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)


def write(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image[..., ::-1])


def write_all(root: Path, files: dict[str, int], height: int = 12, width: int = 16) -> Path:
    """File name -> number of its picture."""
    for name, number in files.items():
        write(root / name, picture(number, height, width))
    return root


def write_vimeo(root: Path, count: int, height: int = 12, width: int = 16, split: str = "train") -> Path:
    """Triplet k, from 1, is `00001/000k` with the pictures 10 k + 1, 10 k + 2, 10 k + 3."""
    names = [f"00001/{k:04d}" for k in range(1, count + 1)]
    files = {f"sequences/{n}/im{i}.png": 10 * k + i for k, n in enumerate(names, 1) for i in (1, 2, 3)}
    write_all(root, files, height, width)
    (root / f"tri_{split}list.txt").write_text("\n".join(names) + "\n\n")
    return root


def write_cut(folder: Path, images: np.ndarray, flows: np.ndarray, valid: np.ndarray, motion: float = 1.0) -> Path:
    """A folder as `film.data.cutting` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in dict(images=images, flows=flows, valid=valid).items():
        np.save(folder / f"{name}.npy", array)
    (folder / "index.json").write_text(json.dumps({"triplets": [{"motion": motion}] * len(images)}))
    return folder


def damage(path: Path) -> None:
    """Cuts a file short, as a broken copy does."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
