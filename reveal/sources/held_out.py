"""The images of evaluation sets, which must not come back in knowledge: by their names and by their bytes.

`image_ids` reads the names (`images.all_names`) from a file of questions or images:

| file | an image is named by |
| --- | --- |
| .jsonl of the general format and InfoSeek's; .json of questions, annotations, A-OKVQA | `image_id`, else `image` |
| .json of "images": COCO's captions, NoCaps, Karpathy's split | file, addresses, `open_images_id`; COCO's number |
| .csv of Encyclopedic-VQA | `dataset_image_ids` |

NoCaps numbers images of Open Images from 0, so the `id` of an image counts only where it is COCO's. Encyclopedic-VQA
numbers iNaturalist's images, and COCO's that have such a number are left out as well.
"""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.data.files import walk
from common.data.stored import Member
from common.io.images import READABLE
from common.io.tensor_files import read_json
from reveal.sources import coco, evqa, jsonl
from reveal.sources.records import Question, Skips, file_bytes

LISTS = ("questions", "images", "annotations")
ACCEPTED = "give a .json or .jsonl of questions or pictures, Encyclopedic-VQA's .csv, or a folder of pictures"


def image_ids(path: str | Path) -> frozenset[str]:
    """The names. Raises OSError, and ValueError for a file of another kind or without any."""
    suffixes = Path(path).suffixes
    if ".csv" in suffixes:
        rows = evqa.rows(path, Skips())
        names = frozenset(name for _, where, row in rows for name in evqa.ids_of(row, where, Skips()))
    elif ".jsonl" in suffixes:
        names = frozenset(map(jsonl.image_name, (row for _, _, row in jsonl.objects(path, Skips()))))
    else:
        try:
            data = read_json(path, object)
        except ValueError as error:
            raise ValueError(f"{error}; to leave out its pictures, {ACCEPTED}") from error
        kind = next((name for name in LISTS if isinstance(data, Mapping) and name in data), "questions")
        rows = coco.rows_of(data, kind, path)
        every = coco.image_names if kind == "images" else lambda row: (jsonl.image_name(row),)
        names = frozenset(name for row in rows for name in every(row))
    if not names - {""}:
        raise ValueError(f"{path} names no pictures, so none would be left out: {ACCEPTED}")
    return names - {""}


def contents(folders: Sequence[Path]) -> frozenset[bytes]:
    """SHA-256 of every image file in some folders and below; a link to nothing has no content. Raises OSError."""
    found = set()
    for folder in folders:
        for path in walk(folder, READABLE, hidden=True):
            with contextlib.suppress(FileNotFoundError):
                found.add(hashlib.sha256(path.read_bytes()).digest())
    return frozenset(found)


def image_hash(record: Any) -> bytes | None:
    """SHA-256 of the image file of an item or a question; None: there is none that can be read."""
    image = record.image if isinstance(record, Question) else record.picture
    data = file_bytes(image, Skips(), "") if isinstance(image, Path | bytes | Member) else None
    return None if data is None else hashlib.sha256(data).digest()
