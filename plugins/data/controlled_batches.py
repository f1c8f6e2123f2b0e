"""Captioned pictures with a condition picture each: what a control is trained on.

A batch is that of `plugins/data/captioned_batches.py`, and

    condition   float32 [b s s 3]   what `plugins.conditions` makes of the picture, in [0, 1]

It is made on the fly from the very picture that the batch holds, mirrored if that is: so it always fits, and costs no
disk. With cached latents the picture itself is read for its condition alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from plugins.conditions.registry import make, maker_of
from plugins.data.captioned_batches import CaptionedConfig, Example


@dataclass(frozen=True)
class ControlledConfig(CaptionedConfig):
    """Captioned pictures and their conditions.

    Attributes:
      condition: which, of `plugins.conditions.registry`.
      options: of it, as its function takes them.
      vary: options drawn anew for each picture, uniformly between two numbers: {low: [50, 150]}.

    The others are those of `CaptionedConfig`.
    """

    condition: str = "canny"
    options: Mapping[str, Any] = field(default_factory=dict)
    vary: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_condition(self.condition, self.options, self.vary)

    def _picture(self, example: Example, flip: bool, rng: np.random.Generator) -> Example:
        return {**super()._picture(example, flip, rng), "condition": self.conditioned(example, flip, rng)}

    def conditioned(
        self, example: Example, flip: bool = False, rng: np.random.Generator | None = None
    ) -> Float[np.ndarray, "h w 3"]:
        """The condition of one example of `pictures`; without `rng`, varied options stand in the middle."""
        return make_condition(self.condition, example["image"], flip, rng, self.options, self.vary)


def check_condition(kind: str, options: Mapping[str, Any], vary: Mapping[str, Any]) -> None:
    """Raises ValueError for a kind, an option or a range that is none."""
    wrong = [name for name, ends in vary.items() if len(ends) != 2 or not ends[0] <= ends[1]]
    if wrong:
        raise ValueError(f"vary.{wrong[0]} is {vary[wrong[0]]}: give the lowest and the highest value")
    maker_of(kind, [*options, *vary])


def make_condition(
    kind: str,
    picture: UInt8[np.ndarray, "h w 3"],
    flip: bool,
    rng: np.random.Generator | None,
    options: Mapping[str, Any],
    vary: Mapping[str, Any],
) -> Float[np.ndarray, "h w 3"]:
    """Of the picture, mirrored if asked for; without `rng`, varied options stand in the middle of their ranges."""
    image = (picture[:, ::-1] if flip else picture).astype(np.float32) / 255
    drawn = {name: float((a + b) / 2 if rng is None else rng.uniform(a, b)) for name, (a, b) in vary.items()}
    return make(kind, image, **options, **drawn)
