"""What all streams of batches promise, checked; and batches taken from them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Batch = dict[str, np.ndarray]


def take(stream: Any, count: int) -> list[Batch]:
    return [next(stream) for _ in range(count)]


def joined(batches: Sequence[Batch]) -> Batch:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def equal(batch: Batch, other: Batch) -> bool:
    return batch.keys() == other.keys() and all(np.array_equal(batch[name], other[name]) for name in batch)


def assert_equal(batches: Sequence[Batch], others: Sequence[Batch]) -> None:
    for batch, other in zip(batches, others, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            np.testing.assert_array_equal(batch[name], other[name], name)


def check_stream(make: Callable[..., Any], count: int = 4, processes: int = 2) -> None:
    """The seed alone decides, for any number of threads and processes; a state, plain JSON, goes on where it is."""
    data, whole = make(), take(make().batches(1, 0, 1), count)
    assert_equal(take(make(threads=3).batches(1), count), whole)
    assert not any(map(equal, take(make().batches(2), count), whole))
    parts = [take(data.batches(1, index, processes), count) for index in range(processes)]
    assert_equal([joined(shares) for shares in zip(*parts, strict=True)], whole)
    stream, resumed = data.batches(1), make().batches(1)
    take(stream, count // 2)
    resumed.set_state(json.loads(json.dumps(stream.get_state())))
    assert_equal(take(resumed, count - count // 2), whole[count // 2 :])
