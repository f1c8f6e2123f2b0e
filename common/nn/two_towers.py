"""CLIP and SigLIP with both towers: images and texts as unit vectors of one space.

    cosine(image, text) = embed_image(image) . embed_text(tokens)

| | CLIP (Radford et al., 2021) | SigLIP (Zhai et al., 2023) |
| --- | --- | --- |
| text tower | causal; the end token's state, projected | not masked; the last token's state, mapped |
| vision tower | the class token's state, projected | pooled by attention |
| trained as | softmax over exp(scale) * cosine | a sigmoid of exp(scale) * cosine + bias |

Texts of SigLIP are always padded to the full length (64). Attributes have transformers' names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from common.checked import Positive
from common.nn import json_config
from common.nn.layers import LayerNorm, Linear
from common.nn.text_encoder import Embeddings, TextConfig, TextEncoder
from common.nn.transformer import Encoder
from common.nn.vision_transformer import SiglipVisionConfig, VisionConfig, VisionTransformer


@dataclasses.dataclass(frozen=True)
class SiglipTextConfig(TextConfig):
    """Architecture of SigLIP's text tower."""

    vocab_size: Positive = 32000
    hidden_size: Positive = 768
    intermediate_size: Positive = 3072
    num_attention_heads: Positive = 12
    max_position_embeddings: Positive = 64
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6

    architecture = "SiglipTextModel"
    fixed: ClassVar = {"model_type": ("siglip_text_model",)}


@dataclasses.dataclass(frozen=True)
class TwoTowerConfig:
    """Both towers, of one family."""

    text: TextConfig
    vision: VisionConfig
    projection_dim: int = 512  # of the joint space

    @property
    def family(self) -> str:
        """clip or siglip."""
        return "siglip" if isinstance(self.vision, SiglipVisionConfig) else "clip"

    @property
    def text_length(self) -> int:
        """Tokens of a text, at most; of SigLIP always."""
        return self.text.max_position_embeddings

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> TwoTowerConfig:
        """Of transformers' `config.json`. Raises ValueError for another model, and for options of these that are not
        supported."""
        family = fields.get("model_type")
        if family not in ("clip", "siglip"):
            raise ValueError(f"model_type is {family!r}: expected a CLIP or SigLIP with both towers, clip or siglip")
        texts, visions = (TextConfig, VisionConfig) if family == "clip" else (SiglipTextConfig, SiglipVisionConfig)
        text_fields, vision_fields = (dict(fields.get(name) or {}) for name in ("text_config", "vision_config"))
        width = vision_fields.get("hidden_size", visions.hidden_size)
        dim = fields.get("projection_dim", 512) if family == "clip" else width
        if family == "siglip":
            json_config.check_supported("projection_size", text_fields.get("projection_size") or dim, (dim,))
        shared = {"projection_dim": dim}
        for name in ("architectures", "_class_name"):  # of classes for a tower alone
            text_fields.pop(name, None)
        return cls(texts.from_json(text_fields | shared), visions.from_json(vision_fields | shared), dim)

    def to_json(self) -> dict[str, Any]:
        """The inverse of `from_json`."""
        towers = {"text_config": dataclasses.asdict(self.text), "vision_config": dataclasses.asdict(self.vision)}
        return {"model_type": self.family, "projection_dim": self.projection_dim} | towers


class TwoTowers(nnx.Module):
    def __init__(self, config: TwoTowerConfig, *, rngs: nnx.Rngs):
        self.config, dim = config, config.projection_dim
        siglip = config.family == "siglip"
        self.vision_model = VisionTransformer(config.vision, rngs=rngs)
        self.text_model = (SiglipTextEncoder if siglip else TextEncoder)(config.text, rngs=rngs)
        self.visual_projection = None if siglip else Linear(config.vision.hidden_size, dim, bias=False, rngs=rngs)
        self.text_projection = None if siglip else Linear(config.text.hidden_size, dim, bias=False, rngs=rngs)
        shape = (1,) if siglip else ()
        self.logit_scale = nnx.Param(jnp.full(shape, np.log(1 / 0.07), jnp.float32))
        self.logit_bias = nnx.Param(jnp.full(shape, -10.0)) if siglip else None

    def embed_image(self, image: Float[Array | np.ndarray, "b h w 3"]) -> Float[Array, "b e"]:
        """Unit vectors of normalised images, float32. Raises ValueError for another size."""
        pooled = self.vision_model(image).pooled
        return unit(pooled if self.visual_projection is None else self.visual_projection(pooled))

    def embed_text(self, tokens: Int[Array | np.ndarray, "b n"]) -> Float[Array, "b e"]:
        """Unit vectors of texts, float32. Raises ValueError for too many tokens."""
        pooled = self.text_model(tokens).pooled if isinstance(self.text_model, TextEncoder) else self.text_model(tokens)
        return unit(pooled if self.text_projection is None else self.text_projection(pooled))


class SiglipTextEncoder(nnx.Module):
    """SigLIP's text tower."""

    def __init__(self, config: TextConfig, *, rngs: nnx.Rngs):
        self.embeddings = Embeddings(config, rngs=rngs)
        self.encoder = Encoder(config, causal=False, rngs=rngs)
        self.final_layer_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.head = Linear(config.hidden_size, config.projection_dim, rngs=rngs)
        self.length = config.max_position_embeddings

    def __call__(self, tokens: Int[Array | np.ndarray, "b n"]) -> Float[Array, "b e"]:
        """One vector of each row of exactly `max_position_embeddings` ids, padding included."""
        if tokens.shape[1] != self.length:
            raise ValueError(f"{tokens.shape[1]} tokens in a row; SigLIP reads {self.length}, padding included")
        hidden = self.encoder(self.embeddings(jnp.asarray(tokens)))
        return self.head(self.final_layer_norm(hidden[-1])[:, -1])


def unit(x: Float[Array, "b e"]) -> Float[Array, "b e"]:
    """`x` at length 1, float32."""
    wide = x.astype(jnp.float32)
    return wide * lax.rsqrt(jnp.square(wide).sum(-1, keepdims=True))
