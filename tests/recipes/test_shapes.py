"""Shapes: pictures that their captions describe, at places that no caption tells; the proof of control."""

import json

import numpy as np
import pytest
from named_colours import dominant_colour

from plugins.conditions.mask import foreground
from plugins.data.captioned_batches import CaptionedConfig
from plugins.metrics.anchors import WITH, WITHOUT, WRONG
from recipes.shapes import proof
from recipes.shapes.pictures import COLOURS, CORNERS, TOKENS, Settings, draw, polygon, prepare
from recipes.shapes.proof import Proof, prove, table


def test_a_folder_is_read_like_any_other(tmp_path):
    prepare(tmp_path / "shapes", Settings(train=6, unseen=2, size=32))
    batch = next(CaptionedConfig(str(tmp_path / "shapes"), batch_size=3, length=8, buffer=1).batches(0))
    assert batch["image"].shape == (3, 32, 32, 3) and batch["tokens"].max() == TOKENS - 1 == batch["tokens"][0, -1]
    entries = json.loads((tmp_path / "shapes" / "index.json").read_text())["pictures"]
    assert [entry["split"] for entry in entries] == 6 * ["train"] + 2 * ["unseen"]
    vocabulary = json.loads((tmp_path / "shapes" / "tokenizer" / "vocab.json").read_text())
    assert len(vocabulary) == TOKENS and max(vocabulary.values()) == TOKENS - 1  # whatever the number of pictures
    prepare(tmp_path / "again", Settings(train=6, unseen=2, size=32))
    for name in ("images.npy", "index.json", "tokenizer/vocab.json"):
        assert (tmp_path / "shapes" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_colour_place_and_area():
    rng, places = np.random.default_rng(0), []
    for _ in range(40):
        image, label = draw(rng, 64)
        colour, shape = label.split()
        assert colour in COLOURS and shape in CORNERS
        picture = image.astype(np.float32) / 255
        mask = foreground(picture)
        assert dominant_colour(picture, mask) == colour and 0.01 < mask.mean() < 0.3
        places.append(np.argwhere(mask).mean(0))
    assert np.std(places, axis=0).min() > 8
    for corners in (3, 4, 48):
        covered = polygon(corners, np.array([0.5, 0.5]), 0.3, 0.4, 64).mean()
        assert abs(covered - corners / 2 * np.sin(2 * np.pi / corners) * 0.3**2) < 2e-3


@pytest.mark.slow
@pytest.mark.proof
def test_a_control_learns_to_steer_a_frozen_base(tmp_path, monkeypatch):
    """The proof at a third of its length: shapes follow the edges; those of another picture do not help."""
    monkeypatch.chdir(tmp_path)
    short = {"base_set": ("trainer.steps=300",), "set": ("trainer.steps=150", "evaluation.count=32")}
    (row,) = prove(Proof(seeds=1, kinds=("mediapipe",), **short))
    steered, alone, wrong = (row[name]["mean"] for name in (f"{WITH}, strength 1", WITHOUT, WRONG))
    assert steered > alone + 0.2 and wrong < alone + 0.05 and row["parameters"] == 36_768
    stored = json.loads((tmp_path / "runs" / "proof.json").read_text())["rows"]
    assert stored[0]["kind"] == "mediapipe" and stored[0]["seconds"]["mean"] > 0 and "36,768" in table([row])


def test_the_seconds_of_a_training_are_kept(tmp_path, monkeypatch):
    """Of one that was not stopped."""
    monkeypatch.chdir(tmp_path)
    evaluation, clock = tmp_path / "runs" / "shapes_mediapipe_0" / "evaluation", iter(range(0, 100, 7))
    monkeypatch.setattr(proof, "train", lambda *_: evaluation.mkdir(parents=True, exist_ok=True))
    scores = json.dumps({"scores": {WITHOUT: {"area": {"value": 0.25}}}})
    monkeypatch.setattr(proof, "evaluate", lambda *_: (evaluation / "results.json").write_text(scores))
    monkeypatch.setattr(proof.time, "perf_counter", lambda: float(next(clock)))
    for _ in range(2):
        assert proof.train_and_score("mediapipe", 0, ()) == {WITHOUT: 0.25, "seconds": 7.0}
    (evaluation.parent / "seconds.txt").unlink()
    assert np.isnan(proof.train_and_score("mediapipe", 0, ())["seconds"])
