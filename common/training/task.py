"""The contract between the trainer and what it trains.

A task is a frozen dataclass named by `_target_` in a config. The trainer sees parameters and batches as pytrees of
arrays and never looks inside. Parameters are float32 and stay so; a task that computes in bfloat16 casts what enters
its network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

if TYPE_CHECKING:
    from common.training.refresh import RenewalConfig, Version

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
      renewed: what the task's `renew` made of the parameters some steps ago, on the device (`renewal.py`).
      mesh: the devices of the run, for a loss that divides its work itself.
    """

    step: Int[Array, ""]
    key: PRNGKeyArray
    frozen: Any
    renewed: Any = None
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


@runtime_checkable
class Renewing(Protocol):
    """A task whose loss reads arrays that follow the parameters at a distance (`renewal.py`)."""

    @property
    def renewal(self) -> RenewalConfig | None:
        """How often; None renews nothing, as if the task were a plain one."""
        ...

    def renew(self, params: Params, frozen: Any) -> Any:
        """Arrays made from the parameters, always of the same shapes: a dict of arrays, or of such dicts.

        Runs outside of `jit`, in a second thread while training goes on, on whatever devices `params` and `frozen` are;
        compiles what it needs itself, once. Done in parts that it blocks on, it lets steps in between."""
        ...


@runtime_checkable
class Indexing(Protocol):
    """A `Renewing` task that keeps something on the host which has to agree with the arrays that steps read."""

    def taken(self, version: Version, frozen: Any, params: Params) -> None:
        """The next step reads `version.arrays`. The step that makes `params` may be under way: before anything that it
        reads is changed, wait for them (`jax.block_until_ready`)."""
        ...

    def check(self) -> None:
        """Raises what went wrong on the host in the steps that are done. Asked after each, and before one is saved."""
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
