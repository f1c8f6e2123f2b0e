"""One network of Stable Diffusion from the files that people have, and back.

    unet = load_unet("stable-diffusion-v1-5")                 # a pipeline's folder, as diffusers saves it
    unet = load_unet("stable-diffusion-v1-5/unet")            # or the network's own
    vae = load_vae("v1-5-pruned-emaonly.safetensors", "bfloat16")   # or a single file, in LDM names
    save_component("out/unet", unet, dtype="float16")         # a folder that diffusers and transformers read

The architecture comes from config.json, or is inferred from a single file's shapes (`single_file.py`); tensors are
renamed (`porting.py`) and fill the network one by one, so memory is the network's own size and one tensor. No pickle is
opened, and a file that does not fit is refused with a list of all tensors that do not.

A written folder has diffusers' and transformers' names and layouts. A text encoder's tensors get the prefix
`text_model.`: transformers 4 silently re-initialises every weight without it, transformers 5 reads both. The header
holds the one entry that they need, `format: pt`.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from common.io.clip_tokenizer import Tokenizer
from common.io.files import atomic_output
from common.io.tensor_files import TensorFiles, about, find_weights, listing, read_json, write_tensors
from common.nn.json_config import JsonConfig
from common.nn.text_encoder import MODEL_TYPE, PROJECTED, TextConfig, TextEncoder
from common.weights.torch_names import dtype_name, fill, state_dict
from plugins.diffusion.io import single_file
from plugins.diffusion.io.porting import Renamed, from_folder
from plugins.diffusion.networks.tiny_vae import AutoencoderTiny, TinyVAEConfig
from plugins.diffusion.networks.unet import UNet, UNetConfig
from plugins.diffusion.networks.vae import Autoencoder, AutoencoderKL, VAEConfig

CONFIG = "config.json"
TEXT_PREFIX = "text_model."
STEM = "diffusion_pytorch_model"  # of the weights' file names in folders of diffusers


MODULES: dict[type, type] = {  # architecture -> network
    UNetConfig: UNet,
    VAEConfig: AutoencoderKL,
    TinyVAEConfig: AutoencoderTiny,
    TextConfig: TextEncoder,
}
KINDS: dict[str, tuple[type[JsonConfig], ...]] = {  # networks of a base, and architectures, the usual one first
    "unet": (UNetConfig,),
    "vae": (VAEConfig, TinyVAEConfig),
    "text_encoder": (TextConfig,),
    "text_encoder_2": (TextConfig,),  # SDXL's
}


def stem_of(kind: str) -> str:
    """Of the weights' file names in folders of diffusers and transformers."""
    return "model" if kind.startswith("text_encoder") else STEM


class Component(NamedTuple):
    """A network's opened files: its architecture, and its tensors by diffusers' names, read on look-up."""

    config: Any
    tensors: Renamed

    @property
    def parameters(self) -> int:
        return sum(map(math.prod, self.tensors.shapes.values()))

    @property
    def dtype(self) -> str:
        """Of the smallest tensor, as stored."""
        shapes = self.tensors.shapes
        return self.tensors[min(shapes, key=lambda name: math.prod(shapes[name]))].dtype.name


def load_unet(source: str | Path, dtype: Any = jnp.float32, **options: Any) -> UNet:
    """The denoising network; arguments and errors as `load_component`."""
    return load_component("unet", source, dtype, **options)


def load_vae(source: str | Path, dtype: Any = jnp.float32, **options: Any) -> Autoencoder:
    """The autoencoder, Stable Diffusion's or a tiny one; arguments and errors as `load_component`."""
    return load_component("vae", source, dtype, **options)


def load_text_encoder(source: str | Path, dtype: Any = jnp.float32, **options: Any) -> TextEncoder:
    """CLIP's text encoder; arguments and errors as `load_component`."""
    return load_component("text_encoder", source, dtype, **options)


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """CLIP's tokenizer from a pipeline's folder or its own (vocab.json and merges.txt); no single file has one."""
    return Tokenizer.from_folder(folder)


def load_component(
    kind: str, source: str | Path, dtype: Any = jnp.float32, *, variant: str | None = None, xl: bool = False
) -> Any:
    """A network, one of `KINDS`, from a folder or a single file, its parameters as `dtype`.

    `source` is a diffusers folder (a pipeline's or the network's own); one safetensors file with a config.json beside
    it; or a single file of Stable Diffusion 1.x, 2.x or XL in LDM names. `variant` is "fp16" for that variant of the
    file; None for full precision, or the variant there is. `xl`: a file of an autoencoder alone, without a config.json,
    is SDXL's; its shapes do not say so. Raises FileNotFoundError and ValueError."""
    dtype, path = dtype_name(dtype), Path(source)
    component = read_component(kind, path, variant=variant, xl=xl)
    with about(path):
        return fill(MODULES[type(component.config)], component.config, component.tensors, dtype)


