"""The proof of control: what it refuses. That a control learns is shown by `python -m plugins.control.proof` itself."""

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from plugins.control.proof import Proof, prove


def test_an_unknown_kind_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="kind 'lora' is not known; choose of mediapipe, controlnet, t2i_adapter"):
        prove(Proof(kinds=("lora",)))
    assert not list(tmp_path.iterdir())
