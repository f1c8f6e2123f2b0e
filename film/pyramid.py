"""Image pyramids and the scale-agnostic feature pyramid (FILM, section "Feature Extraction").

One small U-Net encoder runs on *every* level of the image pyramid. Its stage `j`, started on image level `i`, has the
resolution of level `i + j`; all stages of one resolution are concatenated:

    feature level i = [stage 0 from image i | stage 1 from image i-1 | stage 2 from image i-2 | ...]

From level `sub_levels - 1` on, every level has the same channels, made by the same weights: a large motion at a fine
level looks like a small one at a coarse level, so the flow predictor can be shared as well.
"""

from functools import partial

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from film.config import FilmConfig
from film.ops.convolution import Conv, Stage, leaky_relu, whole
from film.ops.resample import average_pool
from film.ops.row_tiling import by_rows

REACH = 2  # rows on either side that a row of `_two_convs` depends on
Pyramid = list[Float[Array, "_b _h _w _c"]]  # levels of one batch, finest first, each with a size of its own


def image_pyramid(image: Float[Array, "b h w c"], levels: int) -> Pyramid:
    """`levels` images, each the 2x2 mean of the one before."""
    pyramid = [image]
    for _ in range(levels - 1):
        pyramid.append(average_pool(pyramid[-1]))
    return pyramid


class FeatureExtractor(nnx.Module):
    """The shared encoder: `sub_levels` stages of two 3x3 convolutions with `filters * 2**stage` channels."""

    def __init__(self, config: FilmConfig, *, rngs: nnx.Rngs):
        self.sub_levels, self.filters = config.sub_levels, config.filters
        self.convs = nnx.List([])
        inputs = 3
        for stage in range(config.sub_levels):
            for _ in range(2):
                self.convs.append(Conv(3, inputs, config.filters << stage, rngs=rngs))
                inputs = config.filters << stage

    def __call__(self, images: Pyramid, stage: Stage = whole) -> Pyramid:
        """Feature pyramid of an image pyramid, with as many levels."""
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
            convs = stage(partial(_two_convs, *list(self.convs)[2 * number : 2 * number + 2]))
            x = by_rows(lambda _, rows, convs=convs: convs(rows), [x], REACH, self.filters << number)
            outputs.append(x)
        return outputs


def _two_convs(first: Conv, second: Conv, x: Float[Array, "b h w i"]) -> Float[Array, "b h w o"]:
    return leaky_relu(second(leaky_relu(first(x))))
