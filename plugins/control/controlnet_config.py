"""The shape of a ControlNet, in the words of diffusers' `config.json`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from plugins.diffusion.networks import json_config, unet_config
from plugins.diffusion.networks.json_config import positive
from plugins.diffusion.networks.unet_config import DOWN_TYPES, UP_TYPES, UNetConfig

ARCHITECTURE = "ControlNetModel"
OPTIONS = (  # those of a UNet that this class has too; with any other value they are another network
    "act_fn",
    "addition_embed_type",
    "class_embed_type",
    "downsample_padding",
    "encoder_hid_dim",
    "encoder_hid_dim_type",
    "mid_block_scale_factor",
    "mid_block_type",
    "num_attention_heads",
    "num_class_embeds",
    "only_cross_attention",
    "resnet_time_scale_shift",
)
FIXED: dict[str, tuple] = {"conditioning_channels": (3,), **{key: unet_config.FIXED[key] for key in OPTIONS}}
HINTS = (16, 32, 96, 256)
ORDERS = ("rgb", "bgr")


@dataclasses.dataclass(frozen=True)
class ControlNetConfig:
    """Architecture of a ControlNet. Raises ValueError in one line where the fields do not fit.

    Attributes:
      in_channels ... freq_shift: as in `UNetConfig`, and those of the UNet that it steers.
      conditioning_embedding_out_channels: widths of the hint encoder, one for each resolution. The picture is halved
        between them: four widths are three halvings, 8 pixels per latent pixel, Stable Diffusion's.
      controlnet_conditioning_channel_order: "bgr" for a network that was trained on pictures as OpenCV reads them.
      global_pool_conditions: what is added is averaged over space, so that it says what, and not where (the "shuffle"
        networks). They were trained to act on the half with the prompt: give `prompt_only=True`.
    """

    in_channels: int = 4
    block_out_channels: Sequence[int] = (320, 640, 1280, 1280)
    down_block_types: Sequence[str] = (*3 * DOWN_TYPES[:1], DOWN_TYPES[1])
    layers_per_block: int = 2
    cross_attention_dim: int = 768
    attention_head_dim: int | Sequence[int] = 8
    norm_num_groups: int = 32
    norm_eps: float = 1e-5
    use_linear_projection: bool = False
    transformer_layers_per_block: int = 1
    flip_sin_to_cos: bool = True
    freq_shift: int | float = 0
    conditioning_embedding_out_channels: Sequence[int] = HINTS
    controlnet_conditioning_channel_order: str = "rgb"
    global_pool_conditions: bool = False

    def __post_init__(self):
        json_config.freeze_lists(self)
        hints, order = self.conditioning_embedding_out_channels, self.controlnet_conditioning_channel_order
        rules = [
            (isinstance(hints, tuple) and positive(hints), "conditioning_embedding_out_channels are positive"),
            (order in ORDERS, f"controlnet_conditioning_channel_order is {' or '.join(ORDERS)}"),
        ]
        json_config.check(self, rules)
        _ = self.encoder  # checks the rest

    @property
    def encoder(self) -> UNetConfig:
        """A UNet with this encoder."""
        ours = {field.name for field in dataclasses.fields(self)}
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(UNetConfig) if f.name in ours}
        up: dict[str, str] = dict(zip(DOWN_TYPES, UP_TYPES, strict=True))
        return UNetConfig(**shared, up_block_types=tuple(up.get(kind, kind) for kind in self.down_block_types[::-1]))

    @property
    def reduction(self) -> int:
        """Pixels of the picture per latent pixel and side."""
        return 2 ** (len(self.conditioning_embedding_out_channels) - 1)

    @property
    def skips(self) -> int:
        """How many there are on the UNet's way down."""
        return len(self.encoder.skip_shapes(1, 1))

    @classmethod
    def sd15(cls) -> ControlNetConfig:
        """For Stable Diffusion 1.x: 361,279,120 parameters."""
        return cls()

    @classmethod
    def for_unet(cls, unet: UNetConfig, reduction: int = 8) -> ControlNetConfig:
        """For that UNet, with `reduction` pixels per latent pixel: a power of 2. Raises ValueError for another."""
        halvings = math.log2(reduction) if reduction > 0 else -1
        if halvings < 0 or halvings != int(halvings):
            raise ValueError(f"reduction={reduction}: a hint encoder halves the picture; take 1, 2, 4, 8, ...")
        ours = {field.name for field in dataclasses.fields(cls)}
        shared = {f.name: getattr(unet, f.name) for f in dataclasses.fields(unet) if f.name in ours}
        hints = (HINTS + HINTS[-1:] * int(halvings))[: int(halvings) + 1]
        return cls(**shared, conditioning_embedding_out_channels=hints)

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> ControlNetConfig:
        """From diffusers' `config.json`. Raises ValueError for a network that is not built here."""
        return json_config.read(cls, mapping, ARCHITECTURE, FIXED)

    def to_json(self) -> dict[str, Any]:
        """As diffusers' `config.json`."""
        return json_config.write(self, ARCHITECTURE, FIXED)
