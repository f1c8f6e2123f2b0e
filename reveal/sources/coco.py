"""Questions and captions of COCO's images, and NoCaps, which has the same layout.

| set | files | questions | a group is |
| --- | --- | --- | --- |
| VQA-v2, OK-VQA | questions and annotations, JSON, joined by `question_id` | 10 answers each | |
| A-OKVQA | one JSON list | `direct_answers` | "difficult" where they are |
| COCO captions | {"images", "annotations"} | a picture, all its captions | |
| NoCaps | the same; images have a `domain` | the same | near-domain, in-domain, out-domain |
| Karpathy's split | {"images": [{"split", "cocoid", "sentences"}]} | the same | the split |

Pictures are found below one folder by their names, or by COCO's numbers where only those are given. OK-VQA's `answer`
is stemmed ("surf"), its `raw_answer` is what was typed ("surfing"): `answer="raw_answer"` reads that.

Plain JSON, checked row by row here: no package among the dependencies reads these files.

VQA-v2 is knowledge too (123,287 items in the paper): all questions about a picture with their answers. It shares
pictures with OK-VQA's validation set, which have to be left out (`held_out.image_ids`).
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.data.text import parse_json
from common.io.files import require_file
from reveal.memory.items import Item
from reveal.sources.image_names import Pictures, coco_names, folder_of, is_among
from reveal.sources.records import Question, Skips, file_bytes
from reveal.sources.wikidata import listed

NAMES = ("file_name", "filename", "open_images_id", "coco_url", "flickr_url")  # of a picture, beside its number
Row = Mapping[str, Any]


def vqa_questions(
    path: str | Path,
    images: str | Path,
    annotations: str | Path | None = None,
    answer: str = "answer",
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Question]:
    """VQA-v2 and OK-VQA.

    Args:
      path: of the questions.
      images: folder of COCO's pictures.
      annotations: of the answers; None: there are none (a test set).
      answer: which entry of an annotator's is the answer.
      without: numbers of pictures, as texts, that must not be there.
      skips: where questions without a picture or an annotation are counted.
    """
    skips, pictures = skips or Skips(), Pictures(images)
    for row, answers in _joined(path, annotations, answer, without, skips):
        picture = pictures.find(row["image_id"])
        if picture is None:
            skips.add("whose picture is not there", f"{path} question {row['question_id']}")
        else:
            yield Question(int(row["question_id"]), picture, row["question"], answers)


def vqa_items(
    path: str | Path,
    annotations: str | Path,
    images: str | Path | None = None,
    source: str = "vqa",
    first_id: int = 0,
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Item]:
    """ "Question: .. Answer: a, b" for all questions about a picture; its id is the picture's number after `first_id`.

    Different answers occur once, the commonest first; `images` None: texts alone."""
    skips, pictures = skips or Skips(), folder_of(images)
    about: dict[int, list[str]] = {}
    for row, answers in _joined(path, annotations, "answer", without, skips):
        texts = [answer for answer, _ in collections.Counter(answers).most_common()]
        about.setdefault(int(row["image_id"]), []).append(f"Question: {row['question']} Answer: {', '.join(texts)}")
    for number, texts in about.items():
        picture = pictures and pictures.find(number)
        if pictures is not None and picture is None:
            skips.add("whose picture is not there", f"{path} picture {number}")
        else:
            data = file_bytes(picture, skips, f"{path} picture {number}") if picture else None
            if data is not None or picture is None:
                yield Item(source, {"text": " ".join(texts)}, data, first_id + number)


def aokvqa_questions(
    path: str | Path, images: str | Path, without: Collection[str] = (), skips: Skips | None = None
) -> Iterator[Question]:
    """A-OKVQA; ids are places in the list, for its own are no numbers. The test set has no answers."""
    skips, pictures = skips or Skips(), Pictures(images)
    for number, row in enumerate(rows_of(read_json(path), "questions", path)):
        where = f"{path} question {number}"
        if not _has(row, where, skips, image_id=int, question=str):
            continue
        if str(row["image_id"]) in without:
            skips.held_out()
            continue
        picture = pictures.find(row["image_id"])
        if picture is None:
            skips.add("whose picture is not there", where)
            continue
        group = "difficult" if row.get("difficult_direct_answer") else ""
        yield Question(number, picture, row["question"], _texts(row.get("direct_answers")), group)


def captions(
    path: str | Path, images: str | Path, without: Collection[str] = (), skips: Skips | None = None
) -> Iterator[Question]:
    """COCO's captions and NoCaps; the id is the picture's in its file."""
    skips, pictures, data = skips or Skips(), Pictures(images), read_json(path)
    captions_of: dict[Any, list[str]] = {}
    for row in rows_of(data, "annotations", path, needed=False):
        if isinstance(row.get("image_id"), int):
            captions_of.setdefault(row["image_id"], []).extend(text.strip() for text in _texts([row.get("caption")]))
    for number, row in enumerate(rows_of(data, "images", path)):
        where = f"{path} picture {number}"
        if not _has(row, where, skips, id=int):
            continue
        if is_held_out(row, without):
            skips.held_out()
            continue
        picture = _found(row, pictures)
        if picture is None:
            skips.add("whose picture is not there", where)
        else:
            yield Question(row["id"], picture, "", tuple(captions_of.get(row["id"], ())), str(row.get("domain") or ""))


def caption_items(
    path: str | Path,
    images: str | Path,
    source: str = "coco",
    first_id: int = 0,
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Item]:
    """A picture with all its captions; its id is the picture's number after `first_id`."""
    skips = skips or Skips()
    yield from _described(captions(path, images, without, skips), str(path), source, first_id, skips)


