"""Scores on triplets: any weights on any test sets by any metrics, next to methods without training.

    python eval.py experiment=film_small weights=film-small                       # all of the experiment's sets
    python eval.py experiment=film_small weights=average sets=[film] limit=20     # a baseline in the network's place
    python eval.py experiment=film_small weights=film-small evaluation=film_held_out evaluation.compare_with=[runs/mine]

The config lists named metrics (`common/evaluation/metrics.py`) and named test sets: any sequence of
`film.data.triplet.Triplet`, for instance a dataset of `film/data/datasets.py`. For each triplet, in the set's order:

1. read it; at each scale shrink its three images (mean over areas);
2. predict the frame at the triplet's time with each method;
3. score each prediction against the truth (a row of `results.csv`), and draw the triplet if it is among the worst or an
   example.

Then the means over triplets and over sets go into `summary.json` and a printed table, each set's worst triplets into
`worst_SET.png`, and examples of all sets into `examples.png`. One triplet is in memory at a time; a network is compiled
once per image size.

Where the truth is NaN it is unknown (`recipes.film_small.stereo`), and nothing is scored: pointwise metrics see the
other pixels only; the rest (SSIM, LPIPS), which need neighbours, see a prediction and a truth that are both filled with
the average of the neighbours there. That makes their numbers milder, for all methods alike.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import cv2
import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from common.evaluation.evaluation import Evaluation, Output, provenance
from common.evaluation.metrics import Metric
from common.evaluation.score_table import Row, over_sets, summarise, summary_table
from common.io.images import check_same_size
from common.training.task import Params
from common.weights.porting import flatten
from film.data.triplet import Prediction, Triplet
from film.evaluation.baselines import METHODS, ORACLES, Frame, Method, average
from film.io.weights import load
from film.model import Film
from film.porting import from_params
from film.visualization import Gallery, draw_row, spread, stacked

OURS = "film"
RESULTS, SUMMARY, EXAMPLES = "results.csv", "summary.json", "examples.png"
FINEST = 64  # times that are no multiple of 1/64 are given to the network, not reached by midpoints
MIDPOINTS, DIRECT = "midpoints", "direct"


@runtime_checkable
class Triplets(Protocol):
    """A test set: triplets in a fixed order, each read when it is indexed."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Triplet: ...


