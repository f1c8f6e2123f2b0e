"""The small world's proof at a fraction of its length: the memory answers, and a changed memory answers otherwise."""

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from reveal.world.proof import Proof, prove

pytestmark = pytest.mark.slow


def test_held_out_facts_are_looked_up(tmp_path, monkeypatch):
    """After 700 + 100 steps. By chance 3 % are right."""
    monkeypatch.chdir(tmp_path)
    short = ("trainer.devices=1", "data.near=2", "evaluation.renderings=2")
    results = prove(Proof(seeds=1, rows=("full",), warm=700, joint=100, set=short))
    (run,) = results["full"]
    rows = run["joint"]
    assert rows["held out"]["accuracy"] > 0.25 and rows["held out"]["gate"] > 0.8
    assert rows["no memory"]["accuracy"] < 0.08
    assert rows["edited, new facts"]["accuracy"] > 0.25 and rows["edited, old facts"]["accuracy"] < 0.08
    assert rows["deleted"]["accuracy"] < 0.1 < rows["not deleted"]["accuracy"]
    assert rows["newcomers, before"]["accuracy"] < 0.1 < rows["newcomers, after"]["accuracy"]
    assert rows["without vqa"]["friend"] < 0.15 and rows["without vqa"]["recall_1"] < rows["held out"]["recall_1"]
