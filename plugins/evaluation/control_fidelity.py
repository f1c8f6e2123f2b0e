"""Fidelity of a control on held-out images, with two anchors, during training and after.

For each held-out image: its condition is made; the base draws the image's caption three times from one seed, with that
condition, without any, and with another image's; a metric compares each with the image that the condition was made of
(`plugins/metrics/anchors.py` says how to read the three rows). The base without control is drawn once a run.

    python eval.py experiment=control_canny weights=runs/control_canny/weights
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from common.evaluation.evaluation import Evaluation, Output, provenance
from common.evaluation.metrics import Metric
from common.training.task import Params
from plugins.control.contract import ControlNetwork
from plugins.control.loading import load
from plugins.control.training.control_task import draw
from plugins.data.controlled_batches import ControlledConfig
from plugins.data.own_batches import OwnPicturesConfig
from plugins.diffusion import pipeline as bases
from plugins.diffusion.pipeline import Pipeline
from plugins.evaluation.held_out import HeldOut, Images, held_out, sheet
from plugins.metrics.anchors import WITH, WITHOUT, WRONG, derangement, flat, score_rows, table, with_anchors


@dataclasses.dataclass(frozen=True)
class ControlEvaluation(Evaluation):
    """Held-out images, metrics and the settings of the pipeline.

    Attributes:
      data: of the images; its split, condition and options count, nothing is drawn at random.
      metrics: by name, objects that compare an image with the real one (`plugins.metrics.fidelity`).
      base: the base that `run` loads; during training it is the task's.
      count: images, the same ones always. training_count: of them during training.
      strengths: at which `run` scores the control.
      steps, guidance: as a pipeline's.
      rows: images on the sheet that `run` writes.
    """

    data: ControlledConfig | OwnPicturesConfig
    metrics: Mapping[str, Metric]
    base: str | None = None
    count: int = 128
    training_count: int = 32
    strengths: Sequence[float] = (0.5, 1.0, 1.5)
    steps: int = 20
    guidance: float = 4.0
    rows: int = 8
    _without: list[Any] = dataclasses.field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "strengths", tuple(self.strengths))
        if not self.metrics or not self.strengths:
            raise ValueError("evaluation.metrics and evaluation.strengths: name at least one of each")
        if min(self.count, self.training_count) < 2:
            raise ValueError(f"evaluation.count is {self.count}, training_count {self.training_count}: 2 or more each")

    def files(self) -> Sequence[str]:
        return ("results.json", "sheet.png")

    def evaluate(self, weights: str, output: Output) -> str:
        """Scores a control at each strength, and the anchors."""
        network, pipeline = load(weights), bases.load(self.base)
        held = held_out(self.data, self.count)
        drawn = self._draw(pipeline, network, held, {f"{WITH}, strength {s:g}": s for s in self.strengths})
        drawn = {name: drawn.pop(name) for name in (WITHOUT, WRONG)} | drawn
        rows = score_rows(self.metrics, held.images, drawn)
        columns = {"picture": held.images, "condition": held.conditions}
        columns |= {name.removeprefix(f"{WITH}, "): images for name, images in drawn.items()}  # columns are narrow
        output.write_image("sheet.png", sheet(columns, self.rows))
        about = {"pictures": len(held.images), "split": self.data.split}
        about |= {name: getattr(self, name) for name in ("base", "steps", "guidance", "strengths")}
        scores = {row.name: {name: mean._asdict() for name, mean in row.scores.items()} for row in rows}
        output.write_json("results.json", provenance(weights) | about | {"scores": scores})
        return table(rows)

    def prepare(self) -> Sequence[str]:
        """Opens the metrics' files and the first held-out image."""
        for metric in self.metrics.values():
            metric.prepare()
        held_out(self.data, 1)
        return [f"{name}/{row}" for name in self.metrics for row in (WITH, WITHOUT, WRONG)]

    def score(self, task: Any, params: Params) -> Mapping[str, float]:
        """Means of the three rows, as "edges/with control"."""
        held = held_out(self.data, self.training_count)
        drawn = self._draw(task.pipeline, task.network(params), held, {WITH: 1.0})
        return flat(with_anchors(self.metrics, held.images, drawn[WITH], drawn[WITHOUT], drawn[WRONG]))

    def _draw(
        self, pipeline: Pipeline, network: ControlNetwork, held: HeldOut, strengths: Mapping[str, float]
    ) -> dict[str, Images]:
        """Images by row: with control at each of the named strengths, and the two anchors."""
        conditions, wrong = held.conditions, held.conditions[derangement(len(held.conditions))]
        if self._without[:2] != [pipeline, len(conditions)]:  # the base does not learn: once is enough
            self._without[:] = [pipeline, len(conditions), draw(pipeline, held.prompts, None, conditions, self)]
        drawn = {name: draw(pipeline, held.prompts, network, conditions, self, s) for name, s in strengths.items()}
        return drawn | {WITHOUT: self._without[2], WRONG: draw(pipeline, held.prompts, network, wrong, self)}
