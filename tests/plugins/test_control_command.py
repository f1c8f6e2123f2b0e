"""`plugins generate --control` makes the images of the library; conflicting options are one line, no file."""

import json
import shutil
from pathlib import Path

import families
import numpy as np
import pytest
from commands import APPLE, GENERATE, generate, mistake
from tiny_base import diffusion_base, random

from common.io.images import place, read_image, write_image
from plugins.cli.commands import Generate
from plugins.cli.generate import request_of
from plugins.conditions.registry import make
from plugins.control import MediaPipeConfig, MediaPipePlugin, PlugAndPlay, save
from plugins.diffusion.io.base import read_base


@pytest.fixture(scope="module")
def network() -> MediaPipePlugin:
    base = diffusion_base().base
    return random(MediaPipePlugin, MediaPipeConfig.for_unet(base.unet, base.unit))


@pytest.fixture
def here(tmp_path, monkeypatch, saved, network) -> Path:
    """A base, a plugin for it, a photo larger than the base's images, and edges of their size."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved, "base")
    save(network, "plugin")
    shutil.copytree("plugin", "edge_plugin")
    config = Path("edge_plugin/config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"condition": "canny"}))
    photo = np.zeros((32, 48, 3), np.float32)
    photo[8:24, 16:32] = (0.9, 0.3, 0.1)
    write_image("photo.png", photo)
    write_image("edges.png", np.eye(16, dtype=np.float32)[..., None].repeat(3, 2))
    return tmp_path


def assert_image(**settings) -> None:
    expected = diffusion_base()(APPLE, steps=3, **settings)[0]
    np.testing.assert_allclose(read_image("out.png"), expected, atol=0.51 / 255 + 1e-3)


def test_a_photos_edges(here, network, capsys):
    generate("--control canny --plugin plugin --image photo.png -o out.png")
    assert "1 control" in capsys.readouterr().out
    assert_image(controls=[network.on(make("canny", place(read_image("photo.png"), (16, 16), "crop")))])


def test_a_finished_condition_with_all_settings(here, network):
    settings = "--control-strength 0.5 --control-steps 0 0.67 --prompt-only"
    generate(f"--plugin plugin --condition edges.png {settings} --quiet -o out.png")
    control = network.on(read_image("edges.png"), strength=0.5, steps=(0.0, 0.67), prompt_only=True)
    assert_image(controls=[control])


def test_a_finished_condition_and_an_initial_image(here, network):
    photo = place(read_image("photo.png"), (16, 16), "crop")
    write_image("small.png", photo)
    generate("--plugin plugin --condition edges.png --image small.png --strength 0.67 --quiet -o out.png")
    assert_image(controls=[network.on(read_image("edges.png"))], image=read_image("small.png"), strength=0.67)


@pytest.mark.long
def test_two_controls_one_of_them_plug_and_play(here, network):
    generate("--control layout canny --plugin plugin --image photo.png --quiet -o out.png --control-strength 1 0.5")
    photo = place(read_image("photo.png"), (16, 16), "crop")
    controls = [PlugAndPlay(photo), network.on(make("canny", photo), strength=0.5)]
    assert_image(controls=controls, sampler="ddim")


def test_where_the_photo_is_repaired_its_condition_has_its_size(here):
    base = read_base(families.folder("inpainting")).base
    save(random(MediaPipePlugin, MediaPipeConfig.for_unet(base.unet, base.unit)), "plugin2")
    write_image("hole.png", np.ones((32, 48, 3), np.float32))
    options = {"image": "photo.png", "mask": "hole.png", "control": ("canny",), "plugin": ("plugin2",)}
    request = request_of(Generate(prompt=APPLE, output="out.png", strength=0.5, **options), base)
    assert (request.height, request.width, request.strength) == (32, 48, 0.5)
    assert request.controls[0].picture.shape == (1, 32, 48, 3)


PHOTO, EDGES = "--control canny --image photo.png", "--plugin plugin --condition edges.png"


MISTAKES = {  # words -> a value in the error
    "--control canny": "--image",
    "--plugin plugin --image photo.png": "--control",
    f"{PHOTO} --plugin base/unet": "base/unet",
    f"{PHOTO} --plugin plugin plugin": "2 plugins for 1",
    "--control holistic --image photo.png": "holistic",
    f"{PHOTO} --strength 0.5": "--control-strength",
    "--prompt-only": "--prompt-only",
    "--image-prompt-strength 0.5": "--image-prompt",
    f"{EDGES} --control-strength 1 2": "2 strengths for 1",
    f"{EDGES} edges.png": "2 conditions for 1",
    f"{EDGES} --control-strength 1e9": "strength=1000000000",
    "--control mask --image photo.png --plugin edge_plugin": "trained on canny",
    "--control plug_and_play --image photo.png --sampler euler": "euler",
}


def test_conflicting_options(here, capsys):
    for words, value in MISTAKES.items():
        assert value in mistake(f"{GENERATE} -o out.png {words}", capsys), words
