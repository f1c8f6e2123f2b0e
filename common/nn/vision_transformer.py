"""The vision tower of CLIP (Radford et al., 2021) and of SigLIP (Zhai et al., 2023): images to states and one vector.

    x      = patches of p x p pixels through a linear map, + position table        b n c
    hidden = encoder layers (`transformer.py`), from x on                           each b n c

| | CLIP | SigLIP |
| --- | --- | --- |
| tokens | a class token, then the patches | the patches |
| before the layers | layer norm | |
| `last` | the last layer's states | those after a layer norm |
| `pooled` | class token after a layer norm | attention of a learned probe over `last`, then an mlp |

Images are normalised already (`common/io/image_preparation.py`). Attributes have transformers' names.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from common.checked import Positive
from common.nn.attention import attend
from common.nn.json_config import Layers
from common.nn.layers import Embedding, LayerNorm, Linear, convolution, uniform
from common.nn.transformer import Encoder, EncoderConfig, Mlp


@dataclasses.dataclass(frozen=True)
class VisionConfig(EncoderConfig):
    """Architecture of CLIP's vision tower; fields and defaults are transformers' (its files omit defaults)."""

    hidden_size: Positive = 768
    intermediate_size: Positive = 3072
    num_hidden_layers: Layers = 12
    num_attention_heads: Positive = 12
    image_size: Positive = 224  # side, in pixels
    patch_size: Positive = 32
    hidden_act: str = "quick_gelu"  # of the mlp
    layer_norm_eps: float = 1e-5
    projection_dim: Positive = 512  # of CLIP's joint space

    architecture = "CLIPVisionModel"
    fixed: ClassVar = {"model_type": ("clip_vision_model",), "num_channels": (3,)}

    @property
    def patches(self) -> int:
        """Of an image; pixels beyond the last whole patch are not seen."""
        return (self.image_size // self.patch_size) ** 2


@dataclasses.dataclass(frozen=True)
class SiglipVisionConfig(VisionConfig):
    """Architecture of SigLIP's vision tower, whose joint space is its own width."""

    patch_size: Positive = 16
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6

    architecture = "SiglipVisionModel"
    fixed: ClassVar = {"model_type": ("siglip_vision_model",), "num_channels": (3,), "vision_use_head": (True,)}


class VisionStates(NamedTuple):
    """Outputs for `b` images; `n` tokens, CLIP's class token first."""

    last: Float[Array, "b n c"]
    pooled: Float[Array, "b c"]
    hidden: tuple[Float[Array, "b n c"], ...]  # before each layer and after the last one, without the last norm


class VisionTransformer(nnx.Module):
    """The tower; SigLIP's for a `SiglipVisionConfig`. Computes in the type of its parameters."""

    def __init__(self, config: VisionConfig, *, rngs: nnx.Rngs):
        self.config, siglip = config, isinstance(config, SiglipVisionConfig)
        self.embeddings = Embeddings(config, class_token=not siglip, rngs=rngs)
        # transformers' spelling
        self.pre_layrnorm = None if siglip else LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.encoder = Encoder(config, causal=False, rngs=rngs)
        self.post_layernorm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.head = PoolingHead(config, rngs=rngs) if siglip else None

    def __call__(self, image: Float[Array | np.ndarray, "b h w 3"]) -> VisionStates:
        """Square images of `image_size`, normalised. Raises ValueError for another size."""
        side = self.config.image_size
        if image.shape[1:3] != (side, side):
            raise ValueError(f"images are {image.shape[1]}x{image.shape[2]}, this tower takes {side}x{side}: resize")
        x = self.embeddings(jnp.asarray(image))
        hidden = self.encoder(x if self.pre_layrnorm is None else self.pre_layrnorm(x))
        if self.head is None:
            return VisionStates(hidden[-1], self.post_layernorm(hidden[-1][:, 0]), hidden)
        last = self.post_layernorm(hidden[-1])
        return VisionStates(last, self.head(last), hidden)


