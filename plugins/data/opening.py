"""From a path to the source that can read it."""

from __future__ import annotations

from pathlib import Path

from common.data.files import BRACES
from plugins.data.folder_source import IMAGES, FolderPictures
from plugins.data.jsonl_source import NAMES, JsonlPictures
from plugins.data.record import Source
from plugins.data.tfds_source import INFO, TfdsPictures
from plugins.data.webdataset_source import WebDatasetPictures

TFDS = "tfds:"  # in front of a data set's name


def open_source(path: str | Path, split: str | None = None) -> Source:
    """What lies at `path` (`plugins.data` lists all layouts); little is read before the source is used.

    `split` is one of a tfds data set (train if not given), else the name of a folder in `path`. Raises
    FileNotFoundError when there is nothing, ValueError when it is of no known layout.
    """
    text = str(path)
    if text.startswith(TFDS) or (Path(path) / INFO).is_file():
        return TfdsPictures(text.removeprefix(TFDS), split or "train")
    path = Path(path) if split is None else Path(path) / split
    if path.is_dir():
        return _open_folder(path)
    if path.suffix == ".tar" or BRACES.search(text) or "*" in text:
        return WebDatasetPictures(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; check the name")
    if path.suffix not in (".jsonl", ".json"):
        raise ValueError(f"{path} is no layout of pictures; give a folder, a .jsonl, a .tar, or {TFDS}NAME")
    return JsonlPictures(path)


def _open_folder(path: Path) -> Source:
    lists = [path / name for name in NAMES if (path / name).is_file()]
    if lists:
        return JsonlPictures(lists[0])
    if not (path / IMAGES).is_dir() and any(path.glob("*.tar")):
        return WebDatasetPictures(path)
    return FolderPictures(path)
