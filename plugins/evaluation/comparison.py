"""The article's table: a base alone, and with each way of control; what each costs and what each gives.

    python eval.py evaluation=control_ways weights=runs/control_canny/weights
    python eval.py evaluation=control_ways evaluation.ways.plugin=A evaluation.ways.controlnet=B evaluation.steps=50

| column | what it is |
| --- | --- |
| parameters | that the way adds; Plug-and-Play reads the base itself and adds none |
| GFLOP | of one picture's run: all calls of the UNet, and what the way does beforehand (`cost.py`, `arithmetic.py`) |
| seconds | from prompt and condition to the picture: median of several runs, one picture at a time, ways in turns |
| overhead | of time and of GFLOP, beside the base alone |
| fidelity | each score's mean over the held-out pictures, with its standard error (`plugins/metrics/fidelity.py`) |
| quality | distance of the pictures to the held-out ones, in the features of a network (`plugins/metrics/quality.py`) |

All rows have the prompts, seeds and steps in common, and DDIM, because Plug-and-Play has to. The base's row is the
anchor of fidelity: what the prompt gives by itself. Plug-and-Play is shown the held-out picture, the others the
condition made of it: it knows more, so its fidelity stands for itself. Only Inception's distance is called FID.

Runs are timed with conditions that were not seen before: what a control keeps for the next prompt is not counted on.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from common.evaluation.metrics import Metric
from common.evaluation.score_table import write_csv, write_json
from common.io.files import atomic_output, check_output_file
from common.io.images import write_image
from common.weights.model_file import git_commit
from plugins.control import pretrained
from plugins.control.contract import ControlNetwork
from plugins.control.loading import load
from plugins.control.plug_and_play import INVERSION, PlugAndPlay
from plugins.data.controlled_batches import ControlledConfig
from plugins.data.own_batches import OwnPicturesConfig
from plugins.diffusion.io import folder
from plugins.diffusion.pipeline import Pipeline
from plugins.diffusion.request import make_request
from plugins.evaluation.comparison_table import make_rows, markdown
from plugins.evaluation.cost import Cost, Setting, base_cost, interleaved, layout_cost, network_cost
from plugins.evaluation.held_out import HeldOut, Pictures, held_out, sheet
from plugins.metrics.anchors import score_rows
from plugins.metrics.quality import NEIGHBOURS, compare

SAMPLER = "ddim"
BASE, PLUS, LAYOUT = "Base", "Base + ", "layout"
TITLES = {"controlnet": "ControlNet", "t2i_adapter": "T2I-Adapter", LAYOUT: "Plug-and-Play"}  # others as they are named
FILES = ("results.json", "table.csv", "table.md", "sheet.png")


class Way(NamedTuple):
    """A row: its title; a network, steps back to a picture's noise for Plug-and-Play, or neither for the base."""

    title: str
    network: ControlNetwork | None = None
    inversion: int | None = None

    def controls(self, shown: HeldOut) -> list[Any]:
        """New ones, which have computed nothing yet."""
        if self.inversion is not None:
            return [PlugAndPlay(shown.pictures, inversion=self.inversion)]
        return [] if self.network is None else [self.network.on(shown.conditions)]

    def cost(self, setting: Setting, schedule: Any, steps: int) -> Cost:
        if self.inversion is not None:
            blank = np.zeros(setting.picture.shape, np.float32)
            return layout_cost(setting, PlugAndPlay(blank, inversion=self.inversion), schedule, steps)
        return base_cost(setting) if self.network is None else network_cost(setting, self.network)


