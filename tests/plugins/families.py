"""The small bases of tests/data/plugins/make_families.py, as folders in our names: configs as the PyTorch library wrote
them, weights drawn from their names, so that a wrong name or layout gives other images."""

import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import drawn
import numpy as np
import safetensors.numpy
from networks import stored_shapes

from common.nn.vision_transformer import ImageEncoder, VisionConfig
from plugins.control import ControlNet, T2IAdapter, load_ip_adapter
from plugins.control import load as load_control
from plugins.diffusion.io.components import KINDS, MODULES, stem_of
from plugins.diffusion.io.lora import Lora
from plugins.diffusion.io.textual_inversion import TextualInversion
from plugins.diffusion.pipeline import Pipeline, load

DATA = drawn.DATA
FAMILIES: dict[str, dict[str, Any]] = json.loads((DATA / "families.json").read_text())
# Of a LoRA: kohya's name of a matrix -> PEFT's, and its outputs and inputs.
LORA: dict[str, tuple[str, int, int]] = FAMILIES.pop("lora_matrices")  # type: ignore[assignment]
IP_ADAPTER = FAMILIES.pop("ip_adapter_call")
CONTROLS = {"controlnet": ControlNet, "adapter": T2IAdapter}
IMAGES = np.load(DATA / "families.npz", allow_pickle=False)
PROMPT, SIDE, GUIDANCE = "a red apple", 16, 4.0


@functools.cache
def _place() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="families-")  # removed when the process ends


def config(name: str, kind: str) -> Any:
    """A component's architecture."""
    fields = FAMILIES[name]["configs"][kind]
    if kind in CONTROLS:
        return CONTROLS[kind].config_class.from_json(fields)
    known = {architecture.architecture: architecture for architecture in KINDS[kind]}
    return known.get(fields.get("_class_name"), KINDS[kind][0]).from_json(fields)


def tensors(kind: str, config: Any) -> dict[str, np.ndarray]:
    """{the library's name: array} of a network, drawn."""
    network = CONTROLS.get(kind) or MODULES.get(type(config), ImageEncoder)
    return {name: drawn.tensor(f"{kind}/{name}", shape) for name, shape in stored_shapes(network, config).items()}


@functools.cache
def folder(name: str) -> Path:
    """The base as a folder of diffusers. Not to be written to."""
    place, family = Path(_place().name) / name, FAMILIES[name]
    index: dict[str, Any] = {"_class_name": family["pipeline"], "scheduler": ["diffusers", "x"]}
    if family["zero_empty"] is not None:
        index["force_zeros_for_empty_prompt"] = family["zero_empty"]
    if "image_encoder" in family["configs"]:
        vision = place / "image_encoder"
        vision.mkdir(parents=True)
        (vision / "config.json").write_text(json.dumps(family["configs"]["image_encoder"]))
        encoder = tensors("image_encoder", VisionConfig.from_json(family["configs"]["image_encoder"]))
        safetensors.numpy.save_file(encoder, vision / "model.safetensors")
        adapter = {name: drawn.tensor(name, tuple(shape)) for name, shape in family["tensors"].items()}
        safetensors.numpy.save_file(adapter, place / "ip-adapter.safetensors")
    for kind in family["configs"].keys() - {"scheduler", "image_encoder"}:
        (place / kind).mkdir(parents=True)
        (place / kind / "config.json").write_text(json.dumps(family["configs"][kind]))
        safetensors.numpy.save_file(tensors(kind, config(name, kind)), place / kind / f"{stem_of(kind)}.safetensors")
        index |= {} if kind in CONTROLS else {kind: ["diffusers", "x"]}
    for kind, tokenizer in (("text_encoder", "tokenizer"), ("text_encoder_2", "tokenizer_2")):
        if kind in index:
            shutil.copytree(DATA / "tokenizer_tiny", place / tokenizer)
            index[tokenizer] = ["transformers", "CLIPTokenizer"]
    second = place / "tokenizer_2" / "tokenizer_config.json"
    if second.exists():
        second.write_text(json.dumps(json.loads(second.read_text()) | {"pad_token": "!"}))
    (place / "scheduler").mkdir()
    (place / "scheduler" / "scheduler_config.json").write_text(json.dumps(family["configs"]["scheduler"]))
    (place / "model_index.json").write_text(json.dumps(index))
    return place


