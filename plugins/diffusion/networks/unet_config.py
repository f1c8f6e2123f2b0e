"""Architecture of a denoising UNet in diffusers' options, and the shapes of the tensors that controls add to it."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal

from common.checked import OneOrMore, Positive, one_of
from common.nn.json_config import JsonConfig, Layers

DOWN_TYPES = ("CrossAttnDownBlock2D", "DownBlock2D")  # with a transformer after each residual block, and without
UP_TYPES = ("CrossAttnUpBlock2D", "UpBlock2D")
DownType = Annotated[str, one_of(DOWN_TYPES)]
UpType = Annotated[str, one_of(UP_TYPES)]
MID_TYPE = "UNetMidBlock2DCrossAttn"
TEXT_TIME = "text_time"  # SDXL's addition to the time embedding
NONE = ["class_embed_type", "cross_attention_norm", "encoder_hid_dim", "encoder_hid_dim_type"]
NONE += ["num_attention_heads", "num_class_embeds", "reverse_transformer_layers_per_block"]
NONE += ["time_embedding_act_fn", "time_embedding_dim", "timestep_post_act"]
FALSE = ["center_input_sample", "class_embeddings_concat", "dual_cross_attention", "only_cross_attention"]
FALSE += ["resnet_skip_time_act"]
# Options of other networks, with their supported values.
FIXED: dict[str, tuple] = dict.fromkeys(NONE, (None,)) | dict.fromkeys(FALSE, (False,))
FIXED |= {
    "act_fn": ("silu", "swish"),
    "attention_type": ("default",),
    "conv_in_kernel": (3,),
    "conv_out_kernel": (3,),
    "downsample_padding": (1,),
    "mid_block_only_cross_attention": (None, False),
    "mid_block_scale_factor": (1,),
    "resnet_out_scale_factor": (1,),
    "resnet_time_scale_shift": ("default",),
    "time_embedding_type": ("positional",),
}
Shape = tuple[int, int, int]  # h, w, c


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(JsonConfig):
    """What a UNet and a copy of its encoder (ControlNet) share. Raises ValueError for values that do not fit."""

    in_channels: Positive = 4  # of the noisy latents, and of what is beside them (an image, a mask and a masked image)
    block_out_channels: OneOrMore[Positive] = (320, 640, 1280, 1280)  # width of each level, finest first
    down_block_types: Sequence[DownType] = (*3 * DOWN_TYPES[:1], DOWN_TYPES[1])  # per level, in order of computation
    layers_per_block: Layers = 2  # residual blocks of a level in the down path; the up path has one more
    cross_attention_dim: Positive = 768  # width of the text states
    attention_head_dim: Positive | OneOrMore[Positive] = 8  # NUMBER OF HEADS, of all levels or each; misnamed in files
    norm_num_groups: Positive = 32  # groups of every GroupNorm
    norm_eps: float = 1e-5  # epsilon of the residual blocks' norms; the transformers' is always 1e-6
    use_linear_projection: bool = False  # transformers begin and end with a linear map (2.x), or a 1x1 convolution
    transformer_layers_per_block: Layers | OneOrMore[Layers] = 1  # depth of each transformer, of all levels or each
    flip_sin_to_cos: bool = True  # this and the next: see `unet.sinusoid`
    freq_shift: int | float = 0
    addition_embed_type: Literal["text_time", None] = None  # SDXL: pooled text and sizes enter with the time
    addition_time_embed_dim: Positive | None = None  # SDXL: width of the sinusoid of each size
    projection_class_embeddings_input_dim: Positive | None = None  # SDXL: width of pooled text and all sizes' sinusoids

    def rules(self):
        widths, heads = self.block_out_channels, self.heads
        yield len(self.down_block_types) == len(widths), "down_block_types has an entry per level"
        yield len(heads) == len(widths), "attention_head_dim has an entry per level"
        yield len(self.depths) == len(widths), "transformer_layers_per_block has an entry per level"
        added = (self.addition_time_embed_dim, self.projection_class_embeddings_input_dim)
        rule = "addition_time_embed_dim and projection_class_embeddings_input_dim go with addition_embed_type"
        yield self.addition_embed_type is None or None not in added, rule
        yield all(c % self.norm_num_groups == 0 for c in widths), "norm_num_groups divides block_out_channels"
        divide = all(c % n == 0 for c, n in zip(widths, heads, strict=False))
        yield divide, "the attention_head_dim, numbers of heads, divide block_out_channels"
        yield widths[0] % 2 == 0, "the first of block_out_channels is even"

    @property
    def levels(self) -> int:
        return len(self.block_out_channels)

    @property
    def time_width(self) -> int:
        """Width of the time embedding."""
        return 4 * self.block_out_channels[0]

    @property
    def heads(self) -> tuple[int, ...]:
        """Heads of each level."""
        heads = self.attention_head_dim
        return (heads,) * self.levels if isinstance(heads, int) else tuple(heads)

    @property
    def depths(self) -> tuple[int, ...]:
        """Blocks of a transformer of each level."""
        depths = self.transformer_layers_per_block
        return (depths,) * self.levels if isinstance(depths, int) else tuple(depths)

    def level_shapes(self, h: int, w: int) -> list[Shape]:
        """h, w, c at the end of each down level, before its downsampler: the shapes of `level_features`."""
        sizes = [(h, w)]
        for _ in range(self.levels - 1):
            sizes.append((-(-sizes[-1][0] // 2), -(-sizes[-1][1] // 2)))
        return [(*size, width) for size, width in zip(sizes, self.block_out_channels, strict=True)]

    def takes_after(self, level: int) -> bool:
        """Whether adapters may add that level's feature after its downsampler: no transformers, and not the last."""
        return self.down_block_types[level] == DOWN_TYPES[1] and level < self.levels - 1

    def skip_shapes(self, h: int, w: int) -> list[Shape]:
        """h, w, c of the skips in the order of the down path: the shapes of `skip_residuals`."""
        levels = self.level_shapes(h, w)
        shapes = [(h, w, self.block_out_channels[0])]
        for level, (shape, below) in enumerate(zip(levels, [*levels[1:], levels[-1]], strict=True)):
            shapes += [shape] * self.layers_per_block
            shapes += [(*below[:2], shape[2])] if level < self.levels - 1 else []
        return shapes


