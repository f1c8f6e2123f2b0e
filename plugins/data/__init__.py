"""Images with captions and condition images, in every layout that people have, read through one interface.

    from plugins.data import open_source

    source = open_source("my/pictures")
    source[0].image, source[0].captions, source[0].conditions["canny"].decode()     # read when accessed

A path is a folder, a .jsonl or prompt.json, tars or tfds:NAME (`sources`). `own_batches` makes batches of a source;
`captioned_batches` of the prepared folders of the shipped weights.
"""

from pathlib import Path

from common.data.files import BRACES
from common.data.tfds import INFO
from plugins.data.record import Record, Source
from plugins.data.sources import IMAGES, NAMES, FolderPictures, JsonlPictures, TfdsPictures, WebDatasetPictures

__all__ = ["FolderPictures", "JsonlPictures", "Record", "Source", "TfdsPictures", "WebDatasetPictures", "open_source"]

TFDS = "tfds:"  # before the name of a dataset


def open_source(path: str | Path, split: str | None = None) -> Source:
    """The source of a path; `split` is one of a tfds dataset (default: train), else the name of a folder in it. Raises
    FileNotFoundError for a missing path, ValueError for an unknown layout."""
    text = str(path)
    if text.startswith(TFDS) or (Path(path) / INFO).is_file():
        return TfdsPictures(text.removeprefix(TFDS), split or "train")
    path = Path(path) if split is None else Path(path) / split
    if path.is_dir():
        if lists := [path / name for name in NAMES if (path / name).is_file()]:
            return JsonlPictures(lists[0])
        tars = not (path / IMAGES).is_dir() and any(path.glob("*.tar"))
        return WebDatasetPictures(path) if tars else FolderPictures(path)
    if path.suffix == ".tar" or BRACES.search(text) or "*" in text:
        return WebDatasetPictures(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; check the name")
    if path.suffix not in (".jsonl", ".json"):
        raise ValueError(f"{path} has no known layout; give a folder, a .jsonl, a .tar, or {TFDS}NAME")
    return JsonlPictures(path)