@dataclasses.dataclass(frozen=True)
class ControlComparison:
    """What to compare, on which pictures, how.

    Attributes:
      data: the held-out pictures; their split, condition and options count, nothing is drawn at random.
      scores: by name, objects that compare a picture with the real one (`plugins.metrics.fidelity`).
      ways: by row, the weights of a control, or null for no such row; `layout`, if true, is Plug-and-Play.
      base: a folder, a single file or a shipped name; None: the shipped default.
      quality: an extractor of `plugins.metrics.features`; None: quality is left out.
      count: pictures of a row. rows: of them on the sheet.
      steps, guidance: as a pipeline's. seed: of the first picture, the next ones count up.
      inversion: steps of Plug-and-Play from a picture to its noise.
      rounds: timed runs of each row.
    """

    data: ControlledConfig | OwnPicturesConfig
    scores: Mapping[str, Metric]
    ways: Mapping[str, str | bool | None]
    base: str | None = None
    quality: Any = None
    count: int = 128
    rows: int = 8
    steps: int = 20
    guidance: float = 4.0
    seed: int = 0
    inversion: int = INVERSION
    rounds: int = 5

    def __post_init__(self):
        for name, value in self.ways.items():
            if isinstance(value, str) if name == LAYOUT else isinstance(value, bool):
                rule = "true or null" if name == LAYOUT else "weights or null"
                raise ValueError(f"evaluation.ways.{name} is {value!r}: it has to be {rule}")
        if not any(self.ways.values()):
            raise ValueError("evaluation.ways names nothing to compare: give weights, as evaluation.ways.plugin=PATH")
        if min(self.count, self.rows, self.rounds) < 1:
            numbers = f"count is {self.count}, rows {self.rows}, rounds {self.rounds}"
            raise ValueError(f"evaluation.{numbers}: give 1 or more of each")

    def run(self, weights: str, output: Path, overwrite: bool = False) -> str:
        """Writes results.json, table.csv, table.md and sheet.png, returns the table; `weights` are those of `ways`.

        FileNotFoundError, FileExistsError or ValueError in one line, before the work."""
        for name in FILES:
            check_output_file(output / name, overwrite)
        places = self._places()
        folder.read_base(self.base)
        for metric in self.scores.values():
            metric.prepare()
        shown = held_out(self.data, self.count)
        self._check_count(len(shown.prompts))
        pipeline, ways = folder.load(self.base), self._ways(places)
        for way in ways:
            self._check(pipeline, way, shown)
        made = {way.title: self._drawn(pipeline, way, shown) for way in ways}
        seconds = self._seconds(pipeline, ways, shown.first(1))
        costs = self._costs(pipeline, ways, shown)
        quality = self._quality(shown.pictures, made)
        found = make_rows(costs, self.steps, seconds, score_rows(self.scores, shown.pictures, made), quality)
        notes = self._notes(len(shown.pictures))
        said = "\n".join([markdown(found), "", *notes])
        columns = {"picture": shown.pictures, "condition": shown.conditions}
        columns |= {title.removeprefix(PLUS): images for title, images in made.items()}  # columns are narrow
        write_image(output / "sheet.png", sheet(columns, self.rows), overwrite=overwrite)
        with atomic_output(output / "table.md", overwrite=overwrite) as file:
            file.write_text(said + "\n")
        write_csv(output / "table.csv", [row.plain() for row in found], overwrite)
        record = self._record(places, len(shown.pictures)) | {"notes": notes, "rows": [row.record() for row in found]}
        write_json(output / "results.json", record, overwrite)
        return said

    def _places(self) -> dict[str, Path | None]:
        """Where the weights of each row are. Raises FileNotFoundError that names the row."""
        found: dict[str, Path | None] = {}
        for name, value in self.ways.items():
            try:
                if value:
                    found[name] = None if name == LAYOUT else pretrained.find(str(value))
            except FileNotFoundError as error:
                raise FileNotFoundError(f"evaluation.ways.{name}: {error}") from error
        return found

    def _check_count(self, count: int) -> None:
        """Raises ValueError for fewer pictures than quality takes."""
        if self.quality is not None and count <= NEIGHBOURS:
            least = f"quality takes {NEIGHBOURS + 1} or more"
            raise ValueError(f"{count} held-out pictures: {least}; raise evaluation.count, or set quality=null")

    def _ways(self, places: Mapping[str, Path | None]) -> list[Way]:
        titles = {name: PLUS + TITLES.get(name, name) for name in places}
        return [
            Way(BASE),
            *(
                Way(titles[name], inversion=self.inversion) if path is None else Way(titles[name], load(path))
                for name, path in places.items()
            ),
        ]

    def _settings(self, shown: HeldOut) -> dict[str, Any]:
        """What all rows ask of the pipeline."""
        _, height, width, _ = shown.pictures.shape
        seeds = range(self.seed, self.seed + len(shown.prompts))
        how = {"steps": self.steps, "guidance": self.guidance, "sampler": SAMPLER, "height": height, "width": width}
        return {"prompts": shown.prompts, "seeds": seeds, **how}

    def _check(self, pipeline: Pipeline, way: Way, shown: HeldOut) -> None:
        """Raises ValueError that names the row, if its control does not fit the base."""
        try:
            make_request(pipeline.base, **self._settings(shown), controls=way.controls(shown))
        except ValueError as error:
            raise ValueError(f"{way.title}: {error}") from error

    def _drawn(self, pipeline: Pipeline, way: Way, shown: HeldOut) -> Pictures:
        return pipeline(**self._settings(shown), controls=way.controls(shown))

    def _seconds(self, pipeline: Pipeline, ways: Sequence[Way], one: HeldOut) -> dict[str, list[float]]:
        """Of each row, for one picture."""
        runs = {way.title: functools.partial(self._drawn, pipeline, way, one) for way in ways}
        return interleaved(runs, self.rounds)

    def _costs(self, pipeline: Pipeline, ways: Sequence[Way], shown: HeldOut) -> dict[str, Cost]:
        base, (_, height, width, _) = pipeline.base, shown.pictures.shape
        sides = height // base.unit, width // base.unit
        setting = Setting(pipeline.unet, pipeline.vae, *sides, base.length, self.guidance != 1)
        return {way.title: way.cost(setting, pipeline.schedule, self.steps) for way in ways}

    def _quality(self, real: Pictures, made: Mapping[str, Pictures]) -> dict[str, dict[str, float]]:
        """By row, all distances to the real pictures; nothing without an extractor."""
        if self.quality is None:
            return {title: {} for title in made}
        truth = self.quality(real)
        return {title: compare(self.quality.name, self.quality(images), truth) for title, images in made.items()}

    def _notes(self, count: int) -> list[str]:
        """How the table was made, in sentences."""
        how = (
            f"{count} pictures of the split {self.data.split}, {self.steps} steps of DDIM, guidance {self.guidance:g}."
        )
        device = jax.devices()[0].device_kind
        timed = f"Seconds are medians of {self.rounds} runs of one picture, ways in turns, on {device}."
        if self.quality is None:
            return [how, timed, "Quality was left out: evaluation.quality is null."]
        return [how, timed, f"Quality is in the features of {self.quality.name}; compare it within this table only."]

    def _record(self, places: Mapping[str, Path | None], count: int) -> dict[str, Any]:
        names = ("base", "steps", "guidance", "seed", "inversion", "rounds")
        return {
            "git_commit": git_commit(),
            "pictures": count,
            "split": self.data.split,
            "condition": self.data.condition,
            "ways": {name: None if path is None else str(path) for name, path in places.items()},
            **{name: getattr(self, name) for name in names},
            "sampler": SAMPLER,
            "device": jax.devices()[0].device_kind,
            "quality": None if self.quality is None else self.quality.name,
        }
