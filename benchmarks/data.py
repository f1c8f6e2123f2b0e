"""Crops per second of the training data alone: `python -m benchmarks.data`, one line per source and thread count.

Without `--folder` a set in Vimeo-90K's layout is drawn into a temporary folder (448x256, PNG with grain), and packed by
`film prepare` when tensorflow-datasets is installed. A crop is three pictures decoded, varied as in the paper, cut to
256x256 and batched by eight. On a busy machine 100 divided by the last column are the crops per second of a free core.

Then the crops that a training step of `small` consumes alone, and step and pipeline together, as in training: the
pipeline overlaps if a step hardly waits for its batch (on a CPU both share the cores, so their speeds tell less).
"""

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import cv2
import jax
import numpy as np
import tyro

from benchmarks.step import Step
from common.runtime import keep_freed_memory
from common.training.task import IDS, Batch
from film.data.augment import ReferenceAugment
from film.data.datasets import FolderTriplets, Vimeo90K
from film.data.prepare import LAYOUTS, Prepare, prepare
from film.data.record_sources import TfdsTriplets
from film.data.triplet import Source, encode
from film.data.triplet_batches import MixtureConfig


def main(
    folder: str | None = None,
    layout: str = "folders",
    threads: tuple[int, ...] = (1, 2),
    seconds: float = 5.0,
    crop: int = 256,
    batch_size: int = 8,
    corners: str = "black",
    steps: int = 5,
) -> None:
    """Time the data pipeline, and the small network's training step with and without it.

    Args:
      folder: A data set; default: a drawn one.
      layout: Its layout, as for `film prepare`.
      threads: Reader threads to try.
      seconds: Duration of each measurement.
      crop: Side of a crop, pixels.
      batch_size: Crops in a batch.
      corners: black, reflect or inside.
      steps: Training steps to time; 0 for none.
    """
    keep_freed_memory()  # as training does
    print("| source | threads | crops per second | CPU seconds per 100 crops |\n| --- | ---: | ---: | ---: |")
    config, speed = None, 0.0
    with sources(folder, layout) as candidates:
        for name, source in candidates.items():
            for count in threads:
                augment = ReferenceAugment(corners=corners)
                config = MixtureConfig([source], (), crop, augment, batch_size=batch_size, threads=count, buffer=4)
                speed, work = measure(config, seconds)
                print(f"| {name} | {count} | {speed:.1f} | {100 * work:.2f} |", flush=True)
        if steps and config is not None:
            compare(config, speed, steps)


def measure(config: MixtureConfig, seconds: float) -> tuple[float, float]:
    """Crops per second, and CPU seconds per crop (all threads), after the buffer has been emptied once."""
    stream = config.batches(0, 0, 1)
    for _ in range(config.buffer + 1):
        next(stream)
    start, work, crops = time.perf_counter(), time.process_time(), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        next(stream)
        crops += config.batch_size
    return crops / elapsed, (time.process_time() - work) / crops


def compare(config: MixtureConfig, speed: float, steps: int) -> None:
    """Prints the crops/s of `small` alone and fed by the pipeline of `config`, which delivers `speed` alone."""
    case = Step("small", config.batch_size, config.crop)
    alone, _ = consumed(case, repeat(case.batch_of_noise()), steps)
    fed, waited = consumed(case, config.batches(0, 0, 1), steps)
    print(
        f"\nsmall, batch {config.batch_size}, crop {config.crop}: {alone:.2f} crops/s alone, the last pipeline above "
        f"delivers {speed / alone:.1f} times as many;\nboth together {fed:.2f} crops/s; a step waited "
        f"{1000 * waited:.1f} ms for a batch that takes {1000 * config.batch_size / speed:.0f} ms to make"
    )


def consumed(case: Step, batches: Iterator[Batch], steps: int) -> tuple[float, float]:
    """Crops per second of training steps that take their batches from `batches`, and the median wait for one in
    seconds; the first step does not count."""
    state, times, waits = case.fresh_state(), [time.perf_counter()], []
    for _ in range(1 + steps):
        batch = {name: value for name, value in next(batches).items() if name != IDS}
        waits.append(time.perf_counter() - times[-1])
        state, metrics = case.compiled(state, batch, {})
        jax.block_until_ready(metrics)
        times.append(time.perf_counter())
    return steps * case.batch / (times[-1] - times[1]), statistics.median(waits[1:])


@contextmanager
def sources(folder: str | None, layout: str) -> Iterator[dict[str, Source]]:
    if folder is not None:
        yield {f"{layout} {Path(folder).name}": LAYOUTS[layout](folder, "train")}
        return
    with tempfile.TemporaryDirectory() as scratch:
        vimeo = Path(scratch) / "vimeo"
        size = draw(vimeo)
        found: dict[str, Source] = {f"Vimeo-90K folders, {size // 1000} kB PNG": Vimeo90K(vimeo)}
        if importlib.util.find_spec("tensorflow_datasets"):
            records = Path(scratch) / "records"
            prepare(FolderTriplets(vimeo), Prepare(str(vimeo), str(records), quiet=True))
            found["ArrayRecord shards, the same files"] = TfdsTriplets(str(records))
        yield found


def draw(folder: Path, count: int = 32) -> int:
    """`count` triplets of blobs that move over a second or two, with grain; the mean file size in bytes."""
    rng, sizes = np.random.default_rng(0), []
    for number in range(count):
        blobs = cv2.resize(rng.random((20, 32, 3), np.float32), (512, 320), interpolation=cv2.INTER_CUBIC)
        place = folder / "sequences" / "00001" / f"{number + 1:04d}"
        place.mkdir(parents=True)
        for frame in range(3):
            y, x = 16 + 8 * (frame - 1), 32 + 12 * (frame - 1)
            picture = blobs[y : y + 256, x : x + 448] + rng.normal(0, 0.0025, (256, 448, 3))
            data = encode((np.clip(picture, 0, 1) * 255).astype(np.uint8))
            (place / f"im{frame + 1}.png").write_bytes(data)
            sizes.append(len(data))
    lines = [f"00001/{number + 1:04d}" for number in range(count)]
    (folder / "tri_trainlist.txt").write_text("\n".join(lines))
    return int(np.mean(sizes))


if __name__ == "__main__":
    tyro.cli(main)
