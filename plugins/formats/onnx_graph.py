"""Any function of JAX as an ONNX graph (extra `export`), for onnxruntime on computers, phones and in browsers.

JAX traces the function to a *jaxpr*, a list of some forty primitive operations, and each becomes one or a few
operators of opset 17, which runtimes have had since 2022. Constants, weights above all, are folded while the graph is
written. A primitive without a form here is refused by name.

- Maps are channels last in JAX, convolutions of ONNX channels first. A convolution's output stays so (`Lazy`) through
  elementwise operators and through the group norms of this project, which sum over space first, up to the next one.
- A broadcast is written where an operator needs it; elementwise operators broadcast by themselves.
- `lax.platform_dependent` takes its branch for accelerators: runtimes have kernels for a depthwise convolution.
- With `weights="float16"` weights are stored so and cast when the file is opened; all arithmetic is float32.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal

from plugins.formats.program import ROWS, Program, Weights

OPSET, IR_VERSION = 17, 8  # of the operators, and of the file format that came out with them
TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
SMALL = 256  # numbers; larger constants are weights
ELEMENTWISE = {"add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min"}
ELEMENTWISE |= {"neg": "Neg", "exp": "Exp", "log": "Log", "tanh": "Tanh", "logistic": "Sigmoid", "erf": "Erf"}
ELEMENTWISE |= {"sqrt": "Sqrt", "abs": "Abs", "sin": "Sin", "cos": "Cos", "and": "And", "or": "Or", "eq": "Equal"}
ELEMENTWISE |= {"gt": "Greater", "lt": "Less", "ge": "GreaterOrEqual", "le": "LessOrEqual"}
REDUCTIONS = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin"}
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint")
SAME = ("copy", "copy_p", "stop_gradient", "optimization_barrier")


def onnx(program: Program, weights: Weights = "float32") -> bytes:
    """The file, for any number of rows; maps `b h w c` among inputs and outputs are turned to `b c h w`. Raises
    ImportError without the package onnx; ValueError for weights as int8, or an operation without a form here."""
    if weights == "int8":
        raise ValueError("weights int8 are LiteRT's; an ONNX file takes float32 or float16")
    try:
        from onnx import TensorProto, checker, helper
    except ImportError as error:
        reason = f"ONNX files are written by the package onnx, which cannot be imported ({error})"
        raise ImportError(f'{reason}; pip install "film-plugins-reveal[export]", or export stablehlo') from error
    abstract = program.abstract(None)
    graph = Graph(weights, next((name for name, value in program.inputs.items() if value.batched), None))
    turned = {name for name, value in abstract.items() if len(value.shape) == 4}
    traced = jax.make_jaxpr(program.by_position)(*abstract.values())
    values = [Lazy(name, value.shape, first=True) if name in turned else name for name, value in abstract.items()]
    outputs = []
    results = graph.run(traced.jaxpr, traced.consts, values)
    for name, result, aval in zip(program.outputs, results, traced.out_avals, strict=True):
        image = len(aval.shape) == 4
        result = graph.first(result) if image else result
        graph.nodes.append(helper.make_node("Identity", [graph.named(result)], [name]))
        outputs.append(_info(helper, TensorProto, name, aval, image))
    inputs = [_info(helper, TensorProto, name, value, name in turned) for name, value in abstract.items()]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "program", inputs, outputs, graph.initializers),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="film-plugins-reveal",
        doc_string=program.about,
    )
    checker.check_model(model, full_check=True)
    return model.SerializeToString()


def _info(helper: Any, types: Any, name: str, value: Any, image: bool) -> Any:
    shape = [side if isinstance(side, int) else ROWS for side in value.shape]
    shape = [shape[axis] for axis in TO_FIRST] if image else shape
    kinds = {"float32": types.FLOAT, "int32": types.INT32}
    return helper.make_tensor_value_info(name, kinds[np.dtype(value.dtype).name], shape)


class Lazy(NamedTuple):
    """A value of that shape that is stored another way, for whoever can use it so. `narrow`: axes of length 1 are still
    to be broadcast. `first`: a map `b h w c` is there as `b c h w`."""

    value: Any
    shape: Sequence[Any]
    narrow: bool = False
    first: bool = False


class Graph:
    """Nodes and weights so far. A value is a NumPy array, if it is constant, the name of a node's output, or `Lazy`."""

    def __init__(self, weights: Weights = "float32", batched: str | None = None):
        """`batched`: the name of an input whose first axis is the batch."""
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._weights, self._batched = weights, batched
        self._known: dict[tuple, str] = {}  # constants that are there already

    def add(self, operator: str, *inputs: Any, **attributes: Any) -> str:
        """Append a node and return its output; arrays among the inputs become initializers."""
        from onnx import helper

        names = [self.named(value) for value in inputs]
        output = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [output], output, **attributes))
        return output

    def named(self, value: Any) -> str:
        """The name of a value as it is in JAX."""
        if isinstance(value, Lazy):
            stored = self.turned(value.value, TO_LAST) if value.first else value.value
            value = self.add("Expand", stored, self._sides(value.shape)) if value.narrow else stored
        if isinstance(value, str):
            return value
        from onnx import TensorProto, helper, numpy_helper

        array = np.asarray(value)
        key = (array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest())
        if key not in self._known:
            name = self._known[key] = f"weight_{len(self.initializers)}"
            half = self._weights == "float16" and array.dtype == np.float32 and array.size > SMALL
            self.initializers.append(numpy_helper.from_array(array.astype(np.float16) if half else array, name))
            if half:
                self._known[key] = f"{name}_wide"
                self.nodes.append(helper.make_node("Cast", [name], [self._known[key]], to=TensorProto.FLOAT))
        return self._known[key]

    def turned(self, value: Any, axes: Sequence[int]) -> Any:
        if isinstance(value, np.ndarray):
            return np.ascontiguousarray(np.transpose(value, axes))
        return value if list(axes) == sorted(axes) else self.add("Transpose", value, perm=list(axes))

    def first(self, value: Any) -> Any:
        """A map `b h w c` as `b c h w`."""
        there = isinstance(value, Lazy) and value.first and not value.narrow
        return value.value if there else self.turned(value, TO_FIRST)

    def reshaped(self, value: Any, shape: Sequence[Any]) -> Any:
        """The value in another shape, in which the batch, where there is one, takes what the other sides leave."""
        if isinstance(value, np.ndarray):
            return np.reshape(value, shape)
        return self.add("Reshape", value, np.array([side if isinstance(side, int) else -1 for side in shape], np.int64))

    def _sides(self, shape: Sequence[Any]) -> Any:
        """A shape as a value, with the number of rows that the caller gives; of a multiple of it, 1: Expand leaves such
        an axis as it is."""
        known = np.array([side if isinstance(side, int) else 1 for side in shape], np.int64)
        if not shape or str(shape[0]) != ROWS:
            return known
        assert self._batched is not None, f"{shape} depends on the batch, and no input does"
        sides = self.add("Shape", self._batched, start=0, end=1)
        return self.add("Concat", sides, known[1:], axis=0) if len(known) > 1 else sides

    def run(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a jaxpr; only what they need is written."""
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, map(np.asarray, consts), strict=True))
        values |= dict(zip(jaxpr.invars, inputs, strict=True))
        needed = {variable for variable in jaxpr.outvars if not isinstance(variable, Literal)}
        equations = []
        for equation in reversed(jaxpr.eqns):
            if needed.intersection(equation.outvars):
                equations.insert(0, equation)
                needed.update(variable for variable in equation.invars if not isinstance(variable, Literal))

        def read(variable: Any) -> Any:
            return np.asarray(variable.val) if isinstance(variable, Literal) else values[variable]

        for equation in equations:
            results = self._equation(equation, [read(variable) for variable in equation.invars])
            values |= dict(zip(equation.outvars, results, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def _equation(self, equation: Any, inputs: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        if name in CALLS:
            inner = params.get("jaxpr") or params["call_jaxpr"]
            return self.run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs)
        if name == "platform_index":  # the last branch is for platforms without one of their own
            return [np.int32(len(params["platforms"]) - 1)]
        if name == "cond" and isinstance(inputs[0], np.ndarray | np.generic):
            branch = params["branches"][int(inputs[0])]
            return self.run(branch.jaxpr, branch.consts, inputs[1:])
        if name in SAME:
            return inputs
        shapes = [variable.aval.shape for variable in equation.outvars]
        known = all(isinstance(side, int) for shape in shapes for side in shape)
        if known and all(isinstance(value, np.ndarray) for value in inputs):
            results = equation.primitive.bind(*inputs, **params)
            return [np.asarray(result) for result in (results if equation.primitive.multiple_results else [results])]
        if name in ELEMENTWISE or name in ELEMENT_RULES:
            return [self._elementwise(equation, inputs)]
        if name not in RULES:
            raise ValueError(f"JAX's operation {name} has no form in ONNX here; export stablehlo or litert")
        result = RULES[name](self, equation, inputs)
        return result if isinstance(result, list) else [result]

    def _elementwise(self, equation: Any, inputs: list[Any]) -> Any:
        """Operators that broadcast by themselves, in any order of the axes: lazy values stay so."""
        name, shape = equation.primitive.name, equation.outvars[0].aval.shape
        first = any(isinstance(value, Lazy) and value.first for value in inputs)
        stored, full = [], False
        for variable, value in zip(equation.invars, inputs, strict=True):
            lazy = value if isinstance(value, Lazy) else Lazy(value, variable.aval.shape)
            full |= not lazy.narrow and lazy.shape == shape
            turn = first and not lazy.first and len(lazy.shape) == len(shape)
            stored.append(self.turned(lazy.value, TO_FIRST) if turn else lazy.value)
        if name in ELEMENTWISE:
            result = self.add(ELEMENTWISE[name], *stored)
        else:
            result = ELEMENT_RULES[name](self, stored, equation.params)
        return result if full and not first else Lazy(result, shape, not full, first)


def _broadcast(graph: Graph, equation: Any, inputs: list[Any]) -> Any:
    """Inserts axes of length 1; the operator that needs copies makes them."""
    shape, sides = equation.params["shape"], [1] * len(equation.params["shape"])
    before = equation.invars[0].aval.shape
    for axis, side in zip(equation.params["broadcast_dimensions"], before, strict=True):
        sides[axis] = side
    value = inputs[0] if isinstance(inputs[0], np.ndarray) else graph.named(inputs[0])
    value = value if tuple(sides) == tuple(before) else graph.reshaped(value, sides)
    return value if tuple(sides) == tuple(shape) else Lazy(value, shape, narrow=True)


def _dot(graph: Graph, equation: Any, inputs: list[Any]) -> Any:
    """Axes in MatMul's order: batch, free, contracted; batch, contracted, free."""
    ((left_sum, right_sum), (left_batch, right_batch)) = equation.params["dimension_numbers"]
    shapes = [variable.aval.shape for variable in equation.invars]
    if len(left_sum) != 1:
        raise ValueError(f"a product that sums over {len(left_sum)} axes has no form in ONNX here; export stablehlo")
    left_free, right_free = (
        [axis for axis in range(len(shape)) if axis not in (*batch, *summed)]
        for shape, batch, summed in zip(shapes, (left_batch, right_batch), (left_sum, right_sum), strict=True)
    )
    left = graph.turned(inputs[0], [*left_batch, *left_free, *left_sum])
    right = graph.turned(inputs[1], [*right_batch, *right_sum, *right_free])
    if (not left_batch and len(right_free) == 1) or len(left_free) == len(right_free) == 1:
        return graph.add("MatMul", left, right)
    batch, summed = [shapes[0][axis] for axis in left_batch], shapes[0][left_sum[0]]
    rows, columns = (
        math.prod(shape[axis] for axis in free) for shape, free in zip(shapes, (left_free, right_free), strict=True)
    )
    left, right = graph.reshaped(left, [*batch, rows, summed]), graph.reshaped(right, [*batch, summed, columns])
    return graph.reshaped(graph.add("MatMul", left, right), equation.outvars[0].aval.shape)


def _conv(graph: Graph, equation: Any, inputs: list[Any]) -> Any:
    params = equation.params
    layout, ((top, bottom), (left, right)) = params["dimension_numbers"], params["padding"]
    kernel = graph.turned(inputs[1], layout.rhs_spec)
    options = {"pads": [top, left, bottom, right], "strides": list(params["window_strides"])}
    options |= {"dilations": list(params["rhs_dilation"]), "group": params["feature_group_count"]}
    assert set(params["lhs_dilation"]) == {1} and params["batch_group_count"] == 1, "a transposed convolution"
    assert layout.lhs_spec == layout.out_spec == TO_FIRST, "maps are channels last"
    convolved = graph.add("Conv", graph.first(inputs[0]), kernel, **options)
    return Lazy(convolved, equation.outvars[0].aval.shape, first=True)


def _pool(graph: Graph, equation: Any, inputs: list[Any]) -> Any:
    """Sums of windows, as an average pool makes them: a mean times the area, zeros at the border included."""
    (_, height, width, _), (_, rows, columns, _) = (equation.params[key] for key in ("window_dimensions", "padding"))
    options = {"kernel_shape": [height, width], "strides": list(equation.params["window_strides"][1:3])}
    pads = [rows[0], columns[0], rows[1], columns[1]]
    pooled = graph.add("AveragePool", graph.first(inputs[0]), pads=pads, count_include_pad=1, **options)
    return Lazy(graph.add("Mul", pooled, np.float32(height * width)), equation.outvars[0].aval.shape, first=True)


def _slice(graph: Graph, equation: Any, inputs: list[Any]) -> Any:
    params, shape = equation.params, equation.invars[0].aval.shape
    axes = [axis for axis, side in enumerate(shape) if isinstance(side, int)]
    strides = params["strides"] or [1] * len(shape)
    bounds = ([values[axis] for axis in axes] for values in (params["start_indices"], params["limit_indices"]))
    return graph.add("Slice", inputs[0], *map(np.array, bounds), np.array(axes), np.array([strides[a] for a in axes]))


def _split(graph: Graph, equation: Any, inputs: list[Any]) -> list[Any]:
    axis, ends = equation.params["axis"], np.cumsum(equation.params["sizes"])
    bounds = zip([0, *ends[:-1]], ends, strict=True)
    return [graph.add("Slice", inputs[0], *(np.array([n]) for n in (start, end, axis))) for start, end in bounds]


def _pad(graph: Graph, equation: Any, inputs: list[Any]) -> Any:
    below, above, between = zip(*equation.params["padding_config"], strict=True)
    assert not any(between), "padding between pixels"
    return graph.add("Pad", inputs[0], np.array([*below, *above]), inputs[1])


def _concatenate(graph: Graph, equation: Any, inputs: list[Any]) -> Any:
    axis = equation.params["dimension"]
    if all(isinstance(value, Lazy) and value.first and not value.narrow for value in inputs):
        joined = graph.add("Concat", *(value.value for value in inputs), axis=TO_FIRST.index(axis))
        return Lazy(joined, equation.outvars[0].aval.shape, first=True)
    return graph.add("Concat", *inputs, axis=axis)


def _take(graph: Graph, equation: Any, inputs: list[Any]) -> Any:
    """Rows of a table by their numbers, as an embedding takes them."""
    numbers, ids = equation.params["dimension_numbers"], equation.invars[1].aval.shape
    if numbers.collapsed_slice_dims != (0,) or numbers.start_index_map != (0,) or numbers.operand_batching_dims:
        raise ValueError("a gather that does not take whole rows has no form in ONNX here; export stablehlo")
    return graph.add("Gather", inputs[0], graph.reshaped(inputs[1], ids[:-1]), axis=0)


def _cast(graph: Graph, inputs: list[Any], params: dict[str, Any]) -> Any:
    from onnx import helper

    return graph.add("Cast", inputs[0], to=helper.np_dtype_to_tensor_dtype(np.dtype(params["new_dtype"])))


def _reduce(operator: str) -> Callable[[Graph, Any, list[Any]], Any]:
    def rule(graph: Graph, equation: Any, inputs: list[Any]) -> Any:
        axes, value = list(equation.params["axes"]), inputs[0]
        kept = [axis for axis in range(len(equation.invars[0].aval.shape)) if axis not in axes]
        if isinstance(value, Lazy) and value.first and not value.narrow and kept in ([0, 3], [0], [3]):
            axes, value = [TO_FIRST.index(axis) for axis in axes], value.value
        if operator == "ReduceSum":  # the one that takes axes as an input in this opset
            return graph.add(operator, value, np.array(axes), keepdims=0)
        return graph.add(operator, value, axes=axes, keepdims=0)

    return rule


ONE = np.float32(1)
ELEMENT_RULES: dict[str, Callable[[Graph, list[Any], dict[str, Any]], Any]] = {
    "rsqrt": lambda graph, inputs, params: graph.add("Div", ONE, graph.add("Sqrt", inputs[0])),
    "square": lambda graph, inputs, params: graph.add("Mul", inputs[0], inputs[0]),
    "integer_pow": lambda graph, inputs, params: graph.add("Pow", inputs[0], np.float32(params["y"])),
    "erfc": lambda graph, inputs, params: graph.add("Sub", ONE, graph.add("Erf", inputs[0])),
    "select_n": lambda graph, inputs, params: graph.add("Where", inputs[0], inputs[2], inputs[1]),
    "convert_element_type": _cast,
}
RULES: dict[str, Callable[[Graph, Any, list[Any]], Any]] = {
    "broadcast_in_dim": _broadcast,
    "dot_general": _dot,
    "conv_general_dilated": _conv,
    "reduce_window_sum": _pool,
    "slice": _slice,
    "split": _split,
    "pad": _pad,
    "gather": _take,
    "concatenate": _concatenate,
    "transpose": lambda graph, equation, inputs: graph.turned(inputs[0], equation.params["permutation"]),
    **{name: _reduce(operator) for name, operator in REDUCTIONS.items()},
    **dict.fromkeys(
        ("reshape", "squeeze", "expand_dims"),
        lambda graph, equation, inputs: graph.reshaped(inputs[0], equation.outvars[0].aval.shape),
    ),
}
