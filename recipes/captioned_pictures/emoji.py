"""The same emoji drawn in three styles; their names and tags are CLDR's, as emojibase gives them.

Emoji are matched by code points, without U+FE0F (which asks for colour and which each package writes or leaves out at
will). Variants of skin tone are left out: five more copies of every person teach a small model nothing. So are parts
of emoji (regional letters, hair). Country flags are left out unless asked for: 259 pictures of fine detail which 64
pixels do not hold, a sixth of all emoji; they are then a group of their own, `flags`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from plugins.data.captioned import is_sided
from recipes.captioned_pictures.thumbnails import Picture, decode, straight
from recipes.downloads.archives import Package, members
from recipes.downloads.svg import render

NAMES = Package("npm", "emojibase-data", "17.0.0", "MIT; names and tags: CLDR, Unicode-3.0")
VARIATION = re.compile("-fe0f|fe0f-", re.IGNORECASE)
OVERSAMPLED = 4  # SVG is rendered at this multiple and averaged down
MIRRORED_NEVER = ("symbols", "flags")  # letters, arrows, flags


@dataclass(frozen=True)
class EmojiSet:
    """One style: where its pictures lie in its package, and the words for it in captions."""

    package: Package
    folder: str
    style: str


SETS = (
    EmojiSet(
        Package("npm", "emoji-datasource-google", "16.0.0", "pictures Apache-2.0 (Google, Noto); package MIT"),
        "package/img/google/64",
        "noto emoji",
    ),
    EmojiSet(
        Package("npm", "@lobehub/fluent-emoji-3d", "1.1.0", "MIT (Microsoft, Fluent)"), "package/assets", "3d emoji"
    ),
    EmojiSet(
        Package("npm", "openmoji", "17.0.0", "CC-BY-SA-4.0 (the OpenMoji project)"), "package/color/svg", "line emoji"
    ),
)


@dataclass(frozen=True)
class Emoji:
    """What emojibase says of one emoji."""

    label: str
    tags: tuple[str, ...]
    group: str


def read_names(archive: Path, flags: bool = False) -> dict[str, Emoji]:
    """Code points ("1f34e") -> Emoji. Raises ValueError when the archive is not emojibase's."""
    files = {"package/en/data.json", "package/meta/groups.json"}
    tables = {name: json.loads(content) for name, content in members(archive, files.__contains__)}
    if len(tables) != len(files):
        raise ValueError(f"{archive} lacks {', '.join(sorted(files - set(tables)))}: is it {NAMES.pattern}?")
    groups: Mapping[str, str] = tables["package/meta/groups.json"]["groups"]
    emoji = {}
    for entry in tables["package/en/data.json"]:
        group = groups.get(str(entry.get("group")), "component")
        if group == "component" or (group == "flags" and not flags):
            continue
        label = plain(entry["label"])
        tags = tuple(tag for tag in map(plain, entry.get("tags", ())) if tag.isascii() and tag != label)
        emoji[code(entry["hexcode"])] = Emoji(label, tags, group)
    return emoji


def code(name: str) -> str:
    """The code points in a file's name, lower case, without U+FE0F."""
    return VARIATION.sub("", name).lower()


def plain(text: str) -> str:
    """A name as a prompt would have it: straight apostrophes, no quotes, lower case, ": " as ", "."""
    return straight(text).replace(": ", ", ").lower()


def pictures(style: EmojiSet, archive: Path, names: Mapping[str, Emoji], size: int) -> Iterator[Picture]:
    """The set's pictures of the named emoji, in the archive's order, framed as their designers framed them."""

    def wanted(path: str) -> bool:
        return str(PurePosixPath(path).parent) == style.folder and code(PurePosixPath(path).stem) in names

    for path, content in members(archive, wanted):
        suffix = PurePosixPath(path).suffix
        if suffix == ".svg":
            content, suffix = render(content, OVERSAMPLED * size), ".png"
        image = decode(content, size, trim=False)
        if image is not None:
            emoji = names[code(PurePosixPath(path).stem)]
            mirror = emoji.group not in MIRRORED_NEVER and not is_sided(emoji.label) and "clock" not in emoji.tags
            yield Picture(image, emoji.label, style.style, emoji.tags, emoji.group, style.package.name, mirror)
