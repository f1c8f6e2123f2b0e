"""The transformer encoder that CLIP's and SigLIP's towers share (Radford et al., 2021; Zhai et al., 2023).

    x    = h[i] + attention(norm1(h[i]));  h[i+1] = x + mlp(norm2(x))      i = 0 .. layers - 1

for states `b n c` of a text or an image: causal in CLIP's text tower, unmasked in all others. Attributes have
transformers' names.
"""

from functools import partial

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float

from common.nn.attention import attend
from common.nn.json_config import JsonConfig
from common.nn.layers import LayerNorm, Linear

ACTIVATIONS = {
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),  # OpenAI's approximation
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
}


class EncoderConfig(JsonConfig):
    """What a tower's config, a dataclass, says about its encoder; names are transformers'."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    hidden_act: str  # of the mlp
    layer_norm_eps: float

    def rules(self):
        yield self.hidden_size % self.num_attention_heads == 0, "num_attention_heads divides hidden_size"
        yield self.hidden_act in ACTIVATIONS, f"hidden_act is {' or '.join(ACTIVATIONS)}"


class Encoder(nnx.Module):
    """The layers, in order."""

    def __init__(self, config: EncoderConfig, *, causal: bool, rngs: nnx.Rngs):
        self.layers = nnx.List([EncoderLayer(config, causal, rngs=rngs) for _ in range(config.num_hidden_layers)])

    def __call__(
        self, x: Float[Array, "b n c"], mask: Bool[Array, "b 1 1 n"] | None = None
    ) -> tuple[Float[Array, "b n c"], ...]:
        """All states, from `x` itself to the last layer's."""
        hidden = [x]
        for layer in self.layers:
            hidden.append(layer(hidden[-1], mask))
        return tuple(hidden)


class EncoderLayer(nnx.Module):
    """Self-attention, then a two-layer mlp, each on normed states and added to them."""

    def __init__(self, config: EncoderConfig, causal: bool, *, rngs: nnx.Rngs):
        self.layer_norm1 = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.self_attn = SelfAttention(config.hidden_size, config.num_attention_heads, causal, rngs=rngs)
        self.layer_norm2 = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = Mlp(config, rngs=rngs)

    def __call__(self, x: Float[Array, "b n c"], mask: Bool[Array, "b 1 1 n"] | None) -> Float[Array, "b n c"]:
        x = x + self.self_attn(self.layer_norm1(x), mask)
        return x + self.mlp(self.layer_norm2(x))


class SelfAttention(nnx.Module):
    def __init__(self, width: int, heads: int, causal: bool, *, rngs: nnx.Rngs):
        self.heads, self.causal = heads, causal
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (Linear(width, width, rngs=rngs) for _ in range(4))

    def __call__(self, x: Float[Array, "b n c"], mask: Bool[Array, "b 1 1 n"] | None) -> Float[Array, "b n c"]:
        q, k, v = (f(x).reshape(*x.shape[:2], self.heads, -1) for f in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(attend(q, k, v, mask=mask, causal=self.causal).reshape(x.shape))


class Mlp(nnx.Module):
    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.fc1 = Linear(config.hidden_size, config.intermediate_size, rngs=rngs)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size, rngs=rngs)
        self.activation = config.hidden_act

    def __call__(self, x: Float[Array, "b n c"]) -> Float[Array, "b n c"]:
        return self.fc2(ACTIVATIONS[self.activation](self.fc1(x)))
