"""The layers that networks share."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from common.nn.layers import Embedding


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gradient_of_a_frequent_id_adds_up(dtype):
    """In bfloat16 a sum of ones ends at 256."""
    graph, params = nnx.split(Embedding(3, 2, rngs=nnx.Rngs(0)))

    def total(params: nnx.State) -> jax.Array:
        table = nnx.merge(graph, jax.tree.map(lambda x: x.astype(dtype), params))
        vectors = table(jnp.ones((4, 250), jnp.int32))
        assert vectors.dtype == dtype
        return vectors.astype(jnp.float32).sum()

    gradient = jax.grad(total)(params)["embedding"][...]
    assert gradient.tolist() == [[0, 0], [1000, 1000], [0, 0]]
