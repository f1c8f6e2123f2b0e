"""Small ONNX files that stand in for depth models."""

import pytest


def save_model(path, shape, operators) -> None:
    """A file that runs `operators` from x, of `shape`, to y."""
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    values = [make.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)]
    results = [make.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    axes = make.make_tensor("axes", onnx.TensorProto.INT64, [1], [3 if shape[-1] == 3 else 1])
    nodes = [make.make_node(kind, names, ["y"], **attributes) for kind, names, attributes in operators]
    graph = make.make_graph(nodes, "depth", values, results, [axes])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, str(path))


MEAN_OF_CHANNELS = [("ReduceMean", ["x", "axes"], {"keepdims": 0})]
