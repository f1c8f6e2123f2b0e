"""Encyclopedic-VQA: what an encyclopedia says of an animal, plant or landmark in a picture (Mensink et al., ICCV 2023).

`train.csv`, `val.csv` and `test.csv` have a header and a row for each question, which is asked of up to five pictures:

| column | holds |
| --- | --- |
| `question` | the text |
| `answer` | what annotators said, `|` between them; a list has `&&` between its parts |
| `question_type` | templated, automatic, multi_answer (lists) or 2_hop |
| `dataset_name` | inaturalist or landmarks: whose pictures |
| `dataset_image_ids` | the pictures' ids, `|` between them |
| `wikipedia_url` | the page that has the answer; of 2_hop the two pages, `|` between them |
| `wikipedia_url_used_in_train` | True or False: whether training asks about that page |

The files are plain .csv, read with `csv`; only the rules below are ours.

Other columns (the evidence and its section, the category) are left unread. Cells may hold quotes, commas and line
breaks; a quote that never ends is an error, for everything behind it would be one cell.

**Pictures.** Those of Google Landmarks v2 are called by their id, in any folder. Those of iNaturalist 2021 are called
otherwise: `names` are its `train.json` and `val.json`, {"images": [{"id", "file_name"}]}, or files {id: name}.

Each picture of a row is a question. Its id is 10 times the row's number, from 0, and the picture's place in the row.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from common.data.text import open_text
from common.io.files import require_file
from reveal.sources.coco import read_json
from reveal.sources.image_names import Pictures
from reveal.sources.records import Question, Skips

KINDS = ("templated", "automatic", "multi_answer", "2_hop")
NEEDED = ("question", "answer", "question_type", "dataset_image_ids")
MOST = 10  # pictures of a row
LARGEST = 1 << 24  # bytes of a cell; Python's own limit is 128 KiB
NEXT, PART = "|", "&&"  # between answers, and between the parts of a list


class Entry(NamedTuple):
    """A question with what its evaluation goes by.

    Attributes:
      question: its answers are written out, lists with commas; its group is the kind.
      references: the answers as the file has them.
      kind: of the question, one of KINDS.
      seen: whether training asks about the same page; None: the file does not say.
      image: what the picture is called in its own set.
      page: address of the page with the answer.
    """

    question: Question
    references: tuple[str, ...]
    kind: str
    seen: bool | None
    image: str
    page: str


def questions(
    path: str | Path,
    images: str | Path,
    names: str | Sequence[str] = (),
    kinds: Sequence[str] = KINDS,
    most: int = MOST,
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Question]:
    """Questions to train on; arguments as for `entries`."""
    yield from (entry.question for entry in entries(path, images, names, kinds, most, without, skips))


def entries(
    path: str | Path,
    images: str | Path,
    names: str | Sequence[str] = (),
    kinds: Sequence[str] = KINDS,
    most: int = MOST,
    without: Collection[str] = (),
    skips: Skips | None = None,
) -> Iterator[Entry]:
    """The questions of a file.

    Args:
      path: a .csv, which may end in .gz.
      images: folder of all pictures.
      names: a file, or some, that say what iNaturalist's pictures are called; none: by their ids.
      kinds: of questions to read.
      most: pictures of a row that are asked about, at most 10; 1: the first one.
      without: ids of pictures that must not be there.
      skips: where rows without a question, an answer or the right columns, and pictures that are not there are counted.

    Raises:
      OSError: a file or folder is missing.
      ValueError: the columns of another file; an unknown kind; `most` out of its range.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not 1 <= most <= MOST:
        raise ValueError(f"kinds are {list(kinds)}, most is {most}: choose of {', '.join(KINDS)}, and 1 to {MOST}")
    skips, pictures = skips or Skips(), Pictures(images)
    called = names_of([names] if isinstance(names, str) else names)
    for number, where, row in rows(path, skips):
        answers = tuple(answer.strip() for answer in row["answer"].split(NEXT) if answer.replace(PART, " ").strip())
        kind = row["question_type"].strip()
        if not row["question"].strip() or not answers:
            skips.add("without an answer" if row["question"].strip() else "without a question", where)
        elif kind not in KINDS:
            skips.add("of an unknown question_type", where)
        elif kind in kinds:
            about = answers, kind, _truth(row.get("wikipedia_url_used_in_train"))
            for place, image in enumerate(ids_of(row, where, skips)[:most]):
                if image in without:
                    skips.held_out()
                    continue
                picture = pictures.find(called.get(image, image))
                if picture is None:
                    skips.add("whose picture is not there", f"{where} picture {image}")
                    continue
                head = MOST * number + place, picture, row["question"].strip()
                question = Question(*head, tuple(map(written, answers)), kind)
                yield Entry(question, *about, image, row.get("wikipedia_url") or "")


def written(answer: str) -> str:
    """An answer as a text to write: the parts of a list with commas between them, which is how they are scored."""
    return ", ".join(part.strip() for part in answer.split(PART) if part.strip())


def rows(path: str | Path, skips: Skips) -> Iterator[tuple[int, str, dict[str, str]]]:
    """(number of the row from 0, what messages call it, cells by column). Raises ValueError as `entries`."""
    csv.field_size_limit(max(csv.field_size_limit(), LARGEST))
    with open_text(require_file(path), newline="") as lines:
        reader, number = csv.reader(lines, strict=True), -1
        try:
            columns = [column.strip() for column in next(reader, [])]
            lacking = [name for name in NEEDED if name not in columns]
            if lacking:
                raise ValueError(f"{path} has no column {lacking[0]}: give the file as its authors published it")
            for row in reader:
                if not row:
                    continue
                number, where = number + 1, f"{path} row {number + 3}"  # counting the header
                if len(row) != len(columns):
                    skips.add(f"that have not {len(columns)} columns", where)
                else:
                    yield number, where, dict(zip(columns, row, strict=True))
        except csv.Error as error:
            raise ValueError(f"{path} row {number + 3} cannot be read ({error}); copy the file again") from error


def names_of(files: Sequence[str | Path]) -> dict[str, str]:
    """What pictures are called, by their ids as texts. Raises OSError, and ValueError for files of another kind."""
    called: dict[str, str] = {}
    for file in files:
        content = read_json(file)
        images = content.get("images") if isinstance(content, Mapping) else None
        if isinstance(images, list):
            named = ((row.get("id"), row.get("file_name")) for row in images if isinstance(row, Mapping))
            called |= {str(number): str(name) for number, name in named if number is not None and name}
        elif isinstance(content, Mapping) and all(isinstance(name, str) for name in content.values()):
            called |= {str(number): name for number, name in content.items()}
        else:
            raise ValueError(f"{file} names no pictures: give iNaturalist's train.json or val.json, or {{id: name}}")
    return called


def ids_of(row: Mapping[str, str], where: str, skips: Skips) -> list[str]:
    """The ids of a row's pictures; [], and counted, if there are none or too many."""
    ids = [image.strip() for image in row["dataset_image_ids"].split(NEXT) if image.strip()]
    if not ids or len(ids) > MOST:
        skips.add(f"with more than {MOST} pictures" if ids else "without a picture", where)
        return []
    return ids


def _truth(cell: str | None) -> bool | None:
    return {"true": True, "false": False}.get((cell or "").strip().lower())
