"""The article's table: the base alone and with each control method; cost and scores of each.

    python eval.py evaluation=control_methods weights=runs/control_canny/weights
    python eval.py evaluation=control_methods evaluation.methods.plugin=A evaluation.methods.controlnet=B

| column | what it is |
| --- | --- |
| parameters | of the method; Plug-and-Play reads the base itself and adds none |
| GFLOP | of one image: all calls of the UNet, and what the method computes before them (`cost.py`) |
| seconds | from prompt and new condition to the image: median of several runs, one image at a time, methods in turns |
| overhead | of time and of GFLOP, relative to the base alone |
| fidelity | each metric's mean over the held-out images, with its standard error (`plugins/metrics/fidelity.py`) |
| quality | distances to the held-out images in the features of a network (`plugins/metrics/quality.py`) |
| CMMD, CLIP score | with a CLIP: distance to the held-out images, and cosine with the prompt |

All rows share prompts, seeds and steps, and DDIM, which Plug-and-Play needs. The base's row is the anchor of fidelity.
Plug-and-Play gets the held-out image, the others only its condition, so its fidelity is not comparable.
"""

import dataclasses
import functools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from common.checked import Positive
from common.evaluation.evaluation import Output
from common.evaluation.score_table import markdown
from common.training.mesh import make_mesh
from plugins.control.contract import ControlNetwork
from plugins.control.loading import CONTROLS, load
from plugins.control.plug_and_play import INVERSION, PlugAndPlay
from plugins.diffusion import pipeline as bases
from plugins.diffusion.pipeline import Pipeline
from plugins.diffusion.request import make_request
from plugins.evaluation.cost import Cost, Setting, base_cost, interleaved, network_cost, overhead, plug_and_play_cost
from plugins.evaluation.held_out import HeldOut, HeldOutEvaluation, Images
from plugins.metrics.anchors import Mean
from plugins.metrics.quality import NEIGHBOURS, PrecisionRecall, clip_score, compare, compare_with_texts

SAMPLER = "ddim"
BASE, PLUS = "Base", "Base + "
PLUG_AND_PLAY, OLD_PLUG_AND_PLAY = "plug_and_play", "layout"
TITLES = {"controlnet": "ControlNet", "t2i_adapter": "T2I-Adapter", PLUG_AND_PLAY: "Plug-and-Play"}  # others: their key
COLUMNS = ("model", "parameters", "GFLOP", "seconds", "overhead, time", "overhead, GFLOP")
NUMBERS = ("model", "parameters", "gflop", "once", "seconds", "time_overhead", "gflop_overhead")
ERROR = " error"  # ends the name of a standard error
Row = dict[str, Any]


class Method(NamedTuple):
    """A row: a network, Plug-and-Play's inversion steps, or neither for the base."""

    title: str
    network: ControlNetwork | None = None
    inversion: int | None = None

    def controls(self, held: HeldOut) -> list[Any]:
        """New ones, with empty caches."""
        if self.inversion is not None:
            return [PlugAndPlay(held.images, inversion=self.inversion)]
        return [] if self.network is None else [self.network.on(held.conditions)]

    def cost(self, setting: Setting, schedule: Any, steps: int) -> Cost:
        if self.inversion is not None:
            blank = np.zeros(setting.picture.shape, np.float32)
            return plug_and_play_cost(setting, PlugAndPlay(blank, inversion=self.inversion), schedule, steps)
        return base_cost(setting) if self.network is None else network_cost(setting, self.network)


