"""LoRA (Hu et al., 2021): small changes to a base's weights, merged in before use.

A file holds, for some linear maps and convolutions W, two thin matrices and a number alpha (section 4.1):

    W' = W + weight * alpha / r * up @ down            down: r inputs [k k], up: outputs r [1 1]

Nothing else changes: shapes, names and speed of the network stay, so control plugins work on it as before. `merge`
makes new parameters and leaves the base's alone; unmerging, exactly, is going back to the base. Several LoRAs add up.

| writer | names in the file | alpha |
| --- | --- | --- |
| kohya | `lora_unet_mid_block_..._to_out_0.lora_down.weight`, `lora_te_text_model_...` | a tensor beside them |
| PEFT, diffusers | `unet.mid_block....to_out.0.lora_A.weight`, `text_encoder.[text_model.]...` | JSON in the header |
| older diffusers | `[unet.]....attn1.processor.to_out_lora.down.weight`, `....lora.down.weight` | a tensor, or none |

Without any alpha it is r. Underscores for dots cannot be undone ("to_out_0"), so a file's names are never parsed: every
name that a weight of the model might have in a file is made from the model's own names, and looked up.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
from jaxtyping import Array, Float

from common.io.files import require_file
from common.weights import porting
from common.weights.porting import OIHW_TO_HWIO
from plugins.diffusion.io.porting import table

Part = Literal["unet", "text_encoder"]

PREFIXES: dict[str, Part] = {
    "lora_unet_": "unet",
    "lora_te_": "text_encoder",
    "unet.": "unet",
    "text_encoder.": "text_encoder",
}
ROLES = {  # the longer endings first, where one ends in the other
    ".lora_linear_layer.down.weight": "down",
    ".lora_linear_layer.up.weight": "up",
    ".lora_linear_layer.alpha": "alpha",
    ".lora.down.weight": "down",
    ".lora.up.weight": "up",
    ".lora.alpha": "alpha",
    ".lora_down.weight": "down",
    ".lora_up.weight": "up",
    ".lora_A.weight": "down",
    ".lora_B.weight": "up",
    ".down.weight": "down",  # after a name that ends in _lora
    ".up.weight": "up",
    ".alpha": "alpha",
}
REFUSED = {  # what betrays a kind of file that is not supported
    r"\.hada_": "a LoHa (products of pairs of matrices)",
    r"\.lokr_": "a LoKr (Kronecker products)",
    r"\.dora_scale$|\.lora_magnitude_vector": "a DoRA (magnitudes beside the matrices)",
    r"\.lora_mid\.": "a LoCon in Tucker form (lora_mid)",
    r"\.oft_|\.oft_blocks": "an OFT (rotations)",
    r"\.diff(_b)?$": "full differences of weights",
    r"\.lora_embedding_[AB]": "a LoRA of embeddings",
    r"^lora_te[12]_|^text_encoder_2\.|^lora_unet_(input|middle|output)_block": "a LoRA for SDXL",
    r"^lora_transformer_|^transformer\.": "a LoRA for a diffusion transformer",
}
OLD_TEXT = {"q_proj": "to_q_lora", "k_proj": "to_k_lora", "v_proj": "to_v_lora", "out_proj": "to_out_lora"}
OLD_UNET = {"to_q": "to_q_lora", "to_k": "to_k_lora", "to_v": "to_v_lora", "to_out.0": "to_out_lora"}
HEADER = "lora_adapter_metadata"


def split_key(key: str) -> tuple[Part, str, str]:
    """(part, name in the file, "down" | "up" | "alpha") of a tensor.

    Raises ValueError for a kind of file that is not supported, and for a tensor of no known kind."""
    for pattern, what in REFUSED.items():
        if re.search(pattern, key):
            raise ValueError(f"{key} makes it {what}; supported are plain LoRA and LoCon for SD 1.x and 2.x")
    role = next((ending for ending in ROLES if key.endswith(ending)), None)
    if role is None:
        raise ValueError(f"{key} is no tensor of a LoRA; known endings are {', '.join(ROLES)}")
    stem = key.removesuffix(role).removeprefix("base_model.model.")  # PEFT's own saving adds the latter
    for prefix, part in PREFIXES.items():
        if stem.startswith(prefix):
            return part, stem.removeprefix(prefix), ROLES[role]
    part = "text_encoder" if stem.startswith(("text_model.", "encoder.")) else "unet"  # files of one network
    return part, stem, ROLES[role]


def aliases(name: str, part: Part) -> list[str]:
    """All names of one weight in files, from diffusers' (`mid_block.attentions.0.proj_in`) or transformers'."""
    names = [name]
    if part == "unet":
        names += [
            f"{name.removesuffix(f'.{new}')}.processor.{old}"
            for new, old in OLD_UNET.items()
            if re.search(rf"\.attn\d\.{re.escape(new)}$", name)
        ]
    else:
        names += [
            f"{name.removesuffix(f'.{new}')}.{old}"
            for new, old in OLD_TEXT.items()
            if name.endswith(f".self_attn.{new}")
        ]
        names += [f"text_model.{known}" for known in names]
    return names + [known.replace(".", "_") for known in names]


def part_of_params(params: Mapping[Any, Any]) -> Part:
    """Which network the parameters are of. Raises ValueError for neither."""
    if "down_blocks" in params:
        return "unet"
    if "embeddings" in params:
        return "text_encoder"
    raise ValueError(
        f"parameters called {', '.join(map(str, params))} are of no UNet (down_blocks) and no text encoder (embeddings)"
    )


def declared_scales(header: Mapping[str, str]) -> Callable[[Part, str, int], float]:
    """(part, name, rank) -> alpha / rank, as PEFT's configuration in the header says; 1 without one.

    Raises ValueError where the header is no JSON or asks for a method that is not supported."""
    config = _json_object(header.get(HEADER, "{}"))
    for option in ("use_dora", "use_qalora", "fan_in_fan_out", "lora_bias"):
        if found := [key for key in config if key.split(".")[-1] == option and config[key]]:
            raise ValueError(f"its header says {found[0]}: supported are plain LoRA and LoCon for SD 1.x and 2.x")

    def scale(part: Part, name: str, rank: int) -> float:
        options = {key: config.get(f"{part}.{key}", config.get(key)) for key in ("lora_alpha", "alpha_pattern")}
        alpha = rank if options["lora_alpha"] is None else options["lora_alpha"]
        for pattern, own in (options["alpha_pattern"] or {}).items():
            if _ends_in(name, pattern):
                alpha = own
                break
        stabilised = config.get(f"{part}.use_rslora", config.get("use_rslora"))  # Kalajdzievski, 2023
        return float(alpha) / (math.sqrt(rank) if stabilised else rank)

    return scale


def _ends_in(name: str, pattern: str) -> bool:
    """PEFT's rule for its patterns: they match a whole name, or the end of one after a dot."""
    try:
        return re.match(rf"(.*\.)?({pattern})$", name) is not None
    except re.error as error:
        raise ValueError(
            f"its header's alpha_pattern {pattern!r} is no pattern ({error}); save the LoRA again"
        ) from error


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"its header's {HEADER} is not JSON ({error}); save the LoRA again") from error
    if not isinstance(found, dict):
        raise ValueError(f"its header's {HEADER} is no JSON object; save the LoRA again")
    return found


