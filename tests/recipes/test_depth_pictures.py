"""Pictures with depth in the layout of own images, and the table of how controls are followed."""

import json
from pathlib import Path

import numpy as np
import pytest
from prepared import dark_squares, write_prepared
from refusal import refused
from tiny_base import diffusion_base, random

from plugins import control
from plugins.conditions.mask import foreground
from plugins.control import MediaPipePlugin
from plugins.control.mediapipe import MediaPipeConfig
from plugins.data.own_batches import OwnPicturesConfig
from recipes.captioned_pictures import depth_pictures, obedience

SPLITS = ("train", "unseen", "test")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A prepared folder of three pictures a split, 16 pixels a side, and the pictures with depth made of it."""
    folder = tmp_path_factory.mktemp("depth")
    entry = lambda i: {"split": SPLITS[i % 3], "tags": ["square"], "style": "" if i % 3 == 2 else "3d emoji"}  # noqa: E731
    captioned = write_prepared(folder / "captioned", dark_squares(9, 16), entry, "square")
    depth_pictures.main(folder / "captioned", folder / "depth", train_scenes=2, test_scenes=3)
    return captioned, folder / "depth"


def test_pictures_and_scenes_are_read_with_their_depth(folders):
    captioned, folder = folders
    counts = {"train": 5, "unseen": 3, "test": 3, "scenes": 3}
    for name, count in counts.items():
        data = OwnPicturesConfig(
            str(folder / name), split="all", size=16, condition="depth", stored=True, tokenizer=f"{captioned}/tokenizer"
        )
        assert len(data.ids) == count
        for number in data.ids:
            example = data.example(number)
            made = data.conditioned(example)
            assert made.max() > 0.99 and (made == made[..., :1]).all()
            if example.record.key.startswith("picture"):
                shown = foreground(example.image.astype(np.float32) / 255)
                assert made[shown].min() > made[~shown].max()
    captions = data.source[0].captions
    assert "ball" in captions[0] or "box" in captions[0]
    assert len(OwnPicturesConfig(str(folder / "train")).source[0].captions) == 3  # with the style, a tag, and alone


def test_training_varies_and_nothing_else(folders):
    captioned, _ = folders
    varied = [pair.depth for pair in depth_pictures.pictures(captioned, "train", 0)]
    again = [pair.depth for pair in depth_pictures.pictures(captioned, "train", 0)]
    fixed = [pair.depth for pair in depth_pictures.pictures(captioned, "train")]
    np.testing.assert_array_equal(varied, again)
    outlines = [made[made > 0.1].min() for made in varied]  # the base, or the top of the floor
    assert np.ptp(outlines) > 0.01 and not np.allclose(varied, fixed)
    refused(FileExistsError, depth_pictures.main, Path(captioned), Path(captioned))
    refused(FileNotFoundError, depth_pictures.main, Path("nowhere"), Path("new"), match=r"recipes\.captioned_pictures")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:prompts have")
def test_obedience_is_scored_by_set_condition_and_seed(folders, tmp_path):
    captioned, depth = folders
    base, plugins = tmp_path / "base", []
    diffusion_base().save(base)
    for kind in ("canny", "depth"):
        config = MediaPipeConfig((8,), 2, 8, (), (8,), (1,), 2, condition=kind)
        control.save(random(MediaPipePlugin, config), tmp_path / kind)
        plugins.append(str(tmp_path / kind))
    settings = obedience.Settings(tuple(plugins), 2, 3, base=str(base), captioned=captioned, depth=str(depth))
    obedience.main(tmp_path / "out", settings)
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    sets = [(row["set"], row["condition"]) for row in rows]
    ways = ("own", "none", "wrong")
    expected = [(name, way) for name in ("pictures", "photographs") * 2 for way in ways]
    assert sets == expected + [("scenes", way) for way in ways]
    for row in rows:
        assert row["count"] == 3 and len(row["scores"]) == 2
        assert all(0 <= value <= 1 for scores in row["scores"] for value in scores.values())
    table = (tmp_path / "out" / "table.md").read_text()
    assert table.count("\n") == 2 + len(rows)
