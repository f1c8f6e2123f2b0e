"""A whole base in the files that people have: a pipeline's folder of diffusers, or a single file of Stable Diffusion.

    files = read_base("v1-5-pruned-emaonly.safetensors", tokenizer="clip-vocabulary/")   # what it is, without weights
    networks = load_networks(files, "bfloat16")                                           # the weights
    save_base("out", base, networks)                                                      # a folder

| component | folder | single file (safetensors, LDM names) |
| --- | --- | --- |
| which there are | model_index.json | the prefixes of its tensors |
| unet, vae, text_encoder | NAME/config.json and weights | tensors; architectures are inferred from their shapes |
| tokenizer | tokenizer/ | not in it: given, or beside the file |
| schedule, sampler | scheduler/scheduler_config.json | not in it: beside the file, or those of SD 1.5 |

`read_base` reads all that is small, the headers of the weights included, and refuses what is no base in one line;
`load_networks` fills the networks from the files that it has opened.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from common.io.files import atomic_output
from plugins.diffusion.io import tensor_names
from plugins.diffusion.io.base import Base
from plugins.diffusion.io.components import CONFIG, KINDS, save_component
from plugins.diffusion.io.porting import Renamed, fill, network_dtype
from plugins.diffusion.io.pretrained import INDEX, find
from plugins.diffusion.io.single_file import infer_config
from plugins.diffusion.io.tensor_files import TensorFiles, about, find_weights, listing, read_json
from plugins.diffusion.io.tokenizer import END, Tokenizer
from plugins.diffusion.samplers import Sampler, from_json, plms, to_json
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule

SCHEDULER = "scheduler/scheduler_config.json"
BPE_FILE = "bpe_simple_vocab_16e6.txt.gz"  # OpenAI's vocabulary, as OpenCLIP's package has it
NEEDED = ("unet", "text_encoder", "tokenizer", "scheduler")
HARMLESS = ("safety_checker", "feature_extractor", "image_encoder")  # not needed to make pictures of a text
OPEN_CLIP_PAD = "!"


class Component(NamedTuple):
    """A network's files, opened; its weights are not read yet.

    Attributes:
      config: its architecture.
      tensors: by diffusers' names, read when they are looked up.
      shapes: of the tensors.
      dtype: of the smallest of them, as stored.
    """

    config: Any
    tensors: Renamed
    shapes: Mapping[str, tuple[int, ...]]
    dtype: str

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())


class BaseFiles(NamedTuple):
    """A base as it lies on the disk: where, what it is, and its networks' files by kind."""

    path: Path
    base: Base
    components: Mapping[str, Component]

    @property
    def parameters(self) -> int:
        """Of all networks together."""
        return sum(component.parameters for component in self.components.values())


def read_base(
    name_or_path: str | Path | None = None,
    *,
    tokenizer: str | Path | None = None,
    prediction: str | None = None,
    variant: str | None = None,
) -> BaseFiles:
    """What a base is, without its weights.

    Args:
      name_or_path: a shipped name, a folder of diffusers or a single file; None: the shipped default.
      tokenizer: a folder or OpenAI's list of merges (.gz), in place of the base's own.
      prediction: what the UNet predicts, in place of what the scheduler says; needed for a single file of 2.x.
      variant: "fp16" for that variant of a folder's files.

    Raises:
      FileNotFoundError: nothing there, or a component is missing.
      ValueError: no base, one of another architecture, a pickle, a damaged file; in one line.
    """
    path = find(name_or_path)
    kinds = _listed(path) if path.is_dir() else list(KINDS)
    components = {kind: read_component(kind, path, variant) for kind in kinds}
    sampler, schedule = _scheduler(path, components["unet"].config, prediction)
    words = _tokenizer(path, tokenizer, components["text_encoder"].config)
    vae = components["vae"].config if "vae" in components else None
    try:
        base = Base(components["unet"].config, vae, components["text_encoder"].config, words, schedule, sampler)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return BaseFiles(path, base, components)


def load_networks(files: BaseFiles, dtype: Any = jnp.float32) -> dict[str, Any]:
    """The networks by kind, their parameters as `dtype`: float32, bfloat16 or float16 (the VAE stays float32 then).

    Raises ValueError for an unknown dtype, and one that lists all tensors that do not fit."""
    networks = {}
    for kind, component in files.components.items():
        with about(files.path / kind if files.path.is_dir() else files.path):
            networks[kind] = fill(KINDS[kind].module, component.config, component.tensors, network_dtype(kind, dtype))
    return networks


def read_component(kind: str, path: Path, variant: str | None = None) -> Component:
    """One network of a base from its config and the headers of its files. Raises as `read_base`."""
    if path.is_dir():
        folder = path / kind
        fields = read_json(folder / CONFIG)
        stored = TensorFiles(*find_weights(folder, KINDS[kind].stem, variant))
        origins = tensor_names.from_folder(kind, stored)
    else:
        stored, fields = TensorFiles(path), None
        prefix = tensor_names.prefix_of(kind, stored)
        if not prefix:  # none, or a network that was cut out of its file
            raise ValueError(_no_base(path, stored))
        origins = tensor_names.from_single_file(kind, stored, prefix)
    shapes = {name: origin.shape(stored.shape(origin.key)) for name, origin in origins.items()}
    try:
        if fields is None:
            fields = infer_config(kind, shapes, open_clip=prefix == tensor_names.OPEN_CLIP)
        config = KINDS[kind].config.from_json(fields)
    except ValueError as error:
        raise ValueError(f"{path / kind / CONFIG if path.is_dir() else path}: {error}") from error
    smallest = min(origins, key=lambda name: math.prod(shapes[name]))
    return Component(config, Renamed(stored, origins), shapes, stored[origins[smallest].key].dtype.name)


