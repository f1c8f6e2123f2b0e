"""What ships: float16 weights that read as they are, and a memory of all real countries that they made."""

import warnings

import numpy as np
import pytest
from flax import nnx
from little_countries import COUNTRIES, NETWORK

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from recipes.countries import looks
    from recipes.countries.ship import ship
    from reveal.assistant import Assistant
    from reveal.network import weights
    from reveal.network.model import Reveal

LENGTHS = {"text_length": 96, "item_length": 44, "answer_length": 4}
RECIPE = {"recipe": {"data": {"_target_": "recipes.countries.data.CountriesConfig", **LENGTHS}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    params = nnx.to_pure_dict(nnx.state(Reveal(NETWORK, rngs=nnx.Rngs(0))))
    weights.save(run / weights.FILE, params, NETWORK, metadata=RECIPE)
    assert ship(run, run / "data") == len(COUNTRIES.real_items())
    return run / "data"


def test_the_memory_belongs_to_the_weights_beside_it(folder):
    assistant = Assistant.load(folder, memory=folder / "memory")
    flag = COUNTRIES.atlas.flags[7]
    picture = looks.look(flag, 16, np.random.default_rng(0))
    told = assistant.ask(picture, "What is the capital?", k=4)
    assert len(told.items) == 4 and told.first_hop is None
    assert assistant.ask(picture, "What is the currency of this country?").first_hop is not None
    assert set(assistant.memory.sources) == set(COUNTRIES.sources)


def test_items_are_as_the_world_tells_them(folder):
    assistant = Assistant.load(folder, memory=folder / "memory")
    real = COUNTRIES.real_items()
    some = [real[i] for i in (0, 3, 500, len(real) - 1)]
    kept = assistant.memory.items([item.id for item in some])
    assert [item.fields for item in kept] == [item.fields for item in some]
    assert all(isinstance(item.picture, bytes | None) and len(item.picture or b"") < 9216 for item in kept)
    keys, values = assistant.encode(some)
    np.testing.assert_allclose(assistant.memory.keys(np.array([item.id for item in some])), keys, atol=1e-5)
    stored = assistant.memory.values(np.array([item.id for item in some]))
    np.testing.assert_allclose(stored, values, atol=0.01 * np.abs(values).max())


def test_networks_of_other_data_are_refused(tmp_path):
    params = nnx.to_pure_dict(nnx.state(Reveal(NETWORK, rngs=nnx.Rngs(0))))
    weights.save(tmp_path / weights.FILE, params, NETWORK, metadata={"recipe": {"data": {"_target_": "a.World"}}})
    with pytest.raises(ValueError, match=r"a\.World"):
        ship(tmp_path, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_what_is_there_stays(folder):
    with pytest.raises(FileExistsError, match="data"):
        ship(folder.parent, folder)
