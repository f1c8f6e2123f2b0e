"""The shape of a T2I-Adapter, in the words of diffusers' `config.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from plugins.diffusion.networks import json_config
from plugins.diffusion.networks.json_config import positive
from plugins.diffusion.networks.unet_config import UNetConfig

ARCHITECTURE = "T2IAdapter"
FULL, LIGHT, XL = TYPES = ("full_adapter", "light_adapter", "full_adapter_xl")


class LevelShape(NamedTuple):
    """One level: its input's width, its own, whether it halves the resolution, and then pixels per pixel."""

    inputs: int
    outputs: int
    halves: bool
    stride: int


@dataclasses.dataclass(frozen=True)
class T2IAdapterConfig:
    """Architecture of an adapter. Raises ValueError in one line where the fields do not fit.

    Attributes:
      in_channels: of the picture: 3, or 1 for the sketch and canny adapters, which read the first channel alone.
      channels: width of each level, finest first; in a light adapter without the last level, which is as wide as the
        one before.
      num_res_blocks: residual blocks of a level.
      downscale_factor: pixels of the picture per latent pixel and side.
      adapter_type: one of `TYPES`.
    """

    in_channels: int = 3
    channels: Sequence[int] = (320, 640, 1280, 1280)
    num_res_blocks: int = 2
    downscale_factor: int = 8
    adapter_type: str = FULL

    def __post_init__(self):
        json_config.freeze_lists(self)
        widths = self.channels if isinstance(self.channels, tuple) and positive(self.channels) else ()
        rules = [
            (self.in_channels in (1, 3), "in_channels is 1 or 3"),
            (bool(widths), "channels are positive"),
            (positive(self.num_res_blocks), "num_res_blocks is positive"),
            (positive(self.downscale_factor), "downscale_factor is positive"),
            (self.adapter_type in TYPES, f"adapter_type is {' or '.join(TYPES)}"),
            (self.adapter_type != LIGHT or not any(c % 4 for c in widths), "4 divides the channels of a light adapter"),
            (
                self.adapter_type != XL or len({*widths[2:]}) < 2,
                "channels of an XL adapter are equal from the third on",
            ),
        ]
        json_config.check(self, rules)

    @property
    def unshuffled(self) -> int:
        """Channels of the picture once blocks of pixels have become channels."""
        return self.in_channels * self.downscale_factor**2

    @property
    def levels(self) -> tuple[LevelShape, ...]:
        """A full adapter begins with a convolution to its first width, a light one with its first level."""
        light, xl = self.adapter_type == LIGHT, self.adapter_type == XL
        outputs = (*self.channels, self.channels[-1]) if light else tuple(self.channels)
        inputs = (self.unshuffled if light else outputs[0], *outputs[:-1])
        stride, shapes = self.downscale_factor, []
        for i, (before, width) in enumerate(zip(inputs, outputs, strict=True)):
            halves = i == 2 if xl else i > 0
            stride *= 2 if halves else 1
            shapes.append(LevelShape(before, width, halves, stride))
        return tuple(shapes)

    @classmethod
    def sd15(cls) -> T2IAdapterConfig:
        """For Stable Diffusion 1.x: 77,369,280 parameters."""
        return cls()

    @classmethod
    def sd15_light(cls) -> T2IAdapterConfig:
        """The small one, published for colour: 18,689,200 parameters."""
        return cls(channels=(320, 640, 1280), num_res_blocks=4, adapter_type=LIGHT)

    @classmethod
    def for_unet(cls, unet: UNetConfig, reduction: int = 8, adapter_type: str = FULL) -> T2IAdapterConfig:
        """For that UNet, with `reduction` pixels per latent pixel. Raises ValueError if none of that type fits."""
        widths = tuple(unet.block_out_channels)
        if adapter_type != LIGHT:
            return cls(channels=widths, downscale_factor=reduction, adapter_type=adapter_type)
        if len(widths) < 2 or widths[-1] != widths[-2]:
            raise ValueError(
                f"a light adapter's last two levels are equally wide, the UNet's are {widths}; take {FULL}"
            )
        return cls(channels=widths[:-1], num_res_blocks=4, downscale_factor=reduction, adapter_type=LIGHT)

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> T2IAdapterConfig:
        """From diffusers' `config.json`. Raises ValueError for another architecture."""
        return json_config.read(cls, mapping, ARCHITECTURE, {})

    def to_json(self) -> dict[str, Any]:
        """As diffusers' `config.json`."""
        return json_config.write(self, ARCHITECTURE, {})
