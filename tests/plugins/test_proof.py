"""The proof of control, shortened: one kind, one seed, fewer steps than `python -m plugins.control.proof` takes."""

import json
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from plugins.control.proof import Proof, prove, table


@pytest.mark.slow
def test_a_control_learns_to_place_shapes(tmp_path, monkeypatch):
    """Overlap with the shape that the edges are of: well above what the prompt alone gives, with its own edges only."""
    monkeypatch.chdir(tmp_path)
    proof = Proof(
        seeds=1,
        kinds=("mediapipe",),
        base_set=("trainer.steps=300",),
        set=("trainer.steps=150", "evaluation.count=32"),
    )
    rows = prove(proof)
    assert json.loads((tmp_path / "runs/proof.json").read_text()) == {"rows": rows}
    (row,) = rows
    steered, alone, wrong = (row[name]["mean"] for name in ("with control, strength 1", "no control", "wrong control"))
    assert steered > alone + 0.2 and wrong < alone + 0.05, table(rows)
    assert table(rows).count("\n") == 2 and f"{steered:.3f}" in table(rows)


def test_an_unknown_kind_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="kind 'lora' is not known; choose of mediapipe, controlnet, t2i_adapter"):
        prove(Proof(kinds=("lora",)))
    assert not list(tmp_path.iterdir())
