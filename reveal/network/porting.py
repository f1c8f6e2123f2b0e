"""Parameters of the reference <-> ours: `scenic/projects/knowledge_visual_language`, in flax's names joined by "/".

Nobody has published such weights (scenic issue 985 asks for them, without an answer); this is for whoever has trained
some, and for the fixtures that hold our networks to the reference's numbers. Layouts are the same. What differs are
names, of which the reference has two kinds, its own layers' (`FusionEncoderLayer_0/LayerNorm_1`) and t5x's
(`layers_0/pre_mlp_layer_norm`), and that its ViT keeps heads on axes of their own and its patches as a convolution.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from common.weights import porting
from reveal.network.config import RevealConfig
from reveal.network.model import Reveal

ATTENTION = {part: f"{part}/kernel" for part in ("query", "key", "value", "out")}
MLP = {part: f"{part}/kernel" for part in ("wi_0", "wi_1", "wo")}
ENCODER = {
    **{f"attention.{ours}.kernel": f"attention/{theirs}" for ours, theirs in ATTENTION.items()},
    **{f"mlp.{ours}.kernel": f"mlp/{theirs}" for ours, theirs in MLP.items()},
    "attention_norm.scale": "pre_attention_layer_norm/scale",
    "mlp_norm.scale": "pre_mlp_layer_norm/scale",
}
DECODER = {
    **{f"attention.{ours}.kernel": f"self_attention/{theirs}" for ours, theirs in ATTENTION.items()},
    **{f"cross_attention.{ours}.kernel": f"encoder_decoder_attention/{theirs}" for ours, theirs in ATTENTION.items()},
    **{f"mlp.{ours}.kernel": f"mlp/{theirs}" for ours, theirs in MLP.items()},
    "attention_norm.scale": "pre_self_attention_layer_norm/scale",
    "cross_norm.scale": "pre_cross_attention_layer_norm/scale",
    "mlp_norm.scale": "pre_mlp_layer_norm/scale",
}
FUSION = {
    **{
        f"attention.{ours}.kernel": f"MultiHeadDotProductAttention_0/DenseGeneral_{i}/kernel"
        for i, ours in enumerate(ATTENTION)
    },
    **{f"mlp.{ours}.kernel": f"MlpBlock_0/{theirs}" for ours, theirs in MLP.items()},
    "attention_norm.scale": "LayerNorm_0/scale",
    "mlp_norm.scale": "LayerNorm_1/scale",
}
VIT = {
    **{
        f"{ours}.{leaf}": f"MultiHeadDotProductAttention_0/{ours}/{leaf}"
        for ours in ATTENTION
        for leaf in ("kernel", "bias")
    },
    **{
        f"{ours}.{leaf}": f"{theirs}/{leaf}"
        for ours, theirs in (("mlp_in", "MlpBlock_0/Dense_0"), ("mlp_out", "MlpBlock_0/Dense_1"))
        for leaf in ("kernel", "bias")
    },
    **{
        f"{ours}.{leaf}": f"{theirs}/{leaf}"
        for ours, theirs in (("attention_norm", "LayerNorm_0"), ("mlp_norm", "LayerNorm_1"))
        for leaf in ("scale", "bias")
    },
}
# our stack: their name of a layer, and what is in it
STACKS = {
    "text": ("text_encoder/EncoderLayer_{}", ENCODER),
    "query_head.encoder": ("query_head/EncoderLayer_{}", ENCODER),
    "key_head.encoder": ("key_head/EncoderLayer_{}", ENCODER),
    "value_head": ("value_perceiver/DecoderLayer_{}", DECODER),
    "fusion.encoder": ("fusion_encoder/FusionEncoderLayer_{}", FUSION),
    "decoder": ("out_decoder/decoder_module/layers_{}", DECODER),
    "vit": ("img_encoder/Transformer/encoderblock_{}", VIT),
}
SINGLE = {
    "embedding.embedding": "shared_token_embedder/embedding",
    "projection.kernel": "head_out/kernel",
    "gate.map.kernel": "dataset_gate/kernel",
    "gate.map.bias": "dataset_gate/bias",
    "text.positions.rel_embedding": "text_encoder/RelativePositionBiases_0/rel_embedding",
    "query_head.encoder.positions.rel_embedding": "query_head/RelativePositionBiases_0/rel_embedding",
    "query_head.norm.scale": "query_head/LayerNorm_0/scale",
    "key_head.encoder.positions.rel_embedding": "key_head/RelativePositionBiases_0/rel_embedding",
    "key_head.norm.scale": "key_head/LayerNorm_0/scale",
    "value_head.latents": "value_perceiver/perceive_embedding",
    "value_head.norm.scale": "value_perceiver/LayerNorm_0/scale",
    "value_head.positions.rel_embedding": "value_perceiver/RelativePositionBiases_0/rel_embedding",
    "fusion.scale": "att_transform/scale",
    "fusion.bias": "att_transform/bias",
    "fusion.encoder.positions.rel_embedding": "fusion_encoder/RelativePositionBiases_0/rel_embedding",
    "fusion.norm.scale": "fusion_encoder/LayerNorm_0/scale",
    "decoder.positions.rel_embedding": "out_decoder/decoder_module/relpos_bias/rel_embedding",
    "decoder.norm.scale": "out_decoder/decoder_module/decoder_norm/scale",
    "decoder.logits.kernel": "out_decoder/decoder_module/logits_dense/kernel",
    "vit.patches.kernel": "img_encoder/embedding/kernel",
    "vit.patches.bias": "img_encoder/embedding/bias",
    "vit.positions": "img_encoder/pos_embedding",
    "vit.norm.scale": "img_encoder/Transformer/encoder_norm/scale",
    "vit.norm.bias": "img_encoder/Transformer/encoder_norm/bias",
    "vit.head.kernel": "img_encoder/head/kernel",
    "vit.head.bias": "img_encoder/head/bias",
}
IN_LAYER = re.compile(r"(.+)\.layers\.(\d+)\.(.+)")


def source_name(path: str) -> str:
    """What the reference calls the parameter that ours calls `path`."""
    if path in SINGLE:
        return SINGLE[path]
    found = IN_LAYER.fullmatch(path)
    assert found, f"{path}: no such parameter in the reference"
    layer, names = STACKS[found[1]]
    return f"{layer.format(found[2])}/{names[found[3]]}"


def from_scenic(variables: Mapping[str, np.ndarray], config: RevealConfig) -> Reveal:
    """The network with the reference's parameters ({its name: array}).

    Raises ValueError that lists every parameter that is missing, left over, or of another size."""
    graphdef, abstract = blank(config)
    shapes = {path: leaf.shape for path, leaf in porting.flatten(abstract).items()}
    names = {path: source_name(path) for path in shapes}
    stored = {theirs: joined(variables[theirs], shapes[ours]) for ours, theirs in names.items() if theirs in variables}
    values = porting.port({**variables, **stored}, names, abstract)
    return nnx.merge(graphdef, porting.unflatten_like(jax.tree.map(jnp.asarray, values), abstract))


@functools.lru_cache(maxsize=8)
def blank(config: RevealConfig) -> tuple[Any, dict[Any, Any]]:
    """The network without its numbers: its graph, and its parameters' shapes as a pure nested dict."""
    key = jax.random.key(0)
    graphdef, state = nnx.split(nnx.eval_shape(lambda: Reveal(config, rngs=_OneKey(key))))
    return graphdef, nnx.to_pure_dict(state)


class _OneKey(nnx.Rngs):
    """The same key for every parameter: shapes ask for no randomness, and a key per kernel is most of a trace."""

    def __init__(self, key: jax.Array):
        super().__init__()
        self.params = nnx.static(lambda: key)


def joined(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A parameter of the ViT, whose heads or patch sides have axes of their own there, with those made one.

    Left as it is where that does not give `shape`, for the error to name."""
    return array.reshape(shape) if array.ndim > len(shape) and array.size == np.prod(shape) else array