def karpathy(
    path: str | Path,
    images: str | Path,
    splits: str | Sequence[str] = ("train", "restval"),
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Question]:
    """COCO's captions in Karpathy's split (`dataset_coco.json`); training is usually on train and restval, also written
    "train,restval"."""
    skips, pictures, chosen = skips or Skips(), Pictures(images), listed(splits)
    for number, row in enumerate(rows_of(read_json(path), "images", path)):
        where = f"{path} picture {number}"
        if not _has(row, where, skips, cocoid=int, split=str):
            continue
        if row["split"] not in chosen:
            continue
        if is_held_out(row, without):
            skips.held_out()
            continue
        picture = _found(row, pictures)
        if picture is None:
            skips.add("whose picture is not there", where)
            continue
        raw = _texts([sentence.get("raw") for sentence in _list(row.get("sentences")) if isinstance(sentence, dict)])
        yield Question(row["cocoid"], picture, "", tuple(text.strip() for text in raw), row["split"])


def karpathy_items(
    path: str | Path,
    images: str | Path,
    splits: str | Sequence[str] = ("train", "restval"),
    source: str = "coco",
    first_id: int = 0,
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Item]:
    """A picture of those splits with all its captions, as `caption_items` has them, in the order of COCO's numbers."""
    skips = skips or Skips()
    found = sorted(karpathy(path, images, splits, without, skips), key=lambda one: one.id)
    yield from _described(found, str(path), source, first_id, skips)


def picture_names(row: Row) -> tuple[str, ...]:
    """What a row of "images" calls its picture, the number only where it is COCO's."""
    number = _number(row)
    names = tuple(row[name] for name in NAMES if isinstance(row.get(name), str) and row[name])
    return names if number is None else (str(number), *names)


def is_held_out(row: Row, without: Collection[str]) -> bool:
    """Whether a row of "images" has one of these pictures."""
    return bool(without) and any(is_among(name, without) for name in picture_names(row))


def read_json(path: str | Path) -> Any:
    """Raises OSError, and ValueError for a file that is no JSON."""
    try:
        return parse_json(require_file(path).read_text("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}); unpack it, or copy it again") from error


def rows_of(data: Any, name: str, path: str | Path, needed: bool = True) -> list[Row]:
    """The list `name` of a file, or the file that is one. Raises ValueError if it is neither."""
    rows = data if isinstance(data, list) else data.get(name) if isinstance(data, dict) else None
    if rows is None and not needed:
        return []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} has no list of {name}: give the file as its authors published it")
    return rows


def _joined(
    path: str | Path, annotations: str | Path | None, answer: str, without: Collection[str], skips: Skips
) -> Iterator[tuple[Row, tuple[str, ...]]]:
    """Questions with their answers."""
    answers_of: dict[Any, tuple[str, ...]] = {}
    if annotations is not None:
        for row in rows_of(read_json(annotations), "annotations", annotations):
            if isinstance(row.get("question_id"), int):
                given = [entry.get(answer) for entry in _list(row.get("answers")) if isinstance(entry, dict)]
                answers_of[row["question_id"]] = _texts(given)
    for number, row in enumerate(rows_of(read_json(path), "questions", path)):
        where = f"{path} question {row.get('question_id', number)}"
        if not _has(row, where, skips, question_id=int, image_id=int, question=str):
            continue
        if str(row["image_id"]) in without:
            skips.held_out()
            continue
        if annotations is not None and not answers_of.get(row["question_id"]):
            skips.add("without an answer", where)
        else:
            yield row, answers_of.get(row["question_id"], ())


def _has(row: Row, where: str, skips: Skips, **kinds: type) -> bool:
    """Whether the entries are there and of these types."""
    wrong = [name for name, kind in kinds.items() if not isinstance(row.get(name), kind)]
    if wrong:
        skips.add(f"without {wrong[0]}", where)
    return not wrong


def _described(questions: Iterable[Question], path: str, source: str, first_id: int, skips: Skips) -> Iterator[Item]:
    """Pictures to describe with their captions, those that cannot be read counted."""
    for one in questions:
        data = file_bytes(one.image, skips, f"{path} picture {one.id}")
        if data is not None:
            text = {"text": " ".join(one.answers)} if one.answers else {}
            yield Item(source, text, data, first_id + one.id)


def _found(row: Row, pictures: Pictures) -> Path | None:
    """The picture of a row of "images"; by its number only where that is COCO's."""
    named, number = str(row.get("file_name") or row.get("filename") or ""), _number(row)
    return pictures.find(named) or (None if number is None else pictures.find(number))


def _number(row: Row) -> int | None:
    """COCO's: `cocoid`, or an `id` that is in the file's name too, or that alone is given."""
    if isinstance(row.get("cocoid"), int):
        return row["cocoid"]
    number, name = row.get("id"), row.get("file_name")
    is_own = not name or str(number) in coco_names(str(name))
    return number if isinstance(number, int) and is_own else None


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(one for one in _list(value) if isinstance(one, str))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
