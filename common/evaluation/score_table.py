"""Score tables: scores of methods on examples, averaged, in Markdown.

A row is one method on one example of one test set at one scale:

    {"set": "film", "scale": 1.0, "name": "00001", "method": "film", "psnr": 31.2, "ssim": 0.94}

The first metric ranks methods and examples. A mean over NaN is NaN. A score of None (the example has no such pixels)
is left out of means.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from common.evaluation.metrics import Metric

ALL = "all sets"
Row = dict[str, Any]
Metrics = Mapping[str, Metric]


def summarise(rows: Sequence[Row], metrics: Metrics, ours: str) -> list[Row]:
    """Per set, scale and method: the mean of each metric, the share of examples on which `ours` is better, and, if
    there are any, `not_finite`, the number of scores that are not finite by metric."""
    groups: dict[tuple[str, float, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["scale"], row["method"]), []).append(row)
    first, metric = next(iter(metrics.items()))
    summary = []
    for (name, scale, method), own in groups.items():
        line: Row = {"set": name, "scale": scale, "method": method, "examples": len(own)}
        line |= {key: mean([row[key] for row in own]) for key in metrics}
        line["ours_is_better"] = None
        if method != ours:
            values = {row["name"]: row[first] for row in groups[name, scale, ours]}
            line["ours_is_better"] = float(np.mean([metric.lead(values[r["name"]], r[first]) > 0 for r in own]))
        not_finite = {key: sum(r[key] is not None and not math.isfinite(r[key]) for r in own) for key in metrics}
        if any(not_finite.values()):
            line["not_finite"] = {key: count for key, count in not_finite.items() if count}
        summary.append(line)
    return summary


def over_sets(
    rows: Sequence[Row], metrics: Metrics, ours: str, groups: Mapping[str, Collection[str]] | None = None
) -> list[Row]:
    """For each group of two sets or more (`ALL`, unless there are `groups`) two lines per scale and method: the mean of
    the sets' means, so that each set weighs the same ("by set"), and the mean of all examples ("by example")."""
    lines: list[Row] = []
    for group, wanted in ({ALL: {row["set"] for row in rows}} if groups is None else groups).items():
        own = [row for row in rows if row["set"] in wanted]
        if len({row["set"] for row in own}) < 2:
            continue
        places: dict[tuple[float, str], list[Row]] = {}
        for line in summarise(own, metrics, ours):
            places.setdefault((line["scale"], line["method"]), []).append(line)
        for (scale, method), sets in places.items():
            about = {"set": f"{group} by set", "scale": scale, "method": method}
            means = {key: mean([line[key] for line in sets]) for key in (*metrics, "ours_is_better")}
            lines.append(about | {"examples": sum(line["examples"] for line in sets)} | means)
        about = {"set": f"{group} by example"}
        lines += summarise([row | about | {"name": (row["set"], row["name"])} for row in own], metrics, ours)
    return lines


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def summary_table(summary: Sequence[Row], metrics: Metrics, ours: str) -> str:
    titles = [f"{name} ({metric.unit})" if metric.unit else name for name, metric in metrics.items()]
    lines = []
    for row in summary:
        numbers = ["" if row[name] is None else f"{row[name]:.{metric.digits}f}" for name, metric in metrics.items()]
        share = "" if row["ours_is_better"] is None else f"{100 * row['ours_is_better']:.0f} %"
        lines.append([row["set"], f"{row['scale']:g}", row["method"], str(row["examples"]), *numbers, share])
    return markdown(["set", "scale", "method", "examples", *titles, f"{ours} is better"], lines, 3)


def percent_table(rows: Mapping[str, Mapping[str, float]], titles: Mapping[str, str] | None = None) -> str:
    """Fractions of named rows in Markdown, in percent; a cell without a score is empty."""
    columns = list(dict.fromkeys(name for scores in rows.values() for name in scores))
    lines = [[row, *(f"{100 * scores[c]:.1f}" if c in scores else "" for c in columns)] for row, scores in rows.items()]
    return markdown(["", *((titles or {}).get(name, name) for name in columns)], lines)


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table; the first `texts` columns are aligned to the left, the others to the right."""
    lines = [titles, ["---"] * texts + ["---:"] * (len(titles) - texts), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |" for cells in lines)
