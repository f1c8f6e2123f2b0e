"""The small world's proof at a part of its length: the memory answers, and a changed memory answers otherwise."""

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from reveal.world.proof import Proof, prove

pytestmark = pytest.mark.slow


def test_held_out_facts_are_looked_up(tmp_path, monkeypatch):
    """After 300 + 100 steps. By chance 3 % are right."""
    monkeypatch.chdir(tmp_path)
    short = ("trainer.devices=1", "evaluation.renderings=2")
    results = prove(Proof(seeds=1, rows=("full",), warm=300, joint=100, set=short))
    (run,) = results["full"]
    print({row: {name: round(x, 3) for name, x in scores.items()} for row, scores in run["warm"].items()})
    print({row: {name: round(x, 3) for name, x in scores.items()} for row, scores in run["joint"].items()})
    rows = run["joint"]
    assert run["warm"]["held out"]["recall_1"] > 0.6
    assert rows["held out"]["accuracy"] > 0.35 and rows["held out"]["gate"] > 0.8
    assert rows["no memory"]["accuracy"] < 0.08
    assert rows["edited, new facts"]["accuracy"] > 0.35 and rows["edited, old facts"]["accuracy"] < 0.08
    assert rows["deleted"]["accuracy"] < 0.1 < rows["not deleted"]["accuracy"]
    assert rows["newcomers, before"]["accuracy"] < 0.15 < rows["newcomers, after"]["accuracy"]
    assert rows["without vqa"]["friend"] < 0.15 and rows["without vqa"]["recall_1"] < rows["held out"]["recall_1"]