@dataclasses.dataclass(frozen=True)
class FilmEvaluation(Evaluation):
    """Test sets, metrics and methods, by name.

    `moments` are ways for a network to a time that is not the middle: with "midpoints" 1/4 is the midpoint of x0 and
    the midpoint, and so on; with "direct" the network is given the time. Of several, each is a row of its own. The
    worst triplets are those with the smallest lead over the first baseline, or the lowest score if there is none.
    """

    metrics: Mapping[str, Metric]  # the first decides which triplets are the worst and which method is better
    sets: Mapping[str, Triplets]
    baselines: Sequence[str] = tuple(METHODS)  # methods without training (`film.evaluation.baselines.METHODS`)
    oracles: Sequence[str] = ()  # methods that see the truth, shown last (`film.evaluation.baselines.ORACLES`)
    compare_with: Sequence[str] = ()  # other weights, a row each under their own name
    moments: Sequence[str] = (MIDPOINTS,)
    scales: Sequence[float] = (1.0,)  # 0.5 halves width and height before anything else
    limit: int = 0  # score only the first so many triplets of each set; 0 for all
    worst: int = 6  # triplets in each set's image of the worst, at the first scale
    examples: int = 0  # triplets in the image of examples, spread over the sets and in each, at the first scale
    training_limit: int = 16  # `limit` of `score`
    training_metrics: Sequence[str] = ()  # metrics of `score`; empty: all
    progress: bool = True

    def __post_init__(self):
        for name in ("baselines", "oracles", "compare_with", "moments", "scales", "training_metrics"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("metrics", "sets", "moments", "scales"):
            if not getattr(self, name):
                raise ValueError(f"evaluation.{name} is empty: list at least one")
        choices = {"baselines": METHODS, "oracles": ORACLES, "moments": (MIDPOINTS, DIRECT)}
        for field, known in (choices | {"training_metrics": self.metrics}).items():
            if unknown := [name for name in getattr(self, field) if name not in known]:
                raise ValueError(f"evaluation.{field} names {unknown[0]!r}: there are {', '.join(known)}")
        names = [OURS, *METHODS, *ORACLES, *map(short_name, self.compare_with)]
        if len(set(names)) < len(names):
            raise ValueError(
                f"evaluation.compare_with is {list(self.compare_with)}: names of rows are {names}; rename one of them"
            )
        if not all(0 < scale <= 1 for scale in self.scales):
            raise ValueError(f"evaluation.scales is {list(self.scales)}: each has to be above 0 and at most 1")
        for name in ("limit", "worst", "examples", "training_limit"):
            if getattr(self, name) < 0:
                raise ValueError(f"evaluation.{name} is {getattr(self, name)}: it has to be at least 0")

    def files(self) -> list[str]:
        worst = [f"worst_{name}.png" for name in self.sets] if self.worst else []
        return [RESULTS, SUMMARY, *worst, *([EXAMPLES] if self.examples else [])]

    def evaluate(self, weights: str, output: Output) -> str:
        """Scores `weights` (a name of `METHODS`, or what `film.load` takes), baselines, oracles and other weights."""
        counts = {name: len(triplets) for name, triplets in self.sets.items()}
        for metric in self.metrics.values():
            metric.prepare()
        methods = {weights: METHODS[weights]} if weights in METHODS else self._networks(OURS, weights)
        ours = next(iter(methods))
        for other in self.compare_with:
            methods |= self._networks(short_name(other), other)
        methods |= {name: METHODS[name] for name in self.baselines if name not in methods}
        shown = spread([min(self.limit or count, count) for count in counts.values()], self.examples)
        galleries = {name: Gallery(self.worst, chosen) for name, chosen in zip(self.sets, shown, strict=True)}
        rows = [row for name, gallery in galleries.items() for row in self._score_set(name, methods, gallery)]
        summary = summarise(rows, self.metrics, ours)
        summary += over_sets(summary, self.metrics)
        metrics = {name: {"kind": type(m).__name__, **dataclasses.asdict(m)} for name, m in self.metrics.items()}
        sets = {name: {"source": repr(self.sets[name]), "triplets": count} for name, count in counts.items()}
        options = {"beside": self.compare_with, "moments": self.moments, "limit": self.limit}
        results = {"metrics": metrics, "sets": sets, "scores": summary}
        output.write_csv(RESULTS, rows)
        output.write_json(SUMMARY, provenance(weights) | options | results)
        for name, gallery in galleries.items() if self.worst else ():
            output.write_image(f"worst_{name}.png", stacked([row for _, _, row in gallery.worst]))
        if self.examples:
            output.write_image(EXAMPLES, stacked([row for gallery in galleries.values() for row in gallery.examples]))
        return summary_table(summary, self.metrics, ours)

    def prepare(self) -> list[str]:
        """Opens each set's first triplet and the metrics' weights."""
        for triplets in self.sets.values():
            checked(triplets[0])
        metrics = self.training_metrics or tuple(self.metrics)
        for name in metrics:
            self.metrics[name].prepare()
        return [f"{name}/{metric}" for name in self.sets for metric in metrics]

    def score(self, task: Any, params: Params) -> dict[str, float]:
        """Means over the first triplets of each set at the first scale, by names such as "film/psnr"; no baselines, no
        images."""
        quick = dataclasses.replace(
            self,
            metrics={name: self.metrics[name] for name in self.training_metrics or self.metrics},
            scales=self.scales[:1],
            limit=self.training_limit,
            oracles=(),
            progress=False,
        )
        method = network(from_params(flatten(jax.device_get(params)), task.model), self.moments[0])
        rows = [row for name in self.sets for row in quick._score_set(name, {OURS: method}, Gallery(0))]
        summary = summarise(rows, quick.metrics, OURS)
        return {f"{line['set']}/{name}": line[name] for line in summary for name in quick.metrics}

    def _networks(self, name: str, weights: str) -> dict[str, Method]:
        """A network as a method by name, once for each of `moments`."""
        model, first = load(weights), self.moments[0]
        return {name if how == first else f"{name} {how}": network(model, how) for how in self.moments}

    def _score_set(self, name: str, methods: Mapping[str, Method], gallery: Gallery) -> list[Row]:
        triplets, rows = self.sets[name], []
        count = min(self.limit or len(triplets), len(triplets))
        for i in tqdm(range(count), desc=name, unit="triplet", disable=None if self.progress else True):
            triplet = checked(triplets[i])
            for scale in self.scales:
                small = shrink(triplet, scale)
                predictions = {key: method(small.x0, small.x1, small.time) for key, method in methods.items()}
                truth = filled(small) if self.oracles else small.y
                oracles = {key: ORACLES[key](small.x0, truth, small.x1, small.time) for key in self.oracles}
                scored = [
                    {"set": name, "scale": scale, "name": small.name, "method": key, **self._values(prediction, small)}
                    for key, prediction in (predictions | oracles).items()
                ]
                rows += scored
                if scale == self.scales[0]:
                    first, metric = next(iter(self.metrics.items()))
                    baseline = [row[first] for row in scored[1:] if row["method"] in self.baselines][:1]
                    labels = [f"{first} {row[first]:.{metric.digits}f}" for row in scored[: len(predictions)]]
                    draw = functools.partial(draw_row, small, predictions, labels, name)
                    gallery.offer(i, metric.lead(scored[0][first], *baseline), draw)
        return rows

    def _values(self, prediction: Prediction, triplet: Triplet) -> dict[str, float]:
        """Each metric; where the truth is unknown, as the module says."""
        image, truth = prediction.image, triplet.y
        known = np.asarray(np.isfinite(truth).all(axis=-1))
        if known.all():
            return {name: metric(image, truth) for name, metric in self.metrics.items()}
        truth_everywhere = filled(triplet)
        pixels = [x[known][:, None] for x in (image, truth)]
        images = [np.where(known[..., None], image, truth_everywhere), truth_everywhere]
        return {name: metric(*(pixels if metric.pointwise else images)) for name, metric in self.metrics.items()}


def short_name(weights: str) -> str:
    """The name in a table of weights that are given by name or path."""
    return Path(weights).name.removesuffix(".safetensors")


def network(model: Film, moments: str = MIDPOINTS) -> Method:
    """FILM as a method; for `moments` see `FilmEvaluation`."""

    def predict(x0: Frame, x1: Frame, time: float = 0.5) -> Prediction:
        a, b = (jnp.asarray(x, jnp.float32)[None] for x in (x0, x1))
        while moments == MIDPOINTS and time != 0.5 and (time * FINEST).is_integer() and 0 < time < 1:
            middle = model(a, b).image
            a, b, time = (a, middle, 2 * time) if time < 0.5 else (middle, b, 2 * time - 1)
        output = model(a, b, time)
        return Prediction(np.asarray(output.image[0]), np.asarray(output.forward_flow[0][0]))

    return predict


def checked(triplet: Triplet) -> Triplet:
    """The triplet; ValueError that names it unless its three images have one size."""
    images = {"x0": triplet.x0, "truth": triplet.y, "x1": triplet.x1}
    check_same_size([(x.shape[1], x.shape[0]) for x in images.values()], [f"{triplet.name} {name}" for name in images])
    return triplet


def filled(triplet: Triplet) -> Frame:
    """The truth, with the average of the neighbours where it is unknown."""
    rest = average(triplet.x0, triplet.x1, triplet.time).image
    return np.where(np.isfinite(triplet.y).all(axis=-1, keepdims=True), triplet.y, rest)


def shrink(triplet: Triplet, scale: float) -> Triplet:
    """The triplet at another size, each pixel the mean of an area."""
    if scale == 1:
        return triplet
    frames = (triplet.x0, triplet.y, triplet.x1)
    x0, y, x1 = (cv2.resize(x, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) for x in frames)
    return triplet._replace(x0=x0, y=y, x1=x1)
