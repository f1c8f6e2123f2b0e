"""Images as a published vision tower takes them, as its `preprocessor_config.json` says.

    uint8 h w 3  ->  shorter side to `size` (CLIP), or both sides (SigLIP, ViT)  ->  middle square  ->  (x - mean) / std

Resizing is Pillow's on bytes, as in transformers' image processors that use Pillow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from common.io.tensor_files import read_json

FILE = "preprocessor_config.json"
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)


@dataclasses.dataclass(frozen=True)
class ImagePreparation:
    """`size` is the side of the result, in pixels."""

    size: int
    crop: bool = True  # resize the shorter side and crop the middle; False: resize both sides
    mean: tuple[float, ...] = CLIP_MEAN  # of values in [0, 1]
    std: tuple[float, ...] = CLIP_STD
    resample: int = Image.Resampling.BICUBIC.value  # Pillow's number

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], size: int) -> ImagePreparation:
        """Of a `preprocessor_config.json`, for a tower of images of side `size`. Raises ValueError for another side,
        and for options that are not supported."""
        for switch in ("do_resize", "do_rescale", "do_normalize"):
            if fields.get(switch, True) is not True:
                raise ValueError(f"{switch} is {fields[switch]!r}: only true is supported")
        if not np.isclose(factor := fields.get("rescale_factor", 1 / 255), 1 / 255):
            raise ValueError(f"rescale_factor is {factor!r}: only 1/255 is supported")
        crop = bool(fields.get("do_center_crop", False))
        for name in ("size", "crop_size") if crop else ("size",):
            sides = fields.get(name, size)
            sides = {"side": sides} if isinstance(sides, int) else dict(sides)
            if set(sides.values()) != {size}:
                raise ValueError(f"{name} is {fields[name]!r}: the tower takes images of side {size}, and no others")
        mean, std = (tuple(map(float, fields.get(f"image_{name}", HALF))) for name in ("mean", "std"))
        return cls(size, crop, mean, std, int(fields.get("resample", 3)))

    @classmethod
    def of_folder(cls, folder: Path, size: int, default: ImagePreparation) -> ImagePreparation:
        """From the file in a model's folder; without one, `default`."""
        path = folder / FILE
        return cls.from_json(read_json(path), size) if path.is_file() else default

    def resized(self, image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "s s 3"]:
        """The bytes before they are normalised."""
        height, width = image.shape[:2]
        if not self.crop:
            target = self.size, self.size
        else:
            longer = int(self.size * max(height, width) / min(height, width))
            target = (self.size, longer) if width <= height else (longer, self.size)
        picture = Image.fromarray(image).resize(target, Image.Resampling(self.resample))
        left, top = (picture.width - self.size) // 2, (picture.height - self.size) // 2
        return np.asarray(picture.crop((left, top, left + self.size, top + self.size)))

    def normalised(self, image: UInt8[np.ndarray, "*b s s 3"]) -> Float[np.ndarray, "*b s s 3"]:
        scaled = image.astype(np.float32) / np.float32(255)
        return (scaled - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
