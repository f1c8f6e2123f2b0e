"""Refreshed arrays: recomputed from the parameters in the background, swapped as a whole.

REVEAL's memory is one: its keys and values come from the network in training, and there are too many to encode in every
step (Hu et al., CVPR 2023, after REALM's asynchronous index refresh). A `RefreshedTask` computes them, and its loss
reads them as `context.refreshed`:

    step 300 ends -> a copy of the parameters (snapshot) -> `task.refresh_arrays(snapshot, frozen)` in a second thread
    step 312 ends -> the arrays are ready: version 3, of step 300, used from step 313 on

The steps in between use version 2; none waits, and none sees a mix of two versions. With a `lag` (`task.RefreshConfig`)
checkpoints hold the arrays in use and the next ones, or, while these are computed, their snapshot: none waits, and a
resumed run equals the uninterrupted one bit for bit. Without one, a checkpoint holds the version number alone, and a
resumed run recomputes.

The second thread shares the devices with the steps, unless `spare` gives it its own. Devices that exchange data in two
programs must start them in the same order. So a snapshot is whole on each device, whatever `trainer.fsdp` is, and of
several processes each refreshes in its main thread.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from concurrent import futures
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from common.training.checkpoint import Checkpoints
from common.training.mesh import by_rows, replicated, spare_mesh
from common.training.task import HostIndexTask, Params, RefreshConfig, RefreshedTask, Task, Version

log = logging.getLogger(__name__)
PATIENCE = 30.0  # seconds that the end of a run waits for a cancelled refresh
POLL = 0.002  # seconds between two checks whether arrays are ready


class Cancelled(Exception):
    """The run ends during a refresh."""


@dataclasses.dataclass
class Pending:
    """A version under way: its step, the parameters until it is there, and the thread that computes it, if one does."""

    step: int
    params: Params | None
    version: futures.Future = dataclasses.field(default_factory=futures.Future)
    thread: threading.Thread | None = None

    def compute(self, work: Callable[[], Version]) -> None:
        try:
            self.version.set_result(work())
            self.params = None
        except BaseException as error:
            self.version.set_exception(error)


class NoRefresh:
    """The interface of `Refresh`, which does nothing for a task without such arrays. The next step reads `arrays`."""

    arrays: Any = None

    def read(self, step: int, params: Params, checkpoints: Checkpoints) -> Any: ...
    def start(self, step: int, params: Params, saved: Any = None) -> None: ...
    def after_step(self, step: int, params: Params) -> None: ...
    def check(self) -> None: ...
    def close(self) -> None: ...

    def scalars(self, step: int) -> dict[str, float]:
        return {}

    def saved(self) -> dict[str, Any]:
        """Further arguments of `Checkpoints.save`."""
        return {}


class Refresh(NoRefresh):
    """The arrays of a `RefreshedTask`, on the mesh of the training."""

    def __init__(self, task: RefreshedTask, config: RefreshConfig, mesh: Mesh, frozen: Any):
        self.task, self.config, self.mesh, self.spare = task, config, mesh, spare_mesh(config.spare)
        self.host = task if isinstance(task, HostIndexTask) else None
        self.frozen = frozen if self.spare is None else jax.tree.map(self._to_spare, frozen)
        self.copy = jax.jit(partial(jax.tree.map, jnp.copy), out_shardings=replicated(mesh))
        self.current = Version(-1, 0, 0.0, None)
        self.pending: Pending | None = None
        self.skipped = False
        self.cancelled = threading.Event()

    @property
    def arrays(self) -> Any:  # type: ignore[override]
        return self.current.arrays

    def read(self, step: int, params: Params, checkpoints: Checkpoints) -> Any:
        """What the checkpoint of `step` says about the versions, and their arrays; None for what it does not have."""
        about = checkpoints.refresh(step)
        if about is None or about["shapes"] is None or self.config.lag is None:
            return about, None

        def shape(leaf: list) -> jax.ShapeDtypeStruct:
            *sizes, dtype = leaf
            return jax.ShapeDtypeStruct(tuple(sizes), jnp.dtype(dtype), sharding=by_rows(self.mesh, sizes))

        arrays = jax.tree.map(shape, about["shapes"], is_leaf=lambda x: isinstance(x, list))
        target = {"used": arrays}
        if about["coming"] is not None:
            whole = replicated(self.mesh)
            snapshot = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), params)
            target |= {"snapshot": snapshot} if about["coming"][2] is None else {"coming": arrays}
        return about, checkpoints.arrays(step, target)

    def start(self, step: int, params: Params, saved: Any = None) -> None:
        """Computes the first arrays, or takes those that `read` has found, with what was under way then."""
        about, restored = saved or (None, None)
        if about is None or restored is None:
            number = 0 if about is None else about["used"][0] + 1
            return self._swap(self._compute(number, step, self._snapshot(params)), step, params)
        self._use(Version(*about["used"], arrays=restored["used"]), params)
        coming = about["coming"]
        if coming is not None and coming[2] is None:
            self._begin(coming[1], restored["snapshot"])
        elif coming is not None:
            self.pending = Pending(coming[1], None)
            self.pending.version.set_result(Version(*coming, arrays=restored["coming"]))

    def after_step(self, step: int, params: Params) -> None:
        """Swaps arrays and begins the next refresh, if they are due."""
        self.check()
        self._swap_if_due(step, params)
        if step % self.config.every == 0:
            self._begin(step, params)
            if self.config.lag == 0:
                self._swap_if_due(step, params)

    def check(self) -> None:
        """Raises errors of finished steps on the host."""
        if self.host is not None:
            self.host.check()

    def scalars(self, step: int) -> dict[str, float]:
        return {
            "refresh_version": float(self.current.number),
            "refresh_staleness": float(step - self.current.step),
            "refresh_seconds": self.current.seconds,
        }

    def saved(self) -> dict[str, Any]:
        used, pending = self.current, self.pending
        params = pending and pending.params  # before `done`: the thread drops them then
        about: dict[str, Any] = {"used": list(used[:3]), "coming": None, "shapes": None}
        if self.config.lag is None:
            return {"refresh": about}
        about["shapes"], arrays = _shapes(used.arrays), {"used": used.arrays}
        if pending is not None and pending.version.done():
            *about["coming"], arrays["coming"] = pending.version.result()
        elif pending is not None:
            about["coming"], arrays["snapshot"] = [used.number + 1, pending.step, None], params
        return {"refresh": about, "arrays": arrays}

    def close(self) -> None:
        """Cancels a refresh under way."""
        if self.pending is None:
            return
        step, version = self.pending.step, self.pending.version
        self.cancelled.set()
        if self.pending.thread is not None:
            self.pending.thread.join(PATIENCE)
        error = version.exception() if version.done() else Cancelled()
        if isinstance(error, Cancelled):
            log.info("the refresh of step %d is not done; the run ends without it", step)
        elif error is not None:
            log.warning("the refresh of step %d failed: %s: %s", step, type(error).__name__, error)

    def _swap_if_due(self, step: int, params: Params) -> None:
        if self.pending is None:
            return
        version, lag = self.pending.version, self.config.lag
        if version.done() if lag is None else step >= self.pending.step + lag:
            self.pending = None
            self._swap(version.result(), step, params)  # raises an error of `refresh_arrays`

    def _swap(self, version: Version, step: int, params: Params) -> None:
        """`params` are the result of `step`."""
        before, now = _shapes(self.arrays), _shapes(version.arrays)
        if self.arrays is not None and before != now:
            raise ValueError(f"task.refresh_arrays gave {now} of step {version.step}, after {before}: keep the shapes")
        self._use(version, params)
        about = f"version {version.number} of step {version.step}, in use from step {step + 1}"
        log.info("refreshed arrays: %s (%.1f s)", about, version.seconds)

    def _use(self, version: Version, params: Params) -> None:
        self.current = version
        if self.host is not None:
            self.host.on_refresh(version, self.frozen, params)

    def _begin(self, step: int, params: Params) -> None:
        if self.pending is not None:
            if not self.skipped:
                log.info("refresh of step %d skipped: that of step %d is not done", step, self.pending.step)
            self.skipped = True
            return
        self.skipped = False
        self.pending = pending = Pending(step, self._snapshot(params))
        work = partial(self._compute, self.current.number + 1, step, pending.params)
        if self.config.lag == 0 or jax.process_count() > 1:
            pending.compute(work)
        else:  # a daemon, which an executor's thread is not: no exit waits for it
            pending.thread = threading.Thread(target=pending.compute, args=(work,), name="refresh", daemon=True)
            pending.thread.start()

    def _to_spare(self, x: jax.Array) -> jax.Array:
        """Replicated, or split by rows as on the mesh of the training."""
        assert self.spare is not None
        return jax.device_put(x, by_rows(self.spare, () if x.sharding.is_fully_replicated else x.shape))

    def _snapshot(self, params: Params) -> Params:
        """A copy, whole on each device: the next step donates the memory of the parameters."""
        if self.spare is None:
            return self.copy(params)
        return jax.device_put(params, replicated(self.spare), may_alias=False)

    def _compute(self, number: int, step: int, params: Params) -> Version:
        clock = time.perf_counter()
        computed = self.task.refresh_arrays(params, self.frozen, self._check_cancelled)
        arrays = jax.tree.map(lambda x: jax.device_put(x, by_rows(self.mesh, x.shape)), computed)
        while not all(leaf.is_ready() for leaf in jax.tree.leaves(arrays)):  # block_until_ready cannot be cancelled
            self._check_cancelled()
            time.sleep(POLL)
        jax.block_until_ready(arrays)  # raises an error of the device
        return Version(number, step, time.perf_counter() - clock, arrays)

    def _check_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise Cancelled


def spare_devices(task: Task) -> int:
    """How many devices only refresh. Raises ValueError for a refresh that several processes cannot do together."""
    config = task.refresh if isinstance(task, RefreshedTask) else None
    if config is not None and config.lag is None and jax.process_count() > 1:
        raise ValueError("refresh.lag is null: several processes must swap arrays at the same step; set a lag")
    return 0 if config is None else config.spare


def make_refresh(task: Task, mesh: Mesh, frozen: Any) -> NoRefresh:
    """The refresh of a task that trains on `mesh`, not started yet."""
    if isinstance(task, RefreshedTask) and task.refresh is not None:
        return Refresh(task, task.refresh, mesh, frozen)
    return NoRefresh()


def _shapes(arrays: Any) -> Any:
    """Nested dicts like `arrays` with leaves such as [1024, 64, "float32"], for JSON."""
    return jax.tree.map(lambda x: [*x.shape, str(x.dtype)], arrays)
