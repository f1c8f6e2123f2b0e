"""The proof of control: what it refuses, and a short run of it."""

import json
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from plugins.metrics.anchors import WITH, WITHOUT, WRONG
    from recipes.shapes.proof import Proof, prove


def test_an_unknown_kind_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="lora"):
        prove(Proof(kinds=("lora",)))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_control_learns_to_steer_a_frozen_base(tmp_path, monkeypatch):
    """The proof at a third of its length: shapes come where the edges are, and nowhere better than without control if
    the edges are another picture's."""
    monkeypatch.chdir(tmp_path)
    short = {"base_set": ("trainer.steps=300",), "set": ("trainer.steps=150", "evaluation.count=32")}
    (row,) = prove(Proof(seeds=1, kinds=("mediapipe",), **short))
    steered, alone, wrong = (row[name]["mean"] for name in (f"{WITH}, strength 1", WITHOUT, WRONG))
    assert steered > alone + 0.2 and wrong < alone + 0.05
    assert row["parameters"] == 36_768
    kept = json.loads((tmp_path / "runs" / "proof.json").read_text())["rows"]
    assert kept[0]["kind"] == "mediapipe" and kept[0]["seconds"]["mean"] > 0
