"""The contract between the trainer and what it trains.

A task is a frozen dataclass named by `_target_` in a config. The trainer sees parameters and batches as pytrees of
arrays and never looks inside. Parameters are float32 and stay so; a task that computes in bfloat16 casts what enters
its network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

Params = PyTree[Float[Array | np.ndarray, "..."]]
Batch = dict[str, Any]
Metrics = dict[str, Float[Array, ""]]

IDS = "id"  # entry of a batch with one integer per example, for error messages; it stays on the host


class Context(NamedTuple):
    """What a loss may depend on besides parameters and batch.

    Attributes:
      step: steps done before this one.
      key: randomness of this step (and of this part of the batch); follows from the run's seed and the step alone.
      frozen: the task's `frozen()`, on the device.
      refreshed: what `refresh_arrays` computed from the parameters some steps ago, on the device (`refresh.py`).
      mesh: the devices of the run, for a loss that divides its work itself.
    """

    step: Int[Array, ""]
    key: PRNGKeyArray
    frozen: Any
    refreshed: Any = None
    mesh: Mesh | None = None


@runtime_checkable
class Task(Protocol):
    """What training optimises."""

    def init(self, key: PRNGKeyArray) -> Params:
        """Fresh parameters, a nested dict of arrays; called under `jit`."""
        ...

    def start(self) -> Params | None:
        """Parameters that a fresh run begins with instead of `init`'s, read from a file; None if there are none.

        Never called for a run that resumes."""
        ...

    def frozen(self) -> Any:
        """Arrays that the loss needs and training never changes (a perceptual network, a base model), or {}."""
        ...

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        """The number to minimise, and numbers to log (means over the batch)."""
        ...

    def pictures(self, params: Params, batch: Batch) -> Mapping[str, Float[np.ndarray, "h w 3"]]:
        """Named pictures of how `params` do on `batch`, RGB in [0, 1]."""
        ...

    def export(self, path: Path, params: Params, metadata: Mapping[str, Any]) -> Path:
        """Writes weights that inference can load; returns where: `path`, or a folder of that name without suffix."""
        ...


@dataclasses.dataclass(frozen=True)
class RefreshConfig:
    """When the arrays of a `RefreshedTask` are recomputed, and where.

    Attributes:
      every: steps from one snapshot of the parameters to the next. A snapshot that is due while the refresh before it
        is still running is skipped.
      lag: a fixed number of steps between a snapshot and the first step that reads the arrays computed from it (0: the
        very next one). The step waits if they are late, so a run repeats bit for bit. None: arrays are read as soon as
        they are ready, which depends on the clock, so no two runs are equal.
      spare: number of devices, the last ones, that do not train and only refresh. 0: the training devices do both.
    """

    every: int = 100
    lag: int | None = None
    spare: int = 0

    def __post_init__(self):
        if self.every < 1:
            raise ValueError(f"refresh.every is {self.every}: it has to be at least 1")
        if self.lag is not None and not 0 <= self.lag < self.every:
            raise ValueError(
                f"refresh.lag is {self.lag}: give 0 to {self.every - 1}, less than refresh.every, "
                "or null to read arrays as soon as they are ready"
            )
        if self.spare < 0:
            raise ValueError(f"refresh.spare is {self.spare}: give a number of devices; 0 shares the training's own")


class Version(NamedTuple):
    """Refreshed arrays: a running number, the step whose parameters they come from, and how long they took."""

    number: int
    step: int
    seconds: float
    arrays: Any

    @property
    def about(self) -> list:
        """All but the arrays, for JSON."""
        return [self.number, self.step, self.seconds]


@runtime_checkable
class RefreshedTask(Protocol):
    """A task whose loss reads arrays that follow the parameters at a distance (`refresh.py`)."""

    @property
    def refresh(self) -> RefreshConfig | None:
        """How often; None refreshes nothing, as for a plain task."""
        ...

    def refresh_arrays(self, params: Params, frozen: Any, check_cancelled: Callable[[], None] = lambda: None) -> Any:
        """Arrays computed from the parameters, always of the same shapes: a dict of arrays, or of such dicts.

        Runs outside `jit`, in a second thread while training goes on, on the devices of `params` and `frozen`; compiles
        what it needs itself, once. Work in parts, block on each (training steps run in between) and call
        `check_cancelled` after each: it raises `refresh.Cancelled` when the run ends."""
        ...


@runtime_checkable
class HostIndexTask(Protocol):
    """A `RefreshedTask` that keeps an index on the host which has to agree with the arrays that steps read."""

    def on_refresh(self, version: Version, frozen: Any, params: Params) -> None:
        """The next step reads `version.arrays`. The step that computes `params` may still run: wait for them
        (`jax.block_until_ready`) before changing anything that it reads."""
        ...

    def check(self) -> None:
        """Raises what failed on the host in finished steps. Called after each step, and before a checkpoint."""
        ...


@runtime_checkable
class Batches(Protocol):
    """An endless iterator of batches that knows where it is.

    A batch is a dict of arrays whose first axis counts examples; with several processes, of this process's share.
    """

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

    def names(self, ids: Sequence[int]) -> Sequence[str]:
        """What the examples with these `id`s are, for people."""
        ...
