"""From sources of records to an endless stream of batches: shuffled, mixed, sharded, resumable.

    source --> shuffled anew each epoch --> repeated --> transform --+
    source --> shuffled anew each epoch --> repeated --> transform --+--> mixed by weight --> batches --> this process's

Everything is a function of the seed and a position, nothing is drawn while running (`grain.MapDataset`). So a stream
that is set to a position gives the very batches that it gave before, at once; threads change no value; and the batches
of several processes, put together in their order, are those of a single one.

Mixing is even: with weights 3 and 1 each run of four examples has three and one (shares are rounded to a hundredth of
the smallest weight). Sources keep epochs of their own.

Records that cannot be read are passed over: in their place comes the next one that can be (`Readable`). Batches keep
their size and processes stay in step. The log names the first few and counts the rest.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import grain
import numpy as np

from common.training.batches import batches
from film.data.triplet import Source

log = logging.getLogger(__name__)

Example = dict[str, Any]
Transform = Callable[[Example, np.random.Generator], Example]
NAMED = 3  # unreadable records that the log names, per source
PATIENCE = 100  # unreadable records in a row before the source is given up


def stream(
    sources: Sequence[Any],
    weights: Sequence[float | int],
    transform: Transform,
    batch_size: int,
    seed: int,
    threads: int = 1,
    buffer: int = 8,
    process_index: int | None = None,
    process_count: int | None = None,
) -> grain.DatasetIterator:
    """The endless iterator of batches (dicts of arrays), with `get_state` and `set_state`.

    `sources` have a length and give dicts; `transform` gets such a dict, to which "index" is added (its position in
    that source's repeated stream), and a generator of its own. The rest is as for
    `common.training.batches.batches`.
    """
    parts = [endless(source, _seed(seed, number), transform) for number, source in enumerate(sources)]
    dataset = grain.MapDataset.mix(parts, weights) if len(parts) > 1 else parts[0]
    return batches(dataset, batch_size, threads, buffer, process_index, process_count)


class Readable:
    """A source as the stream reads it: record number i, or the next one that can be read.

    Item: images uint8 [3 h w 3], time, id (`first_id` + the number of the record that was read). Pictures smaller
    than `crop` count as unreadable. Raises ValueError at the first such record if `strict`, else after PATIENCE.
    """

    def __init__(self, source: Source, first_id: int = 0, crop: int = 1, strict: bool = False) -> None:
        self.source, self.first_id, self.crop, self.strict = source, first_id, crop, strict
        self.skipped: set[int] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Example:
        message = ""
        for number in range(index, index + min(PATIENCE, len(self))):
            number %= len(self)
            try:
                return self._read(number)
            except (OSError, ValueError, RuntimeError) as error:
                message = f"record {self.first_id + number}: {' '.join(str(error).split())}"
                if self.strict:
                    raise ValueError(f"{message} (strict=false skips such records)") from error
                self._note(number, message)
        raise ValueError(f"{len(self.skipped)} records cannot be read, one after the other; the last: {message}")

    def _read(self, number: int) -> Example:
        frames = self.source.frames(number)
        height, width = frames.images.shape[1:3]
        if min(height, width) < self.crop:
            raise ValueError(f"{frames.name}: a crop of {self.crop} does not fit into {width}x{height} pixels")
        return dict(images=frames.images, time=frames.time, id=np.int64(self.first_id + number))

    def _note(self, number: int, message: str) -> None:
        with self._lock:
            if number in self.skipped:
                return
            self.skipped.add(number)
            count = len(self.skipped)
            if count <= NAMED:
                log.warning("skipped %s", message)
            elif count & (count - 1) == 0:  # 4, 8, 16: so that a bad disk does not fill the log
                log.warning("skipped %d records so far, the newest %s", count, message)


def endless(source: Any, seed: int, transform: Transform) -> grain.MapDataset:
    """The examples of one source for ever, each epoch in a new order; arguments as for `stream`."""
    dataset = grain.MapDataset.source(source).seed(seed).shuffle().repeat()
    dataset = dataset.map_with_index(lambda index, example: {**example, "index": np.int64(index)})
    return dataset.random_map(transform)


def _seed(seed: int, number: int) -> int:
    """The first source has the run's seed itself; the others must not be shuffled alike."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0]) if number else seed
