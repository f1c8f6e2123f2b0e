"""Scores on exact scenes (`exact.py`): how far things may move, and whether a sequence of frames in between is steady.

    python eval.py experiment=film_small evaluation=film_exact weights=film-small output=runs/exact

For each kind of scene, distance, size and scene: PSNR of the frame half-way, over the whole picture, the ring around
the mover's edge and what is hidden in one of the frames, by the network, the mean of its own warps and the best of
them, and the baselines (`film.evaluation.triplet_evaluation`).

Flicker: the scenes of `steady_distance` at all eighths of the way, k = 0 to 8, the first and last frame as they are. A
frame's error is e_k, predicted minus true. The score is the root mean square of its change over the mover's path, in
levels of 255:

    flicker = 255 sqrt(mean over k, pixels and colours of (e_k+1 - e_k)^2)

It is 0 for a true sequence, and counts a texture that boils, an outline that jumps, and single frames that are softer
than their neighbours. A network is scored given the time, and by recursion.

Files: `results.csv` (a row per scene and method), `flicker.csv`, `summary.json`, `distances.png` (PSNR in the ring by
distance) and `scenes.png`.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from tqdm import tqdm

from common.checked import OneOrMore
from common.evaluation.evaluation import Evaluation, Output, provenance
from common.evaluation.metrics import Psnr
from common.evaluation.score_table import Row, markdown, mean
from film.evaluation.baselines import METHODS, Method
from film.evaluation.triplet_evaluation import DIRECT, MIDPOINTS, OURS, FilmEvaluation, network, short_name
from film.io.weights import load
from film.model import with_matching
from film.visualization import stacked
from recipes.film_small.exact import EIGHTHS, KINDS, ExactScenes, Image, Mask

RESULTS, FLICKER, SUMMARY, PLOT, SCENES = "results.csv", "flicker.csv", "summary.json", "distances.png", "scenes.png"
REGIONS = ("ring", "occluded")
PLACE = ("kind", "size", "distance", "method")


@dataclasses.dataclass(frozen=True)
class ExactEvaluation(Evaluation):
    """Kinds of scenes, sizes and distances, and other weights, whose rows have their own names."""

    scenes: Mapping[str, int]  # number of each kind and distance, by "WIDTHxHEIGHT"; 0: none
    distances: OneOrMore[int]  # px from x0 to x1, even numbers
    kinds: OneOrMore[str] = KINDS
    compare_with: Sequence[str] = ()
    matching: bool | None = None  # search the whole frames with the weights that are scored; None: as they say
    steady_distance: int = (
        64  # of the scenes whose flicker is scored, the first of each kind and the first size; 0: none
    )
    shown: int = 64  # distance of the scenes in `scenes.png`; 0: no image
    folder: str = "data/photographs"
    split: str = "held_out"
    seed: int = 0
    limit: int = 0  # distances from the first on; 0: all
    progress: bool = True

    def rules(self):
        sizes = all(re.fullmatch(r"\d+x\d+", size) for size in self.scenes)
        yield sizes and any(self.scenes.values()), "scenes is a number of scenes by WIDTHxHEIGHT, as in 640x480"
        yield not 0 < self.steady_distance < EIGHTHS, f"steady_distance is 0, or from {EIGHTHS} px on"

    def files(self) -> list[str]:
        return [RESULTS, SUMMARY, PLOT, *([FLICKER] if self.steady_distance else []), *([SCENES] if self.shown else [])]

    def evaluate(self, weights: str, output: Output) -> str:
        if find_spec("matplotlib") is None:
            raise ValueError('the plot needs matplotlib: pip install "film-plugins-reveal[notebook]"')
        models = {OURS: with_matching(load(weights), self.matching)} if weights not in METHODS else {}
        models |= {short_name(other): load(other) for other in self.compare_with}
        methods: dict[str, Method] = {name: network(model, DIRECT) for name, model in models.items()} | METHODS
        distances = list(self.distances)[: self.limit or None]
        places = itertools.product([size for size, count in self.scenes.items() if count], self.kinds, distances)
        sets = {f"{kind} {size} {far}": self._set(kind, size, far) for size, kind, far in places}
        scored = FilmEvaluation({"psnr": Psnr()}, sets, regions=REGIONS, own_warps=True, progress=False)
        rows, drawn = [], []
        for name in tqdm(sets, unit="set", disable=None if self.progress else True):
            kind, size, far = name.split()
            place = {"kind": kind, "size": size, "distance": int(far)}
            for row in scored.score_set(name, methods):
                about = place | {"scene": int(row["name"].split("/")[1]), "method": row["method"]}
                rows.append(about | {"psnr": row["psnr"]} | {region: row[f"psnr {region}"] for region in REGIONS})
            if int(far) == self.shown:
                drawn += scored.draw(name, methods, {0: kind})
        flickers = self._flicker(methods) if self.steady_distance else []
        summary = summarise(rows)
        output.write_csv(RESULTS, rows)
        output.write_json(SUMMARY, provenance(weights) | {"scores": summary, "flicker": flickers})
        with output.open(PLOT) as path:
            plot(summary, path)
        if drawn:
            output.write_image(SCENES, stacked(drawn))
        if flickers:
            output.write_csv(FLICKER, flickers)
        return "\n\n".join([distance_table(summary), *([flicker_table(flickers)] if flickers else [])])

    def _set(self, kind: str, size: str, distance: int) -> ExactScenes:
        width, height = map(int, size.split("x"))
        return ExactScenes(kind, (width, height), distance, self.scenes[size], self.folder, self.split, self.seed)

    def _flicker(self, methods: Mapping[str, Method]) -> list[Row]:
        """A row per kind, method and way to the eighths."""
        rows, size = [], next(size for size, count in self.scenes.items() if count)
        for kind in tqdm(self.kinds, "flicker", disable=None if self.progress else True):
            scene = self._set(kind, size, self.steady_distance).scene(0)
            truth, region = [scene.frame(k / 8) for k in range(9)], scene.regions()["path"]
            ends = {0: truth[0], 8: truth[8]}
            for name, method in methods.items():
                between, halved = method(truth[0], truth[8]), dict(ends)
                for step in (4, 2, 1):
                    for k in range(step, 8, 2 * step):
                        halved[k] = method(halved[k - step], halved[k + step])(0.5).image
                given = ends | {k: between(k / 8).image for k in range(1, 8)}
                for way, frames in ((DIRECT, given), (MIDPOINTS, halved)):
                    value = flicker([frames[k] for k in range(9)], truth, region)
                    rows.append({"kind": kind, "method": name, "way": way, "flicker": value})
        return rows


def flicker(frames: Sequence[Image], truth: Sequence[Image], region: Mask) -> float:
    """See the module; levels of 255."""
    errors = np.stack([(np.clip(f, 0, 1) - y)[region] for f, y in zip(frames, truth, strict=True)])
    return 255 * float(np.sqrt(np.square(np.diff(errors, axis=0)).mean()))


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Means over the scenes of a kind, size, distance and method."""
    places: dict[tuple, list[Row]] = {}
    for row in rows:
        places.setdefault(tuple(row[key] for key in PLACE), []).append(row)
    means = {place: {key: mean(row[key] for row in own) for key in ("psnr", *REGIONS)} for place, own in places.items()}
    return [dict(zip(PLACE, place, strict=True)) | own for place, own in means.items()]


