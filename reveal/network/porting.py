"""Parameters of the reference <-> ours: `scenic/projects/knowledge_visual_language`, flax names joined by "/".

No such weights are published (scenic issue 985 asks for them, without an answer); this is for those who have trained
some, and for the fixtures that hold our networks to the reference's numbers. Layouts are the same. The names differ, of
which the reference has two kinds, its own layers' (`FusionEncoderLayer_0/LayerNorm_1`) and t5x's
(`layers_0/pre_mlp_layer_norm`), and its ViT has separate axes for heads and a convolution for patches.
"""

import math
import re
from collections.abc import Mapping

import numpy as np

from common.nn.init import blank
from common.weights import porting
from reveal.network.config import RevealConfig, VitConfig
from reveal.network.model import Reveal

# Per layer: our module -> theirs, which have the same leaves.
QKVO = ("query", "key", "value", "out")
MLP = ("wi_0", "wi_1", "wo")
ENCODER = {
    **{f"attention.{name}": f"attention/{name}" for name in QKVO},
    **{f"mlp.{name}": f"mlp/{name}" for name in MLP},
    "attention_norm": "pre_attention_layer_norm",
    "mlp_norm": "pre_mlp_layer_norm",
}
DECODER = {
    **{f"attention.{name}": f"self_attention/{name}" for name in QKVO},
    **{f"cross_attention.{name}": f"encoder_decoder_attention/{name}" for name in QKVO},
    **{f"mlp.{name}": f"mlp/{name}" for name in MLP},
    "attention_norm": "pre_self_attention_layer_norm",
    "cross_norm": "pre_cross_attention_layer_norm",
    "mlp_norm": "pre_mlp_layer_norm",
}
FUSION = {
    **{f"attention.{name}": f"MultiHeadDotProductAttention_0/DenseGeneral_{i}" for i, name in enumerate(QKVO)},
    **{f"mlp.{name}": f"MlpBlock_0/{name}" for name in MLP},
    "attention_norm": "LayerNorm_0",
    "mlp_norm": "LayerNorm_1",
}
VIT = {
    **{name: f"MultiHeadDotProductAttention_0/{name}" for name in QKVO},
    "mlp_in": "MlpBlock_0/Dense_0",
    "mlp_out": "MlpBlock_0/Dense_1",
    "attention_norm": "LayerNorm_0",
    "mlp_norm": "LayerNorm_1",
}
# Our stack -> their layers, and the table of a layer.
STACKS = {
    "text": ("text_encoder/EncoderLayer_{}", ENCODER),
    "query_head.encoder": ("query_head/EncoderLayer_{}", ENCODER),
    "key_head.encoder": ("key_head/EncoderLayer_{}", ENCODER),
    "value_head": ("value_perceiver/DecoderLayer_{}", DECODER),
    "fusion.encoder": ("fusion_encoder/FusionEncoderLayer_{}", FUSION),
    "decoder": ("out_decoder/decoder_module/layers_{}", DECODER),
    "vit": ("img_encoder/Transformer/encoderblock_{}", VIT),
}
# Everything outside of layers: our module -> theirs.
MODULES = {
    "embedding": "shared_token_embedder",
    "projection": "head_out",
    "gate.map": "dataset_gate",
    "text.positions": "text_encoder/RelativePositionBiases_0",
    "query_head.encoder.positions": "query_head/RelativePositionBiases_0",
    "query_head.norm": "query_head/LayerNorm_0",
    "key_head.encoder.positions": "key_head/RelativePositionBiases_0",
    "key_head.norm": "key_head/LayerNorm_0",
    "value_head.norm": "value_perceiver/LayerNorm_0",
    "value_head.positions": "value_perceiver/RelativePositionBiases_0",
    "fusion": "att_transform",
    "fusion.encoder.positions": "fusion_encoder/RelativePositionBiases_0",
    "fusion.norm": "fusion_encoder/LayerNorm_0",
    "decoder.positions": "out_decoder/decoder_module/relpos_bias",
    "decoder.norm": "out_decoder/decoder_module/decoder_norm",
    "decoder.logits": "out_decoder/decoder_module/logits_dense",
    "vit.patches": "img_encoder/embedding",
    "vit.norm": "img_encoder/Transformer/encoder_norm",
    "vit.head": "img_encoder/head",
}
PARAMETERS = {"value_head.latents": "value_perceiver/perceive_embedding", "vit.positions": "img_encoder/pos_embedding"}


