"""Does a control steer? Fidelity on held-out pictures, beside the two anchors, while training and after.

For each held-out picture: its condition is made, the base draws the picture's caption three times from one seed, with
that condition, without any, and with another picture's; a score compares each with the picture that the condition was
made of (`plugins/metrics/anchors.py` says how to read the three rows). The base without control is drawn once a run.

    python eval.py experiment=control_canny weights=runs/control_canny/weights
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.evaluation.metrics import Metric
from common.evaluation.score_table import write_json
from common.io.files import check_output_file
from common.io.images import write_image
from common.training.task import Params
from common.weights.model_file import git_commit
from plugins.control.loading import load
from plugins.control.training.summaries import draw
from plugins.data.controlled_batches import ControlledConfig
from plugins.data.own_batches import OwnPicturesConfig
from plugins.diffusion.io import folder
from plugins.diffusion.pipeline import Pipeline
from plugins.evaluation.held_out import Pictures, held_out, sheet
from plugins.metrics.anchors import WITH, WITHOUT, WRONG, Row, derangement, flat, score_rows, table, with_anchors


@dataclasses.dataclass(frozen=True)
class ControlEvaluation:
    """Held-out pictures and how to score what becomes of their conditions.

    Attributes:
      data: where they are from; its split, condition and options count, nothing is drawn at random.
      scores: by name, objects that compare a picture with the real one (`plugins.metrics.fidelity`).
      base: the base that `run` loads; while training it is the task's.
      count: pictures, the same ones always. training_count: of them while training.
      strengths: at which `run` scores the control.
      steps, guidance: as a pipeline's.
      rows: pictures on the sheet that `run` writes.
    """

    data: ControlledConfig | OwnPicturesConfig
    scores: Mapping[str, Metric]
    base: str | None = None
    count: int = 128
    training_count: int = 32
    strengths: Sequence[float] = (0.5, 1.0, 1.5)
    steps: int = 20
    guidance: float = 4.0
    rows: int = 8
    _alone: list[Any] = dataclasses.field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "strengths", tuple(self.strengths))
        if not self.scores or not self.strengths:
            raise ValueError("evaluation.scores and evaluation.strengths: name at least one of each")
        if min(self.count, self.training_count) < 2:
            raise ValueError(f"evaluation.count is {self.count}, training_count {self.training_count}: 2 or more each")

    def prepare(self) -> Sequence[str]:
        for metric in self.scores.values():
            metric.prepare()
        held_out(self.data, 1)
        return [f"{name}/{row}" for name in self.scores for row in (WITH, WITHOUT, WRONG)]

    def score(self, task: Any, params: Params) -> Mapping[str, float]:
        """Means of the three rows, as "edges/with control"."""
        pictures, prompts, conditions = held_out(self.data, self.training_count)
        wrong = conditions[derangement(len(conditions))]
        network = task.network(params)
        with_own, with_other = (draw(task.pipeline, prompts, network, each, self) for each in (conditions, wrong))
        alone = self._without(task.pipeline, prompts, conditions)
        return flat(with_anchors(self.scores, pictures, with_own, alone, with_other))

    def run(self, weights: str, output: Path, overwrite: bool = False) -> str:
        """Scores a control at each strength beside the anchors; writes results.json and sheet.png, returns a table.

        FileNotFoundError, FileExistsError or ValueError in one line, before the work."""
        report, pictures_file = output / "results.json", output / "sheet.png"
        for target in (report, pictures_file):
            check_output_file(target, overwrite)
        network, pipeline = load(weights), folder.load(self.base)
        pictures, prompts, conditions = held_out(self.data, self.count)
        made = {
            WITHOUT: draw(pipeline, prompts, None, conditions, self),
            WRONG: draw(pipeline, prompts, network, conditions[derangement(len(conditions))], self),
        }
        for s in self.strengths:
            made[f"{WITH}, strength {s:g}"] = draw(pipeline, prompts, network, conditions, self, s)
        rows = score_rows(self.scores, pictures, made)
        rows_made = {name.removeprefix(f"{WITH}, "): images for name, images in made.items()}  # columns are narrow
        columns = {"picture": pictures, "condition": conditions, **rows_made}
        write_image(pictures_file, sheet(columns, self.rows), overwrite=overwrite)
        write_json(report, self._record(weights, len(pictures), rows), overwrite)
        return table(rows)

    def _without(self, pipeline: Pipeline, prompts: Sequence[str], conditions: Pictures) -> Pictures:
        """What the base makes of the prompts alone: drawn once, as it does not learn."""
        if not self._alone or self._alone[0] is not pipeline:
            self._alone[:] = [pipeline, draw(pipeline, prompts, None, conditions, self)]
        return self._alone[1]

    def _record(self, weights: str, count: int, rows: Sequence[Row]) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in ("base", "steps", "guidance", "strengths")}
        about = {
            "weights": weights,
            "git_commit": git_commit(),
            "pictures": count,
            "split": self.data.split,
            **settings,
        }
        return about | {
            "scores": {row.name: {name: mean._asdict() for name, mean in row.scores.items()} for row in rows}
        }
