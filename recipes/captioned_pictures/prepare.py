"""From archives to one folder of captioned pictures; see `recipes.captioned_pictures` for what is in it."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from common.io.files import atomic_folder, check_output_folder
from plugins.data.captioned import caption
from recipes.captioned_pictures import clipart, emoji, splits, stamps
from recipes.captioned_pictures.thumbnails import Picture
from recipes.captioned_pictures.train_tokenizer import train_bpe, write_tokenizer
from recipes.downloads.archives import Package, about, obtain

Find = Callable[[Package], Path]


@dataclass(frozen=True)
class Settings:
    """What is made.

    Attributes:
      size: side of the pictures, px.
      flags: keep country flags.
      unseen: labels of which training sees no picture. unseen_style: labels of which it misses one style.
      tokens: size of the vocabulary, 514 at least (bytes, bytes at a word's end, start, end).
    """

    size: int = 64
    flags: bool = False
    unseen: int = 64
    unseen_style: int = 64
    tokens: int = 2048

    def __post_init__(self) -> None:
        if self.size < 8 or min(self.unseen, self.unseen_style) < 0:
            raise ValueError(
                f"size {self.size} must be 8 or more, unseen {self.unseen} and {self.unseen_style} not < 0"
            )


def prepare(folder: str | Path, archives: str | Path | None = None, settings: Settings | None = None) -> Counter[str]:
    """Writes `folder`; how many pictures each split has.

    Raises FileExistsError (folder taken), ConnectionError (a package cannot be got), ValueError (a damaged archive)."""
    settings = settings or Settings()
    check_output_folder(folder)  # now rather than after minutes of work
    used: dict[Package, Path] = {}
    with tempfile.TemporaryDirectory() as scratch:

        def find(package: Package) -> Path:
            used[package] = obtain(package, Path(scratch), Path(archives) if archives else None)
            return used[package]

        pictures = splits.distinct(collect(find, settings))
        sources = [about(package, path) for package, path in used.items()]
    styles = [style.style for style in emoji.SETS]
    parts = splits.assign(pictures, stamps.STAMPS.name, styles, settings.unseen, settings.unseen_style)
    with atomic_folder(folder) as part:
        np.save(part / "images.npy", np.stack([picture.image for picture in pictures]))
        write_tokenizer(part / "tokenizer", *train_bpe(_captions(pictures, parts), settings.tokens))
        _write_index(part / "index.json", pictures, parts, sources, settings)
    return Counter(parts)


def collect(find: Find, settings: Settings) -> list[Picture]:
    """All pictures of all sources, repetitions included; `find` gives a package's archive."""
    names = emoji.read_names(find(emoji.NAMES), settings.flags)
    pictures = [p for style in emoji.SETS for p in emoji.pictures(style, find(style.package), names, settings.size)]
    notes = clipart.read_notes(find(clipart.TITLES))
    words = [word for name in names.values() for word in (name.label, *name.tags)]
    known = clipart.known_words(notes, words)
    pictures += clipart.pictures(find(clipart.PIXELS), notes, known, settings.size)
    return pictures + stamps.pictures(find(stamps.STAMPS), settings.size)


def _captions(pictures: Sequence[Picture], parts: Sequence[str]) -> list[str]:
    """What the vocabulary is learnt from: captions and tags of the training pictures."""
    chosen = [picture for picture, part in zip(pictures, parts, strict=True) if part == splits.TRAIN]
    return [caption(p.label, p.style) for p in chosen] + [" ".join(p.tags) for p in chosen]


def _write_index(
    path: Path, pictures: Sequence[Picture], parts: Sequence[str], sources: list[dict], settings: Settings
) -> None:
    """One line per picture, so that the file can be read and compared."""
    entries = []
    for picture, part in zip(pictures, parts, strict=True):
        fields = {name: value for name, value in vars(picture).items() if name != "image"}
        entries.append(json.dumps(fields | dict(split=part), ensure_ascii=False))
    counts = Counter(f"{picture.source} {part}" for picture, part in zip(pictures, parts, strict=True))
    head: dict[str, Any] = dict(sources=sources, settings=asdict(settings), counts=dict(sorted(counts.items())))
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    path.write_text(text + ',\n "pictures": [\n  ' + ",\n  ".join(entries) + "\n ]\n}\n", "utf-8")


def main(
    folder: tyro.conf.Positional[Path] = Path("data/captioned64"),
    archives: Path | None = None,
    settings: Settings = Settings(),
) -> None:
    """Write captioned pictures to FOLDER; ARCHIVES is looked through before anything is downloaded (416 MB)."""
    for name, count in sorted(prepare(folder, archives, settings).items()):
        print(f"{count:6d} {name}")
