"""`reveal build` of a WIT table as Wikipedia has them: how fast, in how much RAM, and what a kill costs.

    python -m benchmarks.reveal_build                      200,000 rows, 3,000 pictures; some 3 GB of disk
    python -m benchmarks.reveal_build --rows 2000          to try it out

The table is drawn: 17 columns, gzip, the header of the real ones. Of its rows

| share | what |
| --- | --- |
| 1 in 8 | is in another language, in its own script: no item, but a number |
| 1 in 40 | has an address whose picture nobody fetched |
| 1 in 100 each | is cut off; has a quote that never ends; has a quoted field of several lines; repeats the row before |
| 1 in 500 | has a page of 40,000 characters |

and of the pictures, which rows share as Wikipedia's do, 1 in 20 is larger than what is kept, 1 in 200 cut short. The
network is random and tiny. `reveal build` runs in a process of its own, three times: to the end, killed (SIGKILL) when
half of the items were there, and again to the end, to a memory of the same hash.

- build: `wall s`, `CPU s` of the process; `rows/s`, `items/s` without the start of the program; `early MB`, `late MB`:
  RAM in the second tenth of its time and in the last (medians); `peak MB`: the most ever.
- left out: of the report of the first run.
- an item: bytes of the folder, by kind; the network has keys of 64 numbers and values of 4 x 32, both float32.

Memory is read from /proc (Linux). Megabytes are 2^20 bytes.
"""

import csv
import gzip
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import tyro

from benchmarks.measuring import heading, line
from common import terminal
from common.checked import Checked, Positive, whole
from reveal.sources.wit import COLUMNS

ADDRESS = "https://upload.wikimedia.org/wikipedia/commons/a/ab/picture_{}.jpg"
SCRIPTS = {"ru": "абвгдежзиклмнопрст", "ja": "あいうえおかきく日本語山川", "ar": "ابتثجحخدذر", "de": "abcdeäöü"}
REST = 0.25  # seconds between two looks at the process
LENGTH = 64  # tokens of an item
PHRASE = 8  # words that are drawn together
# Columns and the formats of their numbers.
BUILD = {"": "", "rows": ",", "items": ",", "resumed": ","}
BUILD |= dict.fromkeys(("wall s", "CPU s", "rows/s", "items/s", "early MB", "late MB", "peak MB"), ",.0f")
LEFT_OUT = {"reason": "", "records": ","}
ITEM = {"": "", "bytes of an item": ",.0f"}


@dataclass(frozen=True)
class Options(Checked):
    rows: Annotated[int, whole(100)] = 200_000  # Of the table
    pictures: Positive = 3000  # In the folder
    seed: int = 0  # Of all that is drawn
    shard: Positive | None = None  # Items of a shard; None: `reveal build`'s own 16384, or a tenth of few rows


def words(rng: np.random.Generator, letters: str, count: int) -> list[str]:
    return ["".join(letters[n] for n in rng.integers(0, len(letters), rng.integers(2, 10))) for _ in range(count)]


