"""Rematerialisation changes memory, not numbers."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from common.nn.remat import remat

KERNELS = [0.2 * np.random.default_rng(i).standard_normal((3, 3, 8, 8)).astype(np.float32) for i in range(12)]
X = np.random.default_rng(99).random((1, 64, 64, 8)).astype(np.float32)


def block(kernels, x):
    for kernel in kernels:
        x = jnp.tanh(lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return x


def compiled(stage):
    """Gradient of a chain of three blocks of four convolutions, its program and its memory."""

    def loss(kernels, x):
        for i in range(0, 12, 4):
            x = stage(lambda x, i=i: block(kernels[i : i + 4], x))(x)  # closes over kernels that are differentiated
        return jnp.sum(jnp.square(x))

    lowered = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(KERNELS, X)
    return lowered.compile(compiler_options={"xla_backend_optimization_level": 3})  # a user's: sums round alike


def test_same_numbers_and_less_memory_for_more_work():
    """Only blocks' inputs are kept; all but the last convolution of each block are done twice."""
    both = compiled(lambda stage: stage), compiled(remat)
    plain, rematerialised = (jax.tree.leaves(program(KERNELS, X)) for program in both)
    for a, b in zip(plain, rematerialised, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    memory = [program.memory_analysis().temp_size_in_bytes for program in both]
    assert memory[1] < 0.6 * memory[0]
    convolutions = [program.as_text().count(" convolution(") for program in both]
    assert convolutions[1] >= convolutions[0] + 6


def test_several_inputs_and_outputs_of_any_type():
    def stage(x, y, n):
        return {"sum": x + y, "scaled": x * n}

    def total(wrap):
        def f(x, y):
            out = wrap(stage)(x, y, jnp.int32(3))
            return jnp.sum(out["sum"] ** 2) + jnp.sum(out["scaled"])

        return jax.grad(f, argnums=(0, 1))(jnp.arange(3.0), jnp.ones(3, jnp.bfloat16))

    for a, b in zip(total(lambda f: f), total(remat), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
