"""IP-Adapter: a picture as part of the prompt (Ye et al., 2308.06721).

    adapter = load_ip_adapter("models/ip-adapter_sd15.safetensors")       # its vision tower lies beside it
    images = pipeline("best quality", controls=[adapter.on(picture, strength=0.6)])

CLIP's vision tower reads the picture, a small network makes m tokens of that, as wide as text states, and every
cross-attention of the UNet, with the text's queries q, gets keys and values for them (section 3.2):

    attn2 = to_out(attend(q, K, V) + strength * attend(q, K', V'))        K' = tokens @ to_k_ip,  V' = tokens @ to_v_ip

| form | tokens | made of | by |
| --- | ---: | --- | --- |
| base | 4 | the image embedding, `b e` | a linear map and a layer norm |
| plus | 16 | the tower's states before its last layer, `b n c` | a resampler: learned queries attend to them |

The row of the negative prompt has the tokens of an embedding of zeros (base), or of a picture of zeros (plus). K' and
V' are computed once per picture; the sum is made by a tap (`unet_blocks.py`).

A file holds `image_proj.*` and, for the i-th cross-attention in the order down, up, middle, `ip_adapter.{2i+1}.to_k_ip`
and `to_v_ip`. The tower is a folder of transformers' CLIPVisionModelWithProjection. FaceID and the "full face" form
read other networks and are refused by name.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from common.io.image_preparation import ImagePreparation
from common.io.tensor_files import TensorFiles, about
from common.io.torch_file import read_torch
from common.nn.attention import attend
from common.nn.layers import LayerNorm, Linear
from common.nn.vision_transformer import ImageEncoder
from common.weights.torch_names import fill
from common.weights.two_tower_files import load_image_encoder
from plugins.control.contract import check_count, check_settings, encoded_for
from plugins.diffusion.io.porting import Origin, Renamed
from plugins.diffusion.networks.unet_config import DOWN_TYPES, UP_TYPES, UNetConfig
from plugins.diffusion.request import check_images
from plugins.diffusion.samplers import Step
from plugins.diffusion.steering import COND, SOURCE, Effect, Rows

HEAD = 64  # channels of a resampler's head
TOKENS = 4  # of the base form
ENCODER = "image_encoder"  # the tower's folder beside the file
REFUSED = {
    r"perceiver_resampler\.": "FaceID Plus, which reads a face recognition network",
    r"proj\.3\.": "the full-face form",
    r"proj\.2\.": "FaceID, which reads a face recognition network",
}


@dataclasses.dataclass(frozen=True)
class IPAdapterConfig:
    """Architecture, as read from a file's shapes."""

    source: int  # width of the image embedding (base), or of the tower's states (plus)
    context: int  # width of text states
    tokens: int  # for a picture
    widths: tuple[int, ...]  # of the UNet's cross-attentions, in the file's order
    hidden: int | None = None  # width of the resampler; None: the base form
    depth: int = 0  # layers of the resampler


class ImageProjection(nnx.Module):
    """The projection of the base form: an image embedding to tokens."""

    def __init__(self, config: IPAdapterConfig, *, rngs: nnx.Rngs):
        self.tokens = config.tokens
        self.proj = Linear(config.source, config.tokens * config.context, rngs=rngs)
        self.norm = LayerNorm(config.context)

    def __call__(self, embedding: Float[Array, "b e"]) -> Float[Array, "b m d"]:
        return self.norm(self.proj(embedding).reshape(len(embedding), self.tokens, -1))


