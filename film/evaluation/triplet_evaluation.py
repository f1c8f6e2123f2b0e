"""Scores on triplets: any weights, on any test sets, by any metrics, with methods without training beside them.

    python eval.py experiment=film_small weights=film-small                       # all of the experiment's sets
    python eval.py experiment=film_small weights=average sets=[film] limit=20     # a baseline in the network's place
    python eval.py experiment=film_small weights=film-small evaluation=film_held_out evaluation.beside=[runs/mine]

The config lists named metrics (`common/evaluation/metrics.py`) and named test sets: any sequence of `film.data.triplet.Triplet`, for
instance a layout of `film/data/datasets.py`. For each triplet, in the set's order:

1. read it; at each scale shrink its three pictures (mean over areas);
2. ask each method for the picture at the triplet's time;
3. score each picture against the truth (a row of `results.csv`), and draw the triplet if it is among the worst or an
   example.

Then the means over triplets and over sets go into `summary.json` and a printed table, each set's worst triplets into
`worst_SET.png`, and examples of all sets into `examples.png`. One triplet is in memory at a time; a network is compiled
once per picture size.

Where the truth is NaN nobody knows it (`recipes.film_small.stereo`), and nothing is judged: metrics of single pixels see the others
only, and the rest (SSIM, LPIPS), which need neighbours, a picture and a truth that are both filled with the average of
the neighbours there. That makes their numbers milder, for all methods alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import cv2
import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from common.evaluation.metrics import Metric
from common.evaluation.score_table import Row, lead, markdown, over_sets, summarise, write_csv, write_json
from common.io.files import check_output_file
from common.io.images import check_same_size, write_image
from common.training.task import Params
from common.weights.model_file import git_commit
from common.weights.porting import flatten
from film.data.triplet import Triplet
from film.evaluation.baselines import METHODS, ORACLES, Frame, Method, Prediction, average
from film.evaluation.score_sheet import Gallery, row, sheet, spread
from film.io.weights import load
from film.model import Film, FilmConfig
from film.porting import from_params

OURS = "film"
EXAMPLES = "examples.png"
FINEST = 64  # moments finer than 1/64 are never asked for as midpoints of midpoints
MIDPOINTS, DIRECT = "midpoints", "direct"


@runtime_checkable
class Triplets(Protocol):
    """A test set: triplets in a fixed order; nothing is read before it is asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Triplet: ...


@runtime_checkable
class HasModel(Protocol):
    """A training task whose parameters are those of a FILM network."""

    @property
    def model(self) -> FilmConfig: ...


