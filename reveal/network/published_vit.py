"""Published ViTs -> the parameters of `Vit` (`vit.py`) but its head: the tables of names, and what is folded.

| source | formats |
| --- | --- |
| ViT | a folder of transformers'; big_vision's or vision_transformer's .npz |
| CLIP, SigLIP | a folder of transformers', of which the vision tower is read |

A class token has its position added, and the normalisation of images that `preprocessor_config.json` states is folded
into the map of the patches, so that every network takes images in [-1, 1].
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from common.io.flax_files import read_flax
from common.io.image_preparation import CLIP_MEAN, CLIP_STD, FILE, HALF
from common.io.tensor_files import about, open_folder, read_json
from common.nn.json_config import check_supported
from common.weights import porting
from common.weights.porting import IDENTITY, OI_TO_IO, Entry
from reveal.network.config import VitConfig
from reveal.network.porting import merged, source_name
from reveal.network.vit import Vit

CONFIG = "config.json"
Arrays = dict[str, np.ndarray]

# Ours -> transformers' names in its ViT, and in the vision towers of its CLIP and SigLIP.
LAYER = {
    "query": ("attention.attention.query", "self_attn.q_proj"),
    "key": ("attention.attention.key", "self_attn.k_proj"),
    "value": ("attention.attention.value", "self_attn.v_proj"),
    "out": ("attention.output.dense", "self_attn.out_proj"),
    "mlp_in": ("intermediate.dense", "mlp.fc1"),
    "mlp_out": ("output.dense", "mlp.fc2"),
    "attention_norm": ("layernorm_before", "layer_norm1"),
    "mlp_norm": ("layernorm_after", "layer_norm2"),
}
NAMES = {
    "patches.kernel": ("embeddings.patch_embeddings.projection.weight", "embeddings.patch_embedding.weight"),
    "patches.bias": ("embeddings.patch_embeddings.projection.bias", "embeddings.patch_embedding.bias"),
    "positions": ("embeddings.position_embeddings", "embeddings.position_embedding.weight"),
    "class_token": ("embeddings.cls_token", "embeddings.class_embedding"),
    "pre_norm": ("", "pre_layrnorm"),
    "norm": ("layernorm", "post_layernorm"),
}
UNUSED = re.compile(r"classifier\.|pooler\.|head\.|embeddings\.position_ids")  # of transformers' vision networks
OLD_NAMES = {  # of vision_transformer -> big_vision's
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
    "Transformer/posembed_input/pos_embedding": "pos_embedding",
}


class PublishedVit(NamedTuple):
    """A ViT's architecture and its parameters by `Vit`'s names, without the head."""

    config: VitConfig
    params: Mapping[str, Any]


def read_vit(path: str | Path) -> PublishedVit:
    """A ViT, or the vision tower of a CLIP or SigLIP. Raises FileNotFoundError; ValueError for another network, and one
    that lists every tensor that is missing, left over or of another shape."""
    path = Path(path)
    with about(path):
        if path.suffix == ".npz":
            config, stored, name_of = _big_vision(read_flax(path))
        else:
            preparation = read_json(path / FILE) if (path / FILE).is_file() else {}
            config, stored, name_of = _transformers_vit(read_json(path / CONFIG), preparation, open_folder(path))
        vit = nnx.eval_shape(lambda: Vit(config, outputs=1, rngs=nnx.Rngs(0)))
        leaves = porting.flatten(nnx.to_pure_dict(nnx.state(vit)))
        target = {ours: leaf for ours, leaf in leaves.items() if not ours.startswith("head.")}
        table = {ours: name_of(ours) for ours in target}
        for ours, entry in table.items():
            if entry.source in stored:
                stored[entry.source] = merged(stored[entry.source], target[ours].shape)
        return PublishedVit(config, porting.port(stored, table, target))


def _big_vision(arrays: Arrays) -> tuple[VitConfig, Arrays, Callable[[str], Entry]]:
    """A ViT of big_vision or vision_transformer, also from a file of two towers; the text tower and the heads of
    classifiers and of pooling are left out."""
    prefix = "img/" if any(name.startswith("img/") for name in arrays) else ""
    found: Arrays = {}
    for name, array in arrays.items():
        name = name.removeprefix(prefix)
        for old, new in OLD_NAMES.items():
            name = name.replace(old, new)
        if name.startswith("Transformer/encoderblock/"):  # layers stacked by a scan
            found |= {name.replace("block/", f"block_{i}/", 1): layer for i, layer in enumerate(array)}
        elif not re.match(r"(head|pre_logits|MAPHead_\d+|txt)/|[tb]$", name):
            found[name] = array
    query = "Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel"
    hidden = "Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel"
    _check_there(found, (query, hidden, "embedding/kernel", "pos_embedding"))
    _split_class_token(found, "cls", "pos_embedding")
    (width, heads, _), patch = found[query].shape, found["embedding/kernel"].shape[0]
    depth = sum(name.endswith("query/kernel") for name in found)
    side = patch * math.isqrt(found["pos_embedding"].shape[1])
    config = VitConfig(width, depth, heads, found[hidden].shape[1], patch, side, class_token="cls" in found)

    def name_of(ours: str) -> Entry:
        return Entry("cls" if ours == "class_token" else source_name(f"vit.{ours}").removeprefix("img_encoder/"))

    return config, found, name_of


def _transformers_vit(
    fields: Mapping[str, Any], preparation: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> tuple[VitConfig, Arrays, Callable[[str], Entry]]:
    """A ViT of transformers, or the vision tower of its CLIP or SigLIP, without classifier, pooling and text tower."""
    kind = str(fields.get("model_type")).removesuffix("_vision_model")
    check_supported("model_type", kind, ("vit", "clip", "siglip"))
    vision = fields.get("vision_config") or fields
    prefix, layers = ("vit.", "encoder.layer") if kind == "vit" else ("vision_model.", "encoder.layers")
    names, layer = ({ours: theirs[kind != "vit"] for ours, theirs in table.items()} for table in (NAMES, LAYER))
    found = {name.removeprefix(prefix): tensors[name] for name in tensors if kind == "vit" or name.startswith(prefix)}
    found = {name: array for name, array in found.items() if not UNUSED.match(name)}
    patch, position, token = names["patches.kernel"], names["positions"], names["class_token"]
    _check_there(found, (patch, position))
    found[position] = found[position].reshape(1, -1, found[position].shape[-1])
    if found[patch].ndim == 4:
        found[patch] = found[patch].transpose(2, 3, 1, 0)
    check_supported("do_normalize", preparation.get("do_normalize", True), (True,))
    mean = np.array(preparation.get("image_mean", CLIP_MEAN if kind == "clip" else HALF), np.float32)[..., None]
    std = np.array(preparation.get("image_std", CLIP_STD if kind == "clip" else HALF), np.float32)[..., None]
    if mean.shape != (3, 1) or std.shape != (3, 1) or not (std > 0).all():
        raise ValueError(f"image_mean {mean.ravel()}, image_std {std.ravel()}: give 3 numbers each, of std above 0")
    if found[patch].shape[2:3] == (3,):  # (pixels - mean) / std of pixels in [0, 1] = gain * (2 pixels - 1) + shift
        bias, shift = names["patches.bias"], ((0.5 - mean) / std * found[patch]).sum((0, 1, 2))
        found[patch] = found[patch] / (2 * std)
        if bias in found or kind == "clip":  # which has none
            found[bias] = found.get(bias, 0) + shift
    if token in found:
        found[token] = found[token].reshape(1, 1, -1)
        _split_class_token(found, token, position)
    defaults = {"vit": ("gelu", 1e-12, 16), "clip": ("quick_gelu", 1e-5, 32), "siglip": ("gelu_pytorch_tanh", 1e-6, 16)}
    activation, eps, size = defaults[kind]
    check_supported("qkv_bias", vision.get("qkv_bias", True), (True,))
    config = VitConfig(
        width=vision.get("hidden_size", 768),
        depth=vision.get("num_hidden_layers", 12),
        heads=vision.get("num_attention_heads", 12),
        mlp=vision.get("intermediate_size", 3072),
        patch=vision.get("patch_size", size),
        image_size=vision.get("image_size", 224),
        activation=vision.get("hidden_act", activation),
        norm_eps=float(vision.get("layer_norm_eps", eps)),
        class_token=kind != "siglip",
        pre_norm=kind == "clip",
    )

    def name_of(ours: str) -> Entry:
        if ours in names:
            return Entry(names[ours])
        match = re.fullmatch(r"layers\.(\d+)\.(\w+)\.(kernel|scale|bias)", ours)
        if match:
            leaf = "bias" if match[3] == "bias" else "weight"
            layout = OI_TO_IO if match[3] == "kernel" else IDENTITY
            return Entry(f"{layers}.{match[1]}.{layer[match[2]]}.{leaf}", layout)
        return Entry(f"{names[ours.rpartition('.')[0]]}.{'bias' if ours.endswith('bias') else 'weight'}")

    return config, found, name_of


def _check_there(found: Arrays, names: Sequence[str]) -> None:
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"no {', '.join(missing)} among {len(found)} tensors: expected a ViT")


def _split_class_token(found: Arrays, token: str, position: str) -> None:
    """Adds the class token's position to it, where it has one: the table is then that of the patches, a square."""
    table = found[position]
    if token in found and math.isqrt(table.shape[1]) ** 2 != table.shape[1]:
        found[token], found[position] = found[token] + table[:, :1], table[:, 1:]
