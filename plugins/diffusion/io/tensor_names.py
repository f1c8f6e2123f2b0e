"""Names of tensors in the files of Stable Diffusion -> the names of diffusers and transformers, which are ours.

A *single file* ("LDM", the layout of the first release) holds three networks under three prefixes; a diffusers folder
holds one network a file, with names that changed over the years:

| network | single file | its names there | in older folders |
| --- | --- | --- | --- |
| unet | `model.diffusion_model.` | `input_blocks.4.1.proj_in`: all blocks in one list | |
| vae | `first_stage_model.` | `decoder.up.3.block.0`: level 0 is the image's | `query`, `proj_attn` |
| text, SD 1.x | `cond_stage_model.transformer.` | as transformers, with `text_model.` | `text_model.`, `position_ids` |
| text, SD 2.x | `cond_stage_model.model.` | OpenCLIP's `resblocks`; q, k, v in one `in_proj_weight` | |

A name without a rule is kept, and the strict porting (`porting.py`) reports it. A rule may also reshape: attention of
an old VAE was stored as 1x1 convolutions, which are matrices; OpenCLIP's `in_proj` is three stacked matrices.

Numbers in a single file's UNet, with L residual blocks a level: `input_blocks.0` is the first convolution, then each
level has L blocks and, except the last, a downsampler; `output_blocks` has L + 1 a level, and the upsampler is the last
part of the level's last block. Within a block, part 0 is the residual block and part 1 the transformer.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

PREFIXES = {
    "unet": ("model.diffusion_model.",),
    "vae": ("first_stage_model.",),
    "text_encoder": ("cond_stage_model.transformer.", "cond_stage_model.model."),
}
OPEN_CLIP = PREFIXES["text_encoder"][1]
# A network cut out of its file has no prefix, but this name.
BARE = {"unet": "input_blocks.0.0.weight", "vae": "encoder.down.0.block.0.conv1.weight"}

UNET_ENDS = {
    "time_embed.0": "time_embedding.linear_1",
    "time_embed.2": "time_embedding.linear_2",
    "input_blocks.0.0": "conv_in",
    "out.0": "conv_norm_out",
    "out.2": "conv_out",
}
UNET_MIDDLE = {"0": "mid_block.resnets.0", "1": "mid_block.attentions.0", "2": "mid_block.resnets.1"}
UNET_RESNET = {
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
}
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
VAE_OLD_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
OPEN_CLIP_ENDS = {
    "positional_embedding": "embeddings.position_embedding.weight",
    "token_embedding.weight": "embeddings.token_embedding.weight",
    "ln_final.weight": "final_layer_norm.weight",
    "ln_final.bias": "final_layer_norm.bias",
}
OPEN_CLIP_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
NO_WEIGHTS = re.compile(  # buffers and heads that the networks do not have
    r"embeddings\.position_ids|logit_scale|attn_mask|text_projection|(loss|model_ema)\..*"
)


class Origin(NamedTuple):
    """The source of a tensor: its key in the file, and how the array is reshaped."""

    key: str
    third: int | None = None  # 0, 1, 2: the q, k or v rows of a matrix that holds all three
    squeeze: bool = False  # a 1x1 convolution, "o i 1 1", that is a matrix, "o i"

    def take(self, stored: np.ndarray) -> np.ndarray:
        """The stored array as diffusers has it; no copy."""
        if self.squeeze and stored.shape[2:] == (1, 1):
            return stored[:, :, 0, 0]
        return stored if self.third is None else np.split(stored, 3)[self.third]

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what `take` gives."""
        if self.squeeze and stored[2:] == (1, 1):
            return stored[:2]
        return stored if self.third is None else (stored[0] // 3, *stored[1:])


def prefix_of(kind: str, keys: Iterable[str]) -> str | None:
    """The prefix of a network in a single file ("" for one cut out of it); None without such names."""
    keys = set(keys)
    for prefix in PREFIXES[kind]:
        if any(key.startswith(prefix) for key in keys):
            return prefix
    return "" if BARE.get(kind) in keys else None


def from_single_file(kind: str, keys: Iterable[str], prefix: str) -> dict[str, Origin]:
    """{diffusers name: origin} of one network of a single file; names with another prefix are ignored."""
    bare = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
    if prefix == OPEN_CLIP:
        return _collect(prefix, bare, _open_clip(bare))
    if kind == "text_encoder":
        return _collect(prefix, bare, _text)
    return _collect(prefix, bare, _unet(bare) if kind == "unet" else _vae(bare))


def from_folder(kind: str, keys: Iterable[str]) -> dict[str, Origin]:
    """{diffusers name: origin} of a file of diffusers or transformers, of any year."""
    rename = {"unet": lambda key: [(key, Origin(key))], "vae": _old_vae, "text_encoder": _text}[kind]
    return _collect("", list(keys), rename)


Renaming = Callable[[str], list[tuple[str, Origin]]]  # their key -> our names with their origins; [] to leave it out


def _collect(prefix: str, keys: Iterable[str], rename: Renaming) -> dict[str, Origin]:
    """All renamed; ValueError if two keys of the file mean the same tensor."""
    names: dict[str, Origin] = {}
    twice = []
    for key in keys:
        for name, origin in [] if NO_WEIGHTS.fullmatch(key.removeprefix("text_model.")) else rename(key):
            if name in names:
                twice.append(f"{names[name].key} and {prefix}{key}")
            names[name] = origin._replace(key=prefix + key)
    if twice:
        raise ValueError(f"{len(twice)} tensors are there under two names: {', '.join(twice)}; keep one of each pair")
    return names


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


def _vae(keys: Iterable[str]) -> Renaming:
    levels = 1 + max((int(match[1]) for key in keys if (match := re.match(r"decoder\.up\.(\d+)\.", key))), default=0)

    def rename(key: str) -> list[tuple[str, Origin]]:
        name = key
        for pattern, replacement in VAE_PARTS:
            name = re.sub(pattern, replacement, name)
        name = re.sub(r"(?<=up_blocks\.)\d+", lambda match: str(levels - 1 - int(match[0])), name)
        return [(name, Origin(key, squeeze=_is_vae_attention(name)))]

    return rename


def _old_vae(key: str) -> list[tuple[str, Origin]]:
    pattern = rf"(.*\.attentions\.\d+)\.({'|'.join(VAE_OLD_ATTENTION)})\.(weight|bias)"
    match = re.fullmatch(pattern, key)
    name = f"{match[1]}.{VAE_OLD_ATTENTION[match[2]]}.{match[3]}" if match else key
    return [(name, Origin(key, squeeze=_is_vae_attention(name)))]


def _is_vae_attention(name: str) -> bool:
    return bool(re.search(r"\.attentions\.\d+\.to_(q|k|v|out\.0)\.weight$", name))


def _text(key: str) -> list[tuple[str, Origin]]:
    return [(key.removeprefix("text_model."), Origin(key))]


def _open_clip(keys: Iterable[str]) -> Renaming:
    """SD 2.x reads the states before the last block, so that block is in the file and in no network. A file
    from which it has been cut (23 of OpenCLIP ViT-H's 24 are left) is read as it is."""
    numbers = {int(match[1]) for key in keys if (match := re.match(r"transformer\.resblocks\.(\d+)\.", key))}
    unused = max(numbers, default=0) if len(numbers) != 23 else None

    def rename(key: str) -> list[tuple[str, Origin]]:
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