@dataclasses.dataclass(frozen=True, kw_only=True)
class UNetConfig(EncoderConfig):
    """Architecture of a UNet in diffusers' options."""

    sample_size: Positive = 64  # side of the training latents, in latent pixels; other sizes run too
    out_channels: Positive = 4  # of the prediction
    up_block_types: Sequence[UpType] = (UP_TYPES[1], *3 * UP_TYPES[:1])  # per level, in order of computation
    mid_block_type: Literal["UNetMidBlock2DCrossAttn", None] = MID_TYPE  # None: up directly after down
    time_cond_proj_dim: Positive | None = None  # LCM: width of the sinusoid of the guidance scale

    architecture, fixed = "UNet2DConditionModel", FIXED

    def rules(self):
        yield from super().rules()
        yield len(self.up_block_types) == self.levels, "up_block_types has an entry per level"

    @classmethod
    def sd15(cls) -> "UNetConfig":
        """Stable Diffusion 1.1 to 1.5: 859,520,964 parameters."""
        return cls()

    @classmethod
    def sd21(cls) -> "UNetConfig":
        """Stable Diffusion 2.0 and 2.1 at 768 pixels (the base networks differ in `sample_size` 64 alone)."""
        heads = (5, 10, 20, 20)
        return cls(sample_size=96, cross_attention_dim=1024, attention_head_dim=heads, use_linear_projection=True)

    @classmethod
    def sdxl(cls) -> "UNetConfig":
        """SDXL's base: 2,567,463,684 parameters."""
        return cls(
            sample_size=128, block_out_channels=(320, 640, 1280), down_block_types=(DOWN_TYPES[1], *2 * DOWN_TYPES[:1]),
            up_block_types=(*2 * UP_TYPES[:1], UP_TYPES[1]), cross_attention_dim=2048, attention_head_dim=(5, 10, 20),
            use_linear_projection=True, transformer_layers_per_block=(1, 2, 10), addition_embed_type=TEXT_TIME,
            addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816,
        )  # fmt: skip

    @classmethod
    def sdxl_refiner(cls) -> "UNetConfig":
        """SDXL's refiner."""
        return cls(
            sample_size=128, block_out_channels=(384, 768, 1536, 1536),
            down_block_types=(DOWN_TYPES[1], *2 * DOWN_TYPES[:1], DOWN_TYPES[1]),
            up_block_types=(UP_TYPES[1], *2 * UP_TYPES[:1], UP_TYPES[1]), cross_attention_dim=1280,
            attention_head_dim=(6, 12, 24, 24), use_linear_projection=True, transformer_layers_per_block=4,
            addition_embed_type=TEXT_TIME, addition_time_embed_dim=256, projection_class_embeddings_input_dim=2560,
        )  # fmt: skip
