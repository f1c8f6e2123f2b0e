"""Tux Paint stamps: mostly photographs, cut out, each with a sentence ("A zebra."). The test set.

Beside each picture NAME.png is NAME.txt, whose first line is the English sentence, and sometimes NAME.dat, which may
contain `nomirror`. Symbols, flags, road signs and drawings (folders `cartoon`, SVG files) are left out, so the stamps
differ in kind from all training pictures.
"""

from pathlib import Path, PurePosixPath

from plugins.data.captioned import is_sided
from recipes.captioned_pictures.thumbnails import Picture, decode, straight
from recipes.downloads.archives import Package, members

STAMPS = Package("deb", "tuxpaint-stamps-default", "", "GPL-2 (Tux Paint)")
ROOT = "usr/share/tuxpaint/stamps/"
DROPPED = {"symbols", "cartoon", "flags", "roadsigns", "body_parts"}


def pictures(archive: Path, size: int) -> list[Picture]:
    """The stamps, sorted by name. Raises ValueError for an archive without stamps."""
    images, texts = {}, {}
    for path, content in members(archive, _wanted):
        stem = path.removeprefix(ROOT).rsplit(".", 1)[0]
        if path.endswith(".png"):
            images[stem] = decode(content, size, trim=True)
        else:
            texts[stem, path[-3:]] = content.decode("utf-8", "replace")
    found = []
    for stem, image in sorted(images.items()):
        sentence = straight(texts.get((stem, "txt"), "").split("\n", 1)[0])
        if image is not None and sentence:
            folders = tuple(PurePosixPath(stem).parent.parts)
            mirror = "nomirror" not in texts.get((stem, "dat"), "") and not is_sided(sentence)
            tags = tuple(folder for folder in folders[1:] if folder.isalpha())
            found.append(Picture(image, sentence, "", tags, folders[0], STAMPS.name, mirror))
    if not found:
        raise ValueError(f"{archive} holds no stamps under {ROOT}: is it {STAMPS.name}?")
    return found


def _wanted(path: str) -> bool:
    inside = path.startswith(ROOT) and path.endswith((".png", ".txt", ".dat"))
    return inside and DROPPED.isdisjoint(PurePosixPath(path).parts)
