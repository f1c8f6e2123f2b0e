"""Encyclopedic-VQA: what an encyclopedia says of an animal, plant or landmark in an image (Mensink et al., ICCV 2023).

`train.csv`, `val.csv` and `test.csv` have a header and a row for each question, which is asked of up to five images:

| column | holds |
| --- | --- |
| `question` | the text |
| `answer` | what annotators said, `|` between them; a list has `&&` between its parts |
| `question_type` | templated, automatic, multi_answer (lists) or 2_hop |
| `dataset_name` | inaturalist or landmarks: whose images |
| `dataset_image_ids` | the images' ids, `|` between them |
| `wikipedia_url` | the page that has the answer; of 2_hop the two pages, `|` between them |
| `wikipedia_url_used_in_train` | True or False: whether training asks about that page |

Cells may hold quotes, commas and line breaks; a quote that never ends is an error: all behind it would be one cell. An
image of a row is a question, whose id is 10 times the row's number, from 0, and the image's place in the row.

Images of Google Landmarks v2 are called by their id, in any folder. Those of iNaturalist 2021 are called otherwise:
`names` are its `train.json` and `val.json`, {"images": [{"id", "file_name"}]}, or files {id: name}.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.data.text import open_text
from common.io.files import require_file
from common.io.tensor_files import read_json
from reveal.metrics.evqa import KINDS
from reveal.sources.records import Record, Skips

NEEDED = ("question", "answer", "question_type", "dataset_image_ids")
MOST = 10  # images of a row
LARGEST = 1 << 24  # bytes of a cell; Python's own limit is 128 KiB
NEXT, PART = "|", "&&"  # between answers, and between the parts of a list


def records(
    path: str | Path, names: str | Sequence[str] = (), kinds: Sequence[str] = KINDS, most: int = MOST, *, skips: Skips
) -> Iterator[Record]:
    """The questions of a .csv or .csv.gz, of some `kinds`, about the first `most` images of each row. Metadata:
    `references`, the answers as the file has them; `seen`, whether training asks about the same page (None: unknown);
    `page`, the address of the one with the answer. Raises ValueError for the columns of another file, an unknown kind,
    and `most` out of its range."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not 1 <= most <= MOST:
        raise ValueError(f"kinds are {list(kinds)}, most is {most}: choose of {', '.join(KINDS)}, and 1 to {MOST}")
    file_names = names_of([names] if isinstance(names, str) else names)
    for number, where, row in rows(path, skips):
        answers = tuple(answer for answer in parts_of(row["answer"], NEXT) if parts_of(answer, PART))
        text, kind = row["question"].strip(), row["question_type"].strip()
        if not text or not answers:
            skips.add("without an answer" if text else "without a question", where)
        elif kind not in KINDS:
            skips.add("of an unknown question_type", where)
        elif kind in kinds:
            seen = {"true": True, "false": False}.get((row.get("wikipedia_url_used_in_train") or "").strip().lower())
            # the parts of a list with commas between them, which is how they are scored
            written = tuple(", ".join(parts_of(answer, PART)) for answer in answers)
            question: dict[str, Any] = {"text": text, "answers": written, "group": kind}
            question["metadata"] = {"references": answers, "seen": seen, "page": row.get("wikipedia_url") or ""}
            for place, image in enumerate(ids_of(row, where, skips)[:most]):
                lookup = {"find": (file_names.get(image, image),), "names": (image,)}
                yield Record(MOST * number + place, f"{where} picture {image}", **lookup, **question)


def parts_of(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]


def rows(path: str | Path, skips: Skips) -> Iterator[tuple[int, str, dict[str, str]]]:
    """(number from 0, name in messages, cells by column) of each row. Raises ValueError as `records`."""
    csv.field_size_limit(max(csv.field_size_limit(), LARGEST))
    with open_text(require_file(path), newline="") as lines:
        reader, number = csv.DictReader(lines, strict=True), -1
        try:
            reader.fieldnames = columns = [column.strip() for column in reader.fieldnames or ()]
            if lacking := [name for name in NEEDED if name not in columns]:
                raise ValueError(f"{path} has no column {lacking[0]}: give the file as its authors published it")
            for number, row in enumerate(reader):
                where = f"{path} row {number + 2}"  # counting the header
                if None in row or None in row.values():
                    skips.add(f"that have not {len(columns)} columns", where)
                else:
                    yield number, where, row
        except csv.Error as error:
            raise ValueError(f"{path} row {number + 3} cannot be read ({error}); copy the file again") from error


def names_of(files: Sequence[str | Path]) -> dict[str, str]:
    """File names of images by their ids as texts. Raises OSError, and ValueError for files of another kind."""
    file_names: dict[str, str] = {}
    for file in files:
        content = read_json(file, object)
        images = content.get("images") if isinstance(content, Mapping) else None
        if isinstance(images, list):
            named = ((row.get("id"), row.get("file_name")) for row in images if isinstance(row, Mapping))
            file_names |= {str(number): str(name) for number, name in named if number is not None and name}
        elif isinstance(content, Mapping) and all(isinstance(name, str) for name in content.values()):
            file_names |= {str(number): name for number, name in content.items()}
        else:
            raise ValueError(f"{file} names no pictures: give iNaturalist's train.json or val.json, or {{id: name}}")
    return file_names


def ids_of(row: Mapping[str, str], where: str, skips: Skips) -> list[str]:
    """The ids of a row's images; [], and counted, if there are none or too many."""
    ids = parts_of(row["dataset_image_ids"], NEXT)
    if not ids or len(ids) > MOST:
        skips.add(f"with more than {MOST} pictures" if ids else "without a picture", where)
        return []
    return ids
