"""Held-out scores without the triplets that choices were made with: `python -m benchmarks.film_rest runs/held_out`.

Losses, rates and the runs that film-small is the mean of were chosen with every seventh triplet of each set of
`evaluation=film_held_out` (every 21st of `film`), beginning with the first. Their scores are biased; this prints the
table of the others, from the `results.csv` of a finished evaluation.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import tyro

from common import terminal
from common.evaluation.metrics import Metric, Psnr, Ssim
from common.evaluation.score_table import Row, over_sets, summarise, summary_table
from common.io.files import require_file
from common.perceptual.lpips import Lpips
from film.evaluation.triplet_evaluation import OURS

CHOSEN_WITH, CHOSEN_WITH_FILM = 7, 21  # one in so many
METRICS: dict[str, Metric] = {"psnr": Psnr(), "ssim": Ssim(), "lpips": Lpips()}


def rest(rows: list[Row]) -> list[Row]:
    """The rows of triplets that no choice was made with."""
    order: dict[tuple[str, float], dict[str, int]] = {}  # of each set's names
    for row in rows:
        names = order.setdefault((row["set"], row["scale"]), {})
        names.setdefault(row["name"], len(names))
    return [
        row
        for row in rows
        if order[row["set"], row["scale"]][row["name"]] % (CHOSEN_WITH_FILM if row["set"] == "film" else CHOSEN_WITH)
    ]


def read(path: Path) -> list[Row]:
    """`results.csv` with its scores as numbers."""
    with require_file(path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [row | {key: float(row[key]) for key in ("scale", *METRICS)} for row in rows]


def main(folder: Annotated[Path, tyro.conf.Positional]) -> None:
    """Print the table of the triplets that no choice was made with.

    Args:
        folder: the output of `eval.py experiment=film_small evaluation=film_held_out`.
    """
    summary = summarise(rest(read(folder / "results.csv")), METRICS, OURS)
    print(summary_table(summary + over_sets(summary, METRICS), METRICS, OURS))


if __name__ == "__main__":
    terminal.program(main)
