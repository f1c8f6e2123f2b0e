"""The image summary of a control in training, on the first conditions of its batch.

One row each: the condition; the output without control; with it; with the next example's condition, whose layout the
output should then have. Prompts are the batch's captions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from common.io.images import contact_sheet
from plugins.control.contract import ControlNetwork
from plugins.diffusion.pipeline import Pipeline

TITLES = ("condition", "without", "with", "wrong")


@dataclasses.dataclass(frozen=True)
class ControlSheet:
    """Number of rows; `steps` and `guidance` as a pipeline's."""

    rows: int = 4
    steps: int = 20
    guidance: float = 4.0

    def __call__(
        self, pipeline: Pipeline, network: ControlNetwork, batch: Mapping[str, Any]
    ) -> dict[str, Float[np.ndarray, "h w 3"]]:
        """{"samples": the sheet}; nothing without rows, or without tokens to read prompts from."""
        rows = min(self.rows, len(batch["condition"]))
        if rows == 0 or "tokens" not in batch:
            return {}
        prompts = [pipeline.tokenizer.decode(ids) for ids in np.asarray(batch["tokens"][:rows])]
        conditions = np.asarray(batch["condition"][:rows], np.float32)
        settings = ((None, conditions), (network, conditions), (network, np.roll(conditions, -1, 0)))
        columns = [conditions, *(draw(pipeline, prompts, *setting, self) for setting in settings)]
        cells = [column[i] for i in range(rows) for column in columns]
        labels = [title if i == 0 else "" for i in range(rows) for title in TITLES]
        return {"samples": contact_sheet(cells, columns=len(columns), labels=labels)}


def draw(
    pipeline: Pipeline,
    prompts: Sequence[str],
    network: ControlNetwork | None,
    conditions: Float[np.ndarray, "n h w 3"],
    settings: Any,
    strength: float = 1.0,
) -> Float[np.ndarray, "n h w 3"]:
    """An image of each prompt with its condition, or without control; seeds are 0, 1, ...; `settings` has `steps` and
    `guidance`."""
    controls = [] if network is None else [network.on(conditions, strength=strength)]
    _, height, width, _ = conditions.shape
    options: dict[str, Any] = {"steps": settings.steps, "guidance": settings.guidance, "height": height, "width": width}
    return pipeline(prompts, seeds=range(len(prompts)), controls=controls, **options)
