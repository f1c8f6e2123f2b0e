"""Weights files of FILM: found by name or path, self-describing, refused in a line when they are something else."""

import dataclasses

import numpy as np
import pytest
import safetensors.numpy
from toy import CONFIG, assert_same_parameters, parameters, toy

import film
import film.io.pretrained as shelves
import film.io.weights as loading
from common.weights.model_file import save_weights
from film.model import FilmConfig


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder of shipped weights with two names on it."""
    for name, seed in (("film-small", 1), ("film-other", 2)):
        (tmp_path / "shelf" / name).mkdir(parents=True)
        film.save_model(tmp_path / "shelf" / name / shelves.FILE, toy(seed=seed))
    monkeypatch.setattr(shelves, "WEIGHTS", tmp_path / "shelf")
    return tmp_path / "shelf"


def one_line(error) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_saved_is_loaded(tmp_path):
    model = toy(FilmConfig(4, 3, 2, 2, (1, 2, 1), (8, 8, 8), 4))
    film.save_model(tmp_path / "w.safetensors", model, {"psnr": 30.5, "steps": 7})
    loaded, metadata = loading.load_with_metadata(tmp_path / "w.safetensors")
    assert_same_parameters(loaded, model)
    assert metadata.kind == "film" and metadata.metadata == {"psnr": 30.5, "steps": 7}
    assert FilmConfig(**metadata.config) == model.config  # JSON made lists of its tuples


def test_a_loaded_network_computes_the_same(tmp_path):
    model = toy()
    film.save_model(tmp_path / "w.safetensors", model)
    x0, x1 = np.random.default_rng(0).random((2, 1, 16, 16, 3)).astype(np.float32)
    np.testing.assert_array_equal(film.load(tmp_path / "w.safetensors")(x0, x1).image, model(x0, x1).image)


def test_half_precision_files_load_as_float32(tmp_path):
    model = toy()
    film.save_model(tmp_path / "w.safetensors", model, dtype="bfloat16")
    loaded = parameters(film.load(tmp_path / "w.safetensors"))
    for path, value in parameters(model).items():
        assert loaded[path].dtype == np.float32
        np.testing.assert_allclose(loaded[path], value, rtol=2**-8)


def test_a_runs_folder_is_enough(tmp_path):
    film.save_model(tmp_path / "weights.safetensors", toy())
    assert_same_parameters(film.load(tmp_path), toy())
    assert_same_parameters(film.load(str(tmp_path)), toy())


def test_names_and_the_default(shelf):
    assert shelves.names() == ["film-other", "film-small"]
    assert_same_parameters(film.load(), toy(seed=1))
    assert_same_parameters(film.load("film-other"), toy(seed=2))


def test_an_unknown_name_lists_the_known_ones(shelf):
    with pytest.raises(FileNotFoundError, match="film-huge") as error:
        film.load("film-huge")
    assert "film-other" in one_line(error) and "film-small" in one_line(error)


def test_weights_of_another_model_are_refused(tmp_path):
    save_weights(tmp_path / "w.safetensors", {"a": np.zeros(2, np.float32)}, kind="reveal", config={})
    with pytest.raises(ValueError, match="another model") as error:
        film.load(tmp_path / "w.safetensors")
    assert "reveal" in one_line(error)


def test_a_config_of_another_version_is_refused(tmp_path):
    save_weights(tmp_path / "w.safetensors", {"a": np.zeros(2, np.float32)}, kind="film", config={"width": 3})
    with pytest.raises(ValueError, match="width") as error:
        film.load(tmp_path / "w.safetensors")
    assert "w.safetensors" in one_line(error)


def test_parameters_that_do_not_fit_the_config_are_all_named(tmp_path):
    values = parameters(toy())
    missing, first, *_ = values
    del values[missing]
    values["stranger"] = np.zeros(2, np.float32)
    loading.save(tmp_path / "w.safetensors", values, CONFIG)
    with pytest.raises(ValueError) as error:
        film.load(tmp_path / "w.safetensors")
    assert missing in str(error.value) and "stranger" in str(error.value) and first not in str(error.value)
    assert str(error.value).startswith(f"{tmp_path}/w.safetensors: ")


@pytest.mark.parametrize("config", [{"filters": 0}, {"flow_convs": []}, {"pyramid_levels": 10**9}])
def test_a_config_that_makes_no_network_is_refused(tmp_path, config):
    save_weights(tmp_path / "w.safetensors", {"a": np.zeros(2, np.float32)}, kind="film", config=config)
    with pytest.raises(ValueError, match=next(iter(config))) as error:
        film.load(tmp_path / "w.safetensors")
    assert "w.safetensors" in one_line(error)


def test_whose_weights_a_file_holds(tmp_path, shelf):
    film.save_model(tmp_path / "ours.safetensors", toy())
    safetensors.numpy.save_file({"a": np.zeros(2)}, tmp_path / "theirs.safetensors")
    (tmp_path / "text.safetensors").write_text("text")
    ours = ("film-small", shelf / "film-small", tmp_path / "ours.safetensors", tmp_path / "text.safetensors")
    assert all(map(shelves.is_ours, ours))
    assert not any(map(shelves.is_ours, (tmp_path / "theirs.safetensors", tmp_path, tmp_path / "a.pth")))


def test_existing_weights_are_kept(tmp_path):
    film.save_model(tmp_path / "w.safetensors", toy())
    before = (tmp_path / "w.safetensors").read_bytes()
    with pytest.raises(FileExistsError):
        film.save_model(tmp_path / "w.safetensors", toy(seed=5))
    assert (tmp_path / "w.safetensors").read_bytes() == before
    film.save_model(tmp_path / "w.safetensors", toy(seed=5), overwrite=True)
    assert_same_parameters(film.load(tmp_path / "w.safetensors"), toy(seed=5))


def test_headers_with_former_names_are_read(tmp_path):
    config = FilmConfig(4, 3, 2, 2, (1, 2, 1), (8, 8, 8), 4, correlation_radius=(1, 0, 1), bilateral=True)
    fields = dataclasses.asdict(config)
    fields |= {"flow_search": fields.pop("correlation_radius"), "between": fields.pop("bilateral")}
    save_weights(tmp_path / "w.safetensors", parameters(toy(config)), kind="film", config=fields)
    assert film.load(tmp_path / "w.safetensors").config == config
