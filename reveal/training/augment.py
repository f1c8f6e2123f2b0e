"""Augmentation of item images in the warm start: crop, rotation, brightness, noise, and dropping the image.

A network that sees an item's one image a thousand times learns its pixels instead of its content. So each is augmented
anew in every step, as in the released program. The paper augments images of questions: `OwnDataConfig.crop`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates
from jaxtyping import Array, Float, PRNGKeyArray

from common.checked import AtLeast0, Checked, Rule, Share, real
from reveal.training.device_memory import Contents

SIDES = Rule(lambda crop: len(crop) == 2 and 0 < crop[0] <= crop[1] <= 2, "the least and largest part, 0 to 2")


@dataclasses.dataclass(frozen=True)
class Augment(Checked):
    # Part of the side that is shown; above 1 the border is extended.
    crop: Annotated[Sequence[int | float], SIDES] = (0.75, 1.0)
    turn: AtLeast0 = 0.0  # largest rotation, in radians
    brightness: Annotated[int | float, real(0, below=1)] = 0.2  # factors are 1 - brightness to 1 + brightness
    noise: AtLeast0 = 0.0  # standard deviation, for values in [0, 1]
    drop: Share = 0.0  # share of the images of items with text that are dropped

    def __call__(self, key: PRNGKeyArray, contents: Contents) -> Contents:
        """Items [b k ...], each augmented by itself; images become float32, 0 to 255."""
        crop_key, brightness_key, drop_key, noise_key = jax.random.split(key, 4)
        image = jnp.asarray(contents.image, jnp.float32)
        flat = image.reshape(-1, *image.shape[contents.has_image.ndim :])
        flat = jax.vmap(self._crop)(jax.random.split(crop_key, len(flat)), flat)
        factor = 1 + self.brightness * jax.random.uniform(brightness_key, (len(flat), 1, 1, 1), minval=-1)
        noise = 255 * self.noise * jax.random.normal(noise_key, flat.shape) if self.noise else 0
        has_text = (jnp.asarray(contents.tokens) != 0).any(axis=-1)
        dropped = has_text & jax.random.bernoulli(drop_key, float(self.drop), has_text.shape)
        return contents._replace(
            image=jnp.clip(factor * flat + noise, 0, 255).reshape(image.shape),
            has_image=jnp.asarray(contents.has_image) & ~dropped,
        )

    def _crop(self, key: PRNGKeyArray, image: Float[Array, "h w 3"]) -> Float[Array, "h w 3"]:
        size_key, centre_key, turn_key = jax.random.split(key, 3)
        fraction = jax.random.uniform(size_key, minval=self.crop[0], maxval=self.crop[1])
        angle = self.turn * jax.random.uniform(turn_key, minval=-1)
        side = jnp.array(image.shape[:2], jnp.float32)
        centre = side / 2 + (jax.random.uniform(centre_key, (2,)) - 0.5) * (1 - fraction) * side
        cos, sin = fraction * jnp.cos(angle), fraction * jnp.sin(angle)
        y, x = jnp.meshgrid(*(jnp.arange(n) + 0.5 - n / 2 for n in image.shape[:2]), indexing="ij")
        at = [centre[0] + cos * y - sin * x - 0.5, centre[1] + sin * y + cos * x - 0.5]
        return jax.vmap(lambda channel: map_coordinates(channel, at, 1, "nearest"), in_axes=-1, out_axes=-1)(image)
