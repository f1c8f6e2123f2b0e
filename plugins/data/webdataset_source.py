"""Images in tar files, as WebDataset packs them, read at random without extraction.

Members of one sample share their name up to the first dot:

    000007.jpg          the image: .jpg .jpeg .png .webp
    000007.txt          captions, one a line; or
    000007.json         {"caption": "..."}, also text, prompt or captions, a text or a list
    000007.canny.png    a condition image, by its kind

Other members are ignored. The headers are read once, at the source's first use, and a record then by seeking
(`common.data.tar`). A compressed tar must be unpacked first (`gunzip`). A damaged or cut file is an error at once. A
key starts with its tar's name, "train-0003/000007", as tars may reuse numbers.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.data.files import files_of
from common.data.stored import Member
from common.data.tar import IMAGES, key_and_suffix, members
from common.io.json_text import parse_json
from plugins.data.record import Record, Source, captions_in, lines_of


@dataclass(frozen=True)
class WebDatasetPictures(Source):
    """The images of one tar, of all in a folder, or of those that a pattern matches."""

    files: str | Path  # shard.tar, a folder, shards/*.tar, or shards/train-{0000..0099}.tar, of which each must exist

    @functools.cached_property
    def records(self) -> tuple[Record, ...]:
        """Raises FileNotFoundError without a tar; ValueError for a damaged or compressed one, or no image in any."""
        records = tuple(record for path in files_of(self.files, ".tar") for record in _records(path))
        if not records:
            raise ValueError(f"{self.files}: no image in it; name members key.jpg, key.txt, key.canny.png")
        return records


def _records(path: Path) -> Iterator[Record]:
    """The samples with an image in one tar, in its order."""
    samples: dict[str, dict[str, Member]] = {}
    for member in members(path):
        key, suffix = key_and_suffix(member.member)
        if suffix and key and not key.endswith("/"):
            samples.setdefault(key, {})[suffix] = member
    for key, sample in samples.items():
        image = next((sample[suffix] for suffix in IMAGES if suffix in sample), None)
        if image is None:
            continue
        reader, name = (lines_of, "txt") if "txt" in sample else (_json_captions, "json")
        texts = functools.partial(reader, sample[name]) if name in sample else ()
        kinds = {name.rpartition("."): member for name, member in sample.items()}
        conditions = {kind: member for (kind, _, suffix), member in kinds.items() if kind and suffix in IMAGES}
        yield Record(f"{path.stem}/{key}", image, texts, conditions)


def _json_captions(member: Member) -> tuple[str, ...]:
    entry = parse_json(member.text(), member.name)
    return captions_in(entry if isinstance(entry, dict) else {"caption": entry}, member.name)
