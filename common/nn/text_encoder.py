"""CLIP's text encoder (Radford et al., 2021): token ids to the states that a UNet reads.

A causal transformer with the norms first. For `b n` tokens and width c:

    h[0] = token embedding + position embedding                            b n c
    x    = h[i] + attention(norm1(h[i]));  h[i+1] = x + mlp(norm2(x))      i = 0 .. layers - 1
    last = final norm(h[layers - skip])

Stable Diffusion 1.x reads `last` of CLIP ViT-L/14; 2.x that of OpenCLIP ViT-H/14, published without its last layer.
"Clip skip" counts from 1 in most programs: their 2 is `skip=1`. SDXL reads CLIP ViT-L/14 and OpenCLIP ViT-bigG/14: of
both h[layers - 1], without the final norm, side by side; and of the second the state of the end token, through a linear
map into CLIP's joint space. Padding is not masked. Attributes have transformers' names, without `text_model.`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from common.checked import Positive
from common.nn.json_config import Layers
from common.nn.layers import Embedding, LayerNorm, Linear
from common.nn.transformer import Encoder, EncoderConfig

MODEL_TYPE = "clip_text_model"
PROJECTED = "CLIPTextModelWithProjection"
OLD_END = 2  # the eos_token_id of CLIP's first configs, which is not the id of any end token


@dataclasses.dataclass(frozen=True)
class TextConfig(EncoderConfig):
    """Architecture of a text encoder; fields and defaults are transformers' (its files omit defaults)."""

    vocab_size: Positive = 49408
    hidden_size: Positive = 512
    intermediate_size: Positive = 2048
    num_hidden_layers: Layers = 12
    num_attention_heads: Positive = 8
    max_position_embeddings: Positive = 77  # the largest number of tokens in a row
    hidden_act: str = "quick_gelu"  # of the mlp: that (OpenAI), or "gelu", the exact one (OpenCLIP)
    layer_norm_eps: float = 1e-5
    eos_token_id: Positive = 49407  # the pooled token is the first of this id; 2 means the largest id in the row
    projection_dim: Positive = 512  # of CLIP's joint space
    projected: bool = False  # whether the pooled state goes through the linear map into that space

    architecture = "CLIPTextModel"
    fixed: ClassVar = {
        "model_type": (MODEL_TYPE,),
        "architectures": ([architecture], (architecture,), [PROJECTED], (PROJECTED,), None),
    }

    @classmethod
    def clip_l(cls) -> TextConfig:
        """CLIP ViT-L/14, of Stable Diffusion 1.x: 123,060,480 parameters."""
        return cls(49408, 768, 3072, 12, 12, eos_token_id=OLD_END, projection_dim=768)

    @classmethod
    def openclip_h(cls) -> TextConfig:
        """OpenCLIP ViT-H/14 without its last layer, of Stable Diffusion 2.x: 340,387,840 parameters."""
        return cls(49408, 1024, 4096, 23, 16, hidden_act="gelu", eos_token_id=OLD_END)

    @classmethod
    def openclip_bigg(cls) -> TextConfig:
        """OpenCLIP ViT-bigG/14, SDXL's second: 694,659,840 parameters."""
        sizes = (49408, 1280, 5120, 32, 20)
        return cls(*sizes, hidden_act="gelu", eos_token_id=OLD_END, projection_dim=1280, projected=True)

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> TextConfig:
        projected = PROJECTED in (mapping.get("architectures") or ())
        return super().from_json({**mapping, "projected": projected})

    @property
    def class_name(self) -> str:
        """transformers' class of this network."""
        return PROJECTED if self.projected else self.architecture

    def to_json(self) -> dict[str, Any]:
        fields = {key: value for key, value in dataclasses.asdict(self).items() if key != "projected"}
        return {"architectures": [self.class_name], "model_type": MODEL_TYPE, **fields}


class TextStates(NamedTuple):
    """Outputs for `b` prompts of `n` tokens."""

    last: Float[Array, "b n c"]  # the UNet's context: without the last `skip` layers, after the final norm
    pooled: Float[Array, "b p"]  # per prompt: all layers, final norm, projection; at the end token (`eos_token_id`)
    hidden: tuple[Float[Array, "b n c"], ...]  # before each layer and after the last one, without the final norm


class TextEncoder(nnx.Module):
    """The network; computes in the type of its parameters."""

    def __init__(self, config: TextConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embeddings = Embeddings(config, rngs=rngs)
        self.encoder = Encoder(config, causal=True, rngs=rngs)
        self.final_layer_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        joint = Linear(config.hidden_size, config.projection_dim, bias=False, rngs=rngs) if config.projected else None
        self.text_projection = joint

    def __call__(
        self,
        tokens: Int[Array | np.ndarray, "b n"],
        *,
        skip: int = 0,
        mask: Bool[Array | np.ndarray, "b n"] | None = None,
    ) -> TextStates:
        """Encodes rows of token ids below `vocab_size`. `skip` leaves out that many layers at the end, for `last`
        alone. `mask` is True for the tokens that others attend to; None: all, as in Stable Diffusion."""
        longest, layers = self.config.max_position_embeddings, self.config.num_hidden_layers
        if tokens.shape[1] > longest:
            raise ValueError(f"{tokens.shape[1]} tokens in a row; this encoder has positions for {longest}: cut them")
        if not 0 <= skip < layers:
            raise ValueError(f"skip is {skip}; of {layers} layers 0 to {layers - 1} can be left out")
        tokens = jnp.asarray(tokens)
        allowed = None if mask is None else jnp.asarray(mask)[:, None, None, :]
        hidden = self.encoder(self.embeddings(tokens), allowed)
        complete = self.final_layer_norm(hidden[-1])
        last = complete if skip == 0 else self.final_layer_norm(hidden[layers - skip])
        end = self.config.eos_token_id
        pooled = complete[jnp.arange(tokens.shape[0]), jnp.argmax(tokens if end == OLD_END else tokens == end, axis=-1)]
        return TextStates(last, pooled if self.text_projection is None else self.text_projection(pooled), hidden)


class Embeddings(nnx.Module):
    """Token embeddings plus position embeddings."""

    def __init__(self, config: TextConfig, *, rngs: nnx.Rngs):
        self.token_embedding = Embedding(config.vocab_size, config.hidden_size, rngs=rngs)
        self.position_embedding = Embedding(config.max_position_embeddings, config.hidden_size, rngs=rngs)

    def __call__(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n c"]:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        return self.token_embedding(tokens) + self.position_embedding(positions)
