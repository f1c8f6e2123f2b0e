"""Image pyramids and the scale-agnostic feature pyramid (FILM, section "Feature Extraction").

One small U-Net encoder runs on *every* level of the image pyramid. Its stage `j`, started on image level `i`, lives
at resolution level `i + j`; all stages that live at the same resolution are stacked:

    feature level i = [stage 0 from image i | stage 1 from image i-1 | stage 2 from image i-2 | ...]

From level `sub_levels - 1` on, the stack has the same channels made by the same weights at every level: a large
motion at a fine level looks like a small one at a coarse level, so the flow predictor can be shared as well.
"""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from film.convolution import Conv, Stage, two_convs, whole
from film.resample import average_pool

Pyramid = list[Float[Array, "_b _h _w _c"]]  # batches of one frame set; each level has a size of its own


def image_pyramid(image: Float[Array, "b h w c"], levels: int) -> Pyramid:
    """`levels` images, finest first, each the 2x2 mean of the one before."""
    pyramid = [image]
    for _ in range(levels - 1):
        pyramid.append(average_pool(pyramid[-1]))
    return pyramid


def feature_channels(filters: int, sub_levels: int, level: int) -> int:
    """Channels of feature level `level`: the stages of all image levels that reach it."""
    return sum(filters << stage for stage in range(min(level + 1, sub_levels)))


class FeatureExtractor(nnx.Module):
    """The shared encoder: `sub_levels` stages of two 3x3 convolutions with `filters * 2**stage` channels."""

    def __init__(self, filters: int, sub_levels: int, *, rngs: nnx.Rngs):
        self.sub_levels = sub_levels
        self.convs = nnx.List([])
        inputs = 3
        for stage in range(sub_levels):
            for _ in range(2):
                self.convs.append(Conv(3, inputs, filters << stage, rngs=rngs))
                inputs = filters << stage

    def __call__(self, images: Pyramid, stage: Stage = whole) -> Pyramid:
        """Feature pyramid of an image pyramid, finest first, one level of features per image level."""
        levels = len(images)
        stages = [self._stages(image, min(levels - i, self.sub_levels), stage) for i, image in enumerate(images)]
        return [
            jnp.concatenate([stages[i - j][j] for j in range(min(i + 1, self.sub_levels))], axis=-1)
            for i in range(levels)
        ]

    def _stages(self, x: Float[Array, "b h w 3"], depth: int, stage: Stage) -> Pyramid:
        outputs = []
        for number in range(depth):
            x = average_pool(x) if number else x
            x = stage(partial(two_convs, *list(self.convs)[2 * number : 2 * number + 2]))(x)
            outputs.append(x)
        return outputs
