"""Pictures in a folder, conditions and captions in files of the same name.

    FOLDER/images/birds/007.jpg              or FOLDER/birds/007.jpg, with no folder `images`
    FOLDER/conditions/canny/birds/007.png    any suffix that is a picture's
    FOLDER/captions/birds/007.txt            or images/birds/007.txt, beside the picture; one caption a line

Conditions and captions may be missing, for some or for all. The order is the natural one (9 before 10); the key is the
path below `images` without its suffix, "birds/007". Hidden files are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from natsort import natsorted

from common.data.files import walk
from common.data.stored import File
from common.io.images import READABLE
from plugins.data.record import Listed, Record, lines_of

IMAGES, CONDITIONS, TEXTS = "images", "conditions", "captions"


@dataclass(frozen=True)
class FolderPictures(Listed):
    """The pictures of one folder (module docstring)."""

    folder: str | Path

    @functools.cached_property
    def records(self) -> tuple[Record, ...]:
        """Raises FileNotFoundError (no folder, no picture), ValueError (two pictures of one name, stray conditions)."""
        folder = Path(self.folder)
        images = folder / IMAGES if (folder / IMAGES).is_dir() else folder
        pictures = _by_stem(images, READABLE, leave=(CONDITIONS, TEXTS))
        if not pictures:
            raise FileNotFoundError(f"{images}: no pictures in it or below; known suffixes: {' '.join(READABLE)}")
        conditions = {kind.name: _by_stem(kind, READABLE) for kind in sorted(folder.glob(f"{CONDITIONS}/*/"))}
        for kind, found in conditions.items():
            if found and found.keys().isdisjoint(pictures):
                raise ValueError(
                    f"{folder / CONDITIONS / kind}: none of its {len(found)} pictures, such as {next(iter(found))!r},"
                    f" is called like one in {images}; give each the name of its picture"
                )
        beside, apart = _by_stem(images, (".txt",), leave=(CONDITIONS, TEXTS)), _by_stem(folder / TEXTS, (".txt",))
        return tuple(_record(key, path, beside | apart, conditions) for key, path in pictures.items())


def _record(key: str, path: Path, texts: Mapping[str, Path], conditions: Mapping[str, Mapping[str, Path]]) -> Record:
    stored = {kind: File(found[key]) for kind, found in conditions.items() if key in found}
    captions = functools.partial(lines_of, File(texts[key])) if key in texts else ()
    return Record(key, File(path), captions, stored)


def _by_stem(folder: Path, suffixes: tuple[str, ...], leave: tuple[str, ...] = ()) -> dict[str, Path]:
    """Files by path without suffix, in natural order; {} without the folder. ValueError for two of one name."""
    found: dict[str, Path] = {}
    for path in natsorted(walk(folder, suffixes, leave=leave), key=str):
        key = path.relative_to(folder).with_suffix("").as_posix()
        if key in found:
            raise ValueError(f"{found[key]} and {path.name} have one name; rename one, for names are what pairs files")
        found[key] = path
    return found