def source_name(path: str) -> str:
    if path in PARAMETERS:
        return PARAMETERS[path]
    module, _, leaf = path.rpartition(".")
    if module in MODULES:
        return f"{MODULES[module]}/{leaf}"
    layer = re.fullmatch(r"(.+)\.layers\.(\d+)\.(.+)", module)
    assert layer, f"{path}: no such parameter in the reference"
    template, names = STACKS[layer[1]]
    return f"{template.format(layer[2])}/{names[layer[3]]}/{leaf}"


def from_scenic(variables: Mapping[str, np.ndarray], config: RevealConfig) -> Reveal:
    """The network with the reference's parameters ({its name: array}).

    A checkpoint without a source gate (those of warm start have none) gets a uniform one. Raises ValueError that lists
    every parameter that is missing, left over, or of another size."""
    shapes = blank(Reveal, config)[1]
    kernel, bias = source_name("gate.map.kernel"), source_name("gate.map.bias")
    if kernel not in variables and bias not in variables:
        uniform = {kernel: np.zeros((config.key_dim, config.sources), np.float32)}
        variables = {**variables, **uniform, bias: np.zeros(config.sources, np.float32)}
    leaves = porting.flatten(shapes)
    names = {path: source_name(path) for path in leaves}
    stored = {name: merged(variables[name], leaves[ours].shape) for ours, name in names.items() if name in variables}
    table = {ours: porting.Entry(theirs) for ours, theirs in names.items()}
    return porting.assemble(Reveal, config, porting.port({**variables, **stored}, table, shapes))


def scenic_config(variables: Mapping[str, np.ndarray]) -> RevealConfig:
    """The architecture of the reference's parameters, by their shapes; of a network without a gate, for one source.
    Raises ValueError where parameters that it takes are not there."""

    def layers(stack: str) -> int:
        pattern = re.escape(STACKS[stack][0]).replace(r"\{\}", r"(\d+)")
        return len({match[1] for name in variables if (match := re.match(pattern + "/", name))})

    def shape(ours: str) -> tuple[int, ...]:
        theirs = source_name(ours)
        if theirs not in variables:
            raise ValueError(f"no {theirs} among {len(variables)} arrays: expected a REVEAL of scenic's")
        return variables[theirs].shape

    (vocab_size, width), (heads, _) = shape("embedding.embedding"), shape("text.positions.rel_embedding")
    patch, grid = shape("vit.patches.kernel")[0], math.isqrt(shape("vit.positions")[1])
    vit_width, vit_heads, _ = shape("vit.layers.0.query.kernel")
    vit = VitConfig(vit_width, layers("vit"), vit_heads, shape("vit.layers.0.mlp_in.kernel")[1], patch, patch * grid)
    gate = variables.get(source_name("gate.map.bias"))
    return RevealConfig(
        vit,
        vocab_size,
        width,
        heads,
        head_dim=shape("text.layers.0.attention.query.kernel")[1] // heads,
        mlp=shape("text.layers.0.mlp.wi_0.kernel")[1],
        encoder_layers=layers("text") + layers("fusion.encoder"),
        decoder_layers=layers("decoder"),
        fusion_layers=layers("fusion.encoder"),
        key_dim=shape("projection.kernel")[1],
        value_tokens=shape("value_head.latents")[1],
        sources=1 if gate is None else len(gate),
        bos=min(RevealConfig.bos, vocab_size - 1),
    )


def merged(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A parameter of the ViT with its axes of heads or patch sides merged; as it is, for the error to name it, where
    that does not give `shape`."""
    return array.reshape(shape) if array.ndim > len(shape) and array.size == np.prod(shape) else array
