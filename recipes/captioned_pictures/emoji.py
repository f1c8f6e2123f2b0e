"""Emoji in three styles, with the names and tags of CLDR from emojibase.

Emoji are matched by code points without U+FE0F, the variation selector that packages include inconsistently. Left out:
skin tones (five copies of every person); components (regional letters, hair); and, by default, the 259 country flags
(the group `flags`), of finer detail than 64 pixels show.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from plugins.data.captioned import is_sided
from recipes.captioned_pictures.thumbnails import Picture, decode, straight
from recipes.downloads.archives import Package, members, read_files
from recipes.downloads.svg import render

NAMES_SHA256 = "d01d0e2ca4e22cb402679532155342c71e2e871f25c32223c013b8b166ebdf5a"
NOTO_SHA256 = "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438"
FLUENT_SHA256 = "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58"
OPENMOJI_SHA256 = "55ee7d13485dec86e9f38c1f3a645a13382d33ff97c0cd845ee824b0aef45e68"
NAMES = Package("npm", "emojibase-data", "17.0.0", "MIT; names and tags: CLDR, Unicode-3.0", NAMES_SHA256)
VARIATION = re.compile("-fe0f|fe0f-", re.IGNORECASE)
OVERSAMPLED = 4  # SVG is rendered at this multiple and averaged down
NEVER_MIRRORED = ("symbols", "flags")


@dataclass(frozen=True)
class EmojiSet:
    """One style: package, folder in the package, style in captions."""

    package: Package
    folder: str
    style: str


NOTO = Package(
    "npm", "emoji-datasource-google", "16.0.0", "pictures Apache-2.0 (Google, Noto); package MIT", NOTO_SHA256
)
FLUENT = Package("npm", "@lobehub/fluent-emoji-3d", "1.1.0", "MIT (Microsoft, Fluent)", FLUENT_SHA256)
OPENMOJI = Package("npm", "openmoji", "17.0.0", "CC-BY-SA-4.0 (the OpenMoji project)", OPENMOJI_SHA256)
SETS = (
    EmojiSet(NOTO, "package/img/google/64", "noto emoji"),
    EmojiSet(FLUENT, "package/assets", "3d emoji"),
    EmojiSet(OPENMOJI, "package/color/svg", "line emoji"),
)


@dataclass(frozen=True)
class Emoji:
    label: str
    tags: tuple[str, ...]
    group: str


def read_names(archive: Path, flags: bool = False) -> dict[str, Emoji]:
    """Code points ("1f34e") -> Emoji."""
    names = ["package/en/data.json", "package/meta/groups.json"]
    files = read_files(archive, names)
    entries, meta = (json.loads(files[name].content) for name in names)
    groups: Mapping[str, str] = meta["groups"]
    emoji = {}
    for entry in entries:
        group = groups.get(str(entry.get("group")), "component")
        if group == "component" or (group == "flags" and not flags):
            continue
        label = plain(entry["label"])
        tags = tuple(tag for tag in map(plain, entry.get("tags", ())) if tag.isascii() and tag != label)
        emoji[code(entry["hexcode"])] = Emoji(label, tags, group)
    return emoji


def code(name: str) -> str:
    """The code points in a file name, lower case, without U+FE0F."""
    return VARIATION.sub("", name).lower()


def plain(text: str) -> str:
    """A name as in a prompt: straight apostrophes, no quotes, lower case, ": " as ", "."""
    return straight(text).replace(": ", ", ").lower()


def pictures(style: EmojiSet, archive: Path, names: Mapping[str, Emoji], size: int) -> Iterator[Picture]:
    """The set's pictures of the named emoji, in the archive's order, untrimmed."""

    def wanted(path: str) -> bool:
        return str(PurePosixPath(path).parent) == style.folder and code(PurePosixPath(path).stem) in names

    for path, content in members(archive, wanted):
        if path.endswith(".svg"):
            content = render(content, OVERSAMPLED * size)
        image = decode(content, size, trim=False)
        if image is not None:
            emoji = names[code(PurePosixPath(path).stem)]
            mirror = emoji.group not in NEVER_MIRRORED and not is_sided(emoji.label) and "clock" not in emoji.tags
            yield Picture(image, emoji.label, style.style, emoji.tags, emoji.group, style.package.name, mirror)
