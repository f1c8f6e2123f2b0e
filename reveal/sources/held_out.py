"""Which pictures a file of evaluation questions has: the names that must not come back in knowledge (`records`).

| file | a picture is called by |
| --- | --- |
| .jsonl of the general format, InfoSeek's | `image_id`, else `image` |
| .json of questions, of annotations, A-OKVQA's list | `image_id`, else `image` |
| .json of "images": COCO's captions, NoCaps, Karpathy's split | file, addresses, `open_images_id`; COCO's number |
| .csv of Encyclopedic-VQA | `dataset_image_ids` |

The `id` of a question is no picture's, and the `id` of a picture only where it is COCO's: NoCaps numbers pictures of
Open Images from 0. Addresses are compared with those of WIT and CC12M. Encyclopedic-VQA numbers iNaturalist's pictures,
and COCO's that have such a number are left out as well. Lines of .jsonl that are no objects are nobody's question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from reveal.sources import coco, evqa, jsonl
from reveal.sources.records import Skips

KINDS = ("questions", "images", "annotations")
READ = "give a .json or .jsonl of questions or pictures, Encyclopedic-VQA's .csv, or a folder of pictures"


def image_ids(path: str | Path) -> frozenset[str]:
    """The names: what `without` takes. Raises OSError, and ValueError for a file of another kind or without any."""
    suffixes = Path(path).suffixes
    if ".csv" in suffixes:
        rows = evqa.rows(path, Skips())
        names = frozenset(name for _, where, row in rows for name in evqa.ids_of(row, where, Skips()))
    elif ".jsonl" in suffixes:
        names = frozenset(map(jsonl.picture_name, (row for _, _, row in jsonl.objects(path, Skips()))))
    else:
        names = frozenset(_names_in(path))
    if not names - {""}:
        raise ValueError(f"{path} names no pictures, so none would be left out: {READ}")
    return names - {""}


def _names_in(path: str | Path) -> Iterable[str]:
    try:
        data = coco.read_json(path)
    except ValueError as error:
        raise ValueError(f"{error}; to leave out its pictures, {READ}") from error
    kind = next((kind for kind in KINDS if isinstance(data, Mapping) and kind in data), "questions")
    rows = coco.rows_of(data, kind, path)
    if kind == "images":
        return (name for row in rows for name in coco.picture_names(row))
    return map(jsonl.picture_name, rows)
