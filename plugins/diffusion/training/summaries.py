"""What a base in training makes of a list of prompts: always the same prompts and seeds, so that runs compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from common.io.images import contact_sheet
from plugins.diffusion.pipeline import Pipeline
from plugins.diffusion.request import make_request


@dataclasses.dataclass(frozen=True)
class SampleSheet:
    """Pictures of some prompts, one row for each seed.

    Attributes:
      prompts: what to ask for; none: an empty picture.
      seeds: how many pictures of each.
      steps, guidance: as a pipeline's.
    """

    prompts: Sequence[str] = ()
    seeds: int = 2
    steps: int = 20
    guidance: float = 4.0

    def __post_init__(self):
        object.__setattr__(self, "prompts", tuple(self.prompts))

    def __call__(self, pipeline: Pipeline, params: Mapping[str, Any]) -> Float[np.ndarray, "h w 3"]:
        """The sheet. `params` take the place of the pipeline's own, by network."""
        if not self.prompts:
            return np.ones((1, 1, 3), np.float32)
        prompts = [prompt for _ in range(self.seeds) for prompt in self.prompts]
        seeds = [seed for seed in range(self.seeds) for _ in self.prompts]
        request = make_request(pipeline.base, prompts, seeds=seeds, steps=self.steps, guidance=self.guidance)
        images = np.concatenate(list(pipeline.run(request, params=params)))
        return contact_sheet(list(images), columns=len(self.prompts), labels=prompts)
