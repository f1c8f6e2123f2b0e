"""The shape of a MediaPipe plugin, and what is written beside its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from plugins.diffusion.networks import json_config
from plugins.diffusion.networks.json_config import positive
from plugins.diffusion.networks.unet_config import UNetConfig

ARCHITECTURE = "MediaPipePlugin"
SMALL = 128  # width of a UNet's level


@dataclasses.dataclass(frozen=True)
class MediaPipeConfig:
    """Architecture of a plugin. Raises ValueError in one line where the fields do not fit.

    Attributes:
      outputs: width of each level of the UNet, finest first (its `block_out_channels`).
      reduction: pixels of the picture per latent pixel and side: a power of 2; 8 for Stable Diffusion, 1 where it all
        runs on pixels.
      stem: width of the first convolution.
      approach: widths on the way from there to the latents' resolution, one for each further halving.
      widths, depths: width of each level, and how many bottlenecks it has.
      expansion: how much wider a bottleneck is inside.
      groups: of every GroupNorm.
      channels: of the picture.
    """

    outputs: Sequence[int] = (320, 640, 1280, 1280)
    reduction: int = 8
    stem: int = 16
    approach: Sequence[int] = (24,)
    widths: Sequence[int] = (48, 96, 160, 320)
    depths: Sequence[int] = (3, 4, 6, 3)
    expansion: int = 6
    groups: int = 8
    channels: int = 3

    def __post_init__(self):
        json_config.freeze_lists(self)
        power = positive(self.reduction) and self.reduction & (self.reduction - 1) == 0
        rules = [
            (power, "reduction is 1, 2, 4, 8, ..."),
            (not power or len(self.approach) == max(0, self.halvings - 2), "approach has an entry per halving but two"),
            (len(self.outputs) == len(self.widths) == len(self.depths), "outputs, widths, depths: an entry per level"),
            (all(positive(values) for values in (self.outputs, self.widths, self.depths)), "they are positive"),
            (positive(self.expansion) and positive(self.channels), "expansion and channels are positive"),
            (positive(self.groups) and not any(w % self.groups for w in self.all_widths), "groups divides all widths"),
        ]
        json_config.check(self, rules)

    @property
    def halvings(self) -> int:
        """From the picture to the latents: the stem's, the first level's, and the approach's between them."""
        return self.reduction.bit_length() - 1

    @property
    def all_widths(self) -> tuple[int, ...]:
        return (self.stem, *self.approach, *self.widths)

    @classmethod
    def sd15(cls) -> MediaPipeConfig:
        """For Stable Diffusion 1.x at any size; the article's 6 M parameters."""
        return cls()

    @classmethod
    def for_unet(cls, unet: UNetConfig, reduction: int) -> MediaPipeConfig:
        """A plugin as large, compared with that UNet, as the article's is; for small UNets a larger part of it."""
        if tuple(unet.block_out_channels) == tuple(cls().outputs) and reduction == cls().reduction:
            return cls()
        widths = tuple(max(16, (c // 2 if c <= SMALL else c // 6) // 8 * 8) for c in unet.block_out_channels)
        approach = (24,) * max(0, reduction.bit_length() - 3)
        depths = (2,) * len(widths)
        return cls(tuple(unet.block_out_channels), reduction, 16, approach, widths, depths, expansion=4)

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> MediaPipeConfig:
        """From a `config.json`. Raises ValueError for another architecture."""
        return json_config.read(cls, mapping, ARCHITECTURE, {})

    def to_json(self) -> dict[str, Any]:
        return json_config.write(self, ARCHITECTURE, {})
