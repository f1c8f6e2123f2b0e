"""One-item additions to a memory, one after the other, as `reveal add --text` and a server make them.

    python -m benchmarks.memory_changes               # 400 of them; --open: the memory is opened anew for each

Prints the milliseconds of the first and of the last `WINDOW` additions (medians), and how many shards there are.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import tyro

from reveal.memory import Builder, Item, Layout, Memory

WINDOW = 20


def main(additions: int = 400, items: int = 1000, key_dim: int = 128, open: bool = False) -> None:
    rng, layout = np.random.default_rng(0), Layout("none", ("own",), key_dim, (4, key_dim))
    keys = rng.standard_normal((items + additions, key_dim), np.float32)
    values = np.zeros((1, 4, key_dim), np.float32)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "memory"
        with Builder(folder, layout) as builder:
            every = [Item("own", {"text": f"fact {number}"}) for number in range(items)]
            builder.add(every, keys[:items], np.repeat(values, items, axis=0))
        memory, times = Memory(folder), []
        for number in range(additions):
            start = time.perf_counter()
            memory = Memory(folder) if open else memory
            memory.add([Item("own", {"text": f"new {number}"})], keys[items + number][None], values)
            times.append(1000 * (time.perf_counter() - start))
        first, last = (float(np.median(part)) for part in (times[:WINDOW], times[-WINDOW:]))
        print(f"first {first:.1f} ms, last {last:.1f} ms, slowest {max(times):.0f} ms, {len(memory.shards)} shards")


if __name__ == "__main__":
    tyro.cli(main)
