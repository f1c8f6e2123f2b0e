import jax
import numpy as np
from flax import nnx

from common.nn.init import blank, init_params
from common.weights.porting import flatten


class Network(nnx.Module):
    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.first = nnx.Linear(3, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.second = nnx.Linear(width, 2, bias_init=nnx.initializers.normal(), rngs=rngs)


def test_values_are_those_that_flax_draws():
    key = jax.random.key(7)
    expected = flatten(jax.jit(lambda key: nnx.to_pure_dict(nnx.state(Network(4, rngs=nnx.Rngs(key)))))(key))
    found = flatten(jax.jit(lambda key: init_params(Network, 4, key))(key))
    assert list(found) == list(expected) and len({x.tobytes() for x in map(np.asarray, found.values())}) > 4
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_network_without_values():
    graph, shapes = blank(Network, 4)
    params = init_params(Network, 4, jax.random.key(0))
    empty, drawn = ({name: (x.shape, x.dtype) for name, x in flatten(tree).items()} for tree in (shapes, params))
    assert empty == drawn
    assert nnx.merge(graph, params).second(np.ones((5, 4), np.float32)).shape == (5, 2)
