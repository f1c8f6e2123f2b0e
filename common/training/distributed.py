"""Several processes, one run: JAX's own engine, started only when the config asks.

Every process runs the same command; on a cluster that JAX knows (Slurm, TPU pods) `cluster.auto=true` is all it
takes, elsewhere each is told where the first one listens and which one it is:

    python train.py experiment=film_l1 cluster.coordinator=10.0.0.1:9876 cluster.processes=2 cluster.process=0
    python train.py experiment=film_l1 cluster.coordinator=10.0.0.1:9876 cluster.processes=2 cluster.process=1

All devices of all processes form one mesh. Each process reads its own part of the data and takes part in checkpoints;
only the first scores and writes logs, pictures and weights, while the others wait. The run folder has to lie on a disk
that all of them share, or none could resume what the first has written.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

Result = TypeVar("Result")
COMPILE_MS = 3_600_000  # how long a process waits for the others' compilers


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """Attributes:
    auto: find everything in the environment (Slurm, TPU pods, Open MPI).
    coordinator: host:port where process 0 listens; None: one process.
    processes, process: how many there are, and which one this is, from 0.
    """

    auto: bool = False
    coordinator: str | None = None
    processes: int = 1
    process: int = 0

    def __post_init__(self):
        if self.coordinator is None and not self.auto and self.processes != 1:
            raise ValueError(f"cluster.processes is {self.processes}: give cluster.coordinator=HOST:PORT as well")
        if not 0 <= self.process < self.processes:
            raise ValueError(f"cluster.process is {self.process}: it counts from 0 to {self.processes - 1}")


def join(config: ClusterConfig) -> None:
    """Joins the other processes, before any array exists. Does nothing when there are none."""
    if config.auto:
        jax.distributed.initialize()
    elif config.coordinator is not None:
        jax.distributed.initialize(config.coordinator, config.processes, config.process)


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def own_name(name: str) -> str:
    """`name` for a file of this process: as it is in the first, with the process's number in the others."""
    stem, dot, suffix = name.rpartition(".")
    return name if is_first() else f"{stem}_{jax.process_index()}{dot}{suffix}"


def any_process(flag: bool) -> bool:
    """Whether `flag` holds in any process; all have to ask at the same step."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(jax.numpy.asarray(flag)).any())


def on_first(work: Callable[[], Result]) -> Result:
    """What `work` returns in the first process, the only one that runs it; all have to ask, and wait.

    The result has to survive JSON. An error is raised in the first process as it is, in the others as ValueError.
    """
    if jax.process_count() == 1:
        return work()
    told, failure = {}, None
    if is_first():
        try:
            told = {"result": work()}
        except Exception as error:
            told, failure = {"error": f"{type(error).__name__}: {error}"}, error
    told = json.loads(_from_first(json.dumps(told).encode()))
    if failure is not None:
        raise failure
    if "error" in told:
        raise ValueError(f"the first process stopped with {told['error']}")
    return told["result"]


def _from_first(data: bytes) -> bytes:
    """The first process's bytes, in all of them."""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    padded = np.frombuffer(data[:size].ljust(size), np.uint8)  # the others' are thrown away
    return np.asarray(multihost_utils.broadcast_one_to_all(padded)).astype(np.uint8).tobytes()


def compiled(function: Callable, *arguments: Any) -> Callable:
    """`function`, a jitted one, ready to run on arguments of these shapes; with several processes, ready in all.

    Devices that talk to each other give up after half a minute, and a compiler on a busy machine takes longer."""
    if jax.process_count() == 1:
        return function
    program = function.lower(*arguments).compile()
    multihost.get_barrier_sync_fn()(key="compiled", timeout_ms=COMPILE_MS)
    return program


def fetch(tree):
    """Whole arrays on the host, also of leaves that are split over processes; all have to ask."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)
