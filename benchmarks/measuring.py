"""What benchmarks share: times, memory, processes of their own, and lines of Markdown tables.

Memory is read from /proc (Linux), in megabytes of 2^20 bytes; NaN elsewhere.
"""

import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

MEGABYTE = 2**20
NO_CACHE = {"JAX_ENABLE_COMPILATION_CACHE": "false"}  # of programs that were compiled earlier
ON_CPU = {**NO_CACHE, "JAX_PLATFORMS": "cpu"}
PROCESS = Path("/proc/self")


def timed(function: Callable[[], Any]) -> tuple[Any, float, float]:
    """The value, seconds, and seconds of all threads on the processor."""
    start, work = time.perf_counter(), time.process_time()
    return function(), time.perf_counter() - start, time.process_time() - work


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def forget_peak() -> float:
    """Forgets the largest memory so far; megabytes held now."""
    if PROCESS.exists():
        (PROCESS / "clear_refs").write_text("5")
    return memory("VmRSS")


def memory(field: str) -> float:
    """Megabytes: VmRSS, held now, or VmHWM, the most since `forget_peak`."""
    lines = (PROCESS / "status").read_text().splitlines() if PROCESS.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(field)), float("nan"))


def file_bytes(path: Path) -> int:
    """What a file takes, or a folder."""
    return sum(one.stat().st_size for one in (path, *path.rglob("*")) if one.is_file())


def in_process(function: Callable, *arguments: Any, environment: Mapping[str, str] | None = None, **named: Any) -> Any:
    """Its result, from a fresh process with these variables added to the environment."""
    with (
        mock.patch.dict(os.environ, environment or {}),
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
    ):
        return pool.submit(function, *arguments, **named).result()


def heading(title: str, columns: Mapping[str, str]) -> None:
    """Title and head of a table; `columns`: the format of the numbers of each."""
    print(f"{title}\n\n| {' | '.join(columns)} |\n|{' ---: |' * len(columns)}", flush=True)


def line(columns: Mapping[str, str], row: Mapping[str, Any]) -> None:
    """A row of the table: numbers in the column's format, text as it is, blank where there is nothing."""
    cells = [(row.get(name, ""), form) for name, form in columns.items()]
    print(f"| {' | '.join(x if isinstance(x, str) else format(x, form) for x, form in cells)} |", flush=True)


class RowLog:
    """A row is its key and what was measured; `path` None: nothing is read or kept."""

    def __init__(self, path: Path | None):
        self.path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.rows = [json.loads(line) for line in lines]

    def row(self, key: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The row with this key from the file, or a new one, which is added to it. An option that a row lacks is False:
        the row is older."""
        for row in self.rows:
            if all(row[name] == value if name in row else value is False for name, value in key.items()):
                return row
        row = {**key, **measure()}
        self.rows.append(row)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return row
