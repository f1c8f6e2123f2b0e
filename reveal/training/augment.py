"""Looking at the same picture anew: crops, turns, brightness, noise, none at all, drawn in the program.

An item has one picture, and a network that sees it a thousand times learns that picture instead of what it shows. The
warm start therefore reads a part of it, turned, brighter or darker, each time another (Hu et al., CVPR 2023: a random
crop; the reference also leaves a fifth of the pictures out, so that texts are read). Questions' pictures are not
touched here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from reveal.training.device_memory import Contents


@dataclasses.dataclass(frozen=True)
class Augment:
    """How much another look may differ.

    Attributes:
      crop: least and largest share of the side that is shown, resized to the whole. 1 shows all, and above it the
        picture is shown smaller, with its border drawn on.
      turn: most radians, either way.
      brightness: of a factor from 1 - brightness to 1 + brightness.
      noise: standard deviation of what is added to each value, of a picture from 0 to 1.
      drop: share of the pictures of items with text that are left out.
    """

    crop: Sequence[int | float] = (0.75, 1.0)
    turn: int | float = 0.0
    brightness: int | float = 0.2
    noise: int | float = 0.0
    drop: int | float = 0.0

    def __post_init__(self):
        crop = tuple(self.crop)
        if len(crop) != 2 or not 0 < crop[0] <= crop[1] <= 2:
            raise ValueError(f"augment.crop is {list(crop)}: give the least and the largest share of the side, 0 to 2")
        if not 0 <= self.brightness < 1 or not 0 <= self.drop <= 1:
            raise ValueError(f"augment.brightness {self.brightness} is 0 to below 1, drop {self.drop} 0 to 1")
        if min(self.noise, self.turn) < 0:
            raise ValueError(f"augment.noise is {self.noise} and turn {self.turn}: give 0 or more")
        object.__setattr__(self, "crop", crop)

    def __call__(self, key: PRNGKeyArray, contents: Contents) -> Contents:
        """Rows [b k ...] looked at anew, each by itself; pictures come back as float32, 0 to 255."""
        shape = contents.has_image.shape
        look, brighten, leave, add = jax.random.split(key, 4)
        image = jnp.asarray(contents.image, jnp.float32)
        flat = image.reshape(-1, *image.shape[len(shape) :])
        flat = jax.vmap(self._crop)(jax.random.split(look, len(flat)), flat)
        factor = 1 + self.brightness * jax.random.uniform(brighten, (len(flat), 1, 1, 1), minval=-1)
        noise = 255 * self.noise * jax.random.normal(add, flat.shape) if self.noise else 0
        left_out = self._left_out(leave, contents)
        return contents._replace(
            image=jnp.clip(factor * flat + noise, 0, 255).reshape(image.shape),
            has_image=jnp.asarray(contents.has_image) & ~left_out,
        )

    def _crop(self, key: PRNGKeyArray, image: Float[Array, "h w 3"]) -> Float[Array, "h w 3"]:
        """Where each pixel of the look lies in the picture, and what is there."""
        size, place, turn = jax.random.split(key, 3)
        share = jax.random.uniform(size, minval=self.crop[0], maxval=self.crop[1])
        angle = self.turn * jax.random.uniform(turn, minval=-1)
        side = jnp.array(image.shape[:2], jnp.float32)
        middle = side / 2 + (jax.random.uniform(place, (2,)) - 0.5) * (1 - share) * side
        cos, sin = share * jnp.cos(angle), share * jnp.sin(angle)
        down, right = jnp.meshgrid(*(jnp.arange(n) + 0.5 - n / 2 for n in image.shape[:2]), indexing="ij")
        at = middle[0] + cos * down - sin * right - 0.5, middle[1] + sin * down + cos * right - 0.5
        return _sampled(image, *at)

    def _left_out(self, key: PRNGKeyArray, contents: Contents) -> Bool[Array, "b k"] | Any:
        has_text = (jnp.asarray(contents.tokens) != 0).any(axis=-1)
        return has_text & jax.random.bernoulli(key, float(self.drop), contents.has_image.shape)


def _sampled(image: Float[Array, "h w 3"], down: Float[Array, "h w"], right: Float[Array, "h w"]) -> Array:
    """The picture at these places, bilinear; its border goes on for ever."""
    height, width = image.shape[:2]
    row, column = jnp.floor(down), jnp.floor(right)
    below, beside = (down - row)[..., None], (right - column)[..., None]

    def at(i: int, j: int) -> Array:
        y, x = jnp.clip(row + i, 0, height - 1), jnp.clip(column + j, 0, width - 1)
        return image[y.astype(jnp.int32), x.astype(jnp.int32)]

    upper = at(0, 0) * (1 - beside) + at(0, 1) * beside
    lower = at(1, 0) * (1 - beside) + at(1, 1) * beside
    return upper * (1 - below) + lower * below
