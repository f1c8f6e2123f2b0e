"""The architecture of a network in a single file, which has no config.json, inferred from its shapes.

Input is {diffusers name: shape} (after `tensor_names.py`), output diffusers' config.json, so that `XConfig.from_json`
checks both kinds of source. What shapes do not determine is common to Stable Diffusion 1.x and 2.x (32 groups in each
norm, a latent scale of 0.18215) or goes with a width that tells them apart:

- heads of the UNet: 8 a level in 1.x; 64 channels a head in 2.x, known by its linear projections (`proj_in` a matrix);
- the text encoder: 64 channels a head in both; quick GELU in 1.x, GELU in OpenCLIP (2.x).

The prediction type of a 2.x network cannot be inferred: the scheduler's settings hold it.
"""

import re
from collections.abc import Mapping
from typing import Any

Shapes = Mapping[str, tuple[int, ...]]
NEEDED = {
    "unet": ("conv_in.weight", "conv_out.weight", "down_blocks.0.resnets.0.conv1.weight"),
    "vae": ("encoder.conv_in.weight", "quant_conv.weight", "post_quant_conv.weight", "decoder.conv_out.weight"),
    "text_encoder": ("embeddings.token_embedding.weight", "encoder.layers.0.mlp.fc1.weight"),
}


def infer_config(kind: str, shapes: Shapes, *, open_clip: bool = False) -> dict[str, Any]:
    """The config.json of diffusers (or transformers), except defaults. Raises ValueError for another network."""
    missing = [name for name in NEEDED[kind] if name not in shapes]
    if missing or any(name.startswith("label_emb") for name in shapes):
        found = f"{missing[0]} is missing" if missing else "label_emb, which SDXL has"
        raise ValueError(f"expected the {kind} of Stable Diffusion 1.x or 2.x, found another network: {found}")
    if kind == "text_encoder":
        return _text(shapes, open_clip)
    return _unet(shapes) if kind == "unet" else _vae(shapes)


def _unet(shapes: Shapes) -> dict[str, Any]:
    channels = _channels(shapes, "down_blocks")
    levels = len(channels)
    context = {shape[1] for name, shape in shapes.items() if name.endswith(".attn2.to_k.weight")}
    linear = any(name.endswith(".proj_in.weight") and len(shape) == 2 for name, shape in shapes.items())
    down = [f"down_blocks.{i}.attentions.0.norm.weight" in shapes for i in range(levels)]
    up = [f"up_blocks.{i}.attentions.0.norm.weight" in shapes for i in range(levels)]
    return {
        "_class_name": "UNet2DConditionModel",
        "in_channels": shapes["conv_in.weight"][1],
        "out_channels": shapes["conv_out.weight"][0],
        "block_out_channels": channels,
        "layers_per_block": _count(shapes, "down_blocks.0.resnets"),
        "down_block_types": ["CrossAttnDownBlock2D" if attention else "DownBlock2D" for attention in down],
        "up_block_types": ["CrossAttnUpBlock2D" if attention else "UpBlock2D" for attention in up],
        "cross_attention_dim": max(context, default=0),
        "attention_head_dim": [width // 64 for width in channels] if linear else 8,
        "use_linear_projection": linear,
    }


def _vae(shapes: Shapes) -> dict[str, Any]:
    channels = _channels(shapes, "encoder.down_blocks")
    return {
        "_class_name": "AutoencoderKL",
        "in_channels": shapes["encoder.conv_in.weight"][1],
        "out_channels": shapes["decoder.conv_out.weight"][0],
        "latent_channels": shapes["post_quant_conv.weight"][0],
        "block_out_channels": channels,
        "layers_per_block": _count(shapes, "encoder.down_blocks.0.resnets"),
        "down_block_types": ["DownEncoderBlock2D"] * len(channels),
        "up_block_types": ["UpDecoderBlock2D"] * len(channels),
        "scaling_factor": 0.18215,
    }


def _text(shapes: Shapes, open_clip: bool) -> dict[str, Any]:
    vocabulary, width = shapes["embeddings.token_embedding.weight"]
    return {
        "architectures": ["CLIPTextModel"],
        "model_type": "clip_text_model",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": _count(shapes, "encoder.layers"),
        "num_attention_heads": max(1, width // 64),
        "max_position_embeddings": shapes["embeddings.position_embedding.weight"][0],
        "hidden_act": "gelu" if open_clip else "quick_gelu",
        "projection_dim": 512 if open_clip else width,  # unused here; as in the published folders
        "eos_token_id": 2,  # as in SD 1.x and 2.x; it means "the token of the largest id"
    }


def _channels(shapes: Shapes, blocks: str) -> list[int]:
    return [shapes[f"{blocks}.{i}.resnets.0.conv1.weight"][0] for i in range(_count(shapes, blocks))]


def _count(shapes: Shapes, children: str) -> int:
    """Number of numbered children."""
    pattern = re.compile(rf"{re.escape(children)}\.(\d+)\.")
    return len({match[1] for name in shapes if (match := pattern.match(name))})