@dataclasses.dataclass(frozen=True)
class ControlComparison(HeldOutEvaluation):
    """`methods`: by row, the weights of a control, or null for no such row; `plug_and_play` is true or null."""

    methods: Mapping[str, str | bool | None] = dataclasses.field(default_factory=dict)
    quality: Any = None  # an extractor of `plugins.metrics.features`; None: no quality columns
    clip: Any = None  # `plugins.metrics.features.clip`; None: neither CMMD nor CLIP score
    seed: int = 0  # of the first image; the next ones count up
    inversion: int = INVERSION  # Plug-and-Play's steps from an image to its noise
    rounds: Positive = 5  # timed runs of each row

    def __post_init__(self):
        super().__post_init__()
        methods = {PLUG_AND_PLAY if name == OLD_PLUG_AND_PLAY else name: value for name, value in self.methods.items()}
        object.__setattr__(self, "methods", methods)
        for name, value in methods.items():
            if isinstance(value, str if name == PLUG_AND_PLAY else bool):
                rule = "true or null" if name == PLUG_AND_PLAY else "weights or null"
                raise ValueError(f"evaluation.methods.{name} is {value!r}: it must be {rule}")
        if not any(methods.values()):
            raise ValueError("evaluation.methods is empty: give weights, as evaluation.methods.plugin=PATH")

    def files(self) -> Sequence[str]:
        return ("results.json", "table.csv", "table.md", "sheet.png")

    def evaluate(self, weights: str, output: Output) -> str:
        """Writes all rows; `weights` is one of `methods`, by interpolation in the config."""
        paths = self._paths()
        files = bases.read_base(self.base)
        self.prepare_metrics()
        held = self.held_out(self.count)
        self.check_side(files.base, held)
        for name, fewest in {"quality": NEIGHBOURS + 1, "clip": 2}.items():
            if getattr(self, name) is not None and len(held.prompts) < fewest:
                rule = f"{name} takes {fewest} or more; raise evaluation.count, or set evaluation.{name}=null"
                raise ValueError(f"{len(held.prompts)} held-out images: {rule}")
        pipeline, methods = bases.from_files(files), [Method(BASE)]
        for name, path in paths.items():
            title = PLUS + TITLES.get(name, name)
            methods.append(Method(title, inversion=self.inversion) if path is None else Method(title, load(path)))
        costs = {}
        for method in methods:
            try:
                make_request(pipeline.base, **self._request(held), controls=method.controls(held))
                costs[method.title] = self._cost(pipeline, method, held)
            except ValueError as error:
                raise ValueError(f"{method.title}: {error}") from error
        images = {method.title: self._generate(pipeline, method, held, make_mesh()) for method in methods}
        known = None if self.clip is None else (self.clip.images(held.images), self.clip.texts(held.prompts))
        rows = self._rows(pipeline, methods, costs, held, images, known)
        device, quality = jax.devices()[0].device_kind, None if self.quality is None else self.quality.name
        made = f"{self.steps} steps of DDIM, guidance {self.guidance:g}"
        features = f"is in the features of {quality}; compare it within this table only" if quality else "was left out"
        notes = [
            f"{len(held.images)} images of the split {self.data.split}, {made}.",
            f"Seconds are medians of {self.rounds} runs of one image, methods in turns, on {device}.",
            f"Quality {features}.",
        ]
        if known is not None:
            notes.append(f"CLIP score of the held-out images themselves: {clip_score(*known):.3f}.")
        shown = "\n".join([table(rows), "", *notes])
        self.write_sheet(output, held, {title.removeprefix(PLUS): each for title, each in images.items()})
        output.write_text("table.md", shown)
        output.write_csv("table.csv", [flat_row(row) for row in rows])
        used = {name: path and str(path) for name, path in paths.items()}
        about = self.about(weights, held, "seed", "inversion", "rounds")
        about |= {"condition": self.data.condition, "methods": used, "sampler": SAMPLER}
        about |= {"device": device, "quality": quality}
        output.write_json("results.json", about | {"notes": notes, "rows": rows})
        return shown

    def _paths(self) -> dict[str, Path | None]:
        """The weights of each row; None: Plug-and-Play. Raises FileNotFoundError that names the row."""
        found: dict[str, Path | None] = {}
        for name, value in self.methods.items():
            try:
                if value:
                    found[name] = None if name == PLUG_AND_PLAY else CONTROLS.find(str(value))
            except FileNotFoundError as error:
                raise FileNotFoundError(f"evaluation.methods.{name}: {error}") from error
        return found

    def _request(self, held: HeldOut) -> dict[str, Any]:
        """The arguments of a pipeline that all rows share."""
        _, height, width, _ = held.images.shape
        size = {"height": height, "width": width, "seeds": range(self.seed, self.seed + len(held.prompts))}
        return {"prompts": held.prompts, "steps": self.steps, "guidance": self.guidance, "sampler": SAMPLER, **size}

    def _generate(self, pipeline: Pipeline, method: Method, held: HeldOut, mesh: Mesh | None = None) -> Images:
        return pipeline(**self._request(held), controls=method.controls(held), mesh=mesh)

    def _cost(self, pipeline: Pipeline, method: Method, held: HeldOut) -> Cost:
        base, (_, height, width, _) = pipeline.base, held.images.shape
        sides, guided = (height // base.unit, width // base.unit), self.guidance != 1 and not base.distilled
        setting = Setting(pipeline.unet, pipeline.vae, *sides, base.length, guided, base.sizes)
        return method.cost(setting, pipeline.schedule, self.steps)

    def _rows(
        self,
        pipeline: Pipeline,
        methods: Sequence[Method],
        costs: Mapping[str, Cost],
        held: HeldOut,
        images: Mapping[str, Images],
        known: tuple[np.ndarray, np.ndarray] | None,
    ) -> list[Row]:
        """Costs, fidelity and quality of each method; overheads are relative to the first, the base. `once` is the
        share of `gflop` before the first call, `timings` are all measured seconds. `known`: CLIP's embeddings of the
        held-out images and of their prompts."""
        one = HeldOut(held.images[:1], held.prompts[:1], held.conditions[:1])
        runs = {method.title: functools.partial(self._generate, pipeline, method, one) for method in methods}
        timings = interleaved(runs, self.rounds)
        fidelity = self.scored(held, images)
        truth: Any = None if self.quality is None else self.quality(held.images)
        rows: list[Row] = []
        for method in methods:
            cost = costs[method.title]
            seconds, gflop = statistics.median(timings[method.title]), cost.run(self.steps).total / 1e9
            first = rows[0] if rows else {"seconds": seconds, "gflop": gflop}
            row = {
                "model": method.title,
                "parameters": cost.parameters,
                "gflop": gflop,
                "once": cost.once.total / 1e9,
                "seconds": seconds,
                "timings": timings[method.title],
                "time_overhead": overhead(seconds, first["seconds"]),
                "gflop_overhead": overhead(gflop, first["gflop"]),
                "fidelity": {name: mean._asdict() for name, mean in fidelity[method.title].items()},
                "quality": {},
            }
            if self.quality is not None:
                row["quality"] = compare(self.quality.name, self.quality(images[method.title]), truth)
            if known is not None:
                generated = self.clip.images(images[method.title])
                row["quality"] |= compare_with_texts(self.clip.images.name, generated, *known)
            rows.append(row)
        return rows


def flat_row(row: Row) -> Row:
    """A line of a CSV file: one number a column."""
    means = {name: mean["value"] for name, mean in row["fidelity"].items()}
    errors = {f"{name}{ERROR}": mean["error"] for name, mean in row["fidelity"].items()}
    return {name: row[name] for name in NUMBERS} | means | errors | row["quality"]


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown. Kernel distances are times 1000; precision and recall are in the files only."""
    quality = [name for name in rows[0]["quality"] if not name.endswith(ERROR) and name not in PrecisionRecall._fields]
    errors = {name: f"{name}{ERROR}" for name in quality if f"{name}{ERROR}" in rows[0]["quality"]}
    lines = []
    for i, row in enumerate(rows):
        costs = [f"{row['parameters']:,}", number(row["gflop"]), f"{row['seconds']:.3f}"]
        costs += [f"{number(row[name], '+')} %" if i else "" for name in ("time_overhead", "gflop_overhead")]
        scores = [Mean(**mean).text() for mean in row["fidelity"].values()]
        for name, value in ((name, row["quality"][name]) for name in quality):
            if name in errors:
                scores.append(f"{1000 * value:.2f} ± {1000 * row['quality'][errors[name]]:.2f}")
            else:
                scores.append(f"{value:.{3 if abs(value) < 1 else 2}f}")
        lines.append([row["model"], *costs, *scores])
    titles = [f"{name} x 1000" if name in errors else name for name in quality]
    return markdown([*COLUMNS, *rows[0]["fidelity"], *titles], lines)


def number(value: float, sign: str = "") -> str:
    """At least three digits; `sign` "+": with its sign."""
    return f"{value:{sign},.0f}" if abs(value) >= 100 else f"{value:{sign}.3g}"
