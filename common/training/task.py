"""The contract between the trainer and what it trains.

A task is a frozen dataclass named by `_target_` in a config. The trainer sees parameters and batches as pytrees of
arrays and never looks inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

Params = PyTree[Float[Array | np.ndarray, "..."]]
Batch = dict[str, Any]
Metrics = dict[str, Float[Array, ""]]


@runtime_checkable
class Task(Protocol):
    """What training optimises."""

    def init(self, key: PRNGKeyArray) -> Params:
        """Fresh parameters, a nested dict of arrays; called under `jit`."""
        ...

    def loss(self, params: Params, batch: Batch, step: Array) -> tuple[Float[Array, ""], Metrics]:
        """The number to minimise, and numbers to log (means over the batch)."""
        ...

    def pictures(self, params: Params, batch: Batch) -> Mapping[str, Float[np.ndarray, "h w 3"]]:
        """Named pictures of how `params` do on `batch`, RGB in [0, 1]."""
        ...

    def export(self, path: Path, params: Params, metadata: Mapping[str, Any]) -> None:
        """Writes weights that inference can load."""
        ...


@runtime_checkable
class Batches(Protocol):
    """An endless iterator of batches that knows where it is."""

    def __iter__(self) -> Iterator[Batch]: ...
    def __next__(self) -> Batch: ...
    def get_state(self) -> Any: ...
    def set_state(self, state: Any) -> None: ...


@runtime_checkable
class Data(Protocol):
    """Where batches come from; a frozen dataclass in a config, like a task."""

    def batches(self, seed: int) -> Batches:
        """The training stream of a seed: the same seed, the same batches."""
        ...
