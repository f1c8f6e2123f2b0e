"""A network's parameters before training, and a network without values.

    params = init_params(Film, config, key)       # pure nested dict of arrays
    graph, shapes = blank(Film, config)    # the same dict of shapes; nothing is computed
    model = nnx.merge(graph, params)

A network draws each parameter with a key of its own. `nnx.Rngs` counts them in a variable, which under `jax.jit` is a
tracer: each access walks the program traced so far, most of the time of tracing. `Keys` counts in Python and gives the
same keys.
"""

import functools
import itertools
from typing import Any

import jax
from flax import nnx
from jaxtyping import PRNGKeyArray

# For `jax.jit` of an initialisation. It runs once, and each parameter has a random generator of its own: LLVM would
# optimise them for most of the time.
COMPILE_FAST = {"xla_backend_optimization_level": 0}
FEW = 500  # parameters that are always made, in a second or two, so that an error can list those that a file lacks


class Keys(nnx.Rngs):
    """The keys for parameters of `nnx.Rngs(key)`, in the same order; ValueError when more than `most` are drawn."""

    def __init__(self, key: PRNGKeyArray, most: int | None = None):
        super().__init__()
        count = itertools.count()

        def draw() -> PRNGKeyArray:
            number = next(count)
            if number == most:
                raise ValueError(f"the config describes over {most} parameters, too many for the file: take its own")
            return jax.random.fold_in(key, number)

        self.params = nnx.static(draw)


def init_params(network: type, config: Any, key: PRNGKeyArray) -> dict[Any, Any]:
    """Parameters of `network(config)`, drawn by `key`."""
    return nnx.to_pure_dict(nnx.state(network(config, rngs=Keys(key))))


def split(network: nnx.Module) -> tuple[Any, dict[Any, Any]]:
    """A network's graph, and its parameters as a pure nested dict."""
    graph, state = nnx.split(network)
    return graph, nnx.to_pure_dict(state)


@functools.lru_cache(maxsize=8)
def blank(network: type, config: Any, most: int | None = None) -> tuple[Any, dict[Any, Any]]:
    """The network without values: its graph, and its parameters' shapes as a pure nested dict. `most` is the number of
    tensors in a file: a config that claims a million layers is refused by ValueError before they are made."""
    most = most and max(most, FEW)
    return split(nnx.eval_shape(lambda: network(config, rngs=Keys(jax.random.key(0), most))))
