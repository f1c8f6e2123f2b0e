"""`plugins generate --control`: pictures are steered as the library steers them; what clashes is one line, no file."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from test_plugins_cli import APPLE, generate, leave_the_process_alone, refused, saved  # noqa: F401
from tiny_base import diffusion_base, random

from common.io.images import read_image, write_image
from plugins.cli.controls import covering
from plugins.conditions.registry import make
from plugins.control.loading import save
from plugins.control.mediapipe import MediaPipePlugin
from plugins.control.mediapipe_config import MediaPipeConfig
from plugins.control.plug_and_play import PlugAndPlay


@pytest.fixture(scope="module")
def network() -> MediaPipePlugin:
    base = diffusion_base().base
    return random(MediaPipePlugin, MediaPipeConfig.for_unet(base.unet, base.unit))


@pytest.fixture
def here(tmp_path, monkeypatch, saved, network) -> Path:  # noqa: F811
    """A base, a plugin for it, a photo larger than the base's pictures, and edges of their size."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved, "base")
    save(network, "plugin")
    photo = np.zeros((32, 48, 3), np.float32)
    photo[8:24, 16:32] = (0.9, 0.3, 0.1)
    write_image("photo.png", photo)
    write_image("edges.png", np.eye(16, dtype=np.float32)[..., None].repeat(3, 2))
    return tmp_path


def ours(**settings) -> np.ndarray:
    return diffusion_base()(APPLE, steps=3, **settings)[0]


def assert_shows(path: str, image: np.ndarray) -> None:
    np.testing.assert_allclose(read_image(path), image, atol=0.51 / 255 + 1e-3)


def test_a_photos_edges_steer(here, network, capsys):
    generate("--control", "canny", "--plugin", "plugin", "--image", "photo.png", "-o", "out.png")
    assert ", 1 control, seed 0" in capsys.readouterr().out
    edges = make("canny", covering(read_image("photo.png"), 16, 16))
    assert_shows("out.png", ours(controls=[network.on(edges)]))
    assert np.abs(read_image("out.png") - ours()).max() > 0.02


def test_a_condition_as_it_is_with_all_its_settings(here, network):
    words = ("--plugin", "plugin", "--condition", "edges.png", "--control-strength", "0.5", "--quiet")
    generate(*words, "--control-steps", "0", "0.67", "--prompt-only", "-o", "out.png")
    control = network.on(read_image("edges.png"), strength=0.5, steps=(0.0, 0.67), prompt_only=True)
    assert_shows("out.png", ours(controls=[control]))


def test_two_at_once_and_a_layout(here, network):
    words = ("--control", "layout", "canny", "--plugin", "plugin", "--image", "photo.png", "--quiet", "-o", "out.png")
    generate(*words, "--control-strength", "1", "0.5")
    photo = covering(read_image("photo.png"), 16, 16)
    controls = [PlugAndPlay(photo), network.on(make("canny", photo), strength=0.5)]
    assert_shows("out.png", ours(controls=controls, sampler="ddim"))


def test_a_photo_covers_the_picture():
    image = np.zeros((4, 8, 3), np.float32)
    image[:, 2:6] = 1
    np.testing.assert_array_equal(covering(image, 4, 4), np.ones((4, 4, 3)))
    assert covering(image, 16, 8).shape == (16, 8, 3) and covering(image, 2, 2).shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--control", "canny"], "a control needs a picture to look at"),
        (["--plugin", "plugin", "--image", "photo.png"], "--plugin does not say what it looks for"),
        (["--control", "canny", "--image", "photo.png", "--plugin", "base/unet"], "base/unet"),
        (["--control", "canny", "--image", "photo.png", "--plugin", "nothing"], "no control 'nothing'"),
        (["--control", "canny", "--image", "photo.png", "--plugin", "plugin", "plugin"], "2 plugins for 1 controls"),
        (["--control", "holistic", "--image", "photo.png"], "no plugin for holistic comes with the program"),
        (["--control", "canny", "--image", "photo.png", "--strength", "0.5"], "--control-strength"),
        (["--control-strength", "0.5"], "--control-strength is about a control"),
        (["--prompt-only"], "--prompt-only is about a control"),
        (["--plugin", "plugin", "--condition", "edges.png", "--control-steps", "0.5", "0.5"], "steps=(0.5, 0.5)"),
        (["--plugin", "plugin", "--condition", "edges.png", "--control-strength", "1", "2"], "2 strengths for 1"),
        (
            ["--control", "plug_and_play", "--image", "photo.png", "--sampler", "euler"],
            "Plug-and-Play follows DDIM, not euler",
        ),
    ],
)
def test_what_clashes_is_one_line(here, capsys, words, said):
    line = refused(["generate", "--prompt", APPLE, "--base", "base", "--steps", "2", "-o", "out.png", *words], capsys)
    assert said in line
