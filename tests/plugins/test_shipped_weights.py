"""The shipped base and plugins: small, the defaults of the command; they draw what they are asked for, and show."""

from pathlib import Path

import numpy as np
import pytest
from named_colours import dominant_colour

from common.io.images import place, read_image
from plugins import diffusion
from plugins.cli.main import main
from plugins.conditions.mask import foreground
from plugins.conditions.registry import OF_IMAGE, make
from plugins.control.loading import CONTROLS, load
from plugins.diffusion.io.base import BASES, WEIGHTS
from plugins.metrics.fidelity import EdgeF1, MaskIou

APPLE = Path(__file__).parents[2] / "examples" / "apple.png"
PROMPTS = ["red apple, 3d emoji", "orange, 3d emoji", "blue fish, 3d emoji", "green tree, noto emoji"]
KINDS = {"canny": EdgeF1(), "depth": MaskIou(), "mask": MaskIou(), "scribble": EdgeF1()}
STEPS = 10


@pytest.mark.long
def test_the_command_draws_with_the_base_without_being_told_which(tmp_path, monkeypatch):
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


@pytest.fixture(scope="module")
def draw():
    """Images of all prompts under controls."""
    pipeline = diffusion.load()
    return lambda *controls: pipeline(PROMPTS, seeds=range(len(PROMPTS)), steps=STEPS, controls=list(controls))


@pytest.fixture(scope="module")
def alone(draw):
    return draw()


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    return place(read_image(APPLE), (64, 64), "crop")


def test_they_are_small_and_have_model_cards():
    base, names = BASES.find(), [f"{kind}-small" for kind in KINDS]
    assert base.name in BASES.names() and CONTROLS.names() == names
    for limit, folders in ((15e6, [base]), (5e6, [WEIGHTS / name for name in names])):
        assert sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file()) < limit
        assert all("CC-BY-SA-4.0" in (folder / "README.md").read_text("utf-8") for folder in folders)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_have_the_layout_of_the_condition(kind, draw, alone, picture):
    """More than the base alone, and than with another condition, whose outputs have that one's layout."""
    score, network = KINDS[kind], load(f"{kind}-small")
    shown = {"own": picture, "other": picture[::-1].copy()}

    def mean(images, target):
        return np.mean([score(image, shown[target]) for image in images])

    own, other = (draw(network.on(make(kind, image, **OF_IMAGE.get(kind, {})))) for image in shown.values())
    none, controlled, wrong = (mean(images, "own") for images in (alone, own, other))
    assert controlled > max(none, wrong) + 0.15, (none, controlled, wrong)
    assert mean(other, "other") > wrong + 0.15


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mask", "depth"])
def test_the_command_uses_the_shipped_plugin_of_a_kind(tmp_path, monkeypatch, picture, kind):
    monkeypatch.chdir(tmp_path)
    words = ["--control", kind, "--image", str(APPLE), "--steps", str(STEPS), "--quiet"]
    main(["generate", "--prompt", "green apple, 3d emoji", *words, "-o", "apple.png"])
    assert MaskIou()(read_image("apple.png"), picture) > 0.75
