"""Weights files of FILM: found by name or path, self-describing, refused by name when they are something else."""

import dataclasses
import shutil

import numpy as np
import pytest
import recipe
import safetensors.numpy
from refusal import refused
from toy import CONFIG, assert_same_parameters, toy

import film
from common.weights import remote
from common.weights.model_file import save_weights
from film import porting
from film.io import pretrained, weights
from film.model import FilmConfig
from film.porting import read_reference


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder of shipped weights with two names."""
    for name, seed in (("film-small", 1), ("film-other", 2)):
        (tmp_path / "shipped" / name).mkdir(parents=True)
        film.save_model(tmp_path / "shipped" / name / pretrained.FILE, toy(seed=seed))
    monkeypatch.setattr(
        pretrained,
        "SHIPPED",
        dataclasses.replace(pretrained.SHIPPED, folder=tmp_path / "shipped", default="film-small"),
    )
    return tmp_path / "shipped"


def test_what_is_saved_is_loaded(tmp_path):
    film.save_model(tmp_path / "weights.safetensors", toy(), {"psnr": 30.5, "steps": 7})
    loaded, metadata = weights.load_with_metadata(tmp_path / "weights.safetensors")
    assert_same_parameters(loaded, toy())
    assert metadata.kind == "film" and metadata.metadata == {"psnr": 30.5, "steps": 7}
    assert FilmConfig(**metadata.config) == CONFIG  # JSON made lists of its tuples
    assert_same_parameters(film.load(str(tmp_path)), toy())  # a run's folder
    x0, x1 = np.random.default_rng(0).random((2, 1, 16, 16, 3)).astype(np.float32)
    np.testing.assert_array_equal(loaded(x0, x1).image, toy()(x0, x1).image)


def test_names_the_default_and_an_unknown_name(shipped):
    assert_same_parameters(film.load(), toy(seed=1))
    assert_same_parameters(film.load("film-other"), toy(seed=2))
    refused(FileNotFoundError, film.load, "film-huge", match=r"film-huge.*film-other, film-small")


@pytest.mark.parametrize(("kind", "config", "value"), [
    ("reveal", {}, "reveal"),
    ("film", {"width": 3}, "width"),
    ("film", {"flow_convs": []}, "flow_convs"),
    ("film", dataclasses.asdict(CONFIG), "stranger"),
])  # fmt: skip
def test_other_weights_and_impossible_configs_are_refused(tmp_path, kind, config, value):
    save_weights(tmp_path / "w.safetensors", {"stranger": np.zeros(2, np.float32)}, kind=kind, config=config)
    with pytest.raises(ValueError, match=rf"(?s)w\.safetensors.*{value}"):
        film.load(tmp_path / "w.safetensors")


def test_whose_weights_a_file_holds(tmp_path, shipped):
    film.save_model(tmp_path / "ours.safetensors", toy())
    safetensors.numpy.save_file({"a": np.zeros(2)}, tmp_path / "theirs.safetensors")
    (tmp_path / "text.safetensors").write_text("text")
    ours = ("film-small", shipped / "film-small", tmp_path / "ours.safetensors", tmp_path / "text.safetensors")
    assert all(map(pretrained.is_ours, ours))
    assert not any(map(pretrained.is_ours, (tmp_path / "theirs.safetensors", tmp_path, tmp_path / "a.pth")))


@pytest.mark.parametrize("source", ["{folder}/film.pth", "{folder}", "hf:who/film"])
def test_another_programs_weights_are_converted_once(tmp_path, monkeypatch, source):
    """Of a file, of a folder that holds one, and of a repository."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "downloaded"
    folder.mkdir()
    shutil.copy(recipe.DATA / "dajes_tiny.pth", folder / "film.pth")
    monkeypatch.setattr(remote, "_from_hub", lambda *_: folder)
    name = source.format(folder=folder)
    path = pretrained.find(name, recipe.narrow().config)
    assert_same_parameters(film.load(path), read_reference(folder / "film.pth", recipe.narrow().config))
    assert weights.load_with_metadata(path)[1].metadata == {"ported_from": name}
    monkeypatch.setattr(porting, "read_reference", None)
    assert pretrained.find(name, recipe.narrow().config) == path
