"""Control networks from the files that people have, and back to such files.

    network = load("sd-controlnet-canny")                     # a folder of diffusers, or a pipeline's with one in it
    network = load("control_v11p_sd15_canny.safetensors")     # or a single file in the first release's names
    save(network, "my-control", dtype="float16")              # config.json and weights that diffusers reads

Stages of `load`, as in `plugins/diffusion/io/components.py`: find the config.json and the weights, or know a single file by
its names and read the architecture off its shapes (`names.py`) -> fill tensor by tensor. Nothing is downloaded, no
pickle is opened; what is no control network is refused in one line that says what was found, and of one that does not
fit all tensors that do not are listed.

`save` writes names and layouts exactly as diffusers does for ControlNet and T2I-Adapter. A MediaPipe plugin is written
likewise, kernels in PyTorch's layout, though no other library has its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp

from plugins.control import names, pretrained
from plugins.control.contract import ControlNetwork
from plugins.control.controlnet import ControlNet
from plugins.control.controlnet_config import ControlNetConfig
from plugins.control.mediapipe import MediaPipePlugin
from plugins.control.mediapipe_config import MediaPipeConfig
from plugins.control.pretrained import CONFIG
from plugins.control.t2i_adapter import T2IAdapter
from plugins.control.t2i_adapter_config import T2IAdapterConfig
from plugins.diffusion.io.components import write_network
from plugins.diffusion.io.porting import Renamed, dtype_name, fill, state_dict
from plugins.diffusion.io.tensor_files import TensorFiles, about, find_weights, listing, read_json
from plugins.diffusion.io.tensor_names import Origin

STEM = "diffusion_pytorch_model"
INSIDE = ("controlnet", "adapter")  # what diffusers' pipelines call the folder of their control network


class Kind(NamedTuple):
    """One of the networks."""

    config: Any
    module: type[ControlNetwork]


KINDS = {
    names.CONTROLNET: Kind(ControlNetConfig, ControlNet),
    names.ADAPTER: Kind(T2IAdapterConfig, T2IAdapter),
    names.PLUGIN: Kind(MediaPipeConfig, MediaPipePlugin),
}


def load(
    source: str | Path, dtype: Any = jnp.float32, *, config: Any = None, variant: str | None = None
) -> ControlNetwork:
    """A control network, ready for `network.on(picture)`.

    Args:
      source: a shipped name; a folder of diffusers (the network's own, or a pipeline's with `controlnet` or `adapter`
        in it); one safetensors file, in diffusers' or the first release's names.
      dtype: of the parameters: float32, float16 or bfloat16, whatever the file holds.
      config: the architecture, where the source has none or is to be overruled. A single file's is its config.json
        beside it, if that is of this kind of network, or is read off its shapes.
      variant: "fp16" for that variant of the file in a folder; None for full precision, or the variant there is.

    Raises:
      FileNotFoundError: no such name, folder or file; no config.json, no weights, shards missing.
      ValueError: a pickle, a damaged file, no control network, or tensors that do not fit (all of them listed).
    """
    dtype, path = dtype_name(dtype), pretrained.find(source)
    with about(path):
        if path.is_dir():
            kind, config, tensors = _read_folder(path, config, variant)
        elif variant is None:
            kind, config, tensors = _read_file(path, config)
        else:
            raise ValueError(f"variant {variant!r} chooses a file in a folder, found no folder; leave it out")
        if not isinstance(config, kind.config):
            found, expected = type(config).__name__, kind.config.__name__
            raise ValueError(f"the source is a {kind.module.__name__}, config a {found}; give a {expected}")
        return fill(kind.module, config, tensors, dtype)


def save(network: ControlNetwork, folder: str | Path, dtype: Any = jnp.float32, *, overwrite: bool = False) -> Path:
    """Write a control network into `folder`; returns the path of its weights.

    Args:
      network: a ControlNet, T2I-Adapter or MediaPipe plugin.
      folder: of this network. Other files in it stay.
      dtype: of the stored floats: float32, float16 or bfloat16.
      overwrite: whether config.json and the weights may be there already.

    Raises:
      FileExistsError: one of the two files is there, or an index of shards, which readers would prefer.
      ValueError: another kind of network, an unknown dtype, or values that are not finite in it.
    """
    folder = Path(folder)
    weights = folder / f"{STEM}.safetensors"
    if not isinstance(network, tuple(kind.module for kind in KINDS.values())):
        known = ", ".join(kind.module.__name__ for kind in KINDS.values())
        raise ValueError(f"{type(network).__name__} has no folder format here; this saves {known}")
    return write_network(weights, network.config.to_json(), lambda: state_dict(network, dtype), overwrite)


def _read_folder(folder: Path, config: Any, variant: str | None) -> tuple[Kind, Any, Renamed]:
    places = [place for place in (folder, *(folder / name for name in INSIDE)) if (place / CONFIG).is_file()]
    if not places:
        raise FileNotFoundError(
            f"{folder}: expected {CONFIG} of a control network, found {listing(folder)}; name another"
        )
    fields = read_json(places[0] / CONFIG)
    found = str(fields.get("_class_name") or fields.get("architectures") or fields.get("model_type"))
    if found not in KINDS:
        raise ValueError(f"expected a control network ({', '.join(KINDS)}), found {found}; name another folder")
    kind, stored = KINDS[found], TensorFiles(*find_weights(places[0], STEM, variant))
    return kind, config or kind.config.from_json(fields), Renamed(stored, {key: Origin(key) for key in stored})


def _read_file(path: Path, config: Any) -> tuple[Kind, Any, Renamed]:
    stored = TensorFiles(path)
    architecture = names.architecture_of(stored)
    if architecture is None:
        heads = ", ".join(sorted({key.split(".")[0] for key in stored})[:5])
        raise ValueError(
            f"expected the tensors of a control network ({', '.join(KINDS)}), found {heads}; name another file"
        )
    kind, origins = KINDS[architecture], names.from_single_file(architecture, stored)
    if config is None:
        shapes = {name: origin.shape(stored.shape(origin.key)) for name, origin in origins.items()}
        config = kind.config.from_json(_fields_beside(path, architecture) or names.infer(architecture, shapes))
    return kind, config, Renamed(stored, origins)


def _fields_beside(path: Path, architecture: str) -> Mapping[str, Any] | None:
    """The config.json beside the file, if it is of such a network."""
    beside = path.parent / CONFIG
    fields = read_json(beside) if beside.is_file() else {}
    return fields if fields.get("_class_name") == architecture else None
