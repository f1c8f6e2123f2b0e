"""The rows of the comparison of ways of control (`comparison.py`), and how they are written for people and programs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from plugins.evaluation.cost import Cost, overhead
from plugins.metrics import anchors
from plugins.metrics.anchors import Mean

COLUMNS = ("model", "parameters", "GFLOP", "seconds", "overhead, time", "overhead, GFLOP")
SIMPLE = ("model", "parameters", "gflop", "once", "seconds", "time_overhead", "gflop_overhead")
ERROR = " error"  # ends the name of a standard error


class Row(NamedTuple):
    """One way; the base's comes first.

    Attributes:
      model: its title.
      parameters: that it adds.
      gflop: of a picture's run. once: what of them it takes before the first call.
      seconds: of a picture, median. timings: all of them.
      time_overhead, gflop_overhead: beside the base, in percent.
      fidelity: by score. quality: by distance, as `plugins.metrics.quality.compare` names them.
    """

    model: str
    parameters: int
    gflop: float
    once: float
    seconds: float
    timings: list[float]
    time_overhead: float
    gflop_overhead: float
    fidelity: dict[str, Mean]
    quality: dict[str, float]

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return self._asdict() | {"fidelity": {name: mean._asdict() for name, mean in self.fidelity.items()}}

    def plain(self) -> dict[str, Any]:
        """A line of a CSV file: a number under each name."""
        costs = {name: getattr(self, name) for name in SIMPLE}
        means = {name: mean.value for name, mean in self.fidelity.items()}
        errors = {f"{name}{ERROR}": mean.error for name, mean in self.fidelity.items()}
        return costs | means | errors | self.quality


def make_rows(
    costs: Mapping[str, Cost],
    calls: int,
    seconds: Mapping[str, Sequence[float]],
    fidelity: Sequence[anchors.Row],
    quality: Mapping[str, Mapping[str, float]],
) -> list[Row]:
    """All by title, the base first, whose arithmetic and time the others' are compared with."""
    work = {title: cost.run(calls).total for title, cost in costs.items()}
    medians = {title: statistics.median(several) for title, several in seconds.items()}
    base = next(iter(costs))
    return [
        Row(
            model=row.name,
            parameters=costs[row.name].parameters,
            gflop=work[row.name] / 1e9,
            once=costs[row.name].once.total / 1e9,
            seconds=medians[row.name],
            timings=list(seconds[row.name]),
            time_overhead=overhead(medians[row.name], medians[base]),
            gflop_overhead=overhead(work[row.name], work[base]),
            fidelity=dict(row.scores),
            quality=dict(quality[row.name]),
        )
        for row in fidelity
    ]


def markdown(rows: Sequence[Row]) -> str:
    """For people. Kernel distances are times 1000; precision and recall are for programs."""
    distances = [name for name in rows[0].quality if f"{name}{ERROR}" in rows[0].quality]
    plain_distances = list(rows[0].quality)[:1]  # Fréchet's comes first and has no error
    titles = [*COLUMNS, *rows[0].fidelity, *plain_distances, *(f"{name} x 1000" for name in distances)]
    lines = [titles, ["---"] + ["---:"] * (len(titles) - 1)]
    for i, row in enumerate(rows):
        more = ["", ""] if i == 0 else [percent(row.time_overhead), percent(row.gflop_overhead)]
        costs = [f"{row.parameters:,}", number(row.gflop), f"{row.seconds:.3f}", *more]
        scores = [score(mean) for mean in row.fidelity.values()]
        quality = [f"{row.quality[name]:.2f}" for name in plain_distances]
        quality += [f"{1000 * row.quality[n]:.2f} ± {1000 * row.quality[n + ERROR]:.2f}" for n in distances]
        lines.append([row.model, *costs, *scores, *quality])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(value: float) -> str:
    """Three digits at least."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(value: float) -> str:
    """With its sign."""
    return f"{value:+,.0f} %" if abs(value) >= 100 else f"{value:+.3g} %"


def score(mean: Mean) -> str:
    """Mean ± standard error."""
    return f"{mean.value:.3f} ± {mean.error:.3f}"
