"""Control networks from files and back.

`load` finds config.json and weights, or infers the architecture from a single file's names and shapes
(`single_file.py`), and fills tensor by tensor. Only what an address names is downloaded, and no pickle is opened. A
file of another network is refused with what was found; tensors that do not fit are all listed.

`save` writes diffusers' names and layouts, also for a MediaPipe plugin, though no other library has its class.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp

from common.io.tensor_files import TensorFiles, about, find_weights, listing, read_json
from common.weights.shipped import Shipped
from common.weights.torch_names import dtype_name, fill, state_dict
from plugins.control import single_file
from plugins.control.contract import ControlNetwork
from plugins.control.controlnet import ControlNet
from plugins.control.mediapipe import MediaPipePlugin
from plugins.control.t2i_adapter import T2IAdapter
from plugins.diffusion.io.base import WEIGHTS
from plugins.diffusion.io.components import CONFIG, STEM, Component, write_network
from plugins.diffusion.io.porting import Origin, Renamed

PIPELINE_FOLDERS = ("controlnet", "adapter")  # of the control network in diffusers' pipelines
# By `_class_name` in config.json.
NETWORKS = {network.config_class.architecture: network for network in (ControlNet, T2IAdapter, MediaPipePlugin)}
CONTROLS = Shipped(WEIGHTS, CONFIG, "", "control", "a folder of diffusers, a safetensors file")


def load(source: str | Path, dtype: Any = jnp.float32, *, variant: str | None = None) -> ControlNetwork:
    """A control network, ready for `network.on(image)`.

    Args:
      source: a shipped name; an address; a folder of diffusers (the network's own, or a pipeline's with `controlnet`
        or `adapter` in it); one safetensors file, in diffusers' or the first release's names. A single file's
        architecture is in the config.json beside it, if that is of this kind of network, else inferred from shapes.
      dtype: of the parameters: float32, float16 or bfloat16, whatever the file holds.
      variant: "fp16" for that variant of the file in a folder; None for full precision, or the variant there is.

    Raises FileNotFoundError; ValueError for a pickle, a damaged file, another network, or tensors that do not fit."""
    dtype, path = dtype_name(dtype), CONTROLS.find(source, variant=variant)
    network, (config, tensors) = open_files(path, variant)
    with about(path):
        return fill(network, config, tensors, dtype)


def open_files(path: Path, variant: str | None = None) -> tuple[type[ControlNetwork], Component]:
    """The class of a network, its architecture and its tensors, which are not read yet; raises as `load`."""
    with about(path):
        if path.is_dir():
            return _read_folder(path, variant)
        if variant is not None:
            raise ValueError(f"variant {variant!r} chooses a file in a folder, found no folder; leave it out")
        return _read_file(path)


def is_network(path: Path) -> bool:
    """Whether a folder's config, or a file's tensors, are those of a control network."""
    if (path / CONFIG).is_file():
        return read_json(path / CONFIG).get("_class_name") in NETWORKS
    return path.is_file() and single_file.class_name(TensorFiles(path)) is not None


def save(network: ControlNetwork, folder: str | Path, dtype: Any = jnp.float32, *, overwrite: bool = False) -> Path:
    """Write a control network into `folder`, where other files stay, floats as `dtype`; returns the path of its
    weights. Raises FileExistsError if config.json or weights exist, or an index of shards, which readers would prefer;
    ValueError for values that are not finite in `dtype`."""
    weights = Path(folder) / f"{STEM}.safetensors"
    return write_network(weights, network.config.to_json(), lambda: state_dict(network, dtype), overwrite)


def _read_folder(folder: Path, variant: str | None) -> tuple[type[ControlNetwork], Component]:
    candidates = (folder, *(folder / name for name in PIPELINE_FOLDERS))
    folders = [candidate for candidate in candidates if (candidate / CONFIG).is_file()]
    if not folders:
        raise FileNotFoundError(f"{folder}: expected {CONFIG} of a control network, found {listing(folder)}")
    fields = read_json(folders[0] / CONFIG)
    found = str(fields.get("_class_name") or fields.get("architectures") or fields.get("model_type"))
    if found not in NETWORKS:
        raise ValueError(f"expected a control network ({', '.join(NETWORKS)}), found {found}; name another folder")
    network, stored = NETWORKS[found], TensorFiles(*find_weights(folders[0], STEM, variant))
    stored.check()
    tensors = Renamed(stored, {key: Origin(key) for key in stored})
    return network, Component(network.config_class.from_json(fields), tensors)


def _read_file(path: Path) -> tuple[type[ControlNetwork], Component]:
    stored = TensorFiles(path)
    stored.check()
    name = single_file.class_name(stored)
    if name is None:
        heads = ", ".join(sorted({key.split(".")[0] for key in stored})[:5])
        raise ValueError(f"expected a control network ({', '.join(NETWORKS)}), found tensors {heads}; name another")
    network, tensors = NETWORKS[name], Renamed(stored, single_file.origins(name, stored))
    beside = path.parent / CONFIG
    fields = read_json(beside) if beside.is_file() else {}
    if fields.get("_class_name") != name:
        fields = single_file.infer_config(name, tensors.shapes)
    return network, Component(network.config_class.from_json(fields), tensors)
