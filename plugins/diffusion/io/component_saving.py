"""A network of ours -> a folder that diffusers and transformers read, so that work made here is of use elsewhere.

    save_component("out/unet", unet, dtype="float16")

writes config.json and diffusion_pytorch_model.safetensors (model.safetensors for a text encoder): names and layouts
exactly theirs. A text encoder's tensors get the prefix `text_model.`: transformers 4 silently draws every weight anew
without it, transformers 5 reads both. In the header is the one word that they look for, `format: pt`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

from common.io.files import atomic_output
from plugins.diffusion.io.components import CONFIG, KINDS
from plugins.diffusion.io.porting import dtype_name, state_dict

TEXT_PREFIX = "text_model."


def save_component(
    folder: str | Path, module: Any, config: Any = None, dtype: Any = jnp.float32, *, overwrite: bool = False
) -> Path:
    """Write a UNet, an autoencoder or a text encoder into `folder`; returns the path of its weights.

    Args:
      folder: of this network (a pipeline's folder has one each: unet, vae, text_encoder). Other files in it stay.
      module: the network.
      config: its architecture; None for `module.config`.
      dtype: of the stored floats: float32, float16 or bfloat16. The type that the parameters have loses nothing.
      overwrite: whether config.json and the weights may be there already.

    Raises:
      FileExistsError: one of the two files is there, or an index of shards, which readers would prefer.
      ValueError: no such network, an unknown dtype, or values that are not finite in it.
    """
    folder, kind = Path(folder), _kind(module)
    weights = folder / f"{KINDS[kind].stem}.safetensors"
    fields = (module.config if config is None else config).to_json()
    dtype = dtype_name(dtype)
    if kind != "text_encoder":
        return write_network(weights, fields, lambda: state_dict(module, dtype), overwrite)
    fields = {**fields, "torch_dtype": dtype}
    return write_network(
        weights,
        fields,
        lambda: {TEXT_PREFIX + name: value for name, value in state_dict(module, dtype).items()},
        overwrite,
    )


def write_network(
    weights: Path, fields: Mapping[str, Any], tensors: Callable[[], dict[str, np.ndarray]], overwrite: bool
) -> Path:
    """config.json with `fields` and beside it `weights`, both or none; returns the latter.

    `tensors` is called when it is known that both may be written. Raises FileExistsError."""
    if indices := sorted(weights.parent.glob(f"{weights.name}.index*.json")):
        raise FileExistsError(f"{indices[0]} leads readers to other weights than these; give another folder")
    config = weights.parent / CONFIG
    with atomic_output(config, overwrite) as json_file, atomic_output(weights, overwrite) as weights_file:
        safetensors.numpy.save_file(tensors(), weights_file, metadata={"format": "pt"})
        json_file.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", "utf-8")
    return weights


def _kind(module: nnx.Module) -> str:
    for kind, spec in KINDS.items():
        if isinstance(module, spec.module):
            return kind
    known = ", ".join(spec.module.__name__ for spec in KINDS.values())
    raise ValueError(f"{type(module).__name__} has no folder format here; this saves {known}")
