"""Counts of arithmetic against counts by hand, and against XLA's where XLA can count."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from refusal import refused

from plugins.evaluation.flops import Work, count


def shape(*sides: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sides, jnp.float32)


def conv(x, kernel, stride=1, groups=1):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=layout, feature_group_count=groups
    )


def test_products_are_two_for_each_weight_and_pixel():
    assert count(jnp.matmul, shape(5, 7), shape(7, 3)) == Work(2 * 5 * 7 * 3)
    assert count(jnp.matmul, shape(2, 5, 7), shape(2, 7, 3)) == Work(2 * 2 * 5 * 7 * 3)
    assert count(conv, shape(2, 8, 8, 3), shape(3, 3, 3, 16)) == Work(2 * 2 * 64 * 9 * 3 * 16)
    assert count(lambda x, k: conv(x, k, 2), shape(2, 8, 8, 3), shape(3, 3, 3, 16)) == Work(2 * 2 * 16 * 9 * 3 * 16)
    assert count(lambda x, k: conv(x, k, 1, 6), shape(1, 8, 8, 6), shape(3, 3, 1, 6)) == Work(2 * 64 * 9 * 6)


def test_elements_of_sums_are_counted_and_moves_are_not():
    assert count(lambda x: jnp.exp(x + 1).sum(), shape(4, 5)) == Work(0, 20 + 20 + 20)
    assert count(lambda x: x.T.reshape(2, 10)[:, ::-1].astype(jnp.bfloat16), shape(4, 5)) == Work()
    assert count(lambda i: i + 1, jax.ShapeDtypeStruct((9,), jnp.int32)) == Work(), "whole numbers are indices"


def test_loops_count_as_often_as_they_run_and_branches_once():
    step = jax.jit(jax.checkpoint(lambda x, w: jnp.tanh(x @ w)))
    shapes = shape(4, 4), shape(4, 4)
    once = count(step, *shapes)
    assert once == Work(2 * 4**3, 16)

    def loop(x, w):
        return lax.scan(lambda x, _: (step(x, w), None), x, None, length=7)[0]

    assert count(loop, *shapes) == once.times(7)
    assert jax.jit(loop).lower(*shapes).cost_analysis()["flops"] < 2 * once.total  # type: ignore
    assert count(lambda x, w: lax.fori_loop(0, 7, lambda i, x: step(x, w), x), *shapes) == once.times(7)
    assert count(lambda x, w: lax.cond(x[0, 0] > 0, step, lambda x, w: x, x, w), *shapes) == once
    endless = partial(lax.while_loop, lambda x: x[0] < 9, lambda x: 2 * x)
    refused(ValueError, count, endless, shape(3), match="loop")


def test_xla_agrees_where_there_is_neither_loop_nor_border():
    def network(x, k, w):
        y = jax.nn.relu(lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        y = y - y.mean((1, 2), keepdims=True)
        return y @ w

    shapes = shape(2, 10, 10, 8), shape(3, 3, 8, 32), shape(32, 16)
    xla = jax.jit(network).lower(*shapes).cost_analysis()["flops"]  # type: ignore
    np.testing.assert_allclose(count(network, *shapes).total, xla, rtol=0.005)
