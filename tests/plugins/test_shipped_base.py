"""The base that ships: small, whole, the default of the command, and it draws what it is asked for."""

import numpy as np
import pytest
from named_colours import dominant_colour

from common.io.images import read_image
from plugins import diffusion
from plugins.cli.main import main
from plugins.conditions.mask import foreground
from plugins.diffusion.io.base import BASES


def test_it_is_small_and_has_a_card():
    folder = BASES.find()
    assert folder.name in BASES.names()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 15e6
    assert "CC-BY-SA-4.0" in (folder / "README.md").read_text("utf-8")


@pytest.mark.long
def test_the_command_draws_it_without_being_told_which(tmp_path, monkeypatch):
    """On white, and of the colour of the word: twelve things of four colours, two thirds of them at least."""
    monkeypatch.chdir(tmp_path)
    main(["generate", "--prompt", "red apple, 3d emoji", "-o", "apple.png", "--quiet"])
    picture = read_image("apple.png")
    assert picture.shape == (64, 64, 3) and picture[[0, 0, -1, -1], [0, -1, 0, -1]].mean() > 0.95
    things = ("apple", "book", "heart")
    prompts = [f"{colour} {thing}, 3d emoji" for colour in ("red", "green", "blue", "yellow") for thing in things]
    images = diffusion.load()(prompts, seeds=range(len(prompts)), steps=6, batch=1)
    found = [dominant_colour(image, foreground(image)) for image in images]
    right = [colour == prompt.split()[0] for colour, prompt in zip(found, prompts, strict=True)]
    assert np.mean(right) >= 2 / 3, list(zip(prompts, found, strict=True))
