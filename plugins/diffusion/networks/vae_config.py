"""The shape of the autoencoder, in the words of diffusers' `config.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from plugins.diffusion.networks import json_config
from plugins.diffusion.networks.json_config import positive

ARCHITECTURE = "AutoencoderKL"
DOWN_TYPE, UP_TYPE = "DownEncoderBlock2D", "UpDecoderBlock2D"
FIXED: dict[str, tuple] = {
    "act_fn": ("silu", "swish"),
    "latents_mean": (None,),
    "latents_std": (None,),
    "mid_block_add_attention": (True,),
    "use_post_quant_conv": (True,),
    "use_quant_conv": (True,),
}


@dataclasses.dataclass(frozen=True)
class VAEConfig:
    """Architecture of an autoencoder; the fields are diffusers' options. Raises ValueError where they do not fit.

    Attributes:
      in_channels, out_channels: of pictures.
      latent_channels: of latents.
      block_out_channels: width of each level, finest first; one level more halves the latents' side once more.
      layers_per_block: residual blocks of an encoder level; a decoder level has one more.
      norm_num_groups: groups of every GroupNorm.
      sample_size: side of the pictures it was trained on.
      scaling_factor, shift_factor: scaled latents = (latents - shift) * scaling.
    """

    in_channels: int = 3
    out_channels: int = 3
    latent_channels: int = 4
    block_out_channels: Sequence[int] = (128, 256, 512, 512)
    layers_per_block: int = 2
    norm_num_groups: int = 32
    sample_size: int = 512
    scaling_factor: int | float = 0.18215
    shift_factor: int | float | None = None

    def __post_init__(self):
        json_config.freeze_lists(self)
        numbers = ("in_channels", "out_channels", "latent_channels", "block_out_channels", "layers_per_block")
        numbers += ("norm_num_groups", "sample_size")
        several = ("block_out_channels",)
        rules = [(positive(getattr(self, name), name in several), f"{name} is positive, and whole") for name in numbers]
        json_config.check(self, [*rules, (self.scaling_factor > 0, "scaling_factor is positive")])
        fits = all(c % self.norm_num_groups == 0 for c in self.block_out_channels)
        json_config.check(self, [(fits, "norm_num_groups divides block_out_channels")])

    @classmethod
    def sd(cls) -> VAEConfig:
        """Stable Diffusion 1.x and 2.x: 83,653,863 parameters."""
        return cls()

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> VAEConfig:
        """From diffusers' `config.json`. Raises ValueError for a network that is not built here."""
        for key, supported in (("down_block_types", DOWN_TYPE), ("up_block_types", UP_TYPE)):
            for found in mapping.get(key, ()):
                if found != supported:
                    raise ValueError(f"{key} has {found!r}: there is no such network here; supported is {supported!r}")
        return json_config.read(cls, mapping, ARCHITECTURE, FIXED)

    def to_json(self) -> dict[str, Any]:
        """As diffusers' `config.json`."""
        levels = len(self.block_out_channels)
        types = {"down_block_types": [DOWN_TYPE] * levels, "up_block_types": [UP_TYPE] * levels}
        return json_config.write(self, ARCHITECTURE, FIXED) | types

    @property
    def reduction(self) -> int:
        """Pixels of the picture per latent pixel and side: 8 for four levels."""
        return 2 ** (len(self.block_out_channels) - 1)
