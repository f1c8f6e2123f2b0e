"""From an endless data set of examples to the batches of this process: the last stage of every task's data.

Everything is a function of the seed and a position (`grain.MapDataset`): example i is drawn from the seed and i alone.
So a process takes every count-th batch, threads change no value, and an iterator set to a position resumes exactly.
"""

import grain
import jax


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
