"""Networks of Stable Diffusion from the files that people have.

    unet = load_unet("stable-diffusion-v1-5")                 # a pipeline's folder, as diffusers saves it
    unet = load_unet("stable-diffusion-v1-5/unet")            # or the network's own
    vae = load_vae("v1-5-pruned-emaonly.safetensors", "bfloat16")   # or a single file, in LDM names

Stages: find the folder's config.json and weights (`tensor_files.py`), or read the architecture off a single file's
shapes (`single_file.py`) -> check that it is the network asked for -> rename (`names.py`) -> fill tensor by tensor
(`porting.py`). Nothing is downloaded, no pickle is opened, and a file is either read whole or refused: in one line that
says what was expected and what was found, or with a list of all tensors that do not fit.

Memory: the network's own size and one tensor. The way back to such a folder is `saving.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp

from plugins.diffusion.io import tensor_names
from plugins.diffusion.io.porting import Renamed, dtype_name, fill
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
