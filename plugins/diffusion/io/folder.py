"""A whole base from what people have: a pipeline's folder of diffusers, or a single file of Stable Diffusion.

    pipeline = load("stable-diffusion-v1-5", "bfloat16")
    base = read_base("v1-5-pruned-emaonly.safetensors", tokenizer="clip-vocabulary/")   # what it is, without weights

| component | folder | single file (safetensors, LDM names) |
| --- | --- | --- |
| which there are | model_index.json | the prefixes of its tensors |
| unet, vae, text_encoder | NAME/config.json and weights | tensors; architectures are read off their shapes |
| tokenizer | tokenizer/ | not in it: given, or beside the file |
| schedule, sampler | scheduler/scheduler_config.json | not in it: beside the file, or those of SD 1.5 |

Reading goes in two passes. The first reads all that is small, the headers of the weights included, and refuses what is
no base in one line; the second (`loading.py`) fills the networks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp

from plugins.diffusion.compiled import network_dtype
from plugins.diffusion.io import tensor_names
from plugins.diffusion.io.base import Base
from plugins.diffusion.io.components import CONFIG, KINDS, load_component
from plugins.diffusion.io.pretrained import INDEX, find
from plugins.diffusion.io.single_file import infer_config
from plugins.diffusion.io.tensor_files import TensorFiles, find_weights, listing, read_json
from plugins.diffusion.io.tokenizer import END, Tokenizer
from plugins.diffusion.pipeline import Pipeline
from plugins.diffusion.samplers import Sampler, from_json, plms
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule

SCHEDULER = "scheduler/scheduler_config.json"
BPE_FILE = "bpe_simple_vocab_16e6.txt.gz"  # OpenAI's vocabulary, as OpenCLIP's package has it
NEEDED = ("unet", "text_encoder", "tokenizer", "scheduler")
HARMLESS = ("safety_checker", "feature_extractor", "image_encoder")  # not needed to make pictures of a text
OPEN_CLIP_PAD = "!"


class Part(NamedTuple):
    """A network's files, without its weights.

    Attributes:
      config: its architecture.
      shapes: of its tensors, by diffusers' names.
      dtype: of the smallest of them, as stored.
    """

    config: Any
    shapes: Mapping[str, tuple[int, ...]]
    dtype: str

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())


class BaseFiles(NamedTuple):
    """A base as it lies on the disk: where, what it is, and its networks' files by kind."""

    path: Path
    base: Base
    parts: Mapping[str, Part]


def load(
    name_or_path: str | Path | None = None,
    dtype: Any = jnp.float32,
    *,
    tokenizer: str | Path | None = None,
    prediction: str | None = None,
    variant: str | None = None,
) -> Pipeline:
    """A base, ready to make pictures.

    Args:
      name_or_path: a shipped name, a folder of diffusers or a single file; None: the shipped default.
      dtype: of the parameters: float32, bfloat16 or float16 (with which the VAE stays float32).
      tokenizer: a folder or OpenAI's list of merges (.gz), in place of the base's own.
      prediction: what the UNet predicts, in place of what the scheduler says; needed for a single file of 2.x.
      variant: "fp16" for that variant of a folder's files.

    Raises:
      FileNotFoundError: nothing there, or a part is missing.
      ValueError: no base, one of another architecture, a pickle, a damaged file; in one line.
    """
    path, base, parts = read_base(name_or_path, tokenizer=tokenizer, prediction=prediction, variant=variant)
    variant = variant if path.is_dir() else None
    networks = {
        kind: load_component(kind, path, network_dtype(kind, dtype), config=part.config, variant=variant)
        for kind, part in parts.items()
    }
    return Pipeline(
        unet=networks["unet"],
        vae=networks.get("vae"),
        text_encoder=networks["text_encoder"],
        tokenizer=base.tokenizer,
        schedule=base.schedule,
        sampler=base.sampler,
    )


def read_base(
    name_or_path: str | Path | None = None,
    *,
    tokenizer: str | Path | None = None,
    prediction: str | None = None,
    variant: str | None = None,
) -> BaseFiles:
    """What a base is, without its weights; arguments and errors as `load`."""
    path = find(name_or_path)
    kinds = _listed(path) if path.is_dir() else list(KINDS)
    parts = {kind: read_part(kind, path, variant) for kind in kinds}
    sampler, schedule = _scheduler(path, parts["unet"].config, prediction)
    words = _tokenizer(path, tokenizer, parts["text_encoder"].config)
    vae = parts["vae"].config if "vae" in parts else None
    try:
        base = Base(parts["unet"].config, vae, parts["text_encoder"].config, words, schedule, sampler)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return BaseFiles(path, base, parts)


def read_part(kind: str, path: Path, variant: str | None = None) -> Part:
    """One network of a base from its config and the headers of its files. Raises as `load`."""
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
    return Part(config, shapes, stored[origins[smallest].key].dtype.name)


def _no_base(path: Path, stored: TensorFiles) -> str:
    prefixes = [prefixes[0] for prefixes in tensor_names.PREFIXES.values()]
    heads = sorted({".".join(key.split(".")[:2]) for key in stored})
    found = ", ".join(heads[:4]) + (f" and {len(heads) - 4} more" if len(heads) > 4 else "")
    return (
        f"{path}: expected Stable Diffusion 1.x or 2.x with tensors called {'*, '.join(prefixes)}*,"
        f" found {found or 'none'}; name another file"
    )


def _listed(folder: Path) -> list[str]:
    """The networks that a folder's model_index.json lists. Raises as `load`."""
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
