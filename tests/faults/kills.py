"""SIGKILL at random moments, and a disk that gets full, while a program changes a memory and writes weights.

    python tests/faults/kills.py --count 50       a table: kills, changes that were confirmed, lost, torn, left behind

The program adds, deletes, edits and compacts without end, writes a weights file after each change, and prints the
version after each. After the kill the memory must have at least the confirmed version (else it is lost), and all bytes
as they were written (else torn). The next change must remove what the killed program left. With `--full` the program
may write files of that many bytes at most (RLIMIT_FSIZE) in place of the kill.
"""

import argparse
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from common.weights.model_file import load_weights, save_weights
from reveal.memory import Item, Layout, Memory

LAYOUT = Layout("e", ("a", "b"), 64, (4, 64))


def change(memory: Memory, number: int) -> None:
    rng = np.random.default_rng(number)
    keys, values = rng.random((3, 64), np.float32), rng.random((3, 4, 64), np.float32)
    facts = [Item("a", {"text": f"fact {number}" * 50}) for _ in range(3)]
    ids = memory.rows().ids
    if number % 7 == 6:
        memory.compact()
    elif number % 3 == 2 and len(ids) > 6:
        memory.delete(ids[:2])
    else:
        memory.add(facts, keys, values)


def work(folder: Path, most: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing raises EFBIG
    if most:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    memory = Memory(folder / "m")
    while True:
        change(memory, memory.version)
        print(memory.version, flush=True)
        save_weights(folder / "w.safetensors", {"a": np.ones(9999, np.float32)}, kind="k", config={}, overwrite=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", type=int, default=0, metavar="BYTES")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.full)
    rng, confirmed, lost, torn, left = np.random.default_rng(options.seed), 0, 0, 0, 0
    nameless = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        Memory.create(folder / "m", LAYOUT)
        command = [sys.executable, __file__, "--work", scratch, "--full", str(options.full)]
        for _ in range(options.count):
            before = Memory(folder / "m").version
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
                assert program.stdout is not None and program.stderr is not None
                if not options.full:
                    program.stdout.readline()
                    time.sleep(rng.uniform(0, 0.3))
                    program.kill()
                versions = [before, *map(int, program.stdout.read().split())]
                nameless += bool(options.full) and scratch not in program.stderr.read()
            memory = Memory(folder / "m")
            confirmed += versions[-1] - before
            lost += memory.version < versions[-1]
            try:
                memory.verify()
                if (folder / "w.safetensors").exists():
                    load_weights(folder / "w.safetensors")
            except (ValueError, OSError) as error:
                torn += 1
                print(error, file=sys.stderr)
            memory.delete(memory.rows().ids[:1])
            named = {shard.folder for shard in memory.shards}
            left += sum(one.is_dir() and one not in named for one in (folder / "m").iterdir())
    print("| stops | confirmed | lost | torn | left behind | without a name |\n|" + " --- |" * 6)
    print(f"| {options.count} | {confirmed} | {lost} | {torn} | {left} | {nameless} |")
    raise SystemExit(bool(lost or torn or left or nameless))


if __name__ == "__main__":
    main()