@dataclasses.dataclass(frozen=True)
class Update:
    """The change of one weight: `scale * up @ down`."""

    down: Float[np.ndarray, "r i *k"]
    up: Float[np.ndarray, "o r *one"]
    scale: float

    def delta(self) -> Float[np.ndarray, "o i *k"]:
        """The change in float32, in PyTorch's layout."""
        rank = self.down.shape[0]
        product = self.up.reshape(-1, rank) @ self.down.reshape(rank, -1)
        return np.float32(self.scale) * product.reshape(-1, *self.down.shape[1:])


@dataclasses.dataclass(frozen=True)
class Lora:
    """One file. `updates` is keyed by part ("unet", "text_encoder") and then by the name of the weight in the file."""

    name: str
    updates: Mapping[Part, Mapping[str, Update]]

    @classmethod
    def load(cls, path: str | Path) -> Lora:
        """Reads a safetensors file in any of the module's formats.

        Raises:
          FileNotFoundError: no such file.
          ValueError: not safetensors, a kind of file that is not supported (LoHa, LoKr, DoRA, SDXL, ...: named), or
            tensors that make no pairs; the latter all listed.
        """
        tensors, header = _read(Path(path))
        try:
            return cls(str(path), _updates(tensors, header))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @property
    def parts(self) -> tuple[Part, ...]:
        """The networks that this LoRA changes."""
        return tuple(self.updates)