class Table:
    """A table's rows, always the same for a seed."""

    def __init__(self, seed: int, pictures: int):
        self._rng, self._pictures = np.random.default_rng(seed), pictures
        latin = words(self._rng, "abcdefghijklmnopqrstuvwxyz", 6000)
        self.languages = {"en": latin} | {name: words(self._rng, of, 500) for name, of in SCRIPTS.items()}
        self.phrases = {name: [self._phrase(known) for _ in range(3000)] for name, known in self.languages.items()}

    def _phrase(self, known: list[str]) -> str:
        return " ".join([known[n] for n in self._rng.integers(0, len(known), PHRASE)])

    def text(self, language: str, count: int) -> str:
        known, size = (self.phrases[language], PHRASE) if count >= PHRASE else (self.languages[language], 1)
        return " ".join([known[n] for n in self._rng.integers(0, len(known), count // size)]) + "."

    def row(self) -> dict[str, str]:
        rng = self._rng
        language = "en" if rng.random() < 7 / 8 else str(rng.choice(list(SCRIPTS)))
        number, title = int(rng.integers(self._pictures)), self.text(language, 3)
        missing = rng.random() < 1 / 40
        page = self.text(language, int(rng.integers(40, 160)) if rng.random() > 1 / 500 else 7000)
        caption = self.text(language, int(rng.integers(3, 20))) if rng.random() < 0.5 else ""
        return dict.fromkeys(COLUMNS, "") | {
            "language": language,
            "page_url": f"https://{language}.wikipedia.org/wiki/{title[:-1].replace(' ', '_')}",
            "image_url": ADDRESS.format(f"lost_{number}" if missing else number),
            "page_title": title,
            "section_title": self.text(language, 2),
            "hierarchical_section_title": f"{title} / {self.text(language, 2)}",
            "caption_reference_description": caption,
            "caption_attribution_description": f"English: {self.text('en', 8)}",
            **{"mime_type": "image/jpeg", "original_height": "1024", "original_width": "768"},
            **dict.fromkeys(("is_main_image", "attribution_passes_lang_id", "page_changed_recently"), "true"),
            "context_page_description": page,
            "context_section_description": f'{self.text(language, 12)} 5" gun, "{self.text("ja", 2)}"',
        }

    def lines(self, count: int) -> Iterator[str]:
        """The table as text: header, then `count` rows with what is wrong with some."""
        yield _plain(COLUMNS)
        before = ""
        for _ in range(count):
            row, luck = self.row(), self._rng.random()
            if luck < 0.01:
                line = _plain(list(row.values())[: int(self._rng.integers(1, 16))])
            elif luck < 0.02:
                line = _plain((row | {"caption_alt_text_description": '"an open quote'}).values())
            elif luck < 0.03:
                section = "\n".join((row["context_section_description"], 'a "quoted" line', "\tand a tab"))
                file = io.StringIO()
                writer = csv.writer(file, delimiter="\t", lineterminator="\n")
                writer.writerow((row | {"context_section_description": section}).values())
                line = file.getvalue()
            else:
                line = before if luck < 0.04 and before else _plain(row.values())
            before = line
            yield line


def _plain(cells: Iterable[str]) -> str:
    return "\t".join(cells) + "\n"


def draw_pictures(folder: Path, count: int, seed: int) -> None:
    """JPEGs of coloured clouds: as large as Wikipedia's small previews, some larger, some cut short."""
    rng = np.random.default_rng([seed, 1])
    folder.mkdir()
    for number in range(count):
        side = 320 if rng.random() < 0.05 else int(rng.integers(64, 160))
        clouds = rng.integers(0, 256, (6, 6, 3), np.uint8)
        image = cv2.resize(clouds, (side, side * 3 // 4), interpolation=cv2.INTER_CUBIC)
        data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 85])[1].tobytes()
        (folder / f"picture_{number}.jpg").write_bytes(data if rng.random() > 1 / 200 else data[: len(data) // 2])


def draw(place: Path, options: Options) -> None:
    drawn = Table(options.seed, options.pictures)
    with gzip.open(place / "wit.tsv.gz", "wt", compresslevel=1, encoding="utf-8", newline="") as file:
        file.writelines(drawn.lines(options.rows))
    draw_pictures(place / "pictures", options.pictures, options.seed)
    save_network(place, drawn.languages["en"], options.seed)


def save_network(place: Path, known: list[str], seed: int) -> None:
    """Weights as `train.py` leaves them, at random, and the tokenizer beside them."""
    from flax import nnx

    from reveal.network import weights
    from reveal.network.config import RevealConfig, VitConfig
    from reveal.network.model import Reveal
    from reveal.processing.tokenizers import Words

    tokenizer = Words.of_texts(known[:400])
    tokenizer.save(place / "words.json")
    shape = len(tokenizer), 32, 2, 16, 64, 2, 1
    vit = VitConfig(width=32, depth=1, heads=2, mlp=64, patch=8, image_size=32)
    config = RevealConfig(vit, *shape, fusion_layers=1, key_dim=64, value_tokens=4, sources=1, bos=2)
    state = nnx.to_pure_dict(nnx.state(Reveal(config, rngs=nnx.Rngs(seed))))
    data = {"sources": ["wit"], "item_length": LENGTH}
    weights.save(place / weights.FILE, state, config, metadata={"recipe": {"data": data}})


class Run:
    """`reveal build` in a process of its own, its RAM and its report."""

    def __init__(self, place: Path, memory: Path, shard: int):
        words = ["build", f"wit:{place / 'wit.tsv.gz'},images={place / 'pictures'}", "-o", str(memory)]
        words += ["--weights", str(place), "--shard", str(shard), "--quiet", "--json"]
        self.memory, self.samples, self.peak, self.work = memory, [], 0.0, 0.0
        self._start, self._report = time.perf_counter(), place / "report.json"
        with self._report.open("wb") as output:
            self._process = subprocess.Popen([sys.executable, "-m", "reveal", *words], stdout=output)

    def watch(self, stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Until it ends, or `stop` says to kill it; what it did. Raises ValueError where it failed."""
        killed = False
        while self._process.poll() is None:
            self._look()
            if killed := stop():
                self._process.kill()
                break
            time.sleep(REST)
        code = self._process.wait()
        if code and not killed:
            raise ValueError(f"reveal build ended with {code}")
        report = {} if killed else json.loads(self._report.read_text("utf-8"))
        tenth = max(len(self.samples) // 10, 1)
        held = {"early MB": self.samples[tenth : 2 * tenth], "late MB": self.samples[-tenth:]}
        row = {name: statistics.median(some) for name, some in held.items() if some} | {"peak MB": self.peak}
        return report | row | {"wall s": time.perf_counter() - self._start, "CPU s": self.work}

    def _look(self) -> None:
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text("utf-8")
            numbers = Path(f"/proc/{self._process.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        except OSError:
            return
        fields = dict(entry.split(":", 1) for entry in status.splitlines())
        if "VmRSS" in fields:  # not of a process that has just ended
            self.samples.append(int(fields["VmRSS"].split()[0]) / 1024)
            self.peak = int(fields["VmHWM"].split()[0]) / 1024
            self.work = (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")  # proc(5): utime, stime


def compared(place: Path, options: Options) -> tuple[Path, dict[str, Any]]:
    """The memory, and what the first run did; a row of the table for each of the three. Raises ValueError where two
    memories are not the same."""
    shard = options.shard or min(16384, max(options.rows // 10, 1))
    whole, again = place / "whole", place / "again"
    heading(f"build, {options.rows:,} rows, {len(os.sched_getaffinity(0))} cores", BUILD)
    first = Run(place, whole, shard).watch()
    rates = {"rows/s": options.rows / first["seconds"], "items/s": first["added"] / first["seconds"]}
    line(BUILD, first | rates | {"": "at once", "rows": options.rows})
    half = -(-first["items"] // shard) // 2
    is_half = lambda: len([*again.glob("v00001-*")]) >= half and any(again.glob(".partial-*"))  # noqa: E731
    killed = Run(place, again, shard).watch(is_half)
    if "hash" in killed:
        raise ValueError("the build was over before it could be killed: give more rows, or a smaller --shard")
    there = sum(json.loads((one / "shard.json").read_text("utf-8"))["rows"] for one in again.glob("v00001-*"))
    line(BUILD, killed | {"": "killed", "items": there})
    last = Run(place, again, shard).watch()
    line(BUILD, last | {"": "resumed"})
    if (last["hash"], last["items"], last["left_out"]) != (first["hash"], first["items"], first["left_out"]):
        raise ValueError(f"resumed: {last['hash']}, {last['items']} items; at once: {first['hash']}, {first['items']}")
    return whole, first


def of_an_item(memory: Path) -> dict[str, float]:
    """Bytes of the folder for each item, by kind."""
    from reveal.memory import Memory

    opened = Memory(memory)
    count, sizes = len(opened), dict.fromkeys(("keys", "values", "payload", "rest"), 0)
    for file in memory.rglob("*"):
        if file.is_file():
            sizes[file.stem if file.stem in sizes else "rest"] += file.stat().st_size
    known = opened.items(opened.rows().ids[:: max(count // 2000, 1)])
    pictures = sum(len(item.picture or b"") for item in known) / len(known)
    texts = sizes.pop("payload") / count - pictures
    kinds = {"key": sizes["keys"] / count, "value": sizes["values"] / count, "texts": texts, "picture": pictures}
    return kinds | {"number, source, places": sizes["rest"] / count}


def main(options: Annotated[Options, tyro.conf.arg(name="")] = Options()) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        draw(place, options)
        memory, first = compared(place, options)
        heading("\nleft out", LEFT_OUT)
        for reason, count in first["left_out"].items():
            line(LEFT_OUT, {"reason": reason, "records": count})
        heading("\nan item", ITEM)
        for kind, size in of_an_item(memory).items():
            line(ITEM, {"": kind, "bytes of an item": size})
        print(f"\nthe memory that was killed and resumed has the hash of the other: {first['hash'][:16]}")


if __name__ == "__main__":
    terminal.program(main)
