"""Arrays that follow the parameters at a distance: made anew in the background, taken into use whole.

REVEAL's memory is one: its keys and values come from the network that is being trained, and there are far too many to
encode in every step (Hu et al., CVPR 2023, after REALM's refresh). A task that has such arrays is `Renewing`: its
`renew` makes them, its loss reads them as `context.renewed`. The trainer does the rest:

    step 300 is done -> a copy of the parameters, the snapshot -> `task.renew(snapshot, frozen)` in a second thread
    step 312 is done -> its arrays are there: version 3, of step 300, in use from step 313

Steps in between go on with version 2; none ever waits, and none sees half of one version and half of another. Shapes
and placement are always the same, so that the step is compiled once.

How long a renewal takes depends on the clock, and with it what a step reads. A run that has to repeat itself sets
`lag`: arrays are then taken exactly so many steps after their snapshot, and the step waits if they are late. Their
checkpoints hold the arrays in use and those under way, and a resumed run is the uninterrupted one bit for bit. Without
a lag a checkpoint holds the version's number alone, and a resumed run makes its arrays anew.

The second thread shares the devices with the steps: what `renew` has dispatched, a step has to wait for. A `renew` that
works in parts, and blocks on each, lets steps in between; `spare` gives it devices of its own. Several processes must
start their programs in the same order: there a renewal is done in the main thread. A task that is `Indexing` is told of
every version as it comes into use, and training waits for what it does with it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import DictKey

from common.training.checkpoint import Checkpoints
from common.training.mesh import DATA, FSDP, replicated, spare_mesh
from common.training.task import Indexing, Params, Renewing, Task

log = logging.getLogger(__name__)
PATIENCE = 30.0  # seconds that a run which ends gives a renewal to notice it
LOOK = 0.002  # seconds between two looks at arrays that are being computed


@dataclasses.dataclass(frozen=True)
class RenewalConfig:
    """When a task's arrays are made anew, and where.

    Attributes:
      every: steps from one snapshot of the parameters to the next. One that is not done by then is let finish, and the
        snapshot is left out.
      lag: steps from a snapshot to the first use of its arrays (0: the next step has them). None: as soon as they are
        ready; the clock decides, so no two runs are the same.
      spare: so many devices, the last ones, do not train but renew. 0: the training's own do it, in between steps.
    """

    every: int = 100
    lag: int | None = None
    spare: int = 0

    def __post_init__(self):
        if self.every < 1:
            raise ValueError(f"renewal.every is {self.every}: it has to be at least 1")
        if self.lag is not None and not 0 <= self.lag < self.every:
            raise ValueError(
                f"renewal.lag is {self.lag}: give 0 to {self.every - 1}, less than renewal.every, "
                "or null to take arrays as soon as they are ready"
            )
        if self.spare < 0:
            raise ValueError(f"renewal.spare is {self.spare}: it counts devices; 0 renews on the training's own")


class Version(NamedTuple):
    """Renewed arrays, and of which step's parameters they are."""

    number: int
    step: int
    seconds: float
    arrays: Any

    @property
    def about(self) -> list:
        return [self.number, self.step, self.seconds]


class Coming(NamedTuple):
    """A version under way, and the thread that makes it, if it is not made already."""

    step: int
    version: futures.Future
    thread: threading.Thread | None = None


