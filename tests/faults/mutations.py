"""Damaged files: what each reader does with thousands of seeded changes of a good one.

    python tests/faults/mutations.py --count 10000           all readers, a table (`make faults`)
    python tests/faults/mutations.py --only png --count 100

A change is one to four of: flipped bits, bytes of one value, a number written over, a part left out, doubled, cut off
or put in. Each reader runs in a process of its own, so that a crash is a row of the table. Columns: changes that were
read all the same; errors of one class, ValueError or OSError; raw errors of other classes; errors that do not name the
file; programs started or connections opened; the slowest in seconds; the most memory in MB above the reader's start.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from common.data.arrays import mapped, open_arrays
from common.io.images import read_image, write_image
from common.io.tensor_files import read_json
from common.io.torch_file import read_torch
from common.io.video_reader import probe
from common.weights.model_file import load_weights, save_weights
from reveal.memory import Builder, Item, Layout, Memory
from reveal.sources import Skips
from reveal.sources.jsonl import items

DATA = Path(__file__).parents[1] / "data"
FRAME = np.linspace(0, 1, 24 * 32 * 3, dtype=np.float32).reshape(24, 32, 3)
STARTED = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect")


def picture(name: str, bits: int = 8) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write_image(folder / name, FRAME, bits=bits)
        return folder / name

    return make


def encoded(suffix: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        import pillow_heif
        from PIL import Image

        pillow_heif.register_heif_opener()
        Image.fromarray((FRAME * 255).astype(np.uint8)).save(folder / f"a{suffix}")
        return folder / f"a{suffix}"

    return make


def movie(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        from common.io.video import write_clip

        write_clip(folder / name, iter([FRAME] * 4), 4)
        return folder / name

    return make


def copied(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / Path(name).name
        path.write_bytes((DATA / name).read_bytes())
        return path

    return make


def array(folder: Path) -> Path:
    np.save(folder / "a.npy", FRAME)
    return folder / "a.npy"


def archive(folder: Path) -> Path:
    np.savez_compressed(folder / "a.npz", a=FRAME, b=np.arange(9))
    return folder / "a.npz"


def read_archive(path: Path) -> None:
    with open_arrays(path) as arrays:
        for name in arrays:
            arrays[name].copy()


def weights(folder: Path) -> Path:
    return save_weights(folder / "w.safetensors", {"a": FRAME, "b": {"c": FRAME}}, kind="film", config={"levels": 3})


def text(folder: Path) -> Path:
    (folder / "a.json").write_text(json.dumps({"a": [1, 2.5, {"b": None}], "c": "text" * 20}))
    return folder / "a.json"


def lines(folder: Path) -> Path:
    rows = [{"id": n, "source": "a", "image": "a.png", "text": "a fact" * n} for n in range(9)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "a.jsonl"


def memory(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        keys = np.eye(8, dtype=np.float32)
        facts = [Item("a", {"text": f"fact {number}"}) for number in range(8)]
        with Builder(folder / "m", Layout("e", ("a", "b"), 8, (2, 4))) as builder:
            builder.add(facts, keys, np.ones((8, 2, 4), np.float32))
        return folder / "m" / name

    return make


def read_memory(path: Path) -> None:
    opened = Memory(next(parent for parent in path.parents if (parent / "manifest.json").exists()))
    opened.items(list(range(8)))
    opened.rows().keys(0, 8)
    opened.values(np.arange(8))


# name -> a good file, and its reader
READERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "png": (picture("a.png"), read_image),
    "png, 16 bits": (picture("a.png", 16), read_image),
    "jpeg": (picture("a.jpg"), read_image),
    "webp": (picture("a.webp"), read_image),
    "tiff": (picture("a.tif"), read_image),
    "tiff, 16 bits": (picture("a.tif", 16), read_image),
    "bmp": (encoded(".bmp"), read_image),
    "avif": (encoded(".avif"), read_image),
    "heic": (encoded(".heic"), read_image),
    "mp4": (movie("a.mp4"), probe),
    "mkv": (movie("a.mkv"), probe),
    "gif": (movie("a.gif"), probe),
    "torch": (copied("film/torch_tensors.pth"), read_torch),
    "torch, legacy": (copied("film/torch_legacy.pth"), read_torch),
    "weights": (weights, load_weights),
    "npy": (array, lambda path: np.array(mapped(path))),
    "npz": (archive, read_archive),
    "json": (text, read_json),
    "jsonl": (lines, lambda path: list(items(path, skips=Skips()))),
    "memory, manifest": (memory("manifest.json"), read_memory),
    "memory, keys": (memory("v00001-00000/keys.npy"), read_memory),
    "memory, payload": (memory("v00001-00000/payload.bin"), read_memory),
}
COLUMNS = ("reader", "changes", "read", "refused", "raw", "nameless", "started", "slowest s", "most MB")


def changed(data: bytes, rng: np.random.Generator) -> bytes:
    found = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        at, kind = int(rng.integers(len(found) or 1)), int(rng.integers(7))
        part = slice(at, at + int(2 ** rng.uniform(0, 8)))
        if kind == 0 and found:
            found[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            found[part] = bytes([int(rng.choice([0, 255, int(rng.integers(256))]))]) * len(found[part])
        elif kind == 2:
            number = int(rng.choice([0, 1, 2**7, 2**15, 2**31 - 1, 2**32 - 1, int(rng.integers(2**32))]))
            found[at : at + 4] = number.to_bytes(4, str(rng.choice(["big", "little"])))
        elif kind == 3:
            del found[part]
        elif kind == 4:
            found[at:at] = found[part]
        elif kind == 5:
            found[at:at] = rng.bytes(part.stop - part.start)
        elif rng.random() < 0.3:
            del found[at:]
    return bytes(found)


def try_reader(name: str, count: int, seed: int) -> dict[str, object]:
    """The row of a reader."""
    make, read = READERS[name]
    row: dict = dict.fromkeys(COLUMNS, 0) | {"reader": name, "changes": count, "kinds": []}
    with tempfile.TemporaryDirectory() as scratch:
        path = make(Path(scratch))
        read(path)
        good, rng = path.read_bytes(), np.random.default_rng(seed)
        sys.addaudithook(lambda event, _: row.update(started=row["started"] + 1) if event in STARTED else None)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(count):
            path.write_bytes(changed(good, rng))
            start = time.perf_counter()
            try:
                read(path)
                row["read"] += 1
            except (ValueError, OSError) as error:
                row["refused"] += 1
                if path.name not in str(error) and str(path.parent) not in str(error):
                    row["nameless"] += 1
                    row["kinds"].append(f"{number}: {error}"[:200])
            except Exception as error:
                row["raw"] += 1
                row["kinds"].append(f"{number}: {type(error).__name__} {error}"[:200])
            row["slowest s"] = max(row["slowest s"], round(time.perf_counter() - start, 2))
        row["most MB"] = round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--only", choices=READERS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--row", action="store_true", help="print the row of --only as JSON")
    options = parser.parse_args()
    if options.row:
        print(json.dumps(try_reader(options.only, options.count, options.seed)))
        return
    print("| " + " | ".join((*COLUMNS, "crashed")) + " |\n|" + " --- |" * (len(COLUMNS) + 1))
    failed = False
    for name in [options.only] if options.only else READERS:
        command = [sys.executable, __file__, "--row", "--only", name]
        command += ["--count", str(options.count), "--seed", str(options.seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
        row: dict = {"reader": name, "kinds": [done.stderr[-300:]]}
        with contextlib.suppress(ValueError, IndexError):
            row = json.loads(done.stdout.splitlines()[-1])
        values = [*(str(row.get(column, "")) for column in COLUMNS), str(int(done.returncode != 0))]
        print("| " + " | ".join(values) + " |", flush=True)
        for kind in row["kinds"][:3] if row.get("raw", 1) or row.get("nameless") else ():
            print(f"    {kind}", file=sys.stderr)
        failed |= done.returncode != 0 or any(row[column] for column in ("raw", "nameless", "started"))
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
