"""Questions and captions of COCO's images, and NoCaps, which has the same layout.

| set | files | questions | a group is |
| --- | --- | --- | --- |
| VQA-v2, OK-VQA | questions and annotations, JSON, joined by `question_id` | 10 answers each | |
| A-OKVQA | one JSON list | `direct_answers` | "difficult" where they are |
| COCO captions | {"images", "annotations"} | an image, all its captions | |
| NoCaps | the same; images have a `domain` | the same | near-domain, in-domain, out-domain |
| Karpathy's split | {"images": [{"split", "cocoid", "sentences"}]} | the same | the split |

Images are found below one folder by their names, or by COCO's numbers where only those are given. OK-VQA's `answer` is
stemmed ("surf"), its `raw_answer` is what was typed ("surfing"): `answer="raw_answer"` reads that.

VQA-v2 is knowledge too (123,287 items in the paper): all questions about an image with their answers. It shares images
with OK-VQA's validation set, which have to be left out (`held_out.py`).
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.io.tensor_files import read_json
from reveal.sources.images import coco_names
from reveal.sources.records import Record, Skips, has
from reveal.sources.wikidata import listed

NAMES = ("file_name", "filename", "open_images_id", "coco_url", "flickr_url")  # of an image, beside its number
NO_ANSWER = "without an answer"
Row = Mapping[str, Any]


def vqa(
    path: str | Path, annotations: str | Path | None = None, answer: str = "answer", *, skips: Skips
) -> Iterator[Record]:
    """VQA-v2 and OK-VQA; `annotations` None is a test set, `answer` an entry of an annotator's answer. Metadata: the
    `answer_type` if there is one."""
    given: dict[int, tuple[tuple[str, ...], Any]] = {}  # answers and their type
    if annotations is not None:
        for row in rows_of(read_json(annotations, object), "annotations", annotations):
            if isinstance(row.get("question_id"), int):
                given[row["question_id"]] = _texts(row.get("answers"), answer), row.get("answer_type")
    for number, row in enumerate(rows_of(read_json(path, object), "questions", path)):
        where = f"{path} question {row.get('question_id', number)}"
        if has(row, where, skips, question_id=int, image_id=int, question=str):
            answers, kind = given.get(row["question_id"], ((), None))
            fault = NO_ANSWER if annotations is not None and not answers else ""
            question = {"text": row["question"], "answers": answers, "fault": fault}
            metadata = {} if kind is None else {"answer_type": str(kind)}
            yield Record(row["question_id"], where, None, (row["image_id"],), **question, metadata=metadata)


def vqa_images(path: str | Path, annotations: str | Path, *, skips: Skips) -> Iterator[Record]:
    """Texts "Question: .. Answer: a, b" for all questions about an image, different answers once, the commonest
    first."""
    texts: dict[int, list[str]] = {}
    for record in vqa(path, annotations, skips=skips):
        if record.fault:
            skips.add(record.fault, record.where)
            continue
        answers = ", ".join(text for text, _ in collections.Counter(record.answers).most_common())
        texts.setdefault(int(record.find[0]), []).append(f"Question: {record.text} Answer: {answers}")
    for number, about in texts.items():
        yield Record(number, f"{path} picture {number}", None, (number,), fields={"text": " ".join(about)})


def aokvqa(path: str | Path, *, skips: Skips) -> Iterator[Record]:
    """A-OKVQA; ids are places in the list, its own are no numbers. The test set has no answers. Metadata: the row."""
    for number, row in enumerate(rows_of(read_json(path, object), "questions", path)):
        where = f"{path} question {number}"
        if has(row, where, skips, image_id=int, question=str):
            group = "difficult" if row.get("difficult_direct_answer") else ""
            question = {"text": row["question"], "answers": _texts(row.get("direct_answers")), "group": group}
            yield Record(number, where, None, (row["image_id"],), **question, metadata=row)


def captions(path: str | Path, *, skips: Skips) -> Iterator[Record]:
    """COCO's captions and NoCaps; the id is the image's in its file."""
    data = read_json(path, object)
    captions_of: dict[Any, list[str]] = {}
    for row in rows_of(data, "annotations", path, needed=False):
        if isinstance(row.get("image_id"), int):
            captions_of.setdefault(row["image_id"], []).extend(map(str.strip, _texts([row], "caption")))
    for number, row in enumerate(rows_of(data, "images", path)):
        where = f"{path} picture {number}"
        if has(row, where, skips, id=int):
            yield _described(row["id"], where, row, captions_of.get(row["id"], ()), str(row.get("domain") or ""))


def karpathy(path: str | Path, splits: str | Sequence[str] = ("train", "restval"), *, skips: Skips) -> Iterator[Record]:
    """Karpathy's split of COCO's captions (`dataset_coco.json`); `splits` is a list or "train,restval"."""
    chosen = listed(splits)
    for number, row in enumerate(rows_of(read_json(path, object), "images", path)):
        where = f"{path} picture {number}"
        if has(row, where, skips, cocoid=int, split=str) and row["split"] in chosen:
            texts = [text.strip() for text in _texts(row.get("sentences"), "raw")]
            yield _described(row["cocoid"], where, row, texts, row["split"])


def karpathy_by_number(
    path: str | Path, splits: str | Sequence[str] = ("train", "restval"), *, skips: Skips
) -> Iterator[Record]:
    """`karpathy` in the order of COCO's numbers: ids rise, as a build needs them."""
    yield from sorted(karpathy(path, splits, skips=skips), key=lambda record: record.number)


def image_names(row: Row) -> tuple[str, ...]:
    """All names of the image of a row of "images", the number only where it is COCO's."""
    number = _coco_number(row)
    names = tuple(row[name] for name in NAMES if isinstance(row.get(name), str) and row[name])
    return names if number is None else (str(number), *names)


def rows_of(data: Any, name: str, path: str | Path, needed: bool = True) -> list[Row]:
    """The list `name` of a file, or the file that is one. Raises ValueError if it is neither."""
    rows = data if isinstance(data, list) else data.get(name) if isinstance(data, dict) else None
    if rows is None and not needed:
        return []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} has no list of {name}: give the file as its authors published it")
    return rows


def _described(number: int, where: str, row: Row, texts: Sequence[str], group: str) -> Record:
    """The record of a row of "images" with its captions."""
    coco_number = _coco_number(row)
    find = (str(row.get("file_name") or row.get("filename") or ""), *([] if coco_number is None else [coco_number]))
    fields = {"text": " ".join(texts)} if texts else {}
    return Record(number, where, None, find, image_names(row), fields=fields, answers=tuple(texts), group=group)


def _coco_number(row: Row) -> int | None:
    """COCO's: `cocoid`, or an `id` that is in the file's name too, or that alone is given."""
    if isinstance(row.get("cocoid"), int):
        return row["cocoid"]
    number, name = row.get("id"), row.get("file_name")
    is_own = not name or str(number) in coco_names(str(name))
    return number if isinstance(number, int) and is_own else None


def _texts(value: Any, entry: str | None = None) -> tuple[str, ...]:
    """The texts in a list, or of this entry of the objects in it."""
    found = value if isinstance(value, list) else []
    if entry is not None:
        found = [one.get(entry) for one in found if isinstance(one, dict)]
    return tuple(one for one in found if isinstance(one, str))
