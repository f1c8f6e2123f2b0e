"""Scores on triplets: the network against the plain average and a flow warp, on the same pictures.

A test set is a folder in Vimeo's layout (`film/data.py`): `im1.png`, `im2.png` (the truth), `im3.png` per triplet.
PSNR and SSIM are of the clipped picture, per triplet, then the mean over triplets (`common/metrics.py`).
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from common.files import atomic_output
from common.images import contact_sheet, write_image
from common.metrics import psnr, ssim
from film.baselines import average, dis_flow
from film.data import FolderTriplets
from film.flow_picture import flow_picture
from film.loading import load
from film.model import Film, FilmOutput

OURS, AVERAGE, DIS = "film", "average", "dis-flow"
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {"psnr": psnr, "ssim": ssim}


@dataclasses.dataclass(frozen=True)
class FilmEvaluation:
    """A test set and how to look at it.

    Attributes:
      folder: triplets in Vimeo's layout.
      scales: sizes at which the set is scored; 0.5 halves width and height (area mean) before anything else.
      limit: score only the first so many triplets; 0 for all.
      worst: triplets shown in the picture of the worst (smallest lead over the flow warp).
    """

    folder: str
    scales: Sequence[float] = (1.0,)
    limit: int = 0
    worst: int = 6
    progress: bool = True

    def run(self, weights: str, output: Path, overwrite: bool = False) -> str:
        """Scores `weights`, writes `results.csv`, `summary.json` and pictures to `output`, returns the table."""
        targets = [output / name for name in ("results.csv", "summary.json", "worst.png")]
        taken = [str(path) for path in targets if path.exists()]
        if taken and not overwrite:
            raise FileExistsError(f"{taken[0]} exists: give another output=... or overwrite=true")
        triplets = FolderTriplets(self.folder)
        model = load(weights)
        rows = []
        for scale in self.scales:
            count = min(self.limit or len(triplets), len(triplets))
            for i in tqdm(range(count), desc=f"scale {scale:g}", disable=None if self.progress else True):
                rows += _score(model, triplets[i], scale)
        output.mkdir(parents=True, exist_ok=True)
        _write_csv(targets[0], rows)
        summary = summarise(rows)
        with atomic_output(targets[1], overwrite=True) as path:
            Path(path).write_text(json.dumps({"weights": weights, "folder": self.folder, "scores": summary}, indent=2))
        write_image(targets[2], self._worst_picture(model, triplets, rows), overwrite=True)
        return table(summary)

    def _worst_picture(self, model: Film, triplets: FolderTriplets, rows: list[dict]) -> np.ndarray:
        scale = self.scales[0]
        lead = {}
        for row in rows:
            if row["scale"] == scale:
                sign = {OURS: 1.0, DIS: -1.0}.get(row["method"], 0.0)
                lead[row["name"]] = lead.get(row["name"], 0.0) + sign * row["psnr"]
        worst = set(sorted(lead, key=lead.__getitem__)[: self.worst])
        return comparison(model, [triplet for triplet in triplets if triplet.name in worst])


def comparison(model: Film, triplets: list, width: int = 320) -> np.ndarray:
    """One row per triplet: x0, x1, the truth, average, DIS flow, FILM, FILM's forward flow."""
    pictures, labels = [], ["x0", "x1", "truth", AVERAGE, DIS, OURS, "flow"]
    for triplet in triplets:
        out = _run(model, triplet.x0, triplet.x1)
        row = [triplet.x0, triplet.x1, triplet.y, average(triplet.x0, triplet.x1), dis_flow(triplet.x0, triplet.x1)]
        row += [np.asarray(out.image[0]), flow_picture(np.asarray(out.forward_flow[0][0]))]
        height = round(width * triplet.x0.shape[0] / triplet.x0.shape[1])
        pictures += [cv2.resize(np.clip(p, 0, 1), (width, height), interpolation=cv2.INTER_AREA) for p in row]
    return contact_sheet(pictures, columns=len(labels), labels=labels * len(triplets))


def summarise(rows: list[dict]) -> list[dict]:
    """Per scale and method: means, and the share of triplets on which FILM has the higher PSNR."""
    summary = []
    for scale in dict.fromkeys(row["scale"] for row in rows):
        here = [row for row in rows if row["scale"] == scale]
        ours = {row["name"]: row["psnr"] for row in here if row["method"] == OURS}
        for method in (OURS, DIS, AVERAGE):
            own = [row for row in here if row["method"] == method]
            means = {name: float(np.mean([row[name] for row in own])) for name in METRICS}
            beaten = float(np.mean([ours[row["name"]] > row["psnr"] for row in own]))
            summary.append({"scale": scale, "method": method, "triplets": len(own), **means, "film_is_better": beaten})
    return summary


def table(summary: list[dict]) -> str:
    """The summary as Markdown."""
    lines = [
        "| scale | method | triplets | PSNR (dB) | SSIM | FILM is better |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in summary:
        share = "" if row["method"] == OURS else f"{100 * row['film_is_better']:.0f} %"
        cells = [f"{row['scale']:g}", row["method"], row["triplets"], f"{row['psnr']:.2f}", f"{row['ssim']:.4f}", share]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _score(model: Film, triplet, scale: float) -> list[dict]:
    x0, y, x1 = (_resize(x, scale) for x in (triplet.x0, triplet.y, triplet.x1))
    predictions = {
        OURS: np.asarray(_run(model, x0, x1).image[0]),
        DIS: dis_flow(x0, x1),
        AVERAGE: average(x0, x1),
    }
    return [
        {
            "scale": scale,
            "name": triplet.name,
            "method": method,
            **{name: metric(prediction, y) for name, metric in METRICS.items()},
        }
        for method, prediction in predictions.items()
    ]


def _run(model: Film, x0: np.ndarray, x1: np.ndarray) -> FilmOutput:
    return model(jnp.asarray(x0)[None], jnp.asarray(x1)[None])


def _resize(image: np.ndarray, scale: float) -> np.ndarray:
    if scale == 1:
        return image
    return cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)


def _write_csv(path: Path, rows: list[dict]) -> None:
    with atomic_output(path, overwrite=True) as temporary, Path(temporary).open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
