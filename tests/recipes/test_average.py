"""The mean of weights: of each parameter, of one shape only, and it says what it is made of."""

import numpy as np
import pytest
from toy import CONFIG, parameters, toy

import film
from film.io.weights import load_with_metadata
from film.model import FilmConfig
from recipes.film_small.average_weights import average


@pytest.fixture
def two(tmp_path):
    for seed in (1, 2):
        film.save_model(tmp_path / f"{seed}.safetensors", toy(seed=seed), {"seed": seed})
    return tuple(str(tmp_path / f"{seed}.safetensors") for seed in (1, 2))


def test_each_parameter_is_the_mean(two, tmp_path):
    average((*two, two[1]), tmp_path / "mean.safetensors")
    model, header = load_with_metadata(tmp_path / "mean.safetensors")
    one, other = (parameters(toy(seed=seed)) for seed in (1, 2))
    for path, leaf in parameters(model).items():
        np.testing.assert_allclose(leaf, (one[path] + 2 * other[path]) / 3, rtol=1e-5, atol=1e-7)
    assert [each["seed"] for each in header.metadata["mean_of"]] == [1, 2, 2] and model.config == CONFIG
    commits = [load_with_metadata(name)[1].git_commit for name in (*two, two[1])]
    assert [each["git_commit"] for each in header.metadata["mean_of"]] == commits


def test_what_has_no_mean_is_refused_before_anything_is_written(two, tmp_path):
    output = tmp_path / "mean.safetensors"
    with pytest.raises(ValueError, match="1 weights given"):
        average(two[:1], output)
    film.save_model(tmp_path / "other.safetensors", toy(FilmConfig(3, 2, 1, 2, (1, 2), (8, 8), 8)))
    with pytest.raises(ValueError, match=r"other\.safetensors.*one shape"):
        average((*two, str(tmp_path / "other.safetensors")), output)
    assert not output.exists()
    with pytest.raises(FileExistsError):
        average(two, tmp_path / "1.safetensors")
