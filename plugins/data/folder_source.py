"""Images in a folder; conditions and captions in files of the same name.

    FOLDER/images/birds/007.jpg              or FOLDER/birds/007.jpg, with no folder `images`
    FOLDER/conditions/canny/birds/007.png    any image suffix
    FOLDER/captions/birds/007.txt            or images/birds/007.txt, beside the image; one caption a line

Conditions and captions may be missing, for some images or all. The order is natural (9 before 10); a key is the path
below `images` without its suffix, "birds/007". Hidden files are skipped.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

from natsort import natsorted

from common.data.files import walk
from common.data.stored import File
from common.io.images import READABLE
from plugins.data.record import Record, Source, lines_of

IMAGES, CONDITIONS, TEXTS = "images", "conditions", "captions"


@dataclass(frozen=True)
class FolderPictures(Source):
    """The images of one folder."""

    folder: str | Path

    @functools.cached_property
    def records(self) -> tuple[Record, ...]:
        """Raises FileNotFoundError without images; ValueError for two images of one name, or stray conditions."""
        folder = Path(self.folder)
        images = folder / IMAGES if (folder / IMAGES).is_dir() else folder
        paths = _by_stem(images, READABLE, skip=(CONDITIONS, TEXTS))
        if not paths:
            raise FileNotFoundError(f"{images}: no images in it or below; known suffixes: {' '.join(READABLE)}")
        conditions = {kind.name: _by_stem(kind, READABLE) for kind in sorted(folder.glob(f"{CONDITIONS}/*/"))}
        for kind, found in conditions.items():
            if found and found.keys().isdisjoint(paths):
                stray = f"{folder / CONDITIONS / kind}: none of its {len(found)} images, such as {next(iter(found))!r}"
                raise ValueError(f"{stray}, has the name of one in {images}; give each the name of its image")
        texts = _by_stem(images, (".txt",), skip=(CONDITIONS, TEXTS)) | _by_stem(folder / TEXTS, (".txt",))
        records = []
        for key, path in paths.items():
            captions = functools.partial(lines_of, File(texts[key])) if key in texts else ()
            stored = {kind: File(of[key]) for kind, of in conditions.items() if key in of}
            records.append(Record(key, File(path), captions, stored))
        return tuple(records)


def _by_stem(folder: Path, suffixes: tuple[str, ...], skip: tuple[str, ...] = ()) -> dict[str, Path]:
    """Files by path without suffix, in natural order; {} without the folder. ValueError for two of one name."""
    found: dict[str, Path] = {}
    for path in natsorted(walk(folder, suffixes, leave=skip), key=str):
        key = path.relative_to(folder).with_suffix("").as_posix()
        if key in found:
            raise ValueError(f"{found[key]} and {path.name} have one name, but names pair files: rename one")
        found[key] = path
    return found
