"""Single files of Stable Diffusion ("LDM", the layout of the first release): names of tensors, and architectures.

Such a file holds a base's networks under a prefix each, in names of its own, and no config.json:

| network | prefix | names |
| --- | --- | --- |
| unet | `model.diffusion_model.` | `input_blocks.4.1.proj_in`: all blocks in one list |
| vae | `first_stage_model.` | `decoder.up.3.block.0`: level 0 is the image's |
| text, SD 1.x | `cond_stage_model.transformer.` | as transformers, with `text_model.` |
| text, SD 2.x | `cond_stage_model.model.` | OpenCLIP's `resblocks`; q, k, v in one `in_proj_weight` |
| text, SDXL | `conditioner.embedders.0.transformer.` | as transformers |
| second text, SDXL | `conditioner.embedders.1.model.` (the refiner's only one: 0) | OpenCLIP's |

`from_single_file` gives diffusers' names, which are ours; a name without a rule is kept, and the strict porting reports
it. In the UNet, with L residual blocks a level, `input_blocks.0` is the first convolution, then each level has L blocks
and, except the last, a downsampler; `output_blocks` has L + 1 a level, and the upsampler is the last part of the
level's last block. Within a block, part 0 is the residual block and part 1 the transformer.

`infer_config` reads diffusers' config.json from the shapes by diffusers' names, so that `XConfig.from_json` checks both
kinds of source. What shapes do not determine is common to Stable Diffusion 1.x and 2.x or goes with a width that tells
them apart: heads of the UNet are 8 a level in 1.x, and 64 channels each in 2.x and SDXL, known by linear projections
(`proj_in` a matrix); a text encoder's have 64 channels, with quick GELU in OpenAI's, GELU in OpenCLIP's; SDXL, known by
its text encoders' prefix, has a latent scale of 0.13025, 256 sines and cosines of each size, and images of 1024 pixels.

Two things cannot be inferred. The prediction type of a 2.x network is in the scheduler's settings; one that predicts v
has images of 768 pixels. An autoencoder by itself has SDXL's latent scale if it is given to a base of SDXL (`base.py`).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from common.nn.text_encoder import PROJECTED
from plugins.diffusion.io.porting import Origin, Renaming, collect, is_vae_attention, rename_text
from plugins.diffusion.networks.unet_config import MID_TYPE, TEXT_TIME

XL = "conditioner.embedders."  # of the text encoders of SDXL
PREFIXES = {
    "unet": ("model.diffusion_model.",),
    "vae": ("first_stage_model.",),
    "text_encoder": ("cond_stage_model.transformer.", "cond_stage_model.model.", f"{XL}0.transformer."),
    "text_encoder_2": (f"{XL}1.model.", f"{XL}0.model."),
}
OPEN_CLIP = PREFIXES["text_encoder"][1]
OPEN_CLIPS = (OPEN_CLIP, *PREFIXES["text_encoder_2"])
# A network cut out of its file has no prefix, but this name.
BARE = {"unet": "input_blocks.0.0.weight", "vae": "encoder.down.0.block.0.conv1.weight"}

UNET_ENDS = {"time_embed.0": "time_embedding.linear_1", "time_embed.2": "time_embedding.linear_2"}
UNET_ENDS |= {"time_embed.cond_proj": "time_embedding.cond_proj", "input_blocks.0.0": "conv_in"}
UNET_ENDS |= {"label_emb.0.0": "add_embedding.linear_1", "label_emb.0.2": "add_embedding.linear_2"}
UNET_ENDS |= {"out.0": "conv_norm_out", "out.2": "conv_out"}
UNET_MIDDLE = {"0": "mid_block.resnets.0", "1": "mid_block.attentions.0", "2": "mid_block.resnets.1"}
UNET_RESNET = {"in_layers.0": "norm1", "in_layers.2": "conv1", "emb_layers.1": "time_emb_proj"}
UNET_RESNET |= {"out_layers.0": "norm2", "out_layers.3": "conv2", "skip_connection": "conv_shortcut"}
VAE_PARTS = (  # patterns, applied one after the other
    (r"\.mid\.block_1\.", ".mid_block.resnets.0."),
    (r"\.mid\.block_2\.", ".mid_block.resnets.1."),
    (r"\.mid\.attn_1\.norm\.", ".mid_block.attentions.0.group_norm."),
    (r"\.mid\.attn_1\.([qkv])\.", r".mid_block.attentions.0.to_\1."),
    (r"\.mid\.attn_1\.proj_out\.", ".mid_block.attentions.0.to_out.0."),
    (r"\.(down|up)\.(\d+)\.block\.", r".\1_blocks.\2.resnets."),
    (r"\.(down|up)\.(\d+)\.(down|up)sample\.conv\.", r".\1_blocks.\2.\3samplers.0.conv."),
    (r"\.nin_shortcut\.", ".conv_shortcut."),
    (r"coder\.norm_out\.", "coder.conv_norm_out."),
)
OPEN_CLIP_ENDS = {
    "positional_embedding": "embeddings.position_embedding.weight",
    "token_embedding.weight": "embeddings.token_embedding.weight",
    "ln_final.weight": "final_layer_norm.weight",
    "ln_final.bias": "final_layer_norm.bias",
}
OPEN_CLIP_BLOCK = {"ln_1": "layer_norm1", "ln_2": "layer_norm2", "attn.out_proj": "self_attn.out_proj"}
OPEN_CLIP_BLOCK |= {"mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
Shapes = Mapping[str, tuple[int, ...]]
NEEDED = {
    "unet": ("conv_in.weight", "conv_out.weight", "down_blocks.0.resnets.0.conv1.weight"),
    "vae": ("encoder.conv_in.weight", "quant_conv.weight", "post_quant_conv.weight", "decoder.conv_out.weight"),
    "text_encoder": ("embeddings.token_embedding.weight", "encoder.layers.0.mlp.fc1.weight"),
}
NEEDED["text_encoder_2"] = NEEDED["text_encoder"]


def prefix_of(kind: str, keys: Iterable[str]) -> str | None:
    """The prefix of a network in a single file ("" for one cut out of it); None without such names."""
    keys = set(keys)
    found = (prefix for prefix in PREFIXES[kind] if any(key.startswith(prefix) for key in keys))
    return next(found, "" if BARE.get(kind) in keys else None)


def from_single_file(kind: str, keys: Iterable[str], prefix: str) -> dict[str, Origin]:
    """{diffusers name: origin} of one network of a single file; names with another prefix are ignored."""
    bare = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
    if prefix in OPEN_CLIPS:
        return collect(prefix, bare, _open_clip(bare, projected=prefix.startswith(XL)))
    if kind == "text_encoder":
        return collect(prefix, bare, rename_text(projected=False))
    return collect(prefix, bare, _unet(bare) if kind == "unet" else _vae(bare))


def _unet(keys: Iterable[str]) -> Renaming:
    numbers = [int(match[1]) for key in keys if (match := re.match(r"input_blocks\.(\d+)\.0\.op\.", key))]
    per_level = min(numbers, default=len(list(keys)) + 1)  # without a downsampler there is one level only

    def rename(key: str) -> list[tuple[str, Origin]]:
        stem, _, leaf = key.rpartition(".")
        match = re.fullmatch(r"(input_blocks|output_blocks|middle_block)\.(\d+)\.(?:(\d+)\.)?(\D.*)", stem)
        if stem in UNET_ENDS:
            stem = UNET_ENDS[stem]
        elif match:
            stem = _unet_block(per_level, *match.groups(default="")) or stem
        return [(f"{stem}.{leaf}", Origin(key))]

    return rename


def _unet_block(per_level: int, side: str, number: str, part: str, rest: str) -> str | None:
    """ "input_blocks", "4", "0", "in_layers.0" -> "down_blocks.1.resnets.0.norm1"; None if it is no such block."""
    if side == "middle_block":
        rest = UNET_RESNET.get(rest, rest)
        return f"{UNET_MIDDLE[number]}.{rest}" if number in UNET_MIDDLE else None
    down = side == "input_blocks"
    level, place = divmod(int(number) - down, per_level)
    block = f"{'down' if down else 'up'}_blocks.{level}"
    if rest == ("op" if down else "conv"):
        return f"{block}.{'downsamplers' if down else 'upsamplers'}.0.conv"
    if part == "0" and rest in UNET_RESNET:
        return f"{block}.resnets.{place}.{UNET_RESNET[rest]}"
    return f"{block}.attentions.{place}.{rest}" if part == "1" else None


def ldm_names(name: str, layers: int) -> list[str]:
    """The inverse for a weight of a UNet with `layers` residual blocks a level: its possible names in a single file. An
    upsampler has two: its number depends on whether its block has a transformer."""
    ends = {diffusers: ldm for ldm, diffusers in UNET_ENDS.items()}
    if name in ends:
        return [ends[name]]
    resnet = {diffusers: ldm for ldm, diffusers in UNET_RESNET.items()}
    for number, stem in UNET_MIDDLE.items():
        if name.startswith(f"{stem}."):
            rest = name.removeprefix(f"{stem}.")
            return [f"middle_block.{number}.{resnet.get(rest, rest)}"]
    match = re.fullmatch(r"(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.*)", name)
    if not match:
        return []
    side, level, part, place, rest = match.groups()
    first = 1 + int(level) * (layers + 1) if side == "down" else int(level) * (layers + 1)
    blocks = "input_blocks" if side == "down" else "output_blocks"
    if part == "downsamplers":
        return [f"{blocks}.{first + layers}.0.op"]
    if part == "upsamplers":
        return [f"{blocks}.{first + layers}.{number}.conv" for number in (1, 2)]
    number = f"{blocks}.{first + int(place)}"
    return [f"{number}.0.{resnet.get(rest, rest)}" if part == "resnets" else f"{number}.1.{rest}"]


def _vae(keys: Iterable[str]) -> Renaming:
    levels = 1 + max((int(match[1]) for key in keys if (match := re.match(r"decoder\.up\.(\d+)\.", key))), default=0)

    def rename(key: str) -> list[tuple[str, Origin]]:
        name = key
        for pattern, replacement in VAE_PARTS:
            name = re.sub(pattern, replacement, name)
        name = re.sub(r"(?<=up_blocks\.)\d+", lambda match: str(levels - 1 - int(match[0])), name)
        return [(name, Origin(key, squeeze=is_vae_attention(name)))]

    return rename


def _open_clip(keys: Iterable[str], projected: bool) -> Renaming:
    """SD 2.x reads the states before the last block, which is in the file and in no network, unless it has been cut (23
    of OpenCLIP ViT-H's 24 are left). SDXL reads those states too, and the pooled state after the last, `projected`."""
    numbers = {int(match[1]) for key in keys if (match := re.match(r"transformer\.resblocks\.(\d+)\.", key))}
    unused = max(numbers, default=0) if len(numbers) != 23 and not projected else None

    def rename(key: str) -> list[tuple[str, Origin]]:
        if key == "text_projection":
            return [("text_projection.weight", Origin(key, transposed=True))] if projected else []
        match = re.fullmatch(r"transformer\.resblocks\.(\d+)\.(.+?)[._](weight|bias)", key)
        if not match:
            return [(OPEN_CLIP_ENDS.get(key, key), Origin(key))]
        number, part, leaf = match.groups()
        layer = f"encoder.layers.{number}"
        if int(number) == unused:
            return []
        if part == "attn.in_proj":
            return [(f"{layer}.self_attn.{qkv}_proj.{leaf}", Origin(key, third=i)) for i, qkv in enumerate("qkv")]
        return [(f"{layer}.{OPEN_CLIP_BLOCK.get(part, part)}.{leaf}", Origin(key))]

    return rename


def infer_config(kind: str, shapes: Shapes, prefix: str = "", *, xl: bool = False) -> dict[str, Any]:
    """The config.json of diffusers, except defaults; `xl`: a file of SDXL. Raises ValueError for another network."""
    if missing := [name for name in NEEDED[kind] if name not in shapes]:
        found = f"{missing[0]} is missing"
        raise ValueError(f"expected the {kind} of Stable Diffusion 1.x, 2.x or XL, found another network: {found}")
    if kind.startswith("text_encoder"):
        return _text_config(shapes, open_clip=prefix in OPEN_CLIPS)
    return _unet_config(shapes) if kind == "unet" else _vae_config(shapes, 0.13025 if xl else 0.18215)


def _unet_config(shapes: Shapes) -> dict[str, Any]:
    channels = _channels(shapes, "down_blocks")
    levels = len(channels)
    context = {shape[1] for name, shape in shapes.items() if name.endswith(".attn2.to_k.weight")}
    linear = any(name.endswith(".proj_in.weight") and len(shape) == 2 for name, shape in shapes.items())
    down = [f"down_blocks.{i}.attentions.0.norm.weight" in shapes for i in range(levels)]
    up = [f"up_blocks.{i}.attentions.0.norm.weight" in shapes for i in range(levels)]
    depths = [max(1, _count(shapes, f"down_blocks.{i}.attentions.0.transformer_blocks")) for i in range(levels)]
    depths[-1] = max(depths[-1], _count(shapes, "mid_block.attentions.0.transformer_blocks"))
    condition, sdxl = shapes.get("time_embedding.cond_proj.weight"), {}
    if added := shapes.get("add_embedding.linear_1.weight"):
        sdxl = {"addition_embed_type": TEXT_TIME, "addition_time_embed_dim": 256}
        sdxl |= {"projection_class_embeddings_input_dim": added[1]}
    return {
        "_class_name": "UNet2DConditionModel",
        "sample_size": 128 if sdxl else 64,
        "in_channels": shapes["conv_in.weight"][1],
        "out_channels": shapes["conv_out.weight"][0],
        "block_out_channels": channels,
        "layers_per_block": _count(shapes, "down_blocks.0.resnets"),
        "down_block_types": ["CrossAttnDownBlock2D" if attention else "DownBlock2D" for attention in down],
        "up_block_types": ["CrossAttnUpBlock2D" if attention else "UpBlock2D" for attention in up],
        "cross_attention_dim": max(context, default=0),
        "attention_head_dim": [width // 64 for width in channels] if linear else 8,
        "use_linear_projection": linear,
        "transformer_layers_per_block": depths[0] if len({*depths}) == 1 else depths,
        "mid_block_type": MID_TYPE if "mid_block.resnets.0.conv1.weight" in shapes else None,
        "time_cond_proj_dim": condition and condition[1],
        **sdxl,
    }


def _vae_config(shapes: Shapes, scaling: float) -> dict[str, Any]:
    return {
        "_class_name": "AutoencoderKL",
        "in_channels": shapes["encoder.conv_in.weight"][1],
        "out_channels": shapes["decoder.conv_out.weight"][0],
        "latent_channels": shapes["post_quant_conv.weight"][0],
        "block_out_channels": _channels(shapes, "encoder.down_blocks"),
        "layers_per_block": _count(shapes, "encoder.down_blocks.0.resnets"),
        "scaling_factor": scaling,
    }


def _text_config(shapes: Shapes, open_clip: bool) -> dict[str, Any]:
    vocabulary, width = shapes["embeddings.token_embedding.weight"]
    projection = shapes.get("text_projection.weight")
    return {
        "architectures": ["CLIPTextModel" if projection is None else PROJECTED],
        "model_type": "clip_text_model",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": _count(shapes, "encoder.layers"),
        "num_attention_heads": max(1, width // 64),
        "max_position_embeddings": shapes["embeddings.position_embedding.weight"][0],
        "hidden_act": "gelu" if open_clip else "quick_gelu",
        # Without a projection unused here; as in the published folders.
        "projection_dim": projection[0] if projection else 512 if open_clip else width,
        "eos_token_id": 2,  # as in SD 1.x and 2.x; it means "the token of the largest id"
    }


def _channels(shapes: Shapes, blocks: str) -> list[int]:
    return [shapes[f"{blocks}.{i}.resnets.0.conv1.weight"][0] for i in range(_count(shapes, blocks))]


def _count(shapes: Shapes, children: str) -> int:
    """Number of numbered children."""
    pattern = re.compile(rf"{re.escape(children)}\.(\d+)\.")
    return len({match[1] for name in shapes if (match := pattern.match(name))})
