"""Several processes, one run, by JAX's own engine; started only when the config asks for it.

Every process runs the same command. On a cluster that JAX knows (Slurm, TPU pods) `cluster.auto=true` is enough,
elsewhere each gets the address of process 0 and its own number:

    python train.py experiment=film_l1 cluster.coordinator=10.0.0.1:9876 cluster.processes=2 cluster.process=0
    python train.py experiment=film_l1 cluster.coordinator=10.0.0.1:9876 cluster.processes=2 cluster.process=1

All devices of all processes form one mesh. Each process reads its own part of the data and takes part in checkpoints;
only the first evaluates and writes logs, pictures and weights, while the others wait. All share the disk of the run
folder.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from common.checked import Checked, NotNegative, Positive

Result = TypeVar("Result")
COMPILE_MS = 3_600_000  # time limit for the compilers of the other processes


@dataclasses.dataclass(frozen=True)
class ClusterConfig(Checked):
    auto: bool = False  # take everything from the environment (Slurm, TPU pods, Open MPI)
    coordinator: str | None = None  # host:port of process 0; None: one process
    processes: Positive = 1
    process: NotNegative = 0  # which one this is

    def rules(self):
        alone = self.auto or self.coordinator is not None or self.processes == 1
        yield alone, "more processes than one need coordinator=HOST:PORT"
        yield self.process < self.processes, "process is below processes"


def join(config: ClusterConfig) -> None:
    """Joins the other processes, if there are any, before any array exists."""
    if config.auto:
        jax.distributed.initialize()
    elif config.coordinator is not None:
        jax.distributed.initialize(config.coordinator, config.processes, config.process)


def is_first() -> bool:
    """Whether this is the process that writes."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Whether `flag` holds in any process. All processes must call it at the same step."""
    return flag if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.asarray(flag)).any())


def on_first(work: Callable[[], Result]) -> Result:
    """The result of `work`, JSON, which only the first process runs. All processes must call it, and wait. The first
    raises an error as it is, the others as ValueError."""
    if jax.process_count() == 1:
        return work()
    answer, failure = {}, None
    if is_first():
        try:
            answer = {"result": work()}
        except Exception as error:
            answer, failure = {"error": f"{type(error).__name__}: {error}"}, error
    data = json.dumps(answer).encode()
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))  # of the first process
    padded = np.frombuffer(data[:size].ljust(size), np.uint8)
    answer = json.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded)).astype(np.uint8).tobytes())
    if failure is not None:
        raise failure
    if "error" in answer:
        raise ValueError(f"the first process stopped with {answer['error']}")
    return answer["result"]


def compiled(function: Callable, *arguments: Any) -> Callable:
    """`function`, a jitted one, compiled for arguments of these shapes; of several processes, in all of them.

    Devices that communicate time out after half a minute, and a compiler on a busy machine takes longer."""
    if jax.process_count() == 1:
        return function
    program = function.lower(*arguments).compile()
    multihost.get_barrier_sync_fn()(key="compiled", timeout_ms=COMPILE_MS)
    return program


def fetch(tree):
    """Whole arrays on the host, also of leaves that are split over processes. All processes must call it."""
    return jax.device_get(tree) if jax.process_count() == 1 else multihost_utils.process_allgather(tree, tiled=True)
