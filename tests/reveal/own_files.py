"""Tiny files in the formats of the real ones; what a reader reads of them, and what it leaves out."""

from __future__ import annotations

import csv
import gzip
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from made_archives import tar_bytes

from common.io.images import write_image
from common.io.tfrecord import masked_crc
from reveal.sources import Items, Questions, Skips
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
    path.write_bytes(tar_bytes(members, "w"))
    return path


def pdf(text: str) -> bytes:
    """The smallest file with a page of text."""
    stream = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 200] /Contents 4 0 R"
        b" /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    data, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(data)
    data += b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % place for place in places)
    return data + b"trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % start


def message(number, data):
    """A protobuf field that is bytes."""
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def varint(n):
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)


def record(**features):
    """A tf.train.Example; integers are of another kind, which is passed over."""

    def value(one):
        if isinstance(one, int):
            return message(3, message(1, varint(one)))
        return message(1, message(1, one if isinstance(one, bytes) else one.encode()))

    entries = [message(1, message(1, name.encode()) + message(2, value(one))) for name, one in features.items()]
    return message(1, b"".join(entries))


def tfrecord(path, *data):
    def framed(one):
        length = struct.pack("<Q", len(one))
        return length + struct.pack("<I", masked_crc(length)) + one + struct.pack("<I", masked_crc(one))

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(framed, data)))
    return path


def page(name, **features):
    return record(
        language=features.pop("language", "en"),
        image_url=f"https://x.org/{name}.jpg",
        context_page_description=f"About {name}",
        original_height=768,
        is_main_image=1,
        **features,
    )


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


def read(source: Items | Questions) -> tuple[list, dict[str, int]]:
    skips = Skips(source.strict)
    return list(source.read(skips)), dict(skips.counts)


def items(reader: str, path, leave_out=(), strict: bool = False, **options) -> tuple[list, dict[str, int]]:
    return read(Items(reader, str(path), given(options), list(map(str, leave_out)), strict))


def questions(reader: str, path, leave_out=(), strict: bool = False, **options) -> tuple[list, dict[str, int]]:
    return read(Questions(reader, str(path), given(options), list(map(str, leave_out)), strict))


def given(options: dict) -> dict:
    """Paths as texts, as configs have them."""
    return {name: value if isinstance(value, bool | int | list) else str(value) for name, value in options.items()}
