"""Scores on triplets: any weights on any test sets by any metrics, next to methods without training.

    python eval.py experiment=film_small weights=film-small                       # all of the experiment's sets
    python eval.py experiment=film_small weights=average sets=[film] limit=20     # a baseline in the network's place
    python eval.py experiment=film_small weights=film-small evaluation=film_held_out evaluation.compare_with=[runs/mine]

Each triplet is read, at each scale shrunken (mean over areas), predicted at its time by each method, and scored by each
metric (`common/evaluation/metrics.py`): a row of `results.csv`. The means over triplets and over sets go into
`summary.json` and a printed table, the worst triplets of each set and its median one, with their errors, into
`SET.png`; examples of all sets into `examples.png`. What a mean over whole pictures at the triplet's time hides:

* `regions`: the first metric over pixels that move and over occluded ones, too (`film.evaluation.regions`).
* `search`: hands speed up and slow down, and two frames do not tell where they were half-way. The columns "best ..."
  score each method's frame at the moment near the triplet's time at which its squared error is smallest
  (`best_moment`). What is left is wrong paths, edges and colours.
* `own_warps`: does the network's decoder add anything to its flow? "NAME warps" is the mean of the two frames as the
  network warps them; "NAME best warp" takes for each pixel the best of the two and of their mean: an oracle that knows
  which frame to believe. Their best moment is that of the network.

Where the truth is NaN it is unknown (`recipes.film_small.stereo`): pointwise metrics see the other pixels only; the
rest (SSIM, LPIPS), which need neighbours, see a prediction and a truth that are both filled with the average of the
neighbours there: milder, for all methods alike.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import cv2
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from common.checked import Named, NotNegative, OneOrMore, PositiveShare, one_of, real
from common.evaluation.evaluation import Evaluation, Output, provenance
from common.evaluation.metrics import Metric
from common.evaluation.score_table import Row, over_sets, summarise, summary_table
from common.io.images import check_same_size
from common.training.task import Params
from common.weights.porting import assemble, flatten
from film.data.triplet import Prediction, Triplet
from film.evaluation.baselines import METHODS, ORACLES, Between, Frame, Method, average, mixed
from film.evaluation.regions import SMALLEST, Mask, estimated
from film.io.weights import load
from film.model import Film, with_matching
from film.visualization import Row as Images
from film.visualization import draw_row, spread, stacked

OURS = "film"
RESULTS, SUMMARY, EXAMPLES = "results.csv", "summary.json", "examples.png"
FINEST = 64  # times that are no multiple of 1/64 are given to the network, not reached by midpoints
MIDPOINTS, DIRECT = "midpoints", "direct"
WARPS, BEST_WARP = "warps", "best warp"
STEP, FINER = 0.5, 2  # of the search: first step in shares of its reach, and how many moments are added to three


@runtime_checkable
class Triplets(Protocol):
    """A test set, such as a dataset of `film/data/datasets.py`: triplets in a fixed order, read when indexed."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Triplet: ...


