"""A MediaPipe plugin or a T2I-Adapter as an ONNX graph (extra `export`), for onnxruntime and other runtimes.

    picture    b 3 h w    RGB in [0, 1]; b is free, h and w are fixed
    feature_0  b c h w    a feature per level, finest first

The networks are convolutions, norms, activations and sums, so the graph is written operator by operator, in functions
that repeat `mediapipe.py` and `t2i_adapter.py`; a test compares the two. The operators are those of opset 17, which
runtimes have had since 2022. Differences from JAX:

- ONNX is channels first, and kernels are OIHW.
- A depthwise convolution has as many groups as channels: runtimes have a kernel for it.
- A GroupNorm is an InstanceNormalization of `b groups (the rest)`, then a scale and a bias per channel. Opset 21 has an
  operator for it, which onnxruntime splits into slower ones on a CPU.
- Pixel unshuffle is a transposition between two reshapes: SpaceToDepth numbers channels another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from plugins.control.contract import ControlNetwork
from plugins.control.mediapipe import DepthwiseConv, InvertedBottleneck, MediaPipePlugin
from plugins.control.t2i_adapter import T2IAdapter
from plugins.diffusion.networks.layers import Conv, GroupNorm

OPSET, IR_VERSION = 17, 8  # of the operators, and of the file format that came out with them
IMAGE = "picture"
ABOUT = "picture: RGB in [0, 1]; feature_i is added at the end of the UNet's level i, before its downsampler"


def onnx_model(network: ControlNetwork, height: int, width: int, names: Sequence[str]) -> bytes:
    """The file; `names` are of the outputs. Raises ImportError without the package onnx."""
    try:
        from onnx import TensorProto, checker, helper
    except ImportError as error:
        reason = f"ONNX files are written by the package onnx, which cannot be imported ({error})"
        raise ImportError(f'{reason}; pip install "film-plugins-reveal[export]", or export stablehlo') from error
    graph = Graph()
    if isinstance(network, MediaPipePlugin):
        features = mediapipe(graph, network)
    else:
        assert isinstance(network, T2IAdapter)
        features = t2i_adapter(graph, network, height, width)
    for feature, name in zip(features, names, strict=True):
        graph.nodes.append(helper.make_node("Identity", [feature], [name]))
    image = jax.ShapeDtypeStruct((1, height, width, 3), jnp.float32)
    shapes = {IMAGE: image, **dict(zip(names, nnx.eval_shape(type(network).encode, network, image), strict=True))}
    image, *outputs = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", array.shape[3], *array.shape[1:3]])
        for name, array in shapes.items()
    )
    model = helper.make_model(
        helper.make_graph(graph.nodes, "plugin", [image], outputs, graph.initializers),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="film-plugins-reveal",
        doc_string=ABOUT,
    )
    checker.check_model(model, full_check=True)
    return model.SerializeToString()


class Graph:
    """Nodes and weights so far; values are known by name."""

    def __init__(self):
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def add(self, operator: str, *inputs: Any, **attributes: Any) -> str:
        """Append a node and return its output; arrays among the inputs become initializers."""
        from onnx import helper, numpy_helper

        names = []
        for value in inputs:
            if not isinstance(value, str):
                self.initializers.append(numpy_helper.from_array(np.asarray(value), f"weight_{len(self.initializers)}"))
                value = self.initializers[-1].name
            names.append(value)
        output = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [output], output, **attributes))
        return output

    def conv(self, x: str, layer: Conv) -> str:
        (top, bottom), (left, right) = layer.padding
        pads, strides = [top, left, bottom, right], [layer.stride] * 2
        assert layer.bias is not None, "convolutions of control networks have a bias"
        return self.add("Conv", x, _oihw(layer.kernel), _float32(layer.bias), pads=pads, strides=strides)

    def depthwise(self, x: str, layer: DepthwiseConv) -> str:
        kernel = _oihw(layer.kernel)
        return self.add("Conv", x, kernel, pads=[1] * 4, strides=[layer.stride] * 2, group=len(kernel))

    def norm(self, x: str, layer: GroupNorm) -> str:
        ones, zeros = np.ones(layer.groups, np.float32), np.zeros(layer.groups, np.float32)
        grouped = self.add("Reshape", x, np.array([0, layer.groups, -1]))
        normal = self.add("InstanceNormalization", grouped, ones, zeros, epsilon=layer.eps)
        back = self.add("Reshape", normal, self.add("Shape", x))
        scale, bias = (_float32(param)[:, None, None] for param in (layer.scale, layer.bias))
        return self.add("Add", self.add("Mul", back, scale), bias)

    def relu6(self, x: str) -> str:
        return self.add("Clip", x, np.float32(0), np.float32(6))


def mediapipe(graph: Graph, network: MediaPipePlugin) -> list[str]:
    """`MediaPipePlugin.encode`."""
    x = graph.add("Sub", graph.add("Mul", IMAGE, np.float32(2)), np.float32(1))
    x = graph.relu6(graph.norm(graph.conv(x, network.stem), network.stem_norm))
    for block in network.approach:
        x = bottleneck(graph, block, x)
    features = []
    for level, head in zip(network.levels, network.heads, strict=True):
        for block in level:
            x = bottleneck(graph, block, x)
        features.append(graph.conv(x, head))
    return features


def bottleneck(graph: Graph, block: InvertedBottleneck, x: str) -> str:
    """`InvertedBottleneck.__call__`."""
    y = graph.relu6(graph.norm(graph.conv(x, block.expand), block.norm1))
    y = graph.relu6(graph.norm(graph.depthwise(y, block.filter), block.norm2))
    y = graph.norm(graph.conv(y, block.narrow), block.norm3)
    return graph.add("Add", x, y) if block.residual else y


def t2i_adapter(graph: Graph, network: T2IAdapter, height: int, width: int) -> list[str]:
    """`T2IAdapter.encode`."""
    adapter, channels, factor = network.adapter, network.config.in_channels, network.reduction
    rows, columns = height // factor, width // factor
    x = graph.add("Slice", IMAGE, np.array([0]), np.array([channels]), np.array([1]))
    x = graph.add("Reshape", x, np.array([0, channels, rows, factor, columns, factor]))
    x = graph.add("Transpose", x, perm=[0, 1, 3, 5, 2, 4])
    x = graph.add("Reshape", x, np.array([0, channels * factor**2, rows, columns]))
    x = x if adapter.conv_in is None else graph.conv(x, adapter.conv_in)
    features = []
    for level in adapter.body:
        if level.stride == 2:
            x = graph.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
        x = x if level.in_conv is None else graph.conv(x, level.in_conv)
        for resnet in level.resnets:
            y = graph.add("Relu", graph.conv(x, resnet.block1))
            x = graph.add("Add", x, graph.conv(y, resnet.block2))
        x = x if level.out_conv is None else graph.conv(x, level.out_conv)
        features.append(x)
    return features


def _float32(param: nnx.Param) -> np.ndarray:
    return np.asarray(param[...]).astype(np.float32)


def _oihw(kernel: nnx.Param) -> np.ndarray:
    return np.ascontiguousarray(_float32(kernel).transpose(3, 2, 0, 1))
