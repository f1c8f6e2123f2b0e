"""Tiny files in the formats of the real ones."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.io.images import write_image
from reveal.sources.wit import COLUMNS


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (12, 20)) -> Path:
    """A picture of one colour, its left half darker."""
    image = np.full((*size, 3), np.random.default_rng(seed).random(3) * 0.5 + 0.5, np.float32)
    image[:, : size[1] // 2] *= 0.5
    write_image(path, image)
    return path


def json_lines(path: Path, entries: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf-8")
    return path


def json_file(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), "utf-8")
    return path


def wit_table(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", delimiter="\t")
        writer.writeheader()
        writer.writerows({"language": "en", **row} for row in rows)
    return path


def tar(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def world(folder: Path, count: int = 12) -> dict[str, str]:
    """Items with pictures, questions about other pictures of them, and a vocabulary; paths by the config's fields."""
    from reveal.processing.tokenizers import Words

    foods, items, questions = ("fish", "seeds", "worms", "moss"), [], []
    for n in range(count):
        picture(folder / f"item{n}.png", n, (24, 32))
        picture(folder / f"query{n}.png", n, (32, 24))
        text = f"bird {n} eats {foods[n % 4]} by the sea"
        source = ("wiki", "web")[n % 2]
        items.append({"id": 10 + n, "source": source, "image": f"item{n}.png", "title": f"bird {n}", "text": text})
        asked = {"id": n, "image": f"query{n}.png", "text": "what does it eat", "answers": [foods[n % 4], text]}
        questions.append(asked | {"gold": 10 + n, "negatives": [10 + (n + 1) % count]})
    json_lines(folder / "items.jsonl", items)
    json_lines(folder / "questions.jsonl", questions)
    texts = [str(entry["text"]) for entry in items + questions]
    Words.of_texts([*texts, "Question: Describe the picture:"]).save(folder / "words.json")
    return dict(
        knowledge=str(folder / "items.jsonl"),
        questions=str(folder / "questions.jsonl"),
        tokenizer=str(folder / "words.json"),
    )
