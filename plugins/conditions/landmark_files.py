"""Landmarks on disk: JSON to be read by people and other programs, or a small npz.

    {"faces": [[[0.43, 0.27, -0.02], ...]], "pose": [[0.43, 0.25, -0.83, 0.99], ...], "left_hand": null}

Both hold the fields of `Landmarks` by name; a part that was not found is null, or missing. Nothing pickled is read.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np

from common.io.files import atomic_output, require_file
from plugins.conditions.landmarks import SHAPES, Landmarks

SUFFIXES = (".json", ".npz")


def read_landmarks(path: str | Path) -> Landmarks:
    """Raises FileNotFoundError; ValueError when it is damaged or holds something else."""
    path = require_file(path)
    _check_suffix(path)
    return Landmarks.of(_read_json(path) if path.suffix.lower() == ".json" else _read_npz(path), source=str(path))


def write_landmarks(path: str | Path, landmarks: Landmarks, overwrite: bool = False) -> None:
    """The suffix decides between JSON and npz. Raises ValueError, FileExistsError and other OSErrors."""
    path = Path(path)
    _check_suffix(path)
    parts = {name: getattr(landmarks, name) for name in SHAPES}
    with atomic_output(path, overwrite) as temporary:
        if path.suffix.lower() == ".npz":
            with temporary.open("wb") as file:
                np.savez_compressed(file, **{name: part for name, part in parts.items() if part is not None})
            return
        # Six digits: a thousandth of a pixel in a picture of 1,000.
        lists = {
            name: None if part is None else np.round(part.astype(float), 6).tolist() for name, part in parts.items()
        }
        temporary.write_text(json.dumps(lists) + "\n", "utf-8")


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: suffix {path.suffix!r} is not one of {' '.join(SUFFIXES)}, as landmarks have")


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:  # no UTF-8, or no JSON
        raise ValueError(f"{path} is not JSON ({error}); write the landmarks again") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object with {', '.join(SHAPES)}, found a {type(content).__name__}")
    return content


def _read_npz(path: Path) -> dict[str, object]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ValueError("one array without a name")
        with loaded as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is no npz of plain arrays ({reason[:100]}); write the landmarks again") from None
