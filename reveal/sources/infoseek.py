"""InfoSeek: questions that take looking up, about the thing in an image (Chen et al., EMNLP 2023).

A JSON object a line. The answer to show and those that count are two fields; the test and the human set have neither:

    {"data_id": "infoseek_val_00000000", "image_id": "oven_04990048", "question": "Who invented this?",
     "answer": ["Hero"], "answer_eval": ["Hero", "Heron"], "data_split": "val_unseen_question"}
    {..., "answer": ["61 metre"], "answer_eval": [{"wikidata": 61.0, "range": [54.9, 67.1]}], ...}

Two files more are joined by `data_id`: `infoseek_val_qtype.jsonl` with `question_type` (String, Numerical or Time), for
scores by kind, and `infoseek_val_withkb.jsonl` with `entity_id`, the thing in the image. Without the first, a question
with a range is numerical and any other counts as string, which scores the same.

Images are OVEN's, `oven_04990048.jpg` in any folder. A question's id is the number of its line, from 0.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from reveal.metrics.infoseek import SPLITS, Span
from reveal.sources.jsonl import objects
from reveal.sources.records import Record, Skips, has

KINDS = ("string", "time", "numerical")
TOLERANCE = 0.1  # of a number that has no range


def records(
    path: str | Path, types: str | Path | None = None, entities: str | Path | None = None, *, skips: Skips
) -> Iterator[Record]:
    """The questions of a .jsonl or .jsonl.gz, without an answer too; `types` and `entities` are the other files.

    Metadata: `id` (`data_id`), `kind` (of `KINDS`), `split` (of `SPLITS`, else the file's), `references` (answers that
    count; () for numbers), `range` (least and largest number that count; None for texts), `entity` ("": unknown)."""
    kinds, things = _joined(types, "question_type", skips), _joined(entities, "entity_id", skips)
    seen: set[str] = set()
    for number, where, row in objects(path, skips):
        if not has(row, where, skips, data_id=str, image_id=str, question=str):
            continue
        if row["data_id"] in seen:
            skips.add("whose data_id came before", where)
            continue
        name, image, counts = row["data_id"], row["image_id"], row.get("answer_eval")
        seen.add(name)
        span, kind = span_of(counts), kinds.get(name, "").lower()
        kind = kind if kind in KINDS else "string" if span is None else "numerical"
        split = row["data_split"] if isinstance(row.get("data_split"), str) else ""
        split = next((one for one in SPLITS if split.endswith(one)), split)
        question = {"text": row["question"].strip(), "answers": _texts(row.get("answer")), "group": split}
        metadata = {"id": name, "kind": kind, "split": split, "entity": things.get(name, "")}
        metadata |= {"references": _texts(counts), "range": span}
        yield Record(number, where, None, (image,), metadata=metadata, **question)


def span_of(value: Any) -> Span | None:
    """The numbers that count: the range, else what is within a tenth of the number; None where there is neither."""
    entry = value[0] if isinstance(value, list) and value else value
    if not isinstance(entry, Mapping):
        return None
    ends, number = entry.get("range"), entry.get("wikidata")
    if isinstance(ends, list) and len(ends) > 1 and all(map(_is_number, ends[:2])):
        first, second = map(float, ends[:2])
    elif _is_number(number):
        first, second = number * (1 - TOLERANCE), number * (1 + TOLERANCE)
    else:
        return None
    return min(first, second), max(first, second)


def _joined(path: str | Path | None, field: str, skips: Skips) -> dict[str, str]:
    if path is None:
        return {}
    rows = (row for _, _, row in objects(path, skips))
    return {str(row["data_id"]): str(row[field]) for row in rows if "data_id" in row and field in row}


def _texts(value: Any) -> tuple[str, ...]:
    value = [value] if isinstance(value, str) or _is_number(value) else value
    if not isinstance(value, list):
        return ()
    return tuple(str(one) for one in value if _is_number(one) or (isinstance(one, str) and one.strip()))


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
