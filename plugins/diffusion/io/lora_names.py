"""What the tensors of a LoRA file are called, and what they are called by whom.

A key is part + name + role: "lora_unet_" + "mid_block_..._to_q" + ".lora_down.weight". `split_key` takes part and
role off; the name stays as the file has it. `aliases` goes the other way: from a name of the model to all names that
files use for it. `declared_scales` reads alpha where PEFT keeps it, in the file's header.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

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
