"""A MediaPipe plugin or a T2I-Adapter as an ONNX graph (extra `export`), for onnxruntime and what else reads it.

    picture    b 3 h w    RGB in [0, 1]; b is free, h and w are fixed
    feature_0  b c h w    a feature per level, finest first

The networks are convolutions, norms, activations and sums, so the graph is written down operator by operator, in
functions that repeat `mediapipe.py` and `t2i_adapter.py` line by line; a test runs both. The operators are those of
opset 17, which runtimes have had since 2022. What differs from JAX:

- ONNX is channels first, and kernels are OIHW.
- A depthwise filter is a convolution in as many groups as channels: runtimes have a kernel for it.
- A GroupNorm is an InstanceNormalization of `b groups (the rest)`, then a scale and a bias per channel. Opset 21 has an
  operator for it, which onnxruntime takes apart into slower ones on a processor.
- Blocks of pixels become channels by two reshapes around a transposition: SpaceToDepth numbers channels another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from plugins.control.convolutions import SIZE, Depthwise
from plugins.control.mediapipe import InvertedBottleneck, MediaPipePlugin
from plugins.control.t2i_adapter import AdapterLevel, T2IAdapter
from plugins.diffusion.networks.layers import Conv, GroupNorm

OPSET, FORMAT = 17, 8  # of the operators, and of the file (IR) that came out with them
PICTURE = "picture"
ABOUT = "picture: RGB in [0, 1]; feature_i is added at the end of the UNet's level i, before its downsampler"


def onnx_model(network: MediaPipePlugin | T2IAdapter, height: int, width: int, names: Sequence[str]) -> bytes:
    """The file; `names` are of the outputs. Raises ImportError without the package onnx."""
    onnx = _onnx()
    graph = Graph(onnx, (3, height, width))
    features = mediapipe(graph, network) if isinstance(network, MediaPipePlugin) else t2i_adapter(graph, network)
    model = onnx.helper.make_model(
        graph.finished(features, names),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=FORMAT,
        producer_name="film-plugins-reveal",
        doc_string=ABOUT,
    )
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def mediapipe(graph: Graph, network: MediaPipePlugin) -> list[str]:
    """`MediaPipePlugin.encode`."""
    x = graph.add("Sub", graph.add("Mul", PICTURE, graph.scalar(2)), graph.scalar(1))
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


def t2i_adapter(graph: Graph, network: T2IAdapter) -> list[str]:
    """`T2IAdapter.encode`."""
    adapter = network.adapter
    x = graph.unshuffle(graph.first_channels(PICTURE, network.config.in_channels), adapter.factor)
    x = x if adapter.conv_in is None else graph.conv(x, adapter.conv_in)
    features = []
    for level in adapter.body:
        x = adapter_level(graph, level, x)
        features.append(x)
    return features


def adapter_level(graph: Graph, level: AdapterLevel, x: str) -> str:
    """`AdapterLevel.__call__`."""
    x = graph.halve(x) if level.halves else x
    x = x if level.in_conv is None else graph.conv(x, level.in_conv)
    for resnet in level.resnets:
        y = graph.add("Relu", graph.conv(x, resnet.block1))
        x = graph.add("Add", x, graph.conv(y, resnet.block2))
    return x if level.out_conv is None else graph.conv(x, level.out_conv)


class Graph:
    """Operators and weights so far. Values are known by name; `shapes` has c, h, w of each."""

    def __init__(self, onnx: Any, picture: tuple[int, int, int]):
        self.onnx, self.shapes = onnx, {PICTURE: picture}
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def add(self, operator: str, *inputs: str, shape: tuple[int, int, int] | None = None, **attributes: Any) -> str:
        """A further operator; the name of what it gives, which is of the first input's shape if none is told."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), [name], name, **attributes))
        self.shapes[name] = shape or self.shapes[inputs[0]]
        return name

    def weight(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"weight_{len(self.weights)}"
        array = np.ascontiguousarray(np.asarray(value).astype(dtype))
        self.weights.append(self.onnx.numpy_helper.from_array(array.reshape(np.shape(value)), name))
        return name

    def scalar(self, value: int | float) -> str:
        return self.weight(np.float32(value))

    def conv(self, x: str, layer: Conv) -> str:
        kernel = np.asarray(layer.kernel[...])
        (top, bottom), (left, right) = layer.padding
        size, _, _, outputs = kernel.shape
        _, h, w = self.shapes[x]
        rows, columns = ((n - size) // layer.stride + 1 for n in (h + top + bottom, w + left + right))
        weights = self.weight(kernel.transpose(3, 2, 0, 1)), self.weight(layer.bias[...])
        attributes = {"pads": [top, left, bottom, right], "strides": [layer.stride] * 2}
        return self.add("Conv", x, *weights, shape=(outputs, rows, columns), **attributes)

    def depthwise(self, x: str, layer: Depthwise) -> str:
        c, h, w = self.shapes[x]
        kernel = self.weight(np.asarray(layer.kernel[...]).transpose(3, 2, 0, 1))
        shape = (c, -(-h // layer.stride), -(-w // layer.stride))
        attributes = {"pads": [SIZE // 2] * 4, "strides": [layer.stride] * 2, "group": c}
        return self.add("Conv", x, kernel, shape=shape, **attributes)

    def norm(self, x: str, layer: GroupNorm) -> str:
        grouped = self.add("Reshape", x, self.weight([0, layer.groups, -1], np.int64))
        ones, zeros = self.weight(np.ones(layer.groups)), self.weight(np.zeros(layer.groups))
        normal = self.add("InstanceNormalization", grouped, ones, zeros, epsilon=layer.eps)
        back = self.add("Reshape", normal, self.weight([0, *self.shapes[x]], np.int64), shape=self.shapes[x])
        scale, bias = (self.weight(np.asarray(v[...])[:, None, None]) for v in (layer.scale, layer.bias))
        return self.add("Add", self.add("Mul", back, scale), bias)

    def relu6(self, x: str) -> str:
        return self.add("Clip", x, self.scalar(0), self.scalar(6))

    def halve(self, x: str) -> str:
        """Means of 2x2; at an odd side the last one is over what there is."""
        c, h, w = self.shapes[x]
        shape = (c, -(-h // 2), -(-w // 2))
        return self.add("AveragePool", x, shape=shape, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)

    def first_channels(self, x: str, count: int) -> str:
        c, h, w = self.shapes[x]
        if count == c:
            return x
        start, end, axis = (self.weight([value], np.int64) for value in (0, count, 1))
        return self.add("Slice", x, start, end, axis, shape=(count, h, w))

    def unshuffle(self, x: str, factor: int) -> str:
        """`t2i_adapter.pixel_unshuffle`."""
        c, h, w = self.shapes[x]
        rows, columns = h // factor, w // factor
        blocks = self.add("Reshape", x, self.weight([0, c, rows, factor, columns, factor], np.int64))
        moved = self.add("Transpose", blocks, perm=[0, 1, 3, 5, 2, 4])
        shape = (c * factor**2, rows, columns)
        return self.add("Reshape", moved, self.weight([0, *shape], np.int64), shape=shape)

    def finished(self, outputs: Sequence[str], names: Sequence[str]) -> Any:
        """The graph from the picture to these values, under these names."""
        ends = [self.add("Identity", x) for x in outputs]
        for node, name in zip(self.nodes[-len(ends) :], names, strict=True):
            node.output[0] = name
        results = [self._described(name, self.shapes[end]) for name, end in zip(names, ends, strict=True)]
        picture = self._described(PICTURE, self.shapes[PICTURE])
        return self.onnx.helper.make_graph(self.nodes, "plugin", [picture], results, self.weights)

    def _described(self, name: str, shape: tuple[int, int, int]) -> Any:
        return self.onnx.helper.make_tensor_value_info(name, self.onnx.TensorProto.FLOAT, ["b", *shape])


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        reason = f"ONNX files are written by the package onnx, which cannot be imported ({error})"
        raise ImportError(f'{reason}; pip install "film-plugins-reveal[export]", or take stablehlo') from error
    return onnx
