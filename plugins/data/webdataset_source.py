"""Pictures in tar files, as WebDataset packs them, read at random without extracting anything.

Members that belong together share their name up to the first dot:

    000007.jpg          the picture: .jpg .jpeg .png .webp
    000007.txt          captions, one a line; or
    000007.json         {"caption": "..."}, also text, prompt or captions, a text or a list
    000007.canny.png    a condition picture, by its kind

Other members are passed over. The headers are read once, when the source is first used, and a record then by seeking
(`common.data.tar`). A compressed tar cannot be read so: unpack it (`gunzip`). A file that is damaged or cut short is
reported at once, by name.
The key of a record has its tar's name in front, "train-0003/000007": tars may number anew.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.data.files import files_of
from common.data.stored import Member
from common.data.tar import IMAGES, key_and_suffix, members
from plugins.data.record import Listed, Record, captions_in, lines_of


@dataclass(frozen=True)
class WebDatasetPictures(Listed):
    """The pictures of one tar, of all in a folder, or of those that a pattern names.

    Attributes:
      files: shard.tar, a folder, shards/*.tar, or shards/train-{0000..0099}.tar, of which each has to be there.
    """

    files: str | Path

    @functools.cached_property
    def records(self) -> tuple[Record, ...]:
        """Raises FileNotFoundError (no tar), ValueError (a damaged or compressed one, no picture in any)."""
        records = tuple(record for path in files_of(self.files, ".tar") for record in _records(path))
        if not records:
            raise ValueError(f"{self.files}: no picture in it; members are called key.jpg, key.txt, key.canny.png")
        return records


def _records(path: Path) -> Iterator[Record]:
    """The records of one tar in its order; samples without a picture are left out."""
    samples: dict[str, dict[str, Member]] = {}
    for member in members(path):
        key, suffix = key_and_suffix(member.member)
        if suffix and key and not key.endswith("/"):
            samples.setdefault(key, {})[suffix] = member
    for key, parts in samples.items():
        picture = next((parts[suffix] for suffix in IMAGES if suffix in parts), None)
        if picture is not None:
            kinds = [(name.rpartition("."), member) for name, member in parts.items()]
            stored = {kind: member for (kind, _, suffix), member in kinds if kind and suffix in IMAGES}
            yield Record(f"{path.stem}/{key}", picture, _texts(parts), stored)


def _texts(parts: Mapping[str, Member]) -> tuple[()] | functools.partial[tuple[str, ...]]:
    if "txt" in parts:
        return functools.partial(lines_of, parts["txt"])
    return functools.partial(_json_captions, parts["json"]) if "json" in parts else ()


def _json_captions(member: Member) -> tuple[str, ...]:
    try:
        entry = json.loads(member.text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{member.name}: no JSON ({error}); pack it again") from error
    return captions_in(entry if isinstance(entry, dict) else {"caption": entry}, member.name)