class PerceiverAttention(nnx.Module):
    """Latents attend to the states and to themselves (Jaegle et al., 2021, as in Flamingo)."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.to_q = Linear(width, width, bias=False, rngs=rngs)
        self.to_kv = Linear(width, 2 * width, bias=False, rngs=rngs)
        self.to_out = Linear(width, width, bias=False, rngs=rngs)

    def __call__(self, x: Float[Array, "b n c"], latents: Float[Array, "b m c"]) -> Float[Array, "b m c"]:
        latents = self.norm2(latents)
        k, v = jnp.split(self.to_kv(jnp.concatenate([self.norm1(x), latents], 1)), 2, axis=-1)
        out = attend(*(a.reshape(*a.shape[:2], -1, HEAD) for a in (self.to_q(latents), k, v)))
        return self.to_out(out.reshape(latents.shape))


class Resampler(nnx.Module):
    """The projection of the plus form: states of the tower to as many tokens as there are `latents`."""

    def __init__(self, config: IPAdapterConfig, *, rngs: nnx.Rngs):
        assert config.hidden is not None, "the base form has no resampler"
        width = config.hidden
        self.latents = nnx.Param(jax.random.normal(rngs.params(), (1, config.tokens, width)) / np.sqrt(width))
        self.proj_in = Linear(config.source, width, rngs=rngs)
        self.layers = nnx.List([])
        for _ in range(config.depth):
            wide, narrow = (Linear(*s, bias=False, rngs=rngs) for s in ((width, 4 * width), (4 * width, width)))
            feed_forward = nnx.List([LayerNorm(width), wide, narrow])
            self.layers.append(nnx.List([PerceiverAttention(width, rngs=rngs), feed_forward]))
        self.proj_out = Linear(width, config.context, rngs=rngs)
        self.norm_out = LayerNorm(config.context)

    def __call__(self, states: Float[Array, "b n c"]) -> Float[Array, "b m d"]:
        x = self.proj_in(states)
        latents = jnp.broadcast_to(self.latents[...].astype(x.dtype), (len(x), *self.latents.shape[1:]))
        for attention, (norm, wide, narrow) in self.layers:
            latents = latents + attention(x, latents)
            latents = latents + narrow(jax.nn.gelu(wide(norm(latents)), approximate=False))
        return self.norm_out(self.proj_out(latents))


class KeysAndValues(nnx.Module):
    """Keys and values of the tokens, for one cross-attention."""

    def __init__(self, context: int, width: int, *, rngs: nnx.Rngs):
        self.to_k_ip = Linear(context, width, bias=False, rngs=rngs)
        self.to_v_ip = Linear(context, width, bias=False, rngs=rngs)


class AdapterWeights(nnx.Module):
    """All that an IP-Adapter's file holds."""

    def __init__(self, config: IPAdapterConfig, *, rngs: nnx.Rngs):
        self.image_proj = (ImageProjection if config.hidden is None else Resampler)(config, rngs=rngs)
        self.ip_adapter = nnx.List([KeysAndValues(config.context, width, rngs=rngs) for width in config.widths])


class IPAdapter(nnx.Module):
    """An adapter with its vision tower. Raises ValueError if the two do not fit."""

    def __init__(
        self, config: IPAdapterConfig, weights: AdapterWeights, tower: ImageEncoder, prepare: ImagePreparation
    ):
        vision = tower.vision_model.config
        found = vision.projection_dim if config.hidden is None else vision.hidden_size
        if found != config.source:
            wrong = f"the adapter reads a width of {config.source}, the image encoder's is {found}"
            raise ValueError(f"{wrong}; give the image encoder that the adapter was trained with")
        self.config, self.weights, self.tower, self.prepare = config, weights, tower, prepare

    def encode(self, pictures: Float[Array, "b s s 3"]) -> list[tuple[Float[Array, "_ m c"], Float[Array, "_ m c"]]]:
        """Keys and values of each cross-attention, for `b` normalised pictures and behind them the negative row."""
        if self.config.hidden is None:
            embedding, _ = self.tower(pictures)
            source = jnp.concatenate([embedding, jnp.zeros_like(embedding[:1])])
        else:
            _, states = self.tower(jnp.concatenate([pictures, jnp.zeros_like(pictures[:1])]))
            source = states.hidden[-2]
        tokens = self.weights.image_proj(source)
        return [(layer.to_k_ip(tokens), layer.to_v_ip(tokens)) for layer in self.weights.ip_adapter]

    def on(
        self, picture: Any, *, strength: int | float = 1.0, steps: Sequence[int | float] = (0.0, 1.0)
    ) -> "ImagePrompt":
        """This adapter with a picture of any size in [0, 1], `h w 3` for all outputs or `b h w 3`, one each. Raises
        ValueError."""
        pictures = np.round(255 * check_images(picture)).astype(np.uint8)
        prepared = np.stack([self.prepare.normalised(self.prepare.resized(picture)) for picture in pictures])
        return ImagePrompt(self, prepared, float(strength), tuple(map(float, steps)))


