"""The interfaces between the trainer, a task and its data.

A task is a frozen dataclass named by `_target_` in a config. Parameters and batches are pytrees of arrays, which the
trainer does not look into. Parameters are float32; a task that computes in bfloat16 casts the inputs of its network.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from common.checked import Checked, NotNegative, Positive

Params = PyTree  # a nested dict of float32 arrays; its leaves are not checked at each call
Batch = dict[str, Any]
Metrics = dict[str, Float[Array, ""]]

IDS = "id"  # entry of a batch: one integer per example, for error messages; it stays on the host


class Context(NamedTuple):
    """Inputs of a loss besides parameters and batch."""

    step: Int[Array, ""]  # number of steps done
    key: PRNGKeyArray  # of this step (and microbatch), from the run's seed and the step alone
    frozen: Any  # the task's `frozen()`, on the device
    refreshed: Any = None  # the latest `refresh_arrays`, on the device (`refresh.py`)
    mesh: Mesh | None = None  # the devices of the run, for a loss that divides its work itself


@runtime_checkable
class Task(Protocol):
    """A network and its loss. It may have `frozen_rules`, rules of `mesh.py` for `frozen()` that precede those of the
    trainer."""

    def init(self, key: PRNGKeyArray) -> Params:
        """Fresh parameters; called under `jit`."""
        ...

    def start(self) -> Params | None:
        """Parameters to start a new run from, instead of `init`'s, such as those of a file; not called on resume."""
        ...

    def frozen(self) -> Any:
        """Arrays that the loss needs and training does not change (a perceptual network, a base model), or {}."""
        ...

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        """The loss, and numbers to log (means over the batch)."""
        ...

    def pictures(self, params: Params, batch: Batch) -> Mapping[str, Float[np.ndarray, "h w 3"]]:
        """Named image summaries of `params` on `batch`, RGB in [0, 1]."""
        ...

    def export(self, path: Path, params: Params, metadata: Mapping[str, Any]) -> Path:
        """Writes weights for inference; returns their path: `path`, or a folder of that name without suffix."""
        ...


@dataclasses.dataclass(frozen=True)
class RefreshConfig(Checked):
    """When and where the arrays of a `RefreshedTask` are recomputed.

    `lag` is the fixed number of steps between a snapshot and the first step that reads its arrays (0: the very next
    one). The step waits if they are late, so a run repeats bit for bit. None: arrays are read as soon as they are
    ready, so no two runs are equal."""

    every: Positive = 100  # steps from one snapshot of the parameters to the next; one due during a refresh is skipped
    lag: NotNegative | None = None
    spare: NotNegative = 0  # number of devices, the last ones, that only refresh; 0: the training devices do both

    def rules(self):
        yield self.lag is None or self.lag < self.every, "lag is below every, or null"


class Version(NamedTuple):
    """Refreshed arrays: their number, the step of their parameters, and the seconds of their computation."""

    number: int
    step: int
    seconds: float
    arrays: Any


@runtime_checkable
class RefreshedTask(Protocol):
    """A task whose loss reads refreshed arrays (`refresh.py`); `refresh` is None without any."""

    @property
    def refresh(self) -> RefreshConfig | None: ...

    def refresh_arrays(self, params: Params, frozen: Any, check_cancelled: Callable[[], None] = lambda: None) -> Any:
        """Arrays computed from the parameters, always of the same shapes: a dict of arrays, or of such dicts.

        Runs outside `jit`, in a second thread during training, on the devices of `params`, whole on each, and `frozen`;
        compiles its own functions, once. Devices exchange nothing, unless `lag` is 0. Compute in parts, block on each
        (training steps run in between) and then call `check_cancelled`, which raises `refresh.Cancelled` at the end of
        the run."""
        ...


@runtime_checkable
class HostIndexTask(Protocol):
    """A `RefreshedTask` with an index on the host that must agree with the arrays that steps read."""

    def on_refresh(self, version: Version, frozen: Any, params: Params) -> None:
        """Called before a step first reads `version.arrays`. The step that computes `params` may still run: block on
        them before changing anything that it reads."""
        ...

    def check(self) -> None:
        """Raises errors of finished steps on the host; called after each step and before a checkpoint."""
        ...


@runtime_checkable
class Data(Protocol):
    """A source of batches; a frozen dataclass in a config, like a task."""

    def batches(self, seed: int) -> Any:
        """The training batches of a seed, always the same: an endless iterator with a position, `get_state()` and
        `set_state(state)` in JSON. A batch is a dict of arrays whose first axis counts examples, of this process's
        share if there are several."""
        ...

    def names(self, ids: Sequence[int]) -> Sequence[str]:
        """Names of the examples with these `id`s, for error messages."""
        ...
