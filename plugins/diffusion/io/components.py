"""One network of Stable Diffusion in the files that people have: reading and writing.

    unet = load_unet("stable-diffusion-v1-5")                 # a pipeline's folder, as diffusers saves it
    unet = load_unet("stable-diffusion-v1-5/unet")            # or the network's own
    vae = load_vae("v1-5-pruned-emaonly.safetensors", "bfloat16")   # or a single file, in LDM names
    save_component("out/unet", unet, dtype="float16")         # a folder that diffusers and transformers read

Stages of reading: find the folder's config.json and weights (`tensor_files.py`), or infer the architecture from a single
file's shapes (`single_file.py`) -> check that it is the network asked for -> rename (`tensor_names.py`) -> fill tensor by
tensor (`porting.py`). Nothing is downloaded, no pickle is opened, and a file is either read whole or refused: in one line
that says what was expected and what was found, or with a list of all tensors that do not fit. Memory: the network's own
size and one tensor.

A written folder holds config.json and diffusion_pytorch_model.safetensors (model.safetensors for a text encoder), names
and layouts exactly theirs. A text encoder's tensors get the prefix `text_model.`: transformers 4 silently draws every
weight anew without it, transformers 5 reads both. The header holds the one word that they look for, `format: pt`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

from common.io.files import atomic_output
from plugins.diffusion.io import tensor_names
from plugins.diffusion.io.porting import Renamed, dtype_name, fill, state_dict
from plugins.diffusion.io.single_file import infer_config
from plugins.diffusion.io.tensor_files import TensorFiles, about, find_weights, listing, read_json
from plugins.diffusion.io.tokenizer import Tokenizer
from plugins.diffusion.networks.text_encoder import TextConfig, TextEncoder
from plugins.diffusion.networks.unet import UNet, UNetConfig
from plugins.diffusion.networks.vae import AutoencoderKL, VAEConfig

CONFIG = "config.json"


class Kind(NamedTuple):
    """One of the three networks: how folders call it and what it becomes here."""

    architecture: str  # in config.json
    stem: str  # of the weights' file names
    config: type
    module: type


KINDS = {
    "unet": Kind("UNet2DConditionModel", "diffusion_pytorch_model", UNetConfig, UNet),
    "vae": Kind("AutoencoderKL", "diffusion_pytorch_model", VAEConfig, AutoencoderKL),
    "text_encoder": Kind("CLIPTextModel", "model", TextConfig, TextEncoder),
}


def load_unet(
    source: str | Path, dtype: Any = jnp.float32, *, config: UNetConfig | None = None, variant: str | None = None
) -> UNet:
    """The denoising network; arguments and errors as `load_component`."""
    return load_component("unet", source, dtype, config=config, variant=variant)


def load_vae(
    source: str | Path, dtype: Any = jnp.float32, *, config: VAEConfig | None = None, variant: str | None = None
) -> AutoencoderKL:
    """The picture's encoder and decoder; arguments and errors as `load_component`."""
    return load_component("vae", source, dtype, config=config, variant=variant)


def load_text_encoder(
    source: str | Path, dtype: Any = jnp.float32, *, config: TextConfig | None = None, variant: str | None = None
) -> TextEncoder:
    """CLIP's text encoder; arguments and errors as `load_component`."""
    return load_component("text_encoder", source, dtype, config=config, variant=variant)


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """CLIP's tokenizer from a pipeline's folder or its own (vocab.json and merges.txt); no single file has one.

    Raises FileNotFoundError (no folder, no vocabulary in it) and ValueError (a damaged one)."""
    folder = Path(folder)
    if folder.is_file():
        raise NotADirectoryError(f"{folder}: expected a folder with vocab.json and merges.txt, found a file; name one")
    inner = folder / "tokenizer"
    return Tokenizer.from_folder(inner if inner.is_dir() else folder)


def load_component(
    kind: str, source: str | Path, dtype: Any = jnp.float32, *, config: Any = None, variant: str | None = None
) -> Any:
    """A network from a folder or a single file, ready to call.

    Args:
      kind: "unet", "vae" or "text_encoder".
      source: a folder of diffusers (a pipeline's or the network's own); one safetensors file with a config.json beside
        it; or a single file of Stable Diffusion 1.x or 2.x in LDM names.
      dtype: of the parameters: float32, float16 or bfloat16, whatever the file holds.
      config: the architecture, where the source has none or is to be overruled.
      variant: "fp16" for that variant of the file; None for full precision, or the variant there is.

    Raises:
      FileNotFoundError: nothing there, no config.json, no weights, shards missing.
      ValueError: a pickle, a damaged file, another architecture, or tensors that do not fit (all of them listed).
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is not known; choose one of {', '.join(KINDS)}")
    dtype, path = dtype_name(dtype), Path(source)
    if path.is_dir():
        folder = _network_folder(kind, path)
        config = config or _read_config(kind, folder / CONFIG)
        stored = TensorFiles(*find_weights(folder, KINDS[kind].stem, variant))
    elif variant is None:
        stored = TensorFiles(path)
    else:
        raise ValueError(f"{path}: variant {variant!r} chooses a file in a folder, found no folder; leave it out")
    tensors, config = _named(kind, path, stored, config)
    with about(path):
        return fill(KINDS[kind].module, config, tensors, dtype)


def _named(kind: str, path: Path, stored: TensorFiles, config: Any) -> tuple[Renamed, Any]:
    """The tensors by diffusers' names, and the architecture: given, beside the file, or inferred."""
    prefix = tensor_names.prefix_of(kind, stored)
    if prefix is None:
        config = config or _config_beside(kind, path, stored)
        with about(path):
            return Renamed(stored, tensor_names.from_folder(kind, stored)), config
    with about(path):
        origins = tensor_names.from_single_file(kind, stored, prefix)
        if config is None:
            shapes = {name: origin.shape(stored.shape(origin.key)) for name, origin in origins.items()}
            fields = infer_config(kind, shapes, open_clip=prefix == tensor_names.OPEN_CLIP)
            config = KINDS[kind].config.from_json(fields)
        return Renamed(stored, origins), config


def _network_folder(kind: str, folder: Path) -> Path:
    for candidate in (folder / kind, folder):
        if (candidate / CONFIG).is_file():
            return candidate
    raise FileNotFoundError(f"{folder}: expected {CONFIG} or {kind}/{CONFIG}, found {listing(folder)}; name another")


def _config_beside(kind: str, path: Path, stored: TensorFiles) -> Any:
    beside = path.parent / CONFIG
    if beside.is_file():
        return _read_config(kind, beside)
    heads = sorted({key.split(".")[0] for key in stored})
    raise ValueError(
        f"{path}: expected tensors called {' or '.join(tensor_names.PREFIXES[kind])}* or a {CONFIG} beside the file,"
        f" found tensors called {', '.join(heads[:5])}; name a file that holds the {kind}"
    )


def _read_config(kind: str, path: Path) -> Any:
    fields, expected = read_json(path), KINDS[kind].architecture
    found = _architecture(fields)
    if found != expected:
        raise ValueError(f"{path}: expected the {kind}, {expected}, found {found}; name another folder")
    with about(path):
        return KINDS[kind].config.from_json(fields)


def _architecture(fields: Mapping[str, Any]) -> str:
    """What a config.json calls its network: diffusers, then transformers; some give their model_type alone."""
    listed = fields.get("architectures")
    several = ", ".join(map(str, listed)) if isinstance(listed, list) else listed
    found = fields.get("_class_name") or several or fields.get("model_type")
    return "CLIPTextModel" if found == "clip_text_model" else str(found)


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
