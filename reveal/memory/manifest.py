"""The manifest: the one small file that describes a memory, and that commits a change of it.

`manifest.json` holds, without a date, so that the same items give the same bytes:

| field | what |
| --- | --- |
| format | of this layout; a reader refuses a newer one |
| version | of the contents: 1 when built, one more after each change |
| layout | encoder (fingerprint of the network), shapes and dtypes of keys and values, sources in order, `key_vectors` |
| next_id | id of the next item without one of its own |
| shards | name, rows, first and last id, live items per source, file of deletions, size and CRC-32C of each file |
| checksum | CRC-32C of the other fields as JSON with sorted keys; manifests before 2026-11-24 have none |

A change writes new files beside the old ones and then puts a new manifest in the old one's place, in one rename. What
a manifest does not name does not exist; so a program that dies half-way leaves the memory as it was.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import google_crc32c
import ml_dtypes
import numpy as np

from common.checked import Checked, Positive, one_of
from common.io.files import atomic_output, require_file
from common.io.json_text import parse_json

FORMAT = 1
NAME = "manifest.json"
ARRAYS, PAYLOAD = ("keys", "values", "ids", "source", "version", "offsets"), "payload.bin"
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
Dtype = Annotated[str, one_of(DTYPES)]  # of stored numbers
WRITTEN = tuple(f"{name}.npy" for name in ARRAYS) + (PAYLOAD,)  # files of a shard, in the order of their checksums
PLAIN_NAME = re.compile(r"\w[\w.-]*")
MOST_SOURCES = 255  # a source's number is a byte


@dataclass(frozen=True)
class Layout(Checked):
    """What all items of a memory have in common. Raises ValueError for sizes, dtypes and sources of no memory."""

    encoder: str  # fingerprint of the network that made keys and values
    sources: Sequence[str]  # names; an item keeps its source's number, so the order is for life
    key_dim: Positive
    value_shape: Sequence[Positive]  # (c, d)
    key_dtype: Dtype = "float32"
    value_dtype: Dtype = "float32"
    key_vectors: Positive = 1  # that a key consists of, one after the other; `key_dim` counts the numbers of all

    def rules(self):
        unique = len(set(self.sources)) == len(self.sources)
        yield unique and 1 <= len(self.sources) <= MOST_SOURCES, f"sources are 1 to {MOST_SOURCES}, each named once"
        yield len(self.value_shape) == 2, "value_shape is [c d]"
        yield self.key_dim % self.key_vectors == 0, "key_dim is a multiple of key_vectors"

    def number(self, source: str) -> int:
        """The number of a source. Raises ValueError for one that the memory does not have."""
        if source not in self.sources:
            raise ValueError(f"source {source!r} is not in this memory; it has {', '.join(self.sources)}")
        return self.sources.index(source)


@dataclass(frozen=True)
class ShardInfo:
    """The manifest's entry of a shard."""

    name: str  # of its folder
    rows: int  # in its files, deleted ones included
    first: int  # id; they rise within a shard
    last: int
    counts: tuple[int, ...]  # live items of each source
    deleted: str | None  # name of the file of deletions; None: all rows are live
    files: Mapping[str, tuple[int, int]]  # name -> bytes, CRC-32C

    @classmethod
    def from_json(cls, fields: Any) -> "ShardInfo":
        """Raises ValueError, KeyError, TypeError or OverflowError for other fields, and names that are paths."""
        files = {name: (int(size), int(crc)) for name, (size, crc) in fields["files"].items()}
        name, deleted = fields["name"], fields["deleted"]
        for one in (name, *files):
            if not PLAIN_NAME.fullmatch(one):
                raise ValueError(f"{one!r}, which is no name of a file beside it")
        missing = {*WRITTEN, *([] if deleted is None else [deleted])} - files.keys()
        rows, first, last = (int(fields[number]) for number in ("rows", "first", "last"))
        counts = tuple(map(int, fields["counts"]))
        if missing or min(rows - 1, first, *counts, *(size - 1 for size, _ in files.values())) < 0:
            raise ValueError(f"a shard {name} without {', '.join(sorted(missing)) or 'rows'}")
        return cls(name, rows, first, last, counts, deleted, files)


@dataclass(frozen=True)
class Manifest:
    layout: Layout
    version: int
    next_id: int
    shards: tuple[ShardInfo, ...]
    format: int = FORMAT

    @property
    def counts(self) -> dict[str, int]:
        """Live items of each source."""
        counts = (sum(shard.counts[number] for shard in self.shards) for number in range(len(self.layout.sources)))
        return dict(zip(self.layout.sources, counts, strict=True))

    def hash(self) -> str:
        """A hash of the contents: equal for equal items in equal shards, wherever and whenever they were written."""
        text = json.dumps(self, default=stored_fields, indent=1, sort_keys=True) + "\n"
        return hashlib.sha256(text.encode()).hexdigest()


def stored_fields(record: Any) -> dict[str, Any]:
    """Fields as files have them; one vector a key goes without saying, as before there were several."""
    return {name: value for name, value in vars(record).items() if (name, value) != ("key_vectors", 1)}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    fields = json.loads(json.dumps(manifest, default=stored_fields))
    text = json.dumps(fields | {"checksum": _checksum(fields)}, sort_keys=True)
    with atomic_output(folder / NAME, overwrite=True, durable=True) as temporary:
        temporary.write_text(text, "utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Raises FileNotFoundError where there is no memory; ValueError for a newer format and for a damaged file."""
    if not (folder / NAME).is_file():
        raise FileNotFoundError(f"{folder} holds no memory ({NAME} is missing); name another folder or build it")
    try:
        fields = parse_json(require_file(folder / NAME).read_text("utf-8"))
        if fields["format"] > FORMAT:
            raise ValueError(f"format {fields['format']} is newer than {FORMAT}: update this program")
        if (checksum := fields.pop("checksum", None)) is not None and checksum != _checksum(fields):
            raise ValueError("another checksum than it has")
        layout = Layout(**fields["layout"])
        shards = tuple(ShardInfo.from_json(shard) for shard in fields["shards"])
        if any(len(shard.counts) != len(layout.sources) for shard in shards):
            raise ValueError("shards of other sources")
        return Manifest(layout, int(fields["version"]), int(fields["next_id"]), shards, fields["format"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:  # int(inf) overflows
        raise ValueError(f"{folder / NAME}: expected the manifest of a memory, found {error}; copy it again") from error


def _checksum(fields: Mapping[str, Any]) -> int:
    return google_crc32c.value(json.dumps(fields, sort_keys=True).encode())


def fingerprint(params: Mapping[str, Any]) -> str:
    """Identifies a network by its parameters, a nested tree: equal for equal numbers, whatever file they came from."""
    from common.weights.porting import flatten  # needs JAX, which nothing else about a memory on the disk does

    digest = hashlib.sha256()
    for path, leaf in sorted(flatten(params).items()):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{path} {array.dtype} {array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def check_encoder(layout: Layout, encoder: str | None, where: Path) -> None:
    """Raises ValueError for a memory that another network made: its keys would answer by chance. None: any will do."""
    if encoder is not None and encoder != layout.encoder:
        made = f"{where} was made by encoder {layout.encoder}, this one is {encoder}"
        raise ValueError(f"{made}: `reveal refresh {where}` encodes it anew")