def read_component(kind: str, path: Path, *, variant: str | None = None, xl: bool = False) -> Component:
    """A network's architecture and tensors, without reading weights; arguments and errors as `load_component`."""
    with about(path):
        if path.is_dir():
            folder = next((folder for folder in (path / kind, path) if (folder / CONFIG).is_file()), None)
            if folder is None:
                found = listing(path)
                raise FileNotFoundError(f"{path}: expected {CONFIG} or {kind}/{CONFIG}, found {found}; name another")
            config = _read_config(kind, folder / CONFIG)
            stored = TensorFiles(*find_weights(folder, stem_of(kind), variant))
            return Component(config, Renamed(stored, from_folder(config, stored)))
        if variant is not None:
            raise ValueError(f"variant {variant!r} chooses a file in a folder, found no folder; leave it out")
        stored, beside, usual = TensorFiles(path), path.parent / CONFIG, KINDS[kind][0]
        prefix = single_file.prefix_of(kind, stored)
        if prefix is not None:
            tensors = Renamed(stored, single_file.from_single_file(kind, stored, prefix))
            fields = read_json(beside) if not prefix and beside.is_file() else {}
            if fields.get("_class_name") != usual.architecture:
                alone = single_file.prefix_of("unet", stored) is None
                xl = (xl and alone) or any(key.startswith(single_file.XL) for key in stored)
                fields = single_file.infer_config(kind, tensors.shapes, prefix, xl=xl)
            return Component(usual.from_json(fields), tensors)
        if not beside.is_file():
            heads = sorted({".".join(key.split(".")[:2]) for key in stored})
            found = ", ".join(heads[:4]) + (f" and {len(heads) - 4} more" if len(heads) > 4 else "")
            expected = f"tensors called {' or '.join(single_file.PREFIXES[kind])}* or a {CONFIG} beside the file"
            raise ValueError(f"expected {expected}, found {found or 'nothing'}; name a file that holds the {kind}")
        config = _read_config(kind, beside)
        return Component(config, Renamed(stored, from_folder(config, stored)))


def _read_config(kind: str, path: Path) -> Any:
    """The architecture of a config.json; diffusers, transformers and some others name its class by different keys."""
    fields = read_json(path)
    known = {architecture.architecture: architecture for architecture in KINDS[kind]}
    listed = fields.get("architectures")
    several = ", ".join(map(str, listed)) if isinstance(listed, list) else listed
    found = str(fields.get("_class_name") or several or fields.get("model_type"))
    name = TextConfig.architecture if found in (MODEL_TYPE, PROJECTED) else found
    if name not in known:
        raise ValueError(f"{path}: expected the {kind}, {' or '.join(map(repr, known))}, found {found!r}; name another")
    with about(path):
        return known[name].from_json(fields)


def save_component(
    folder: str | Path, module: Any, config: Any = None, dtype: Any = jnp.float32, *, overwrite: bool = False
) -> Path:
    """Write a UNet, an autoencoder or a text encoder into `folder`, its own; returns the path of its weights.

    `config` replaces `module.config`, `dtype` is of the stored floats. Other files in the folder stay; `overwrite`
    replaces config.json and the weights. Raises FileExistsError if one of the two exists, or an index of shards, which
    readers would prefer; ValueError for values that are not finite in `dtype`."""
    text, fields, dtype = isinstance(module, TextEncoder), (config or module.config).to_json(), dtype_name(dtype)
    fields |= {"torch_dtype": dtype} if text else {}
    weights = Path(folder) / f"{stem_of('text_encoder' if text else '')}.safetensors"

    def tensors() -> dict[str, np.ndarray]:
        named = state_dict(module, dtype).items()
        return {TEXT_PREFIX * (text and "text_projection" not in name) + name: value for name, value in named}

    return write_network(weights, fields, tensors, overwrite)


def write_network(
    weights: Path, fields: Mapping[str, Any], tensors: Callable[[], dict[str, np.ndarray]], overwrite: bool
) -> Path:
    """Write config.json with `fields` and beside it `weights`, both or none; returns the latter. `tensors` is called
    when it is known that both may be written. Raises FileExistsError."""
    if indices := sorted(weights.parent.glob(f"{weights.name}.index*.json")):
        raise FileExistsError(f"{indices[0]} leads readers to other weights than these; give another folder")
    config = weights.parent / CONFIG
    with (
        atomic_output(config, overwrite, durable=True) as json_file,
        atomic_output(weights, overwrite, durable=True) as weights_file,
    ):
        write_tensors(weights_file, tensors(), {"format": "pt"})
        json_file.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", "utf-8")
    return weights