def controls(name: str) -> list[Any]:
    """Those of the call."""
    kind = FAMILIES[name].get("control")
    if "tensors" in FAMILIES[name]:
        adapter = load_ip_adapter(folder(name) / "ip-adapter.safetensors")
        return [adapter.on(drawn.picture("prompt", *IP_ADAPTER["size"]), strength=IP_ADAPTER["strength"])]
    return [] if kind is None else [load_control(folder(name) / kind).on(picture("condition"))]


@functools.cache
def lora(writer: str) -> Path:
    """The LoRA of the family "sdxl_lora" in a file, as "kohya" or "peft" name its tensors."""
    tensors = {}
    for stem, (name, outputs, inputs) in LORA.items():
        for role, letter, shape in (("lora_down", "A", (2, inputs)), ("lora_up", "B", (outputs, 2))):
            value = drawn.tensor(f"lora/{name}.{role}", shape)
            tensors[f"{stem}.{role}.weight" if writer == "kohya" else f"{name}.lora_{letter}.weight"] = value
        if writer == "kohya":
            tensors[f"{stem}.alpha"] = np.array(1, np.float32)
    path = Path(_place().name) / f"{writer}.safetensors"
    header = {"lora_adapter_metadata": json.dumps({"r": 2, "lora_alpha": 1})}
    safetensors.numpy.save_file(tensors, path, None if writer == "kohya" else header)
    return path


@functools.cache
def words(name: str) -> list[TextualInversion]:
    """The textual inversions of the family's call, from files."""
    family, inversions = FAMILIES[name], []
    encoders = {"text_encoder": "clip_l", "text_encoder_2": "clip_g"}
    for i, (word, count) in enumerate(family.get("words", {}).items()):
        vectors = {
            key: drawn.tensor(f"{kind}/{word}", (count, config(name, kind).hidden_size))
            for kind, key in encoders.items()
            if kind in family["configs"]
        }
        path = Path(_place().name) / f"{name}-{i}.safetensors"
        safetensors.numpy.save_file(vectors if len(vectors) > 1 else {"emb_params": vectors["clip_l"]}, path)
        inversions.append(TextualInversion.load(path, word))
    return inversions


def base(name: str) -> Pipeline:
    """The pipeline of the family's call."""
    pipeline = load(folder(name)).with_embeddings(words(name))
    return pipeline.with_loras([(Lora.load(lora("kohya")), 1.0)]) if "lora" in FAMILIES[name] else pipeline


def picture(name: str = "picture") -> np.ndarray:
    return drawn.picture(name, SIDE, SIDE)


def mask() -> np.ndarray:
    inside = np.zeros((SIDE, SIDE), np.float32)
    inside[3:13, 5:] = 1
    return inside


def arguments(name: str) -> dict[str, Any]:
    """The call of the family in our words."""
    family = FAMILIES[name]
    call = family.get("call", {})
    options: dict[str, Any] = {"prompts": family.get("prompt", PROMPT), "steps": family.get("steps", 4)}
    options["guidance"] = GUIDANCE
    options |= {key: call[key] for key in ("negative", "strength", "image_guidance") if key in call}
    options |= {key: tuple(call[key]) for key in ("original", "crop") if key in call}
    options |= {"image": picture()} if {"image", "mask"} & call.keys() else {}
    options["controls"] = controls(name)
    return options | ({"mask": mask()} if "mask" in call else {})


def noise(keys: Any, draw: Any, shape: tuple[int, ...]) -> Any:
    """In place of `sampler._normal`: the noise that the library's run drew, the first for its start."""
    import jax.numpy as jnp

    sizes = (1, shape[-1], *shape[:2])
    names = ["noise", *(f"draw_{i}" for i in range(8))]
    table = np.stack([drawn.normal(name, sizes).astype(np.float32).transpose(0, 2, 3, 1) for name in names])
    return jnp.asarray(table)[draw]