def distance_table(summary: Sequence[Row]) -> str:
    """Markdown: PSNR in the ring, a column per distance, a row per kind, size and method."""
    distances = sorted({line["distance"] for line in summary})
    values = {(line["kind"], line["size"], line["method"], line["distance"]): line["ring"] for line in summary}
    places = dict.fromkeys(place[:3] for place in values)
    cells = [[*p, *("" if (v := values.get((*p, d))) is None else f"{v:.1f}" for d in distances)] for p in places]
    return markdown(["ring, dB", "size", "method", *(f"{distance} px" for distance in distances)], cells, 3)


def flicker_table(rows: Sequence[Row]) -> str:
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    values = {(row["method"], row["way"], row["kind"]): row["flicker"] for row in rows}
    places = dict.fromkeys((row["method"], row["way"]) for row in rows)
    cells = [[*place, *(f"{values[*place, kind]:.2f}" for kind in kinds)] for place in places]
    return markdown(["flicker, levels", "way", *kinds], cells, 2)


def plot(summary: Sequence[Row], path: Path) -> None:
    """PSNR in the ring by distance, a panel per size and kind, a line per method."""
    from matplotlib.figure import Figure

    sizes, kinds, distances = (list(dict.fromkeys(line[k] for line in summary)) for k in ("size", "kind", "distance"))
    figure = Figure((3.2 * len(kinds), 2.8 * len(sizes) + 0.5), layout="constrained")
    axes = figure.subplots(len(sizes), len(kinds), sharex=True, squeeze=False)
    for axis, (size, kind) in zip(axes.flat, itertools.product(sizes, kinds), strict=True):
        own = [line for line in summary if (line["size"], line["kind"]) == (size, kind) and line["ring"] is not None]
        for method in dict.fromkeys(line["method"] for line in own):
            points = [(line["distance"], line["ring"]) for line in own if line["method"] == method]
            style = ":" if method.endswith(("warps", "best warp")) else "-"
            axis.plot(*zip(*points, strict=True), style, marker=".", label=method)
        axis.set(title=f"{kind}, {size}", xscale="log", ylim=(8, 60), xticks=distances)
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("PSNR in the ring, dB")
    axes[-1, 0].set_xlabel("px from x0 to x1")
    axes[0, -1].legend(fontsize=7)
    figure.savefig(path, format="png", dpi=110)