def merge(params: Mapping[Any, Any], loras: Sequence[tuple[Lora, float]], *, part: Part | None = None) -> dict:
    """New parameters with each LoRA added, times its weight.

    Args:
      params: pure nested dict of a UNet or a text encoder; not changed. Leaves that no LoRA touches are shared.
      loras: with their weights; 1 is full strength, 0 nothing, and negative ones are used too.
      part: which of the two networks `params` is; None: seen by its names.

    Returns:
      Parameters of the same types; sums are float32 whatever these are.

    Raises:
      ValueError: one that lists every name that the network has not, and every shape unlike its weight's.
    """
    part = part or part_of_params(params)
    known = {alias: path for path, names in _names(params, part).items() for alias in names}
    leaves, problems = porting.flatten(params), []
    deltas: dict[str, np.ndarray] = {}
    for lora, weight in loras:
        for name, update in lora.updates.get(part, {}).items():
            if name not in known:
                problems.append(f"{lora.name}: {name} is no weight of this network")
                continue
            path, delta = known[name], update.delta()
            change = _as_kernel(delta, leaves[path].shape)
            if change is None:
                found = f"{delta.shape} in the file, kernel {leaves[path].shape} in the network"
                problems.append(f"{lora.name}: {name} is {found}")
            else:
                change = np.float32(weight) * change
                deltas[path] = deltas[path] + change if path in deltas else change
    refuse(problems, "LoRA does not fit this network; was it made for another base (SD 1.x, 2.x, SDXL)?")
    merged = {path: _add(leaf, deltas[path]) if path in deltas else leaf for path, leaf in leaves.items()}
    return porting.unflatten_like(merged, params)


def refuse(problems: Sequence[str], summary: str) -> None:
    """Raises one ValueError for all problems, if there are any; the first line is complete by itself."""
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise ValueError(f"{summary} ({len(problems)} in all, the first: {problems[0]}){lines}")


def _names(params: Mapping[Any, Any], part: Part) -> dict[str, list[str]]:
    """{path of a kernel: all names that it may have in a file}."""
    entries = {path: entry for path, entry in table(params).items() if path.endswith(".kernel")}
    return {path: aliases(entry.source.removesuffix(".weight"), part) for path, entry in entries.items()}


def _as_kernel(delta: Float[np.ndarray, "o i *k"], shape: tuple[int, ...]) -> np.ndarray | None:
    """A change in the layout of a kernel, or None if it does not fit. A linear map is a 1x1 convolution's equal."""
    wide = delta.reshape(*delta.shape, 1, 1) if delta.ndim == 2 else delta
    kernel = OIHW_TO_HWIO.to_ours(wide)
    if len(shape) == 2 and kernel.shape[:2] == (1, 1):
        kernel = kernel[0, 0]
    return kernel if kernel.shape == tuple(shape) else None


def _add(leaf: Array | np.ndarray, delta: np.ndarray) -> Array | np.ndarray:
    return (leaf.astype(np.float32) + delta).astype(leaf.dtype)


def _updates(tensors: Mapping[str, np.ndarray], header: Mapping[str, str]) -> dict[Part, dict[str, Update]]:
    """Pairs the tensors of a file. Raises ValueError that lists all that are of no known kind or have no partner."""
    grouped: dict[tuple[Part, str], dict[str, np.ndarray]] = {}
    problems = []
    for key, value in tensors.items():
        part, name, role = split_key(key)
        slots = grouped.setdefault((part, name), {})
        if role in slots:
            problems.append(f"{key} is there under two names")
        slots[role] = value
    scales = declared_scales(header)
    updates: dict[Part, dict[str, Update]] = {}
    for (part, name), found in grouped.items():
        if not {"down", "up"} <= found.keys():
            problems.append(f"{name} has {' and '.join(sorted(found))} alone, not both matrices")
            continue
        rank = max([1, *found["down"].shape[:1]])
        scale = found["alpha"].item() / rank if "alpha" in found else scales(part, name, rank)
        down, up = (found[role].astype(np.float32) for role in ("down", "up"))
        if fault := _fault(down, up):
            problems.append(f"{name}: {fault}")
        else:
            updates.setdefault(part, {})[name] = Update(down, up, scale)
    refuse(problems, "its tensors make no LoRA")
    return updates


def _fault(down: np.ndarray, up: np.ndarray) -> str | None:
    """What is wrong with two matrices, if anything."""
    shapes = f"up {up.shape}, down {down.shape}"
    if up.ndim not in (2, 4) or down.ndim not in (2, 4) or up.shape[1] != down.shape[0] or not down.shape[0]:
        return f"no pair of rank-r matrices: {shapes}"
    if any(side != 1 for side in up.shape[2:]):
        return f"up is no 1x1 convolution: {shapes}"
    return None if np.isfinite(up).all() and np.isfinite(down).all() else "holds NaN or infinity"


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    if path.suffix.lower() in (".pt", ".pth", ".bin", ".ckpt"):
        raise ValueError(f"{path}: a pickle, which is not opened; convert it to safetensors")
    try:
        with safetensors.safe_open(require_file(path), framework="np") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file, or cut short ({error}); copy it again") from error
