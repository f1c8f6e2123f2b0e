"""How much arithmetic a function does: counted on its jaxpr, from shapes alone, so nothing is computed or compiled.

    count(network, jax.ShapeDtypeStruct((1, 64, 64, 3), "float32")).products / 1e9      # its GFLOP

Two numbers, both of operations on numbers with a fraction:

- `products`: matrix products and convolutions, a multiplication and an addition as two. This is what papers and
  PyTorch's counter call FLOP; a convolution's zeros at the border count as what they replace.
- `others`: one for each element that an elementwise operation gives (a sum, a maximum, an exponential) or that a
  reduction reads. Norms, activations and softmax are in it, and a depthwise filter where it is computed as nine shifted
  pictures (`plugins/control/mediapipe.py`): two for each weight and pixel, as in a convolution. Moving, converting and
  choosing numbers costs nothing here.

Why not XLA's own count (`lowered.cost_analysis()`)? It takes the body of a loop once, however often it runs. Attention
over a large picture and a sampler are loops (`lax.map`, `lax.scan`), whose lengths a jaxpr knows: of Stable Diffusion's
UNet at 64x64 latents XLA sees a part. Without loops and borders the two agree. Of branches the largest counts; a loop
whose length only the data tell is refused.
"""

from __future__ import annotations

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
    """Operations; see the module."""

    products: int = 0
    others: int = 0

    @property
    def total(self) -> int:
        return self.products + self.others

    def plus(self, other: Work) -> Work:
        return Work(self.products + other.products, self.others + other.others)

    def times(self, count: int) -> Work:
        return Work(count * self.products, count * self.others)


def count(function: Callable, *arguments: Any) -> Work:
    """The work of `function(*arguments)`; arguments are trees of arrays, or of `jax.ShapeDtypeStruct` in their place.

    Raises ValueError for a loop of unknown length."""
    return _of(jax.make_jaxpr(function)(*arguments).jaxpr)


def _of(jaxpr: Any) -> Work:
    total = Work()
    for equation in jaxpr.eqns:
        total = total.plus(_of_equation(equation))
    return total


def _of_equation(equation: Any) -> Work:
    name, params = equation.primitive.name, equation.params
    if name == "while":
        raise ValueError("a loop that ends when the data say so has no countable work; count its body by itself")
    if name == "cond":
        return max((_of(branch.jaxpr) for branch in params["branches"]), key=lambda work: work.total)
    inner = [getattr(value, "jaxpr", value) for value in params.values()]
    inner = [value for value in inner if hasattr(value, "eqns")]
    if inner:  # of several, as in a custom derivative, the function itself comes first
        return _of(inner[0]).times(params["length"] if name == "scan" else 1)
    result = equation.outvars[0].aval
    if not jnp.issubdtype(getattr(result, "dtype", bool), jnp.floating):  # a side effect has no result's type
        return Work()
    return _of_primitive(name, params, [variable.aval for variable in equation.invars], result)


def _of_primitive(name: str, params: Any, inputs: list[Any], result: Any) -> Work:
    size = math.prod(result.shape)
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return Work(products=2 * size * math.prod(inputs[0].shape[axis] for axis in contracted))
    if name == "conv_general_dilated":
        kernel = inputs[1]  # inputs of a group, and space; outputs are in `size`
        return Work(
            products=2 * size * math.prod(kernel.shape) // kernel.shape[params["dimension_numbers"].rhs_spec[0]]
        )
    if name in ELEMENTWISE:
        return Work(others=size)
    if name in REDUCTIONS:
        return Work(others=math.prod(inputs[0].shape))
    return Work()
