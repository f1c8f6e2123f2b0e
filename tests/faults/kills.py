"""SIGKILL at random moments, full disks and read-only disks, while a program writes.

    python tests/faults/kills.py --count 50              50 kills of each change: confirmed, lost, torn, left behind
    python tests/faults/kills.py --full                  the same changes on disks that get full (root)
    python tests/faults/kills.py --read-only             on a disk that nobody can write (root)
    python tests/faults/kills.py --writers 8 --count 50  8 programs that add to one memory, one of which is killed

The program (a fork of this one) makes the same change again and again, and says so after each: confirmed. After the
stop everything must be readable and as it was written (else torn), and have at least what was confirmed (else lost).
The next program must be able to go on, and remove what was left behind. Training is stopped as a whole: confirmed are
the checkpoints that had their names.
"""

import argparse
import contextlib
import io
import logging
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "common"))

from toy_task import Fit, Line, checkpoints_of  # noqa: E402

from common.io.images import find_images, read_image, write_image  # noqa: E402
from common.io.video import write_clip  # noqa: E402
from common.io.video_reader import read_video  # noqa: E402
from common.training.checkpoint import Checkpoints  # noqa: E402
from common.training.optimizer import OptimConfig  # noqa: E402
from common.training.trainer import TrainerConfig, train  # noqa: E402
from common.weights.model_file import load_weights, save_weights  # noqa: E402
from reveal.memory import Builder, Item, Layout, Memory  # noqa: E402

LAYOUT = Layout("e", ("a", "b"), 64, (4, 64))
FRAME = np.random.default_rng(0).random((64, 96, 3), np.float32)
FORK = multiprocessing.get_context("fork")


class Change(NamedTuple):
    """`begin` prepares the folder; `make` makes the next change and gives its number; `state` reads everything and
    gives the number of the last change that is there, or raises ValueError or OSError."""

    begin: Callable[[Path], Any]
    make: Callable[[Path], int]
    state: Callable[[Path], int]


def facts(count: int, seed: int) -> tuple[list[Item], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    items = [Item("a", {"text": f"fact {seed} {n} " * 50}) for n in range(count)]
    return items, rng.random((count, 64), np.float32), rng.random((count, 4, 64), np.float32)


def new_memory(folder: Path) -> None:
    with Builder(folder / "m", LAYOUT) as builder:
        builder.add(*facts(2000, 0))


def of_memory(change: Callable[[Memory], Any]) -> Change:
    def make(folder: Path) -> int:
        memory = Memory(folder / "m")
        change(memory)
        return memory.version

    def state(folder: Path) -> int:
        memory = Memory(folder / "m")
        memory.verify()
        rows = memory.rows()
        if len(memory.items(rows.ids)) != len(memory) or len(memory.values(rows.ids)) != len(memory):
            raise ValueError(f"{folder}: items without values")
        return memory.version

    return Change(new_memory, make, state)


def edit(memory: Memory) -> None:
    ids = memory.rows().ids[memory.version % 1000 :][:3].tolist()
    items, keys, values = facts(3, memory.version)
    memory.edit([Item("b", item.fields, id=number) for number, item in zip(ids, items, strict=True)], keys, values)


def refresh(memory: Memory) -> None:
    def encode(items: list[Item]) -> tuple[np.ndarray, np.ndarray]:
        return facts(len(items), memory.version)[1:]

    memory.refresh(encode, f"e{memory.version}")


def numbered(write: Callable[[Path], Any], read: Callable[[Path], Any], suffix: str) -> Change:
    """A new output of each number; `read` raises for one that is not whole."""

    def done(folder: Path) -> list[Path]:
        return sorted(one for one in folder.glob(f"[0-9]*{suffix}") if one.name[0] != ".")

    def make(folder: Path) -> int:
        number = len(done(folder)) + 1
        write(folder / f"{number:05d}{suffix}")
        return number

    def state(folder: Path) -> int:
        for path in done(folder):
            read(path)
        return len(done(folder))

    return Change(lambda folder: None, make, state)


def build(folder: Path) -> None:
    with Builder(folder, LAYOUT, shard=100) as builder:  # an interrupted one goes on
        while builder.count < 300:
            builder.add(*facts(100, builder.count))


def built(folder: Path) -> None:
    if (folder / "manifest.json").exists():
        Memory(folder).verify()
        assert len(Memory(folder)) == 300


def builds(folder: Path) -> int:
    return sum((one / "manifest.json").exists() for one in folder.glob("b*"))


def build_next(folder: Path) -> int:
    build(folder / f"b{builds(folder):05d}")
    return builds(folder)


def build_state(folder: Path) -> int:
    for one in folder.glob("b*"):
        built(one)
    return builds(folder)


def overwrite(folder: Path) -> int:
    path = folder / "w.safetensors"
    number = int(load_weights(path)[0]["n"][0]) + 1 if path.exists() else 1
    arrays = {"a": np.full(200_000, number, np.float32), "n": np.array([number], np.float32)}
    save_weights(path, arrays, kind="k", config={}, overwrite=True)
    return number


def overwritten(folder: Path) -> int:
    if not (folder / "w.safetensors").exists():
        return 0
    arrays, _ = load_weights(folder / "w.safetensors")
    if (arrays["a"] != arrays["n"]).any():
        raise ValueError(f"{folder}: of two versions")
    return int(arrays["n"][0])


def saved(folder: Path) -> int:
    return max((int(name) for name in checkpoints_of(folder) if name.isdigit()), default=0)


def training(folder: Path, say: Callable[[int], None]) -> None:
    def hook(number: int) -> None:
        if (folder / "checkpoints").exists():
            say(saved(folder))

    config = TrainerConfig(steps=10**6, log_every=7, picture_every=11, checkpoint_every=5, progress=False)
    train(Fit(), Line(hook=hook), OptimConfig(lr=0.05, ema=0.9), config, folder, 3)


def resumable(folder: Path) -> int:
    import jax  # after the fork
    import orbax.checkpoint as ocp

    checkpoints = Checkpoints(folder)
    step = checkpoints.latest() or 0
    if step:
        arguments = ocp.args.Composite(state=ocp.args.StandardRestore())
        state = checkpoints.manager.restore(step, args=arguments)["state"]
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state)):
            raise ValueError(f"{folder}: step {step} is not finite")
    checkpoints.close()
    return step


