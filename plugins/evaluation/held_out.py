"""Held-out images, and the settings and outputs that all evaluations of controls on them share."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from common import terminal
from common.checked import Positive
from common.evaluation.evaluation import Evaluation, Output, provenance
from common.evaluation.metrics import Metric
from common.io.images import from_uint8
from plugins.control.training.control_task import column_sheet
from plugins.data.batches import PictureBatches
from plugins.diffusion.io.base import Base
from plugins.metrics.anchors import Rows, score_rows

Images = Float[np.ndarray, "n h w 3"]


class HeldOut(NamedTuple):
    """Images in [0, 1], the caption of each, and the condition made of each."""

    images: Images
    prompts: list[str]
    conditions: Images


@dataclasses.dataclass(frozen=True)
class HeldOutEvaluation(Evaluation):
    """An evaluation of controls on held-out images; steps and guidance are a pipeline's."""

    data: PictureBatches  # only their split, condition and options count, nothing is random
    metrics: Mapping[str, Metric]  # objects that compare an image with the real one (`plugins.metrics.fidelity`)
    base: str | None = None  # a folder, a single file or a shipped name; None: the shipped default
    count: Positive = 128  # images of a row
    rows: Positive = dataclasses.field(default=8, kw_only=True)  # images on the sheet
    steps: int = dataclasses.field(default=20, kw_only=True)
    guidance: float = dataclasses.field(default=4.0, kw_only=True)

    def held_out(self, count: int) -> HeldOut:
        """The first images of the split in a fixed random order, fewer than `count` if the split has no more; as in
        training, one that cannot be read or has no such condition is left out, or is an error if `data.strict`."""
        ids, examples, conditions, problem = self.data.ids, [], [], None
        for place in np.random.default_rng(0).permutation(len(ids)):
            if len(examples) == count:
                break
            try:
                example = self.data.example(ids[place])
                condition = self.data.conditioned(example)
            except (OSError, ValueError, RuntimeError) as error:
                if self.data.strict:
                    raise
                problem = error
                continue
            examples.append(example)
            conditions.append(condition)
        if not examples:
            raise ValueError(f"no held-out image can be used; the last: {problem}") from problem
        images = from_uint8(np.stack([example.image for example in examples]))
        prompts = [next(iter(example.record.captions), "") for example in examples]
        return HeldOut(images, prompts, np.stack(conditions))

    def check_side(self, base: Base, held: HeldOut) -> None:
        """Warns of images of another side than the base was trained at."""
        if (side := held.images.shape[1]) != base.side:
            found = f"the held-out images are {side} pixels a side, the base was trained at {base.side}"
            terminal.complain(f"warning: {found}: images are generated at their size; evaluation.data names others")

    def prepare_metrics(self) -> None:
        """Opens the metrics' files."""
        for metric in self.metrics.values():
            metric.prepare()

    def scored(self, held: HeldOut, images: Mapping[str, Images]) -> Rows:
        """Means of the metrics for each row of images; with `target` "condition" they compare with those."""
        rows: Rows = {name: {} for name in images}
        for key, metric in self.metrics.items():
            targets = held.conditions if getattr(metric, "target", None) == "condition" else held.images
            for name, means in score_rows({key: metric}, targets, images).items():
                rows[name] |= means
        return rows

    def write_sheet(self, output: Output, held: HeldOut, generated: Mapping[str, Images]) -> None:
        """`sheet.png`: the first held-out images, their conditions and what was generated, a column each."""
        columns = {"picture": held.images, "condition": held.conditions, **generated}
        output.write_image("sheet.png", column_sheet(columns, min(self.rows, len(held.images))))

    def about(self, weights: str, held: HeldOut, *names: str) -> dict[str, Any]:
        """The header of `results.json`: provenance, the images, and the settings of these names."""
        settings = {name: getattr(self, name) for name in ("base", "steps", "guidance", *names)}
        return provenance(weights) | {"pictures": len(held.images), "split": self.data.split} | settings
