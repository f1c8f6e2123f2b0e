"""From an endless data set of examples to the batches of this process: the last stage of every task's data.

Everything is a function of the seed and a position (`grain.MapDataset`): example i is drawn from the seed and i alone.
So a process takes every count-th batch, threads change no value, and an iterator set to a position resumes exactly.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import grain
import jax


@dataclass(frozen=True, kw_only=True)
class Batched(ABC):
    """A data config: an endless data set, in batches."""

    batch_size: int = 8  # over all processes
    threads: int = 2  # readers inside this process
    buffer: int = 8  # batches that they may prepare ahead

    def __post_init__(self) -> None:
        if min(self.batch_size, self.threads, self.buffer) < 1:
            raise ValueError(f"batch_size {self.batch_size}, threads {self.threads}, buffer {self.buffer}: need >= 1")

    @abstractmethod
    def dataset(self, seed: int) -> grain.MapDataset:
        """The endless examples of this seed, not batched; an error if there are none."""

    def batches(
        self, seed: int, process_index: int | None = None, process_count: int | None = None
    ) -> grain.DatasetIterator:
        """The endless stream of this seed, or this process's part of it; raises as `dataset`."""
        return batches(self.dataset(seed), self.batch_size, self.threads, self.buffer, process_index, process_count)


def batches(
    dataset: grain.MapDataset,
    batch_size: int,
    threads: int = 1,
    buffer: int = 8,
    process_index: int | None = None,
    process_count: int | None = None,
) -> grain.DatasetIterator:
    """The iterator of batches (dicts of arrays), with `get_state` and `set_state`.

    `dataset` repeats without end and gives dicts. `batch_size` is the global one, of which each of `process_count`
    processes gets its equal part (default: JAX's processes): their batches, joined in order, are those of one process.
    `threads` prepare up to `buffer` batches ahead. Raises ValueError for a batch that cannot be divided.
    """
    index = jax.process_index() if process_index is None else process_index
    count = jax.process_count() if process_count is None else process_count
    if batch_size % count or not 0 <= index < count:
        raise ValueError(f"batch_size {batch_size} cannot be split for process {index} of {count}: give a multiple")
    dataset = dataset.batch(batch_size // count, drop_remainder=True)
    if count > 1:
        dataset = dataset[index::count]
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)
    return iter(dataset.to_iter_dataset(options))