CHANGES = {
    "add": of_memory(lambda memory: memory.add(*facts(30, memory.version))),
    "edit": of_memory(edit),
    "delete": of_memory(lambda memory: memory.delete(memory.rows().ids[:1])),
    "compact": of_memory(Memory.compact),
    "refresh": of_memory(refresh),
    "build": Change(lambda folder: None, build_next, build_state),
    "weights": Change(lambda folder: None, overwrite, overwritten),
    "image": numbered(lambda path: write_image(path, FRAME, bits=16), read_image, ".png"),
    "movie": numbered(lambda path: write_clip(path, iter([FRAME] * 4), 4), lambda path: list(read_video(path)), ".mp4"),
    "frames": numbered(
        lambda path: write_clip(path, iter([FRAME] * 4), 4),
        lambda path: [read_image(one) for one in find_images(path)],
        "",
    ),
}
TRAINING = "training"


def photos(folder: Path) -> None:
    for number in (1, 2):
        write_image(folder / f"photo{number}.png", FRAME)


def film_command(path: Path) -> None:
    from film.cli import main  # after the fork

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main([*map(str, sorted(path.parent.glob("photo?.png"))), "-o", str(path), "--frames", "1"])


def generate_command(path: Path) -> None:
    from plugins.cli.main import main  # after the fork

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(["generate", "--prompt", "red apple", "--steps", "2", "-o", str(path)])


COMMANDS = {
    "film": numbered(film_command, lambda path: list(read_video(path)), ".mp4")._replace(begin=photos),
    "plugins generate": numbered(generate_command, read_image, ".png"),
}


def forked(work: Callable[..., Any], *arguments: Any) -> tuple[multiprocessing.Process, Any]:
    """A process that does this, and the end of a pipe that gets what it says: `work` gets a function to say it by."""
    receive, send = FORK.Pipe(False)

    def child() -> None:
        try:
            work(*arguments, send.send)
        except (ValueError, OSError) as error:
            send.send(error)
        os._exit(0)

    process = FORK.Process(target=child)
    process.start()
    send.close()
    return process, receive


def said(receive: Any) -> Iterator[Any]:
    try:
        while True:
            yield receive.recv()
    except EOFError:
        return


def answer(work: Callable[..., Any], folder: Path) -> Any:
    """What `work(folder)` returns, from a process of its own: this one begins no threads."""
    process, receive = forked(lambda say: say(work(folder)))
    found = list(said(receive))
    process.join()
    if not found or isinstance(found[-1], Exception):
        raise found[-1] if found else ValueError(f"{folder}: a program crashed with {process.exitcode}")
    return found[-1]


def endless(change: Change) -> Callable[..., None]:
    def work(folder: Path, say: Callable[[int], None]) -> None:
        while True:
            say(change.make(folder))

    return work


def left_behind(folder: Path) -> int:
    """Files and folders of stopped programs, after another one has worked there."""
    named = {shard.folder for memory in folder.glob("m/manifest.json") for shard in Memory(memory.parent).shards}
    stray = [one for one in folder.glob("m/v*") if one not in named]
    return len(stray) + sum(one.name.startswith(".partial-") for one in folder.rglob("*"))


