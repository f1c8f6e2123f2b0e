"""A folder of images and texts: what has the same name belongs together.

    gulls/herring gull.jpg      gulls/herring gull.txt      an image with its text
    gulls/moult.txt                                         a text alone
    tern.png                                                an image alone

Subfolders are read too; for documents (.md, .html, .pdf) there is `documents.py`. Items come in natural order of their
names (`a2` before `a10`), and are numbered so, those that are left out counted too.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from natsort import natsorted

from common.data.files import walk
from common.io.images import READABLE
from reveal.sources.records import Record, Skips, attempt

TEXT = ".txt"


class Empty(FileNotFoundError):
    """A folder without any file that can be read."""


def records(path: str | Path, *, skips: Skips) -> Iterator[Record]:
    """The items of a folder. Raises as `groups`."""
    for number, files in enumerate(groups(Path(path), (TEXT,), skips)):
        image, texts = image_and_texts(files, skips)
        where, text = str(files[0]), ""
        if texts:
            read = partial(texts[0].read_text, "utf-8-sig", "replace")
            if (found := attempt(read, skips, where, "whose text cannot be read")) is None:
                continue
            text = found.strip()
        # whoever reads a link to nothing reports that
        empty = image.is_file() and not image.stat().st_size if image else not text
        fields, fault = {"text": text} if text else {}, "that are empty" if empty else ""
        yield Record(number, where, image, names=(files[0].name,), fault=fault, fields=fields)


def image_and_texts(files: Sequence[Path], skips: Skips) -> tuple[Path | None, list[Path]]:
    """The image among files of one name, and the texts; further images are counted."""
    images = [file for file in files if file.suffix.lower() in READABLE]
    for spare in images[1:]:
        skips.add("that share their name with another picture", str(spare))
    return next(iter(images), None), [file for file in files if file not in images]


def groups(folder: Path, texts: Sequence[str], skips: Skips) -> list[list[Path]]:
    """The images and texts (of these suffixes) of each name, in order; other files are counted. Raises
    FileNotFoundError without the folder; `Empty` if there are none."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; check the name")
    found: dict[Path, list[Path]] = {}
    for file in walk(folder, ("",)):
        if file.suffix.lower() in (*texts, *READABLE):
            found.setdefault(file.with_suffix(""), []).append(file)
        else:
            skips.note("of a kind that is not read", str(file))
    if not found:
        raise Empty(f"{folder} has no {' '.join(texts)} and no {' '.join(READABLE)}; name another folder")
    return [found[name] for name in natsorted(found, key=str)]