class Nothing:
    """What a task has that renews nothing."""

    arrays: Any = None

    def start(self, step: int, params: Params, checkpoints: Checkpoints) -> None:
        """Makes the first arrays, or reads those of the checkpoint that the run resumes at `step`."""

    def turn(self, step: int, params: Params) -> None:
        """After `step`: takes what is due, and begins what is due."""

    def check(self) -> None:
        """Raises what went wrong beside the steps that are done."""

    def scalars(self, step: int) -> dict[str, float]:
        """Numbers to log."""
        return {}

    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps besides the state, as `Checkpoints.save` takes it."""
        return {}

    def close(self) -> None:
        """Stops what is under way, or leaves it behind."""


class Renewal(Nothing):
    """The arrays of a `Renewing` task, on the training's mesh: `arrays` are those that the next step reads."""

    def __init__(self, task: Renewing, config: RenewalConfig, mesh: Mesh, spare: Mesh | None, frozen: Any):
        if config.lag is None and jax.process_count() > 1:
            raise ValueError("renewal.lag is null: several processes have to take arrays at the same step; set a lag")
        self.task, self.config, self.mesh, self.spare = task, config, mesh, spare
        self.frozen = frozen if spare is None else jax.device_put(frozen, replicated(spare))
        self.used = Version(-1, 0, 0.0, None)
        self.coming: Coming | None = None
        self.late = False

    @property
    def arrays(self) -> Any:  # type: ignore[override]
        return self.used.arrays

    def start(self, step: int, params: Params, checkpoints: Checkpoints) -> None:
        about = checkpoints.renewal(step) if step else None
        if about is not None and about["shapes"] is not None and self.config.lag is not None:
            return self._restore(about, step, params, checkpoints)
        number = 0 if about is None else about["used"][0] + 1
        self._use(self._made(number, step, self._snapshot(params)), step, params)

    def turn(self, step: int, params: Params) -> None:
        self.check()
        self._take(step, params)
        if step % self.config.every == 0:
            self._begin(step, params)
            if self.config.lag == 0:
                self._take(step, params)

    def check(self) -> None:
        if isinstance(self.task, Indexing):
            self.task.check()

    def scalars(self, step: int) -> dict[str, float]:
        return {
            "renewal_version": float(self.used.number),
            "renewal_staleness": float(step - self.used.step),
            "renewal_seconds": self.used.seconds,
        }

    def saved(self) -> dict[str, Any]:
        if self.config.lag is None:
            return {"renewal": {"used": self.used.about, "coming": None, "shapes": None}}
        coming = None if self.coming is None else self.coming.version.result()
        about = {"used": self.used.about, "coming": coming and coming.about, "shapes": shapes_of(self.arrays)}
        return {"renewal": about, "renewed": {"used": self.arrays} | ({"coming": coming.arrays} if coming else {})}

    def close(self) -> None:
        if self.coming is None:
            return
        step, version, thread = self.coming
        if thread is not None and not version.done():
            _stop(thread)
            thread.join(PATIENCE)
        error = version.exception() if version.done() else SystemExit()
        if isinstance(error, SystemExit):
            log.info("the renewal of step %d is not done; the run ends without it", step)
        elif error is not None:
            log.warning("the renewal of step %d failed: %s: %s", step, type(error).__name__, error)

    def _restore(self, about: Mapping[str, Any], step: int, params: Params, checkpoints: Checkpoints) -> None:
        """The arrays of a checkpoint, with those that were under way when it was written."""
        shapes = {name: about["shapes"] for name in ("used", "coming") if about[name] is not None}
        target = jax.tree.map(self._shape, shapes, is_leaf=lambda x: isinstance(x, list))
        arrays = checkpoints.renewed(step, target)
        versions = {name: _version(about[name], arrays[name]) for name in arrays}
        self.used = versions["used"]
        self._tell(params)
        if "coming" in versions:
            self.coming = Coming(versions["coming"].step, *_now(lambda: versions["coming"]))

    def _take(self, step: int, params: Params) -> None:
        """Swaps, if there is a version and its time has come. `params` are what `step` makes."""
        if self.coming is None:
            return
        lag = self.config.lag
        due = self.coming.version.done() if lag is None else step >= self.coming.step + lag
        if due:
            version, self.coming = self.coming.version, None
            self._use(version.result(), step, params)  # raises what `renew` raised

    def _begin(self, step: int, params: Params) -> None:
        if self.coming is not None:
            if not self.late:
                log.info("renewal of step %d left out: that of step %d is not done", step, self.coming.step)
            self.late = True
            return
        self.late = False
        number, snapshot = self.used.number + 1, self._snapshot(params)
        here = self.config.lag == 0 or jax.process_count() > 1
        self.coming = Coming(step, *(_now if here else _beside)(lambda: self._made(number, step, snapshot)))

    def _snapshot(self, params: Params) -> Params:
        """A copy, for the step that comes next is given the memory of the parameters."""
        if self.spare is None:
            return jax.tree.map(jnp.copy, params)
        return jax.device_put(params, replicated(self.spare), may_alias=False)

    def _made(self, number: int, step: int, params: Params) -> Version:
        clock = time.perf_counter()
        made = self.task.renew(params, self.frozen)
        _check_nested(made)
        arrays = _waited(jax.tree.map(lambda x: jax.device_put(x, self._place(x.shape)), made))
        return Version(number, step, time.perf_counter() - clock, arrays)

    def _use(self, version: Version, step: int, params: Params) -> None:
        before, now = shapes_of(self.arrays), shapes_of(version.arrays)
        if self.arrays is not None and before != now:
            raise ValueError(f"task.renew gave {now} of step {version.step}, after {before}: shapes have to stay")
        self.used = version
        self._tell(params)
        about = f"version {version.number} of step {version.step}, in use from step {step + 1}"
        log.info("renewed arrays: %s (%.1f s)", about, version.seconds)

    def _tell(self, params: Params) -> None:
        if isinstance(self.task, Indexing):
            self.task.taken(self.used, self.frozen, params)

    def _place(self, shape: tuple[int, ...]) -> NamedSharding:
        """Split along the first axis over all devices, if they divide it; else whole on each."""
        split = len(shape) > 0 and shape[0] % self.mesh.devices.size == 0
        return NamedSharding(self.mesh, PartitionSpec((DATA, FSDP)) if split else PartitionSpec())

    def _shape(self, leaf: list) -> jax.ShapeDtypeStruct:
        *shape, dtype = leaf
        return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype), sharding=self._place(tuple(shape)))