def kills(name: str, count: int, rng: random.Random) -> dict[str, int]:
    """A row: after each kill the state is read, then the next program goes on."""
    change = (CHANGES | COMMANDS).get(name) or Change(lambda folder: None, lambda folder: 0, resumable)
    work = training if name == TRAINING else endless(change)
    row = {"stops": count, "confirmed": 0, "lost": 0, "torn": 0, "left behind": 0}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        change.begin(folder)
        before = answer(change.state, folder)
        for _ in range(count):
            process, receive = forked(work, folder)
            while (first := receive.recv()) <= (before if name == TRAINING else 0):
                pass
            time.sleep(rng.uniform(0, 0.3))  # it works: within the time of some changes
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            confirmed = max([before, first, *said(receive)])
            try:
                state = answer(change.state, folder)
            except (ValueError, OSError) as error:
                row["torn"] += 1
                print(error, file=sys.stderr)
                state = before
            row["confirmed"] += confirmed - before
            row["lost"] += state < confirmed
            before = state
            if name != TRAINING:
                before = answer(change.make, folder)
                row["left behind"] += left_behind(folder)
    return row


def on_a_disk(name: str, read_only: bool) -> dict[str, int]:
    """On file systems in memory that have some KB left, or none, or cannot be written: the error names a file."""
    change = CHANGES[name]
    row = {"disks": 0, "confirmed": 0, "lost": 0, "torn": 0, "without a name": 0}
    for left in (0,) if read_only else (0, 10, 100, 400):
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", scratch], check=True)
            try:
                answer(lambda folder: change.begin(folder) or 0, place)
                if read_only:
                    subprocess.run(["mount", "-o", "remount,ro", scratch], check=True)
                else:
                    (place / "full").write_bytes(bytes(shutil.disk_usage(place).free - left * 1024))
                before = answer(change.state, place)
                process, receive = forked(some, change, place)
                found = list(said(receive))
                process.join()
                errors = [one for one in found if isinstance(one, Exception)]
                row["disks"] += len(errors)
                row["without a name"] += any(not isinstance(e, OSError) or scratch not in str(e) for e in errors)
                for error in errors:
                    print(f"{name}: {error}", file=sys.stderr)
                numbers = [one for one in found if isinstance(one, int)]
                row["confirmed"] += len(numbers)
                try:
                    row["lost"] += answer(change.state, place) < max(numbers, default=before)
                except (ValueError, OSError) as fault:
                    row["torn"] += 1
                    print(fault, file=sys.stderr)
            finally:
                subprocess.run(["umount", scratch], check=True)
    return row


def some(change: Change, folder: Path, say: Callable[[int], None]) -> None:
    for _ in range(50):  # those that need no more room than they give back end here
        say(change.make(folder))


def writers(programs: int, count: int, rng: random.Random) -> dict[str, int]:
    """Programs that add to one memory at a time; in each of `count` rounds one of them is killed."""
    row = {"stops": count, "confirmed": 0, "lost": 0, "torn": 0, "refused": 0}

    def work(folder: Path, say: Callable[[Any], None]) -> None:
        while True:
            say(Memory(folder / "m", wait=60).add(*facts(5, os.getpid())))

    with tempfile.TemporaryDirectory() as scratch:
        folder, ids = Path(scratch), []
        Memory.create(folder / "m", LAYOUT)
        running = [forked(work, folder) for _ in range(programs)]
        for _ in range(count):
            time.sleep(rng.uniform(0.05, 0.5))
            process, receive = running.pop(rng.randrange(programs))
            process.kill()
            process.join()
            for one in said(receive):
                if isinstance(one, Exception):
                    row["refused"] += 1
                    print(one, file=sys.stderr)
                else:
                    ids += one
            running.append(forked(work, folder))
        for process, receive in running:
            process.kill()
            process.join()
            ids += [number for one in said(receive) if not isinstance(one, Exception) for number in one]
        memory = Memory(folder / "m")
        row["confirmed"], row["lost"] = len(ids) // 5, len(set(ids) - set(memory.rows().ids.tolist()))
        row["torn"] = int(len(set(ids)) < len(ids))
        memory.verify()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", choices=[*CHANGES, *COMMANDS, TRAINING], nargs="*", metavar="CHANGE", help="these changes alone"
    )
    parser.add_argument("--full", action="store_true", help="disks that get full; needs root")
    parser.add_argument("--read-only", action="store_true", help="a disk that cannot be written; needs root")
    parser.add_argument("--writers", type=int, default=0, metavar="PROGRAMS", help="that add to one memory")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("absl").setLevel(logging.ERROR)
    rng, failed, head = random.Random(options.seed), False, False
    disk = options.full or options.read_only
    known = [*CHANGES] if disk else [*CHANGES, *COMMANDS, TRAINING]
    names = [f"{options.writers} writers"] if options.writers else options.only or known
    for name in names:
        if options.writers:
            row = writers(options.writers, options.count, rng)
        elif disk:
            row = on_a_disk(name, options.read_only)
        else:
            row = kills(name, options.count, rng)
        if not head:
            print("| change | " + " | ".join(row) + " |\n|" + " --- |" * (len(row) + 1))
            head = True
        print(f"| {name} | " + " | ".join(map(str, row.values())) + " |", flush=True)
        failed |= any(row[column] for column in row if column not in ("stops", "disks", "confirmed"))
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