@dataclasses.dataclass(frozen=True)
class FilmEvaluation(Evaluation):
    """Test sets, metrics and methods, by name.

    `moments` are ways for a network to a time that is not the middle: with "midpoints" 1/4 is the midpoint of x0 and
    the midpoint, and so on; with "direct" the network is given the time. Of several, each is a row of its own; without
    any, each network goes the way that `film` does. The worst triplets are those with the smallest lead over the first
    baseline, or the lowest score if there is none.
    """

    metrics: Named[Metric]  # the first decides which triplets are the worst and which method is better
    sets: Named[Triplets]
    baselines: Sequence[Annotated[str, one_of(METHODS)]] = tuple(METHODS)  # without training
    oracles: Sequence[Annotated[str, one_of(ORACLES)]] = ()  # that see the truth, shown last
    compare_with: Sequence[str] = ()  # other weights, a row each under their own name
    matching: bool | None = None  # search the whole frames with the weights that are scored; None: as they say
    moments: Sequence[Literal["midpoints", "direct"]] = ()  # empty: the way of the network
    scales: OneOrMore[PositiveShare] = (1.0,)  # 0.5 halves width and height before anything else
    regions: Sequence[str] = ()  # of the first metric, which is pointwise then
    search: Annotated[float | int, real(0, below=0.5)] = 0.0  # reach from a triplet's time to its best moment; 0: none
    own_warps: bool = False
    groups: Mapping[str, Sequence[str]] | None = None  # sets by the name of a mean over them; None: one, of all sets
    limit: NotNegative = 0  # score only the first so many triplets of each set; 0 for all
    worst: NotNegative = 6  # triplets in each set's image of the worst and the median, at the first scale; 0: no image
    examples: NotNegative = 0  # triplets in the image of examples, spread over the sets and in each, at the first scale
    training: bool = True  # False: no scores during training, so that nothing can be chosen by these sets
    training_limit: NotNegative = 16  # `limit` of `score`
    training_metrics: Sequence[str] = ()  # metrics of `score`; empty: all
    training_sets: Sequence[str] = ()  # sets of `score`; empty: all
    progress: bool = True

    @property
    def first(self) -> tuple[str, Metric]:
        """The metric that ranks, and its name."""
        return next(iter(self.metrics.items()))

    def rules(self):
        yield set(self.training_metrics) <= set(self.metrics), f"training_metrics are of {', '.join(self.metrics)}"
        yield set(self.training_sets) <= set(self.sets), f"training_sets are of {', '.join(self.sets)}"
        names = [OURS, *METHODS, *ORACLES, *map(short_name, self.compare_with)]
        yield len(set(names)) == len(names), f"compare_with gives rows of one name in {names}; rename one"
        first, metric = self.first
        pixels = metric.pointwise or not (self.regions or self.search)
        yield pixels, f"regions and search need metrics that begin with one of pixels, as psnr, not {first}"

    @property
    def columns(self) -> dict[str, Metric]:
        """The metrics, and the first one over regions and at the best moment, by the names of their scores."""
        first, metric = self.first
        parts = [f"{first} {region}" for region in self.regions]
        best = [f"best {name}" for name in (first, *parts)] if self.search else []
        return {first: metric} | dict.fromkeys(parts + best, metric) | dict(self.metrics)

    def files(self) -> list[str]:
        sheets = [f"{name}.png" for name in self.sets] if self.worst else []
        return [RESULTS, SUMMARY, *sheets, *([EXAMPLES] if self.examples else [])]

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
        rows: list[Row] = []
        for name in self.sets:
            rows += self.score_set(name, methods)
            output.write_csv(RESULTS, rows)  # what is done, should the rest be interrupted
        summary = summarise(rows, self.columns, ours) + over_sets(rows, self.columns, ours, self.groups)
        metrics = {name: {"kind": type(m).__name__, **dataclasses.asdict(m)} for name, m in self.metrics.items()}
        sets = {name: {"source": repr(self.sets[name]), "triplets": count} for name, count in counts.items()}
        options = {"beside": self.compare_with, "moments": self.moments, "limit": self.limit, "search": self.search}
        options["matching"] = self.matching
        results = {"metrics": metrics, "sets": sets, "scores": summary}
        output.write_json(SUMMARY, provenance(weights) | options | results)
        for name in self.sets if self.worst else ():
            leads = self._leads([row for row in rows if row["set"] == name], ours)
            order = sorted(range(len(leads)), key=leads.__getitem__)
            chosen = {number: f"{name} worst {place}" for place, number in enumerate(order[: self.worst], 1)}
            chosen |= {order[len(order) // 2]: f"{name} median"}
            output.write_image(f"{name}.png", stacked(self.draw(name, methods, chosen)))
        if self.examples:
            shown = spread([min(self.limit or count, count) for count in counts.values()], self.examples)
            chosen = {
                name: dict.fromkeys(sorted(numbers), name) for name, numbers in zip(self.sets, shown, strict=True)
            }
            rows_of = [images for name, own in chosen.items() for images in self.draw(name, methods, own)]
            output.write_image(EXAMPLES, stacked(rows_of))
        return summary_table(summary, self.columns, ours)

    def prepare(self) -> list[str]:
        """Opens each set's first triplet and the metrics' weights. Raises ValueError without `training`."""
        if not self.training:
            raise ValueError("these test sets give no scores during training: choose evaluation=film_held_out")
        metrics, sets = self.training_metrics or self.metrics, self.training_sets or self.sets
        for name in sets:
            checked(self.sets[name][0])
        for name in metrics:
            self.metrics[name].prepare()
        return [f"{name}/{metric}" for name in sets for metric in metrics]

    def score(self, task: Any, params: Params) -> dict[str, float]:
        """Means over the first triplets of each of `training_sets` at the first scale, by names such as "film/psnr"; no
        baselines, no images."""
        quick = dataclasses.replace(
            self,
            metrics={name: self.metrics[name] for name in self.training_metrics or self.metrics},
            scales=self.scales[:1],
            limit=self.training_limit,
            **dict(oracles=(), regions=(), search=0.0, own_warps=False, progress=False),
        )
        method = network(assemble(Film, task.model, flatten(jax.device_get(params))), *self.moments[:1])
        rows = [row for name in self.training_sets or self.sets for row in quick.score_set(name, {OURS: method})]
        summary = summarise(rows, quick.metrics, OURS)
        return {f"{line['set']}/{name}": line[name] for line in summary for name in quick.metrics}

    def _networks(self, name: str, weights: str) -> dict[str, Method]:
        """A network as a method by name, once for each of `moments`."""
        model, (first, *others) = load(weights), self.moments or (None,)
        model = with_matching(model, self.matching if name == OURS else None)
        return {name: network(model, first)} | {f"{name} {how}": network(model, how) for how in others}

    def score_set(self, name: str, methods: Mapping[str, Method]) -> list[Row]:
        """The rows of the methods on the triplets of a set."""
        triplets, rows = self.sets[name], []
        count = min(self.limit or len(triplets), len(triplets))
        for i in tqdm(range(count), desc=name, unit="triplet", disable=None if self.progress else True):
            triplet = checked(triplets[i])
            for scale in self.scales:
                small = shrink(triplet, scale)
                regions = self._regions(small)
                for method, frames in self._frames(small, methods).items():
                    scores = self._scores(small, regions, *frames)
                    rows.append({"set": name, "scale": scale, "name": small.name, "method": method, **scores})
        return rows

    def _frames(
        self, triplet: Triplet, methods: Mapping[str, Method]
    ) -> dict[str, tuple[Prediction, Prediction | None, float]]:
        """By name of a row: the frame at the triplet's time; at the best moment, if it is searched; and that moment."""
        frames, truth, time = {}, filled(triplet), triplet.time
        for key, method in methods.items():
            between = method(triplet.x0, triplet.x1)
            here, best, moment = between(time), None, time
            if self.search:
                moment, best = best_moment(between, here, triplet, self.search)
            frames[key] = here, best, moment
            if self.own_warps and here.warped is not None:
                warped = best.warped if best else None
                for suffix, choose in ((WARPS, mixed), (BEST_WARP, lambda warped, _: nearest(warped, truth))):
                    own = Prediction(choose(here.warped, time))
                    frames[f"{key} {suffix}"] = own, Prediction(choose(warped, moment)) if warped else None, moment
        for key in self.oracles:
            oracle = ORACLES[key](triplet.x0, truth, triplet.x1, time)
            frames[key] = oracle, oracle if self.search else None, time
        return frames

    def _scores(
        self, triplet: Triplet, regions: Mapping[str, Mask], here: Prediction, best: Prediction | None, moment: float
    ) -> dict[str, float | None]:
        """The `columns` of one method's frames, and the best moment."""
        first, metric = self.first
        values, scores = self._values(here, triplet), {}
        for prefix, prediction in (("", here), ("best ", best)):
            if prediction is not None:
                whole = values[first] if prediction is here else metric(*pixels(prediction, triplet))
                scores[f"{prefix}{first}"] = whole
                for name, mask in regions.items():
                    known = mask & np.isfinite(triplet.y).all(axis=-1)
                    pair = pixels(prediction, triplet, known)
                    scores[f"{prefix}{first} {name}"] = metric(*pair) if known.sum() >= SMALLEST else None
        if best is not None:
            scores["best moment"] = moment
        return scores | values

    def _values(self, prediction: Prediction, triplet: Triplet) -> dict[str, float]:
        """Each metric; where the truth is unknown, as the module says."""
        known = np.asarray(np.isfinite(triplet.y).all(axis=-1))
        if known.all():
            return {name: metric(prediction.image, triplet.y) for name, metric in self.metrics.items()}
        truth_everywhere = filled(triplet)
        images = [np.where(known[..., None], prediction.image, truth_everywhere), truth_everywhere]
        pair = pixels(prediction, triplet)
        return {name: metric(*(pair if metric.pointwise else images)) for name, metric in self.metrics.items()}

    def _regions(self, triplet: Triplet) -> dict[str, Mask]:
        if not self.regions:
            return {}
        known = triplet.regions or estimated(triplet.x0, filled(triplet), triplet.x1)
        if missing := [name for name in self.regions if name not in known]:
            raise ValueError(f"evaluation.regions names {missing[0]!r}: {triplet.name} has {', '.join(known)}")
        return {name: known[name] for name in self.regions}

    def _leads(self, rows: Sequence[Row], ours: str) -> list[float]:
        """Of each triplet of a set at the first scale, the lead of `ours` over the first baseline."""
        first, metric = self.first
        names = ours, next((name for name in self.baselines if name != ours), None)
        scale = [row for row in rows if row["scale"] == self.scales[0]]
        own, other = ([row[first] for row in scale if row["method"] == name] for name in names)
        return [metric.lead(*values) for values in (zip(own, other, strict=True) if other else zip(own))]

    def draw(self, name: str, methods: Mapping[str, Method], chosen: Mapping[int, str]) -> list[Images]:
        """Rows of images of these triplets of a set, each with its title."""
        (first, metric), drawn = self.first, []
        for number, title in chosen.items():
            triplet = shrink(self.sets[name][number], self.scales[0])
            made = {key: method(triplet.x0, triplet.x1)(triplet.time) for key, method in methods.items()}
            values = [f"{first} {self._values(p, triplet)[first]:.{metric.digits}f}" for p in made.values()]
            errors = [next(iter(made)), *[key for key in self.baselines if key in made][:1]]
            drawn.append(draw_row(triplet, made, values, title, list(dict.fromkeys(errors))))
        return drawn


def best_moment(between: Between, here: Prediction, triplet: Triplet, reach: float) -> tuple[float, Prediction]:
    """The moment within `reach` of the triplet's time at which the squared error over the known pixels is smallest, to
    0.01, and the frame there; `here` is the frame at its time. Three moments, then `FINER` times the lowest point of
    the parabola through the best three so far."""
    time, frames, errors = triplet.time, {triplet.time: here}, {}
    low, high = max(time - reach, 0.01), min(time + reach, 0.99)
    wanted = [time, max(time - STEP * reach, low), min(time + STEP * reach, high)]
    while wanted:
        moment = wanted.pop(0)
        if moment not in errors:
            frames[moment] = frames[moment] if moment in frames else between(moment)
            image, truth = pixels(frames[moment], triplet)
            errors[moment] = float(np.mean(np.square(np.clip(image, 0, 1) - truth)))
            if not wanted and len(errors) < 3 + FINER:
                three = sorted(errors, key=errors.__getitem__)[:3]
                curve, slope, _ = np.polyfit(three, [errors[place] for place in three], 2)
                end = low if three[0] < time else high
                lowest = -slope / (2 * curve) if curve > 0 else end
                wanted = [round(float(np.clip(np.nan_to_num(lowest, nan=time), low, high)), 2)]
    best = min(errors, key=errors.__getitem__)
    return best, frames[best]


def pixels(prediction: Prediction, triplet: Triplet, mask: Mask | None = None) -> list[Float[np.ndarray, "n 1 3"]]:
    """The prediction and the truth at these pixels, or at all that are known, as images one pixel wide."""
    mask = np.asarray(np.isfinite(triplet.y).all(axis=-1)) if mask is None else mask
    return [x[mask][:, None] for x in (prediction.image, triplet.y)]


def nearest(warped: tuple[Frame, Frame], truth: Frame) -> Frame:
    """For each pixel the one of two frames, or their mean, that is nearest to the truth."""
    choices = np.stack([*warped, mixed(warped, 0.5)])
    best = np.square(choices - truth).sum(axis=-1).argmin(axis=0)
    return np.take_along_axis(choices, best[None, ..., None], axis=0)[0]


def short_name(weights: str) -> str:
    return Path(weights).name.removesuffix(".safetensors")


def network(model: Film, moments: str | None = None) -> Method:
    """FILM as a method; `moments` is one of those of `FilmEvaluation`, None: the way of the network."""
    moments = moments or (DIRECT if model.config.bilateral else MIDPOINTS)

    def predict(x0: Frame, x1: Frame, time: float) -> Prediction:
        a, b = (jnp.asarray(x, jnp.float32)[None] for x in (x0, x1))
        while moments == MIDPOINTS and time != 0.5 and (time * FINEST).is_integer() and 0 < time < 1:
            middle = model(a, b).image
            a, b, time = (a, middle, 2 * time) if time < 0.5 else (middle, b, 2 * time - 1)
        image, (flow, *_), _, *warped = jax.device_get(model(a, b, time))
        return Prediction(image[0], flow[0], (warped[0][0], warped[1][0]))

    return lambda x0, x1: lambda time: predict(x0, x1, time)


def checked(triplet: Triplet) -> Triplet:
    """The triplet; ValueError that names it unless its three images have one size."""
    images = {"x0": triplet.x0, "truth": triplet.y, "x1": triplet.x1}
    check_same_size([(x.shape[1], x.shape[0]) for x in images.values()], [f"{triplet.name} {name}" for name in images])
    return triplet


def filled(triplet: Triplet) -> Frame:
    """The truth, with the average of the neighbours where it is unknown."""
    rest = average(triplet.x0, triplet.x1)(triplet.time).image
    return np.where(np.isfinite(triplet.y).all(axis=-1, keepdims=True), triplet.y, rest)


def shrink(triplet: Triplet, scale: float) -> Triplet:
    """The triplet at another size, each pixel the mean of an area; regions are estimated anew."""
    if scale == 1:
        return triplet
    frames = (triplet.x0, triplet.y, triplet.x1)
    x0, y, x1 = (cv2.resize(x, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) for x in frames)
    return triplet._replace(x0=x0, y=y, x1=x1, regions=None)