class ImageEncoder(nnx.Module):
    """CLIP's vision tower with the projection to its joint space: transformers' CLIPVisionModelWithProjection."""

    def __init__(self, config: VisionConfig, *, rngs: nnx.Rngs):
        self.vision_model = VisionTransformer(config, rngs=rngs)
        self.visual_projection = Linear(config.hidden_size, config.projection_dim, bias=False, rngs=rngs)

    def __call__(self, image: Float[Array | np.ndarray, "b h w 3"]) -> tuple[Float[Array, "b e"], VisionStates]:
        """Image embeddings, not normalised, and the tower's states."""
        states = self.vision_model(image)
        return self.visual_projection(states.pooled), states


class Embeddings(nnx.Module):
    """Patches and their positions; the class token comes first."""

    def __init__(self, config: VisionConfig, *, class_token: bool, rngs: nnx.Rngs):
        width = config.hidden_size
        self.patch_embedding = PatchEmbedding(config.patch_size, width, bias=not class_token, rngs=rngs)
        self.class_embedding = nnx.Param(jax.random.normal(rngs.params(), (width,))) if class_token else None
        self.position_embedding = Embedding(config.patches + class_token, width, rngs=rngs)

    def __call__(self, image: Float[Array, "b h w 3"]) -> Float[Array, "b n c"]:
        x = self.patch_embedding(image)
        if self.class_embedding is not None:
            token = jnp.broadcast_to(self.class_embedding[...].astype(x.dtype), (len(x), 1, x.shape[-1]))
            x = jnp.concatenate([token, x], axis=1)
        return x + self.position_embedding.embedding[...].astype(x.dtype)


class PatchEmbedding(nnx.Module):
    """A convolution whose stride is its size; patches in row-major order."""

    def __init__(self, size: int, width: int, *, bias: bool, rngs: nnx.Rngs):
        self.kernel = nnx.Param(uniform(rngs.params(), (size, size, 3, width)))
        self.bias = nnx.Param(jnp.zeros((width,))) if bias else None

    def __call__(self, image: Float[Array, "b h w 3"]) -> Float[Array, "b n c"]:
        kernel = self.kernel[...]
        grid = convolution(image.astype(kernel.dtype), kernel, kernel.shape[0], "VALID")
        x = grid.reshape(len(image), -1, kernel.shape[-1])
        return x if self.bias is None else x + self.bias[...]


class PoolingHead(nnx.Module):
    """SigLIP's pooling: a learned probe attends to all states, then an mlp ("MAP head", Zhai et al., CVPR 2022)."""

    def __init__(self, config: VisionConfig, *, rngs: nnx.Rngs):
        self.probe = nnx.Param(jax.random.normal(rngs.params(), (1, 1, config.hidden_size)))
        self.attention = ProbeAttention(config.hidden_size, config.num_attention_heads, rngs=rngs)
        self.layernorm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = Mlp(config, rngs=rngs)

    def __call__(self, states: Float[Array, "b n c"]) -> Float[Array, "b c"]:
        probe = jnp.broadcast_to(self.probe[...].astype(states.dtype), (len(states), 1, states.shape[-1]))
        x = self.attention(probe, states)
        return (x + self.mlp(self.layernorm(x)))[:, 0]


class ProbeAttention(nnx.Module):
    """PyTorch's MultiheadAttention, whose three input maps lie in one matrix: rows of queries, keys, values."""

    def __init__(self, width: int, heads: int, *, rngs: nnx.Rngs):
        self.heads = heads
        self.in_proj_weight = nnx.Param(uniform(rngs.params(), (width, 3 * width)).T)
        self.in_proj_bias = nnx.Param(jnp.zeros((3 * width,)))
        self.out_proj = Linear(width, width, rngs=rngs)

    def __call__(self, query: Float[Array, "b 1 c"], states: Float[Array, "b n c"]) -> Float[Array, "b 1 c"]:
        kernels = jnp.split(self.in_proj_weight[...].astype(states.dtype), 3)
        biases = jnp.split(self.in_proj_bias[...].astype(states.dtype), 3)
        inputs = zip((query, states, states), kernels, biases, strict=True)
        q, k, v = ((x @ w.T + b).reshape(*x.shape[:2], self.heads, -1) for x, w, b in inputs)
        return self.out_proj(attend(q, k, v).reshape(query.shape))
