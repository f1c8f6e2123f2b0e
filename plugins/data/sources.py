"""Images with captions and conditions in the layouts that people have: folders, JSON lines, tars, tensorflow-datasets.

**A folder**; conditions and captions are in files of the same name, for some images or all. The order is natural (9
before 10); a key is the path below `images` without its suffix, "birds/007". Hidden files are skipped.

    FOLDER/images/birds/007.jpg              or FOLDER/birds/007.jpg, with no folder `images`
    FOLDER/conditions/canny/birds/007.png    any image suffix
    FOLDER/captions/birds/007.txt            or images/birds/007.txt, beside the image; one caption a line

**A file of JSON lines**, one object a line; paths are relative to that file. A key is the image's path as written.

| written by                         | image       | captions  | condition images                                  |
| ---------------------------------- | ----------- | --------- | ------------------------------------------------- |
| you                                | `image`     | `caption` | `conditions`: {"canny": "edges/1.png"}            |
| Hugging Face, `metadata.jsonl`     | `file_name` | `text`    | `conditioning_image_file_name`, `depth_file_name` |
| ControlNet's fill50k `prompt.json` | `target`    | `prompt`  | `source`                                          |

Captions are a text or a list of texts, in caption, captions, text or prompt. A condition image of the last two without
a kind (`source` beside `target`, `conditioning_image`, with or without `_file_name`) stands for any. `X_file_name` of a
kind of your own counts where the file is there. Other fields are ignored.

**Tars** as WebDataset packs them, read at random without extraction. Members of one sample share their name up to the
first dot; others are ignored. A key starts with its tar's name, "train-0003/000007", as tars may reuse numbers.

    000007.jpg          the image: .jpg .jpeg .png .webp
    000007.txt          captions, one a line; or 000007.json: {"caption": "..."}, a text or a list, or the other names
    000007.canny.png    a condition image, by its kind

**tensorflow-datasets**, prepared as ArrayRecord (`tfds build --file_format=array_record`). A nested feature is written
with a slash. A key is the record's number.

    TfdsPictures("coco_captions", caption="captions/text")
    TfdsPictures("tf_flowers", caption="label")                          its class names as captions
    TfdsPictures("data/mine", conditions={"depth": "depth_picture"})     a prepared folder, with dataset_info.json
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from natsort import natsorted

from common.data import tar
from common.data.files import files_of, walk
from common.data.stored import File, Member, Stored
from common.data.tfds import open_rows
from common.io.files import contained, require_file
from common.io.images import READABLE
from common.io.json_text import parse_json
from plugins.conditions.registry import CONDITIONS as KINDS
from plugins.data.record import UNNAMED, Record, Source, captions_in, lines_of

IMAGES, CONDITIONS, TEXTS = "images", "conditions", "captions"
NAMES = ("metadata.jsonl", "prompt.json")  # looked for in a folder
PICTURES = ("image", "file_name", "image_file_name", "target")
SUFFIX = "_file_name"
NO_KIND = ("conditioning_image", "conditioning_image_file_name", "conditioning", "source")


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


@dataclass(frozen=True)
class JsonlPictures(Source):
    """The images of one file."""

    file: str | Path

    @functools.cached_property
    def records(self) -> tuple[Record, ...]:
        """Raises FileNotFoundError, ValueError; both name the line."""
        path = require_file(self.file)
        lines = enumerate(File(path).text().split("\n"), 1)  # not splitlines: a caption may hold U+2028
        records = tuple(_record(line, path.parent, f"{path} line {number}") for number, line in lines if line.strip())
        if not records:
            raise ValueError(f"{path} has no line; write one JSON object a line")
        return records


def _record(line: str, folder: Path, where: str) -> Record:
    entry = parse_json(line, where, dict)
    image = next((entry[name] for name in PICTURES if entry.get(name) is not None), None)
    if image is None:
        fields = ", ".join(entry) or "nothing"
        raise ValueError(f"{where}: no image; name it as one of {', '.join(PICTURES)} (it has {fields})")
    conditions = {kind: _file(folder, path, where) for kind, path in _conditions(entry, folder, where)}
    return Record(str(image), _file(folder, image, where), captions_in(entry, where), conditions)


def _conditions(entry: Mapping[str, Any], folder: Path, where: str) -> Iterator[tuple[str, Any]]:
    """(kind, path) of the condition images; null is none."""
    named = entry.get("conditions") or {}
    if not isinstance(named, dict):
        raise ValueError(f'{where}: conditions is {named!r}; write {{"canny": "edges/1.png"}}')
    yield from ((kind, path) for kind, path in named.items() if path is not None)
    for name, path in entry.items():
        if path is not None and name in NO_KIND and (name != "source" or "target" in entry):
            yield UNNAMED, path
        elif path is not None and name.endswith(SUFFIX) and name not in PICTURES:
            kind = name.removesuffix(SUFFIX)
            named = kind in KINDS  # else another field, as original_file_name, unless there is such a file
            with contextlib.suppress(OSError):  # a text too long for a path
                named = named or (folder / str(path)).is_file()
            if named:
                yield kind, path


def _file(folder: Path, path: Any, where: str) -> File:
    if not isinstance(path, str):
        raise ValueError(f"{where}: {path!r} is no path of an image; write it as a text")
    try:
        found = contained(folder, path)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if not found.is_file():
        raise FileNotFoundError(f"{where}: {found} does not exist; paths are relative to {folder}")
    return File(found)


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
    for member in tar.members(path):
        key, suffix = tar.key_and_suffix(member.member)
        if suffix and key and not key.endswith("/"):
            samples.setdefault(key, {})[suffix] = member
    for key, sample in samples.items():
        image = next((sample[suffix] for suffix in tar.IMAGES if suffix in sample), None)
        if image is None:
            continue
        reader, name = (lines_of, "txt") if "txt" in sample else (_json_captions, "json")
        texts = functools.partial(reader, sample[name]) if name in sample else ()
        kinds = {name.rpartition("."): member for name, member in sample.items()}
        conditions = {kind: member for (kind, _, suffix), member in kinds.items() if kind and suffix in tar.IMAGES}
        yield Record(f"{path.stem}/{key}", image, texts, conditions)


def _json_captions(member: Member) -> tuple[str, ...]:
    entry = parse_json(member.text(), member.name)
    return captions_in(entry if isinstance(entry, dict) else {"caption": entry}, member.name)


@dataclass(frozen=True)
class TfdsPictures(Source):
    """One split of a dataset, and the names of its features."""

    dataset: str  # a name, `name:1.0.0`, or a prepared folder
    split: str = "train"  # or train[:90%]
    image: str = "image"
    caption: str | None = None  # texts or class labels; None: no captions
    conditions: Mapping[str, str] = field(default_factory=dict)  # by kind
    data_dir: str | None = None  # where tfds keeps prepared datasets, if not in its default folder

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Record:
        conditions = {kind: Cell(self, index, feature) for kind, feature in self.conditions.items()}
        texts = () if self.caption is None else functools.partial(self.texts, index)
        return Record(f"{index:08d}", Cell(self, index, self.image), texts, conditions)

    @functools.cached_property
    def rows(self) -> Any:
        """The `tfds.data_source`; raises as `open_rows`."""
        images, texts = [self.image, *self.conditions.values()], () if self.caption is None else (self.caption,)
        return open_rows(self.dataset, self.split, images, texts, self.data_dir)

    def texts(self, index: int) -> tuple[str, ...]:
        """The captions of one record."""
        assert self.caption is not None
        first, *inner = self.caption.split("/")
        found: Any = self.rows[index][first]
        for name in inner:
            found = [each[name] for each in found] if isinstance(found, list) else found[name]
        feature = self.rows.dataset_info.features[first]
        if hasattr(feature, "int2str"):
            return (feature.int2str(int(found)),)
        texts = [found] if isinstance(found, bytes | str) else list(found)
        return tuple(text.decode("utf-8") if isinstance(text, bytes) else str(text) for text in texts)


@dataclass(frozen=True)
class Cell(Stored):
    """An encoded image in a record."""

    source: TfdsPictures
    index: int
    feature: str

    @property
    def name(self) -> str:
        return f"{self.source.dataset} {self.source.split} {self.index} feature {self.feature}"

    def read(self) -> bytes:
        return self.source.rows[self.index][self.feature]