@dataclasses.dataclass(frozen=True)
class FilmEvaluation:
    """Test sets and how to look at them.

    Attributes:
      metrics: by name; the first decides which triplets are the worst and which method is better.
      sets: test sets by name.
      baselines: methods shown beside the evaluated one.
      oracles: methods that are told the truth, shown last (`film.evaluation.baselines.ORACLES`).
      beside: other weights shown beside it, a row each under their own name.
      moments: how networks are asked for a moment that is not the middle. "midpoints": 1/4 is the midpoint of x0 and
        the midpoint, and so on; "direct": the network is given the time. Of several, each is a row of its own.
      scales: sizes at which the sets are scored; 0.5 halves width and height before anything else.
      limit: score only the first so many triplets of each set; 0 for all.
      worst: triplets in each set's picture of the worst, at the first scale: those with the smallest lead over the
        first baseline, or the lowest score if there is none.
      examples: triplets in the picture of examples, spread evenly over the sets and in each, at the first scale.
      training_limit, training_metrics: what `score` looks at; no metrics named means all.
      progress: show a progress bar.
    """

    metrics: Mapping[str, Metric]
    sets: Mapping[str, Triplets]
    baselines: Sequence[str] = tuple(METHODS)
    oracles: Sequence[str] = ()
    beside: Sequence[str] = ()
    moments: Sequence[str] = (MIDPOINTS,)
    scales: Sequence[float] = (1.0,)
    limit: int = 0
    worst: int = 6
    examples: int = 0
    training_limit: int = 16
    training_metrics: Sequence[str] = ()
    progress: bool = True

    def __post_init__(self):
        for name in ("baselines", "oracles", "beside", "moments", "scales", "training_metrics"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("metrics", "sets", "moments", "scales"):
            if not getattr(self, name):
                raise ValueError(f"evaluation.{name} is empty: list at least one")
        for field, known in (("baselines", METHODS), ("oracles", ORACLES)):
            unknown = [name for name in getattr(self, field) if name not in known]
            if unknown:
                raise ValueError(f"evaluation.{field} names {unknown[0]!r}: there are {', '.join(known)}")
        if not {*self.moments} <= {MIDPOINTS, DIRECT}:
            raise ValueError(f"evaluation.moments is {list(self.moments)}: choose of {MIDPOINTS}, {DIRECT}")
        names = [OURS, *METHODS, *ORACLES, *map(short_name, self.beside)]
        if len(set(names)) < len(names):
            raise ValueError(f"evaluation.beside is {list(self.beside)}: names of rows are {names}; rename one of them")
        if not all(0 < scale <= 1 for scale in self.scales):
            raise ValueError(f"evaluation.scales is {list(self.scales)}: each has to be above 0 and at most 1")
        unknown = [name for name in self.training_metrics if name not in self.metrics]
        if unknown:
            listed = ", ".join(self.metrics)
            raise ValueError(f"evaluation.training_metrics names {unknown[0]!r}: the metrics are {listed}")
        for name in ("limit", "worst", "examples", "training_limit"):
            if getattr(self, name) < 0:
                raise ValueError(f"evaluation.{name} is {getattr(self, name)}: it has to be at least 0")

    def run(self, weights: str, output: Path, overwrite: bool = False) -> str:
        """Scores `weights` (a name of `METHODS`, or what `film.load` takes) and the baselines beside them.

        Writes `results.csv`, `summary.json`, `worst_SET.png` and `examples.png` to `output`, and returns the table.
        Everything that can be missing is looked for before the work: FileExistsError, FileNotFoundError, ValueError.
        """
        pictures = {name: output / f"worst_{name}.png" for name in self.sets} if self.worst else {}
        pictures |= {EXAMPLES: output / EXAMPLES} if self.examples else {}
        results, report = output / "results.csv", output / "summary.json"
        for target in (results, report, *pictures.values()):
            check_output_file(target, overwrite)
        counts = {name: len(triplets) for name, triplets in self.sets.items()}
        for metric in self.metrics.values():
            metric.prepare()
        methods = self._methods(weights)
        ours = next(iter(methods))
        shown = spread([self._length(name) for name in self.sets], self.examples)
        rows, sheets, examples = [], {}, []
        for name, chosen in zip(self.sets, shown, strict=True):
            gallery = Gallery(self.worst, chosen)
            rows += self._score_set(name, methods, gallery)
            sheets[name] = gallery.worst.sheet()
            examples += gallery.examples
        sheets[EXAMPLES] = sheet(examples)
        summary = summarise(rows, self.metrics, ours)
        summary += over_sets(summary, self.metrics)
        write_csv(results, rows, overwrite)
        write_json(report, self._record(weights, counts, summary), overwrite)
        for name, target in pictures.items():
            write_image(target, sheets[name], overwrite=overwrite)
        return markdown(summary, self.metrics, ours)

    def score(self, task: HasModel, params: Params, limit: int | None = None) -> dict[str, float]:
        """Means over the first triplets of each set at the first scale, by names such as "film/psnr"; for use during
        training. `limit` is `training_limit` if None, 0 for all. Without baselines and pictures."""
        limit = self.training_limit if limit is None else limit
        metrics = self._training_metrics()
        quick = dataclasses.replace(
            self, metrics=metrics, scales=self.scales[:1], limit=limit, oracles=(), progress=False
        )
        method = network(from_params(flatten(jax.device_get(params)), task.model), self.moments[0])
        rows = [scored for name in self.sets for scored in quick._score_set(name, {OURS: method})]
        summary = summarise(rows, metrics, OURS)
        return {f"{line['set']}/{name}": line[name] for line in summary for name in metrics}

    def prepare(self) -> list[str]:
        """The names that `score` gives. Opens each set's first triplet and the metrics' weights, so that what is
        missing is told before a run begins: FileNotFoundError, ValueError."""
        metrics = self._training_metrics()
        for triplets in self.sets.values():
            checked(triplets[0])
        for metric in metrics.values():
            metric.prepare()
        return [f"{name}/{metric}" for name in self.sets for metric in metrics]

    def _training_metrics(self) -> dict[str, Metric]:
        return {name: self.metrics[name] for name in self.training_metrics or self.metrics}

    def _methods(self, weights: str) -> dict[str, Method]:
        """By name in the table: what is evaluated, in each way to ask it for a moment; other weights; baselines."""
        methods = {weights: METHODS[weights]} if weights in METHODS else self._networks(OURS, weights)
        for other in self.beside:
            methods |= self._networks(short_name(other), other)
        return methods | {name: METHODS[name] for name in self.baselines if name not in methods}

    def _networks(self, name: str, weights: str) -> dict[str, Method]:
        model, first = load(weights), self.moments[0]
        return {name if way == first else f"{name} {way}": network(model, way) for way in self.moments}

    def _length(self, name: str) -> int:
        """How many of a set's triplets are looked at."""
        return min(self.limit or len(self.sets[name]), len(self.sets[name]))

    def _score_set(self, name: str, methods: Mapping[str, Method], gallery: Gallery | None = None) -> list[Row]:
        triplets, rows = self.sets[name], []
        for i in tqdm(range(self._length(name)), desc=name, unit="triplet", disable=None if self.progress else True):
            triplet = checked(triplets[i])
            for scale in self.scales:
                small = shrink(triplet, scale)
                predictions = {key: method(small.x0, small.x1, small.time) for key, method in methods.items()}
                truth = filled(small) if self.oracles else small.y
                oracles = {key: ORACLES[key](small.x0, truth, small.x1, small.time) for key in self.oracles}
                scored = [
                    {"set": name, "scale": scale, "name": small.name, "method": key, **self._values(found, small)}
                    for key, found in (predictions | oracles).items()
                ]
                rows += scored
                if gallery is not None and scale == self.scales[0]:
                    gallery.offer(i, self._lead(scored), self._painter(small, predictions, scored))
        return rows

    def _values(self, prediction: Prediction, triplet: Triplet) -> dict[str, float]:
        """Each metric; where the truth is not known, as the module says."""
        image, truth = prediction.image, triplet.y
        known = np.asarray(np.isfinite(truth).all(axis=-1))
        if known.all():
            return {name: metric(image, truth) for name, metric in self.metrics.items()}
        rest = filled(triplet)
        whole = [np.where(known[..., None], image, rest), rest]
        column = [picture[known][:, None] for picture in (image, truth)]
        return {name: metric(*(column if metric.pointwise else whole)) for name, metric in self.metrics.items()}

    def _lead(self, scored: list[Row]) -> float:
        name, metric = next(iter(self.metrics.items()))
        baseline = [line[name] for line in scored[1:] if line["method"] in self.baselines][:1]
        return lead(metric, scored[0][name], *baseline)

    def _painter(self, triplet: Triplet, predictions: Mapping[str, Prediction], scored: list[Row]) -> Callable:
        name, metric = next(iter(self.metrics.items()))
        words = [f"{name} {line[name]:.{metric.digits}f}" for line in scored]
        return lambda: row(triplet, predictions, words[: len(predictions)], scored[0]["set"])

    def _record(self, weights: str, counts: Mapping[str, int], summary: list[Row]) -> dict[str, Any]:
        metrics = {name: {"kind": type(m).__name__, **dataclasses.asdict(m)} for name, m in self.metrics.items()}
        asked = {"weights": weights, "beside": self.beside, "moments": self.moments, "limit": self.limit}
        about = {**asked, "git_commit": git_commit(), "metrics": metrics}
        sets = {name: {"source": repr(self.sets[name]), "triplets": count} for name, count in counts.items()}
        return {**about, "sets": sets, "scores": summary}


def short_name(weights: str) -> str:
    """What a table calls weights that are given by name or path."""
    return Path(weights).name.removesuffix(".safetensors")


def network(model: Film, moments: str = MIDPOINTS) -> Method:
    """FILM as a method; for `moments` see `FilmEvaluation`."""

    def predict(x0: Frame, x1: Frame, time: float = 0.5) -> Prediction:
        a, b = (jnp.asarray(x, jnp.float32)[None] for x in (x0, x1))
        while moments == MIDPOINTS and time != 0.5 and (time * FINEST).is_integer() and 0 < time < 1:
            middle = model(a, b).image
            a, b, time = (a, middle, 2 * time) if time < 0.5 else (middle, b, 2 * time - 1)
        out = model(a, b, time)
        return Prediction(np.asarray(out.image[0]), np.asarray(out.forward_flow[0][0]))

    return predict


def checked(triplet: Triplet) -> Triplet:
    """The triplet; ValueError that names it unless its three pictures have one size."""
    pictures = {"x0": triplet.x0, "truth": triplet.y, "x1": triplet.x1}
    names = [f"{triplet.name} {part}" for part in pictures]
    check_same_size([(x.shape[1], x.shape[0]) for x in pictures.values()], names)
    return triplet


def filled(triplet: Triplet) -> Frame:
    """The truth, with the average of the neighbours where it is not known."""
    rest = average(triplet.x0, triplet.x1, triplet.time).image
    return np.where(np.isfinite(triplet.y).all(axis=-1, keepdims=True), triplet.y, rest)


def shrink(triplet: Triplet, scale: float) -> Triplet:
    """The triplet at another size, each pixel the mean of an area."""
    if scale == 1:
        return triplet
    frames = (triplet.x0, triplet.y, triplet.x1)
    x0, y, x1 = (cv2.resize(x, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) for x in frames)
    return triplet._replace(x0=x0, y=y, x1=x1)
