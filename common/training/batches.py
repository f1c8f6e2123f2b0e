"""From an endless data set of examples to the batches of this process: the last stage of every task's data.

Example i is drawn from the seed and i alone (`grain.MapDataset`). So a process takes every count-th batch, threads
change no value, and an iterator set to a position resumes exactly.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grain
import jax

from common.checked import Checked, Positive

log = logging.getLogger(__name__)
NAMED = 3  # unreadable records that the log names, per source
PATIENCE = 100  # unreadable records in a row after which a source is given up


@dataclass(frozen=True, kw_only=True)
class Batched(Checked, ABC):
    """A data config: an endless data set, in batches."""

    batch_size: Positive = 8  # over all processes
    threads: Positive = 2  # readers inside this process
    buffer: Positive = 8  # batches that they may prepare ahead

    @abstractmethod
    def dataset(self, seed: int) -> grain.MapDataset:
        """The endless examples of this seed, not batched; an error if there are none."""

    def batches(
        self, seed: int, process_index: int | None = None, process_count: int | None = None
    ) -> grain.DatasetIterator:
        """The endless stream of this seed, or this process's part of it, with `get_state` and `set_state`.

        Each of `process_count` processes (default: JAX's) gets its equal part of a batch: their batches, joined in
        order, are those of one process. Raises as `dataset`, and ValueError for a batch that cannot be divided."""
        index = jax.process_index() if process_index is None else process_index
        count = jax.process_count() if process_count is None else process_count
        if self.batch_size % count or not 0 <= index < count:
            split = f"cannot be split for process {index} of {count}"
            raise ValueError(f"batch_size {self.batch_size} {split}: give a multiple")
        dataset = self.dataset(seed).batch(self.batch_size // count, drop_remainder=True)
        options = grain.ReadOptions(num_threads=self.threads, prefetch_buffer_size=self.buffer)
        return iter((dataset[index::count] if count > 1 else dataset).to_iter_dataset(options))


class Readable:
    """Records by number, and in place of one that cannot be read the next one that can.

    So batches keep their size and processes stay in step. `read(number)` raises OSError, ValueError or RuntimeError for
    such a record (`get` gives it further arguments); the log has the `name(number)` of the first few, and counts the
    rest. Raises ValueError at the first if `strict`, else after PATIENCE."""

    def __init__(self, count: int, read: Callable[..., Any], name: Callable[[int], str], strict: bool = False) -> None:
        self.count, self.read, self.name, self.strict = count, read, name, strict
        self.skipped: set[int] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.get(index)

    def get(self, index: int, *more: Any) -> Any:
        message = ""
        for number in range(index, index + min(PATIENCE, self.count)):
            number %= self.count
            try:
                return self.read(number, *more)
            except (OSError, ValueError, RuntimeError) as error:
                message = f"{self.name(number)}: {' '.join(str(error).split())}"
                if self.strict:
                    raise ValueError(f"{message} (strict=false skips such records)") from error
                self._log_skipped(number, message)
        tried = min(PATIENCE, self.count)
        raise ValueError(f"{tried} records cannot be read, one after the other; the last: {message}")

    def _log_skipped(self, number: int, message: str) -> None:
        with self._lock:
            if number in self.skipped:
                return
            self.skipped.add(number)
            count = len(self.skipped)
            if count <= NAMED or count & (count - 1) == 0:  # then 4, 8, 16: so that a bad disk does not fill the log
                log.warning("skipped %d records so far, the newest %s", count, message)