def _no_base(path: Path, stored: TensorFiles) -> str:
    prefixes = [prefixes[0] for prefixes in tensor_names.PREFIXES.values()]
    heads = sorted({".".join(key.split(".")[:2]) for key in stored})
    found = ", ".join(heads[:4]) + (f" and {len(heads) - 4} more" if len(heads) > 4 else "")
    return (
        f"{path}: expected Stable Diffusion 1.x or 2.x with tensors called {'*, '.join(prefixes)}*,"
        f" found {found or 'none'}; name another file"
    )


def _listed(folder: Path) -> list[str]:
    """The networks that a folder's model_index.json lists. Raises as `read_base`."""
    if not (folder / INDEX).is_file():
        found = listing(folder)
        raise FileNotFoundError(f"{folder}: expected {INDEX} of a diffusers pipeline, found {found}; name another")
    fields = read_json(folder / INDEX)
    listed = {key for key, value in fields.items() if isinstance(value, list) and any(value)}
    other = sorted(listed - {*NEEDED, "vae", *HARMLESS})
    missing = [name for name in NEEDED if name not in listed]
    if other or missing:
        what = f"with {', '.join(other)}" if other else f"without {', '.join(missing)}"
        raise ValueError(
            f"{folder / INDEX}: expected a pipeline of Stable Diffusion 1.x or 2.x, found"
            f" {fields.get('_class_name')} {what}; name another folder"
        )
    return [kind for kind in KINDS if kind in listed]


def _scheduler(path: Path, unet: Any, prediction: str | None) -> tuple[Sampler, Schedule | FlowSchedule]:
    """The base's own sampler and schedule."""
    file = (path if path.is_dir() else path.parent) / SCHEDULER
    if path.is_dir() or file.is_file():
        try:
            sampler, schedule = from_json(read_json(file))
        except ValueError as error:
            raise ValueError(str(error) if str(file) in str(error) else f"{file}: {error}") from error
    else:
        if unet.use_linear_projection and prediction is None:
            raise ValueError(
                f"{path}: a file of 2.x does not say what its unet predicts; give prediction (--prediction): epsilon"
                " for the base models, v_prediction for those of 768 pixels"
            )
        sampler, schedule = plms, Schedule()
    if prediction is None:
        return sampler, schedule
    if not isinstance(schedule, Schedule):
        raise ValueError(f"{file}: prediction {prediction!r} does not go with flow matching; leave it out")
    return sampler, dataclasses.replace(schedule, prediction_type=prediction)


def _tokenizer(path: Path, given: str | Path | None, text_encoder: Any) -> Tokenizer:
    """The tokenizer that was given, the folder's own, or one beside a single file."""
    beside = path.parent
    if given is None and path.is_file():
        found = [p for p in (beside / "tokenizer", beside / BPE_FILE, beside / "vocab.json") if p.exists()]
        if not found:
            raise FileNotFoundError(
                f"{path}: a single file holds no tokenizer; expected a folder tokenizer, {BPE_FILE} or vocab.json with"
                " merges.txt beside it, found none: put one there, or give tokenizer (--tokenizer)"
            )
        given = beside if found[0].suffix == ".json" else found[0]
    source = Path(given) if given is not None else path / "tokenizer"
    if source.suffix == ".gz":
        return Tokenizer.from_bpe_file(source, pad=OPEN_CLIP_PAD if text_encoder.hidden_act == "gelu" else END)
    return Tokenizer.from_folder(source)


def save_base(
    folder: str | Path, base: Base, networks: Mapping[str, Any], dtype: Any = None, *, overwrite: bool = False
) -> Path:
    """Write a folder that `read_base` and diffusers read; returns it. Its index comes last: it is no base before.

    Args:
      folder: a new one, or an empty one.
      base: what the networks are part of.
      networks: by kind; a VAE may be None or missing.
      dtype: of the stored weights; None: the type that each network has.
      overwrite: whether files of the folder may be replaced; others in it stay.

    Raises:
      FileExistsError: the folder holds something.
      ValueError: an unknown dtype, or a sampler's option that no scheduler file can hold.
    """
    folder = Path(folder)
    if not overwrite and folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; give another folder, or overwrite=True")
    scheduler = to_json(base.sampler, base.schedule)
    (folder / INDEX).unlink(missing_ok=True)
    libraries = {"unet": "diffusers", "vae": "diffusers", "text_encoder": "transformers"}
    index: dict[str, Any] = {"_class_name": "StableDiffusionPipeline"}  # [library, class], or two nulls for none
    for kind in KINDS:
        network = networks.get(kind)
        index[kind] = [None, None] if network is None else [libraries[kind], KINDS[kind].architecture]
        if network is not None:
            own = jax.tree.leaves(nnx.state(network))[0].dtype
            save_component(folder / kind, network, dtype=own if dtype is None else dtype, overwrite=overwrite)
    base.tokenizer.save(folder / "tokenizer", base.length, overwrite=overwrite)
    index |= {"tokenizer": ["transformers", "CLIPTokenizer"], "scheduler": ["diffusers", scheduler["_class_name"]]}
    index |= {name: [None, None] for name in HARMLESS} | {"requires_safety_checker": False}
    for path, value in ((folder / SCHEDULER, scheduler), (folder / INDEX, index)):
        with atomic_output(path, overwrite) as temporary:
            temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return folder
