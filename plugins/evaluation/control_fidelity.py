"""Fidelity of a control on held-out images with two anchors, during training and after.

    python eval.py experiment=control_canny weights=runs/control_canny/weights

For each held-out image the base generates its caption three times from one seed: with the image's condition, without
control (once a run), and with another image's condition; metrics compare each with the held-out image
(`plugins/metrics/anchors.py` explains the three rows).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
from jax.sharding import Mesh

from common.checked import OneOrMore, whole
from common.evaluation.evaluation import Output
from common.training.mesh import make_mesh
from common.training.task import Params
from plugins.control.contract import ControlNetwork
from plugins.control.loading import load
from plugins.control.training.control_task import draw
from plugins.diffusion import pipeline as bases
from plugins.diffusion.pipeline import Pipeline
from plugins.evaluation.held_out import HeldOut, HeldOutEvaluation, Images
from plugins.metrics.anchors import WITH, WITHOUT, WRONG, derangement, flat, table


@dataclasses.dataclass(frozen=True)
class ControlEvaluation(HeldOutEvaluation):
    """Settings as `HeldOutEvaluation`; during training the base is the task's."""

    training_count: Annotated[int, whole(2)] = 32  # images during training
    strengths: OneOrMore[float] = (0.5, 1.0, 1.5)  # at which `run` scores the control
    _without: list[Any] = dataclasses.field(default_factory=list, init=False, repr=False, compare=False)

    def rules(self):
        yield bool(self.metrics), "metrics are one or more"
        yield self.count >= 2, "count is 2 or more"

    def files(self) -> Sequence[str]:
        return ("results.json", "sheet.png")

    def evaluate(self, weights: str, output: Output) -> str:
        """Scores a control at each strength, and the anchors."""
        network, pipeline = load(weights), bases.load(self.base)
        held = self.held_out(self.count)
        self.check_side(pipeline.base, held)
        strengths = {f"{WITH}, strength {s:g}": s for s in self.strengths}
        images = self._generate(pipeline, network, held, strengths, make_mesh())
        images = {name: images.pop(name) for name in (WITHOUT, WRONG)} | images
        rows = self.scored(held, images)
        self.write_sheet(output, held, {name.removeprefix(f"{WITH}, "): each for name, each in images.items()})
        scores = {row: {name: mean._asdict() for name, mean in means.items()} for row, means in rows.items()}
        output.write_json("results.json", self.about(weights, held, "strengths") | {"scores": scores})
        return table(rows)

    def prepare(self) -> Sequence[str]:
        """Opens the metrics' files and the first held-out image."""
        self.prepare_metrics()
        self.held_out(1)
        return [f"{name}/{row}" for name in self.metrics for row in (WITH, WITHOUT, WRONG)]

    def score(self, task: Any, params: Params) -> Mapping[str, float]:
        """Means of the three rows, as "edges/with control"."""
        held = self.held_out(self.training_count)
        images = self._generate(task.pipeline, task.network(jax.device_put(params)), held, {WITH: 1.0})
        return flat(self.scored(held, images))

    def _generate(
        self,
        pipeline: Pipeline,
        network: ControlNetwork,
        held: HeldOut,
        strengths: Mapping[str, float],
        mesh: Mesh | None = None,
    ) -> dict[str, Images]:
        """Images by row: with control at each of the named strengths, and the two anchors."""

        def images_of(network: ControlNetwork | None, conditions: Images, strength: float = 1.0) -> Images:
            return draw(pipeline, held.prompts, network, conditions, self, strength, mesh)

        conditions, wrong = held.conditions, held.conditions[derangement(len(held.conditions))]
        if self._without[:2] != [pipeline, len(conditions)]:  # the base does not learn: once is enough
            self._without[:] = [pipeline, len(conditions), images_of(None, conditions)]
        images = {name: images_of(network, conditions, strength) for name, strength in strengths.items()}
        return images | {WITHOUT: self._without[2], WRONG: images_of(network, wrong)}