def renewal_config(task: Task) -> RenewalConfig | None:
    """How `task` wants its arrays renewed; None if it has none."""
    return task.renewal if isinstance(task, Renewing) else None


def make_renewal(task: Task, mesh: Mesh, frozen: Any) -> Nothing:
    """The renewal of a task that trains on `mesh`, not started yet."""
    config = renewal_config(task)
    if config is None:
        return Nothing()
    assert isinstance(task, Renewing)
    return Renewal(task, config, mesh, spare_mesh(config.spare), frozen)


def shapes_of(arrays: Any) -> Any:
    """Nested dicts like `arrays`, with lists such as [1024, 64, "float32"] for leaves: they survive JSON."""
    return jax.tree.map(lambda x: [*x.shape, str(x.dtype)], arrays)


def _version(about: Sequence[Any], arrays: Any) -> Version:
    number, step, seconds = about
    return Version(number, step, seconds, arrays)


def _check_nested(arrays: Any) -> None:
    """Nothing but nested dicts comes back from a checkpoint as it was."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(arrays)]
    if not all(path and all(isinstance(key, DictKey) for key in path) for path in paths):
        raise ValueError(f"task.renew gave a {type(arrays).__name__}: give a dict of arrays, or of such dicts")


def _waited(arrays: Any) -> Any:
    """`arrays`, computed. Looks again and again: inside of `block_until_ready` a thread could not be stopped."""
    while not all(leaf.is_ready() for leaf in jax.tree.leaves(arrays)):
        time.sleep(LOOK)
    return jax.block_until_ready(arrays)  # raises what went wrong


def _now(work: Callable[[], Version]) -> tuple[futures.Future, None]:
    future: futures.Future = futures.Future()
    future.set_result(work())
    return future, None


def _beside(work: Callable[[], Version]) -> tuple[futures.Future, threading.Thread]:
    """`work`'s result, and the thread: a daemon, which an executor's is not, so that no exit waits for it."""
    future: futures.Future = futures.Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, name="renewal", daemon=True)
    thread.start()
    return future, thread


def _stop(thread: threading.Thread) -> None:
    """Raises SystemExit in `thread` as soon as it runs Python again: in the midst of JAX it would break the exit."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
