"""A pipeline of ours -> a folder that `load` and diffusers read.

    unet/ vae/ text_encoder/              config.json and weights (`saving.py`)
    tokenizer/                            vocab.json, merges.txt, tokenizer_config.json
    scheduler/scheduler_config.json       the schedule, and the sampler with its options
    model_index.json                      which class of which library each component is

The index comes last: a folder that was not finished is no base.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from common.io.files import atomic_output
from plugins.diffusion.io.component_saving import save_component
from plugins.diffusion.io.components import KINDS
from plugins.diffusion.io.folder import HARMLESS, SCHEDULER
from plugins.diffusion.io.pretrained import INDEX
from plugins.diffusion.io.scheduler_saving import scheduler_json
from plugins.diffusion.pipeline import Pipeline

HEADER = "#version: 0.2"  # the first line of a merges file; readers leave it out
CLASS = "StableDiffusionPipeline"


def save(pipeline: Pipeline, folder: str | Path, dtype: Any = None, *, overwrite: bool = False) -> Path:
    """Write the folder; returns it.

    Args:
      pipeline: what to save.
      folder: a new one, or an empty one.
      dtype: of the stored weights; None: the type that each network has.
      overwrite: whether files of the folder may be replaced; others in it stay.

    Raises:
      FileExistsError: the folder holds something.
      ValueError: an unknown dtype, or a sampler's option that no scheduler file can hold.
    """
    folder = Path(folder)
    if not overwrite and folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; give another folder, or overwrite=True")
    scheduler = scheduler_json(pipeline.sampler, pipeline.schedule)
    networks = {kind: getattr(pipeline, kind) for kind in KINDS}
    (folder / INDEX).unlink(missing_ok=True)  # not a base until all is there
    for kind, network in networks.items():
        if network is not None:
            own = jax.tree.leaves(nnx.state(network))[0].dtype
            save_component(folder / kind, network, dtype=own if dtype is None else dtype, overwrite=overwrite)
    pipeline.tokenizer.save(folder / "tokenizer", pipeline.base.length, overwrite=overwrite)
    _write(folder / SCHEDULER, scheduler, overwrite)
    _write(folder / INDEX, _index(networks, scheduler["_class_name"]), overwrite)
    return folder


def _index(networks: dict[str, Any], scheduler: str) -> dict[str, Any]:
    """model_index.json: [library, class] of each component, or two nulls for one that is not there."""
    libraries = {"unet": "diffusers", "vae": "diffusers", "text_encoder": "transformers"}
    parts = {
        kind: [None, None] if network is None else [libraries[kind], KINDS[kind].architecture]
        for kind, network in networks.items()
    }
    parts |= {"tokenizer": ["transformers", "CLIPTokenizer"], "scheduler": ["diffusers", scheduler]}
    return {
        "_class_name": CLASS,
        **parts,
        **{name: [None, None] for name in HARMLESS},
        "requires_safety_checker": False,
    }


def _write(path: Path, value: dict[str, Any], overwrite: bool, indent: int | None = 2) -> None:
    _write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n", overwrite)


def _write_text(path: Path, text: str, overwrite: bool) -> None:
    with atomic_output(path, overwrite) as temporary:
        temporary.write_text(text, "utf-8")
