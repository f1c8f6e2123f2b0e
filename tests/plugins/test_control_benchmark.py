"""The benchmark of overheads: its rule on given seconds, and all of it with tiny networks."""

import pytest

from benchmarks import control
from plugins.evaluation.cost import Cost
from plugins.evaluation.flops import Work

COSTS = {"base": Cost(0, Work(), Work(1000)), "plugin": Cost(6, Work(50), Work(1000, 1))}
COSTS |= {"controlnet": Cost(360, Work(10), Work(1300)), "layout": Cost(0, Work(5000), Work(1500))}
SECONDS = {"base": [10.0, 10.4, 12.0], "features": [9.0, 10.0, 10.1]}
SECONDS |= {"plugin once": [1.0, 0.9, 3.0], "plugin added": [0.01, 0.01, 0.02]}
SECONDS |= {"controlnet": [13.0, 14.0, 12.5], "controlnet once": [2.0] * 3, "controlnet added": [4.0, 3.0, 3.5]}
SECONDS |= {"layout": [15.0, 15.6, 16.0], "layout once": [5.0, 5.2, 5.4]}


def test_small_additions_count_by_parts_and_large_ones_by_whole_calls():
    options = control.Options(steps=50, inversion=200)
    rows = {kind: control.row(kind, SECONDS, COSTS, options) for kind in ("plugin", "controlnet", "layout")}
    base = 50 * 10.4
    plugin = rows["plugin"]
    assert plugin["run s"] == pytest.approx(base + 1 + 50 * 0.01)
    assert plugin["overhead %"] == plugin["by parts %"] == pytest.approx(100 * 1.5 / base)
    assert plugin["by calls %"] == pytest.approx(100 * (1 - 50 * 0.4) / base), "the noise of calls, as it is"
    assert plugin["of GFLOP %"] == pytest.approx(100 * (50 + 50 * 1) / 50_000)
    network = rows["controlnet"]
    assert network["run s"] == pytest.approx(2 + 50 * 13) and network["overhead %"] == network["by calls %"]
    assert network["by parts %"] == pytest.approx(100 * (2 + 50 * 3.5) / base)
    layout = rows["layout"]
    assert layout["once s"] == pytest.approx(250 * 5.2) and layout["run s"] == pytest.approx(250 * 5.2 + 50 * 15.6)
    assert "by parts %" not in layout and layout["of GFLOP %"] == pytest.approx(60)


@pytest.mark.long
def test_all_methods_with_tiny_networks(capsys):
    control.main(control.Options(size="tiny", repeats=1, inversion=2, steps=3))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == [*control.COLUMNS] and len(cells) == 2 + 5
    found = {row[0]: dict(zip(control.COLUMNS, row, strict=True)) for row in cells[2:]}
    assert list(found) == ["base", "plugin", "t2i_adapter", "controlnet", "layout"]
    work = {name: float(row["of GFLOP %"]) for name, row in found.items() if name != "base"}
    assert 0 < work["plugin"] < work["t2i_adapter"] < work["controlnet"] < work["layout"]
    assert all(float(row["call s"]) > 0 for row in found.values())
