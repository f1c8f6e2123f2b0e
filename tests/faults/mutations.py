"""Damaged files: what each reader does with thousands of seeded changes of a good one.

    python tests/faults/mutations.py --count 10000           all readers, a table (`make faults`)
    python tests/faults/mutations.py --only png tiff --count 100 --keep failed

A change is one to four of: flipped bits, bytes of one value, a number written over, a part left out, doubled, cut off
or put in; of JSON, and of safetensors' headers, every second is a value of another kind. Each reader runs in a process
of its own, so that a crash is a row of the table. Columns: changes that were read all the same; errors of one class,
ValueError or OSError; raw errors of other classes; errors that do not name the file; programs started or connections
opened; the slowest in seconds of the processor; the most memory in MB above the reader's start.
"""

import argparse
import contextlib
import copy
import json
import multiprocessing
import resource
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from readers import READERS

STARTED = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect")
COLUMNS = ("reader", "changes", "read", "refused", "raw", "nameless", "started", "slowest s", "most MB")


HEAD = 4096  # bytes that get half of the changes: headers and indices
MOST_SECONDS, MOST_MB = 5, 1000


OTHERS: list[Any] = [None, True, 0, -1, 1.5, 10**9, 10**30, float("nan"), float("inf"), 1e300, "", "x", "../x", "\0"]
OTHERS += ["\ud800", "9" * 99, [], [0], ["x"], [None], [[]], [{}], {}, {"x": 1}, {"": []}, "x" * 9999, [7] * 999]


def changed(data: bytes, rng: np.random.Generator) -> bytes:
    if rng.random() < 0.5 and (other := other_value(data, rng)) is not None:
        return other
    found = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        within = min(HEAD, len(found)) if rng.random() < 0.5 else len(found)
        at, kind = int(rng.integers(within or 1)), int(rng.integers(7))
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


def other_value(data: bytes, rng: np.random.Generator) -> bytes | None:
    """JSON, JSON lines or the header of a safetensors file with a value of another kind; None: of another format."""
    head, body, tail = b"", data, b""
    if data[8:9] == b"{" and (size := int.from_bytes(data[:8], "little")) < len(data):
        body, tail = data[8 : 8 + size], data[8 + size :]
    elif data[:1] not in b"{[":
        return None
    try:
        value = json.loads(body)
    except ValueError:
        rows = body.splitlines(keepends=True)
        at = int(rng.integers(len(rows)))
        head, body, tail = b"".join(rows[:at]), rows[at], b"".join(rows[at + 1 :])
        with contextlib.suppress(ValueError):
            value = json.loads(body.strip().rstrip(b","))
            tail = b"\n" + tail
            return head + json.dumps(changed_value(value, rng)).encode() + tail
        return None
    found = json.dumps(changed_value(value, rng)).encode()
    return (len(found).to_bytes(8, "little") if data[8:9] == b"{" and tail else head) + found + tail


def changed_value(value: Any, rng: np.random.Generator) -> Any:
    """The same with one entry replaced, doubled under another name, or left out."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key, found = keys[int(rng.integers(len(keys)))], copy.copy(value)
        if rng.random() < 0.1:
            del found[key]
        elif isinstance(found, dict) and rng.random() < 0.05:
            found["other"] = found[key]
        else:
            found[key] = changed_value(value[key], rng)
        return found
    if isinstance(value, int | float) and rng.random() < 0.3:
        return [-value, value + 1, value * 1000, value + 0.5][int(rng.integers(4))]
    return copy.deepcopy(OTHERS[int(rng.integers(len(OTHERS)))])


def processor_seconds() -> float:
    """Of this process and those that it started and that have ended: others on the machine do not count."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def try_reader(name: str, count: int, seed: int, keep: Path | None = None, most: float = 0) -> dict[str, Any]:
    """The row of a reader, after `most` seconds with fewer changes. Files that fail go to `keep`, that of a crash as
    `last`."""
    make, read = READERS[name]
    row: dict[str, Any] = dict.fromkeys(COLUMNS, 0) | {"reader": name, "changes": count, "kinds": []}

    def watch(event: str, arguments: tuple) -> None:
        if event in STARTED and "common.io.isolated_arrays" not in str(arguments):
            row["started"] += 1

    with tempfile.TemporaryDirectory() as scratch:
        path = make(Path(scratch))
        read(path)
        good, rng = path.read_bytes(), np.random.default_rng(seed)
        sys.addaudithook(watch)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begun, number = processor_seconds(), -1
        while number + 1 < count and (not most or processor_seconds() - begun < most):
            number += 1
            data, fault = changed(good, rng), ""
            path.write_bytes(data)
            if keep:
                (keep / "last").write_bytes(data)
            start = processor_seconds()
            try:
                read(path)
                row["read"] += 1
            except (ValueError, OSError) as error:
                row["refused"] += 1
                if path.name not in str(error) and str(path.parent) not in str(error):
                    row["nameless"] += 1
                    fault = f"no name: {type(error).__name__} {error}"
            except Exception as error:
                row["raw"] += 1
                fault = f"{type(error).__name__} {error}"
            seconds = processor_seconds() - start
            row["slowest s"] = max(row["slowest s"], round(seconds, 2))
            if seconds > MOST_SECONDS:
                fault = f"{seconds:.1f} s"
            if fault:
                row["kinds"].append(f"{number}: {fault}"[:300])
                if keep:
                    (keep / f"{number}{path.suffix}").write_bytes(data)
        row["changes"] = number + 1
        row["most MB"] = round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    return row


def in_a_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a reader whose crash is a row."""
    fork = multiprocessing.get_context("fork")  # of this process, which has imported everything and begun nothing
    receive, send = fork.Pipe(False)

    def child() -> None:
        keep = options.keep and options.keep / name.replace(" ", "_")
        if keep:
            keep.mkdir(parents=True, exist_ok=True)
        send.send(try_reader(name, options.count, options.seed, keep, options.seconds))

    process = fork.Process(target=child)
    process.start()
    send.close()
    row: dict[str, Any] = {"reader": name, "kinds": []}
    with contextlib.suppress(EOFError):
        row = receive.recv()
    process.join()
    return row | {"crashed": int(bool(process.exitcode))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--only", choices=READERS, nargs="*", help="these readers alone", metavar="READER")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0, help="for each reader at most; 0: no limit")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the files that fail")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    columns = (*COLUMNS, "crashed")
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    failed = False
    for name in options.only or READERS:
        row = in_a_process(name, options)
        print("| " + " | ".join(str(row.get(column, "")) for column in columns) + " |", flush=True)
        for kind in row["kinds"][:5]:
            print(f"    {kind}", file=sys.stderr, flush=True)
        failed |= any(row.get(column) for column in ("raw", "nameless", "started", "crashed"))
        failed |= row.get("slowest s", 0) > MOST_SECONDS or row.get("most MB", 0) > MOST_MB
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
