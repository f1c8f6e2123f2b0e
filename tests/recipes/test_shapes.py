"""Procedural pictures: what is drawn is what the caption says, at places that no caption tells."""

import json

import numpy as np

from plugins.conditions.mask import foreground
from plugins.data.captioned_batches import CaptionedConfig
from plugins.metrics.colours import dominant_colour
from recipes.shapes.pictures import COLOURS, CORNERS, TOKENS, Settings, draw, polygon, prepare


def test_a_folder_is_read_like_any_other(tmp_path):
    prepare(tmp_path / "shapes", Settings(train=6, unseen=2, size=32))
    batch = next(CaptionedConfig(str(tmp_path / "shapes"), batch_size=3, length=8, buffer=1).batches(0))
    assert batch["image"].shape == (3, 32, 32, 3) and batch["tokens"].max() == TOKENS - 1 == batch["tokens"][0, -1]
    entries = json.loads((tmp_path / "shapes" / "index.json").read_text())["pictures"]
    assert [entry["split"] for entry in entries] == 6 * ["train"] + 2 * ["unseen"]
    prepare(tmp_path / "again", Settings(train=6, unseen=2, size=32))
    for name in ("images.npy", "index.json", "tokenizer/vocab.json"):
        assert (tmp_path / "shapes" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_every_label_has_its_numbers(tmp_path):
    """The vocabulary is that of all labels, however few pictures there are."""
    prepare(tmp_path / "shapes", Settings(train=1, unseen=1))
    vocabulary = json.loads((tmp_path / "shapes" / "tokenizer" / "vocab.json").read_text())
    assert len(vocabulary) == TOKENS and max(vocabulary.values()) == TOKENS - 1


def test_colour_and_place():
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


def test_the_area_of_a_polygon():
    for corners in (3, 4, 48):
        covered = polygon(corners, np.array([0.5, 0.5]), 0.3, 0.4, 64).mean()
        assert abs(covered - corners / 2 * np.sin(2 * np.pi / corners) * 0.3**2) < 2e-3
