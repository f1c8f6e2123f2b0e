"""Arithmetic of a function, counted on its jaxpr from shapes alone; nothing is computed or compiled.

    count(network, jax.ShapeDtypeStruct((1, 64, 64, 3), "float32")).products / 1e9      # its GFLOP

- `products`: matrix products and convolutions, a multiplication and an addition as two: FLOP as papers and PyTorch's
  counter have it; the zeros at the border of a convolution count as pixels.
- `others`: one for each element that an elementwise operation gives (a sum, a maximum, an exponential) or that a
  reduction reads: norms, activations, softmax, and a depthwise filter computed as nine shifted images
  (`plugins/control/mediapipe.py`), as two for each weight and pixel. Moving, converting and selecting is free.

XLA's own count (`lowered.cost_analysis()`) takes the body of a loop once, but attention over a large image and samplers
are loops of known length; without loops and borders the two agree. Of branches the largest counts.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

SUMS = {"add", "add_any", "sub", "neg", "mul", "div", "rem", "integer_pow", "square", "pow", "sqrt", "rsqrt", "cbrt"}
CHOICES = {"max", "min", "clamp", "abs", "sign", "floor", "ceil", "round"}
CURVES = {"exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "logistic", "erf", "erf_inv", "atan2"}
ELEMENTWISE = SUMS | CHOICES | CURVES
REDUCTIONS = {"reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "cumsum", "cumprod", "cummax", "cummin"}


class Work(NamedTuple):
    """Operations of each kind."""

    products: int = 0
    others: int = 0

    @property
    def total(self) -> int:
        return self.products + self.others

    def plus(self, other: "Work") -> "Work":
        return Work(self.products + other.products, self.others + other.others)

    def times(self, count: int) -> "Work":
        return Work(count * self.products, count * self.others)


def count(function: Callable, *arguments: Any) -> Work:
    """The work of a function of arrays, or of shapes alone. Raises ValueError for a loop of unknown length."""
    return _of(jax.make_jaxpr(function)(*arguments).jaxpr)


def _of(jaxpr: Any) -> Work:
    return functools.reduce(Work.plus, map(_of_equation, jaxpr.eqns), Work())


def _of_equation(equation: Any) -> Work:
    name, params = equation.primitive.name, equation.params
    if name == "while":
        raise ValueError("a loop whose length depends on data has no countable work; count its body by itself")
    if name == "cond":
        return max((_of(branch.jaxpr) for branch in params["branches"]), key=lambda work: work.total)
    inner = [getattr(value, "jaxpr", value) for value in params.values()]
    inner = [value for value in inner if hasattr(value, "eqns")]
    if inner:  # of several, as in a custom derivative, the function is the first
        return _of(inner[0]).times(params["length"] if name == "scan" else 1)
    inputs, result = [variable.aval for variable in equation.invars], equation.outvars[0].aval
    if not jnp.issubdtype(getattr(result, "dtype", bool), jnp.floating):  # a side effect has no dtype
        return Work()
    size = math.prod(result.shape)
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return Work(products=2 * size * math.prod(inputs[0].shape[axis] for axis in contracted))
    if name == "conv_general_dilated":
        kernel = inputs[1].shape
        outputs = kernel[params["dimension_numbers"].rhs_spec[0]]  # they are in `size` already
        return Work(products=2 * size * math.prod(kernel) // outputs)
    if name in ELEMENTWISE:
        return Work(others=size)
    if name in REDUCTIONS:
        return Work(others=math.prod(inputs[0].shape))
    return Work()
