"""Long runs: memory stays flat and nothing is compiled again.

    python tests/faults/endurance.py                      2,000 pictures, 500 drawings, 10,000 questions, 2,000 steps
    python tests/faults/endurance.py --only steps --share 0.1

Each run has a process of its own. Columns: MB of the process after a fifth of the run and at its end; programs that XLA
compiled before and after that fifth; seconds. Sizes of pictures, prompts and questions are mixed as users mix them: all
of a run's kinds come within the first fifth.
"""

import argparse
import contextlib
import gc
import itertools
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT), *(str(ROOT / "tests" / name) for name in ("common", "plugins", "recipes", "reveal"))]

import jax  # noqa: E402
import numpy as np  # noqa: E402
import psutil  # noqa: E402

GROWTH = 60  # MB that a run may grow by after its first fifth


def pictures(folder: Path, turn: Callable[[], None]) -> None:
    """Read from files of several kinds and sizes, and made conditions."""
    from common.io.images import read_image, write_image
    from plugins.conditions.registry import make

    rng, files = np.random.default_rng(0), []
    for number, name in enumerate(("a.png", "b.jpg", "c.webp", "d.tif", "e.jpg", "f.png")):
        files.append(folder / name)
        write_image(files[-1], rng.random((240 + 40 * number, 320, 3), np.float32))
    for path in itertools.cycle(files):
        assert make("canny", read_image(path)).ndim == 3
        turn()


def drawings(folder: Path, turn: Callable[[], None]) -> None:
    """By the smallest base, with prompts and negative prompts of many lengths, one to three at a time."""
    from tiny_base import diffusion_base

    pipeline = diffusion_base()
    for number in itertools.count():
        prompt = " ".join(["apple", "red", "a"] * (1 + number % 3))
        images = pipeline([prompt] * (1 + number % 3), negative="grey" * (number % 2), seeds=number, steps=2)
        assert np.isfinite(images).all()
        turn()


def questions(folder: Path, turn: Callable[[], None]) -> None:
    """To a small network with a memory of 60 items, with and without a picture, to all sources or one."""
    import assistants

    from reveal.assistant import Assistant

    place = assistants.with_memory(folder / "w", 60)
    assistant = Assistant.load(place / "weights.safetensors", memory=place / "facts")
    sources = sorted(name for name, count in assistant.memory.sources.items() if count > 4)
    picture = place / "asked.png"
    for number in itertools.count():
        one = [sources[number % len(sources)]] if number % 5 == 4 else None
        found = assistant.ask(picture if number % 3 else None, "food", k=4, sources=one)
        assert len(found.items) == 4
        turn()


def steps(folder: Path, turn: Callable[[], None]) -> None:
    """Of the trainer, with its log, pictures and checkpoints."""
    from toy_task import Fit, Line

    from common.training.optimizer import OptimConfig
    from common.training.trainer import TrainerConfig, train

    config = TrainerConfig(steps=10**9, log_every=10, picture_every=50, checkpoint_every=50, progress=False)
    train(Fit(), Line(hook=lambda _: turn()), OptimConfig(lr=0.05, ema=0.9), config, folder, 3)


RUNS = {"pictures": (pictures, 2000), "drawings": (drawings, 500), "questions": (questions, 10_000)}
RUNS["steps"] = (steps, 2000)


class Ended(Exception):
    pass


def measured(name: str, share: float) -> bool:
    """Prints the row; whether it is flat."""
    run, count = RUNS[name]
    count = max(40, int(count * share))  # so that the first fifth has all kinds
    compiled, process, begun = [], psutil.Process(), time.perf_counter()
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )

    def memory() -> int:
        gc.collect()
        return round(process.memory_info().rss / 2**20)

    seen: list[tuple[int, int]] = []
    numbers = itertools.count(1)

    def turn() -> None:
        number = next(numbers)
        if number in (count // 5, count):
            seen.append((memory(), len(compiled)))
        if number == count:
            raise Ended

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, contextlib.suppress(Ended):
        run(Path(scratch), turn)
    (before, first), (after, total) = seen
    later = total - first
    seconds = time.perf_counter() - begun
    print(f"| {name} | {count} | {before} | {after} | {first} | {later} | {seconds:.0f} |", flush=True)
    return after - before < GROWTH and not later


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=RUNS, nargs="*", metavar="RUN", help="these runs alone")
    parser.add_argument("--share", type=float, default=1.0, help="of the numbers above")
    parser.add_argument("--row", choices=RUNS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.row:
        raise SystemExit(not measured(options.row, options.share))
    print("| run | number | MB after a fifth | MB at the end | compiled | compiled later | s |\n|" + " --- |" * 7)
    sys.stdout.flush()
    codes = [
        subprocess.run([sys.executable, __file__, "--row", name, "--share", str(options.share)], check=False).returncode
        for name in options.only or RUNS
    ]
    raise SystemExit(any(codes))


if __name__ == "__main__":
    main()
