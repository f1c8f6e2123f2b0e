"""Scores of methods on examples: kept row by row, averaged, and written as CSV, JSON and a Markdown table.

A row is one method on one example of one test set at one scale:

    {"set": "film", "scale": 1.0, "name": "00001", "method": "film", "psnr": 31.2, "ssim": 0.94}

The first metric listed is the one by which methods are compared and the worst examples are chosen. A score that is no
number is never left out of a mean: the mean is no number either. JSON has no such values, so it says null and how
many there were.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.evaluation.metrics import Metric
from common.io.files import atomic_output

ALL = "all sets"
Row = dict[str, Any]
Metrics = Mapping[str, Metric]


def lead(metric: Metric, value: float, other: float = 0.0) -> float:
    """By how much `value` is better than `other`; minus infinity if it is no number."""
    difference = value - other if metric.higher_is_better else other - value
    return -math.inf if math.isnan(difference) else difference


def summarise(rows: Sequence[Row], metrics: Metrics, ours: str) -> list[Row]:
    """Per set, scale and method: the mean of each metric, and the share of examples on which `ours` is better.

    `not_finite` counts, by metric, scores that are no numbers; it is there only if there are any.
    """
    groups: dict[tuple[str, float, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["scale"], row["method"]), []).append(row)
    summary = []
    for (name, scale, method), own in groups.items():
        means = {metric: float(np.mean([row[metric] for row in own])) for metric in metrics}
        odd = {metric: sum(not math.isfinite(row[metric]) for row in own) for metric in metrics}
        odd = {metric: count for metric, count in odd.items() if count}
        better = _share_better(groups[name, scale, ours], own, metrics) if method != ours else None
        line = {"set": name, "scale": scale, "method": method, "examples": len(own), **means, "ours_is_better": better}
        summary.append(line | ({"not_finite": odd} if odd else {}))
    return summary


def over_sets(summary: Sequence[Row], metrics: Metrics) -> list[Row]:
    """Per scale and method, over all sets if there are several: the mean of the sets' means, whatever their sizes, and
    of all their examples the share on which `ours` is better."""
    groups: dict[tuple[float, str], list[Row]] = {}
    for line in summary:
        groups.setdefault((line["scale"], line["method"]), []).append(line)
    lines = []
    for (scale, method), own in groups.items():
        if len(own) < 2:
            continue
        counts = [line["examples"] for line in own]
        shares = [line["ours_is_better"] for line in own]
        better = None if None in shares else float(np.average(shares, weights=counts))
        means = {metric: float(np.mean([line[metric] for line in own])) for metric in metrics}
        about = {"set": ALL, "scale": scale, "method": method, "examples": sum(counts)}
        lines.append(about | means | {"ours_is_better": better})
    return lines


def markdown(summary: Sequence[Row], metrics: Metrics, ours: str) -> str:
    """The summary as a table."""
    titles = [f"{name} ({metric.unit})" if metric.unit else name for name, metric in metrics.items()]
    titles = ["set", "scale", "method", "examples", *titles, f"{ours} is better"]
    lines = [titles, ["---"] * 3 + ["---:"] * (len(titles) - 3)]
    for row in summary:
        numbers = [f"{row[name]:.{metric.digits}f}" for name, metric in metrics.items()]
        share = "" if row["ours_is_better"] is None else f"{100 * row['ours_is_better']:.0f} %"
        lines.append([row["set"], f"{row['scale']:g}", row["method"], str(row["examples"]), *numbers, share])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write_csv(path: Path, rows: Sequence[Row], overwrite: bool = False) -> None:
    """One line per row, under the keys of the first."""
    with atomic_output(path, overwrite=overwrite) as temporary, Path(temporary).open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_json(path: Path, value: Any, overwrite: bool = False) -> None:
    """Valid JSON: what is no finite number becomes null."""
    with atomic_output(path, overwrite=overwrite) as temporary:
        Path(temporary).write_text(json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")


def _share_better(ours: Sequence[Row], theirs: Sequence[Row], metrics: Metrics) -> float:
    name, metric = next(iter(metrics.items()))
    values = {row["name"]: row[name] for row in ours}
    return float(np.mean([lead(metric, values[row["name"]], row[name]) > 0 for row in theirs]))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