@dataclasses.dataclass(frozen=True, eq=False)
class ImagePrompt:
    """An IP-Adapter with its picture and settings; made by `adapter.on(...)`. A control of a pipeline."""

    adapter: IPAdapter
    prepared: Float[np.ndarray, "b s s 3"]
    strength: float
    steps: tuple[float, ...]
    _cache: dict[str, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    has_source: ClassVar[bool] = False
    picture: ClassVar[None] = None  # its picture's size is not the output's

    def __post_init__(self):
        check_settings(self.strength, (), self.steps, 0)

    def check(self, base: Any, request: Any) -> None:
        """Raises ValueError unless it fits the base and the request."""
        config, unet = self.adapter.config, base.unet
        widths = tuple(width for _, width, _ in cross_attentions(unet))
        if (config.context, config.widths) != (unet.cross_attention_dim, widths):
            found = f"text states of {config.context} and {len(config.widths)} cross-attentions"
            own = f"{unet.cross_attention_dim} and {len(widths)}"
            own += " of other widths" * (len(widths) == len(config.widths))
            raise ValueError(f"this IP-Adapter has {found}, the base {own}; use one made for this base")
        check_count("image prompts", self.prepared, request)

    def prepare(self, run: Any, indices: np.ndarray) -> "tuple[CrossAttention, Arrays]":
        """For these images of a run: the static and the array arguments of its compiled function."""
        encoded = encoded_for(run, self._cache, self.adapter, self.prepared, indices)
        layers = tuple((name, heads) for name, _, heads in cross_attentions(run.pipeline.base.unet))
        return CrossAttention(layers), Arrays(encoded, jnp.float32(self.strength), *map(jnp.float32, self.steps))


class Arrays(NamedTuple):
    """What may change without a new compilation."""

    encoded: list[tuple[Array, Array]]  # `IPAdapter.encode`'s
    strength: Float[Array, ""]
    start: Float[Array, ""]
    end: Float[Array, ""]


class CrossAttention(NamedTuple):
    """An image prompt's effect on a call of the UNet (`steering.StaticControl`)."""

    layers: tuple[tuple[str, int], ...]  # name and heads of each cross-attention

    def source(self, arrays: Arrays, step: Step) -> None:
        return None

    def effect(self, arrays: Arrays, rows: Rows) -> Effect:
        active = rows.step.within(arrays.start, arrays.end)
        gains = jnp.array([branch != SOURCE for branch in rows.branches]) * jnp.where(active, arrays.strength, 0)
        known = {name: (i, heads) for i, (name, heads) in enumerate(self.layers)}
        queries: dict[str, Array] = {}

        def of_rows(encoded: Float[Array, "_ m c"]) -> Float[Array, "br m c"]:
            own, negative = encoded[:-1], encoded[-1:]
            shape = (rows.x.shape[0], *encoded.shape[1:])
            of_branch = [jnp.broadcast_to(own if branch == COND else negative, shape) for branch in rows.branches]
            return jnp.stack(of_branch, 1).reshape(-1, *shape[1:])

        def tap(name: str, value: Array) -> Array:
            layer, _, end = name.rpartition(".")
            if layer in known and end == "to_q":
                queries[layer] = value
            if layer not in known or end != "attended":
                return value
            i, heads = known[layer]
            inputs = (queries.pop(layer), *map(of_rows, arrays.encoded[i]))
            q, k, v = (a.reshape(*a.shape[:2], heads, -1) for a in inputs)
            extra = attend(q, k.astype(q.dtype), v.astype(q.dtype))
            extra = extra.reshape(len(rows.x), len(gains), -1, value.shape[-1])
            return value + (gains.astype(q.dtype)[:, None, None] * extra).reshape(value.shape)

        return Effect(tap=tap)


def cross_attentions(unet: UNetConfig) -> list[tuple[str, int, int]]:
    """Name, width and heads of each cross-attention, in the order of an IP-Adapter's file."""
    width, heads, depths = unet.block_out_channels, unet.heads, unet.depths
    downs, ups = enumerate(unet.down_block_types), enumerate(unet.up_block_types)
    blocks = [(f"down_blocks.{i}", i, unet.layers_per_block * (kind == DOWN_TYPES[0])) for i, kind in downs]
    more = unet.layers_per_block + 1
    blocks += [(f"up_blocks.{i}", unet.levels - 1 - i, more * (kind == UP_TYPES[0])) for i, kind in ups]
    blocks += [("mid_block", unet.levels - 1, int(unet.mid_block_type is not None))]
    return [
        (f"{block}.attentions.{i}.transformer_blocks.{depth}.attn2", width[level], heads[level])
        for block, level, count in blocks
        for i in range(count)
        for depth in range(depths[level])
    ]


def load_ip_adapter(path: str | Path, image_encoder: str | Path | None = None, dtype: Any = jnp.float32) -> IPAdapter:
    """Reads its file (.safetensors, or .bin by the restricted reader) and its tower's folder; None: `image_encoder/`
    beside the file. Raises FileNotFoundError, and ValueError for other files, or a tower of another adapter."""
    path = Path(path)
    pickled = path.suffix.lower() == ".bin"
    stored: Any = read_torch(path) if pickled else TensorFiles(path)
    shapes = {key: stored[key].shape if pickled else stored.shape(key) for key in stored}
    with about(path):
        config = infer_config(shapes)
        weights = fill(AdapterWeights, config, Renamed(stored, {_name(key): Origin(key) for key in stored}), dtype)
    folder = path.parent / ENCODER if image_encoder is None else Path(image_encoder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no image encoder of {path}; give its folder (--image-encoder)")
    tower = load_image_encoder(folder, dtype)
    size = tower.vision_model.config.image_size
    with about(folder):
        return IPAdapter(config, weights, tower, ImagePreparation.of_folder(folder, size, ImagePreparation(size)))


def infer_config(shapes: Mapping[str, tuple[int, ...]]) -> IPAdapterConfig:
    """The architecture from the shapes of a file's tensors. Raises ValueError for another kind of file."""
    for pattern, kind in REFUSED.items():
        if any(re.match(rf"image_proj\.{pattern}", key) for key in shapes):
            raise ValueError(f"this is {kind}; supported are the base and the plus form of IP-Adapter")
    keys = sorted((int(m[1]), key) for key in shapes if (m := re.fullmatch(r"ip_adapter\.(\d+)\.to_k_ip\.weight", key)))
    plus, simple = "image_proj.latents" in shapes, "image_proj.proj.weight" in shapes
    if not keys or plus == simple:
        heads = ", ".join(sorted({".".join(key.split(".")[:2]) for key in shapes})[:4])
        raise ValueError(f"expected an IP-Adapter, image_proj.* and ip_adapter.*, found tensors {heads}; name another")
    context, widths = shapes[keys[0][1]][1], tuple(shapes[key][0] for _, key in keys)
    if simple:
        return IPAdapterConfig(shapes["image_proj.proj.weight"][1], context, TOKENS, widths)
    depth = len({match[1] for key in shapes if (match := re.match(r"image_proj\.layers\.(\d+)\.", key))})
    _, tokens, hidden = shapes["image_proj.latents"]
    return IPAdapterConfig(shapes["image_proj.proj_in.weight"][1], context, tokens, widths, hidden, depth)


def _name(key: str) -> str:
    """A file's name as our modules': cross-attentions count 0, 1, 2, and GELU, without weights, has no number."""
    key = re.sub(r"^ip_adapter\.(\d+)\.", lambda match: f"ip_adapter.{int(match[1]) // 2}.", key)
    return re.sub(r"^(image_proj\.layers\.\d+\.1)\.3\.", r"\1.2.", key)
