"""Invented flags, augmentation, and the exported network with its memory."""

import numpy as np
import pytest
from flax import nnx
from little_worlds import COUNTRIES, COUNTRIES_NETWORK
from refusal import refused

from recipes.countries import drawing
from recipes.countries.augmentation import augment, blank_image
from recipes.countries.charges import CHARGES, SHARES
from recipes.countries.drawing import GROUND_SHARES, GROUNDS, PARTS, flags, seeds
from recipes.countries.facts import Atlas, grid_colours, nearest, unique_flags
from recipes.countries.ship import ship
from reveal.assistant import Assistant
from reveal.network import weights
from reveal.network.model import Reveal

REAL = Atlas.create().flags
MADE = flags(120)


def rng(*seed) -> np.random.Generator:
    return np.random.default_rng(list(seed))


def test_invented_flags_are_fixed_distinct_and_as_varied_as_real_ones():
    np.testing.assert_array_equal(flags(10), MADE[:10])
    assert np.abs(flags(10, seed=1).astype(int) - MADE[:10]).mean(axis=(1, 2, 3)).min() > 2
    assert unique_flags(grid_colours(MADE)).mean() > 0.9

    def edges(some):
        return np.abs(np.diff(some.astype(float), axis=2)).mean(axis=(1, 2, 3))

    def colours(some):
        return np.array([len(np.unique(one.reshape(-1, 3) // 64, axis=0)) for one in some], float)

    def nearest_other(some):
        vectors = grid_colours(some).reshape(len(some), -1)
        return (np.abs(vectors[:, None] - vectors[None]).mean(-1) + np.eye(len(vectors))).min(1)

    for measure in (edges, colours, nearest_other):
        real, made = measure(REAL[::2]), measure(MADE)
        assert 0.5 < np.median(made) / np.median(real) < 2, measure.__name__
    sheet = drawing.sheet(20, size=16)
    assert sheet.ndim == 3 and sheet.shape[1] > 20 * 16 and sheet.max() <= 1


def test_siblings_share_all_seeds_but_one():
    shared = [sum(part[1] != number for part in seeds(0, number)) for number in range(300)]
    siblings = [count for count in shared if count]
    assert 60 < len(siblings) < 140 and set(siblings) == {len(PARTS) - 1}


def test_every_ground_and_charge_draws():
    palette = [(200, 0, 0), (255, 255, 255), (0, 0, 150), (0, 120, 0), (250, 210, 0)]
    for ground in GROUNDS:
        canvas = np.zeros((192, 256, 3), np.uint8)
        ground(canvas, rng(1), palette)
        assert canvas.any(axis=-1).mean() > 0.9, ground.__name__
    for charge in CHARGES:
        canvas = np.zeros((192, 256, 3), np.uint8)
        charge(canvas, rng(2), (128, 96), 60.0, palette)
        ys, xs = np.nonzero(canvas.any(axis=-1))
        assert 300 < len(ys) < 30000 and abs(xs.mean() - 128) < 45 and abs(ys.mean() - 96) < 45, charge.__name__
    assert abs(sum(GROUND_SHARES) - 1) < 1e-9 and abs(SHARES.sum() - 1) < 1e-9


def test_nearest_and_unique():
    line = np.array([[0.0], [1.0], [3.0], [3.5]])
    assert nearest(line, 2).tolist() == [[1, 2], [0, 2], [3, 1], [2, 1]]
    flags = np.full((3, 48, 64, 3), 100, np.uint8)
    flags[1] += 30  # lighter
    flags[2, 20:30, 20:30] = 0
    assert unique_flags(grid_colours(flags)).tolist() == [False, False, True]


def test_augmentation_is_fixed_by_its_seed_and_in_range():
    first, again, other = (augment(REAL[0], 48, rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert first.shape == (48, 48, 3) and first.dtype == np.float32 and np.abs(first - other).mean() > 0.02
    shown = np.stack([augment(REAL[number], 32, rng(number)) for number in range(50)])
    assert shown.min() >= 0 and shown.max() <= 1
    np.testing.assert_array_equal(blank_image(8), np.full((8, 8, 3), 0.5, np.float32))


def save(folder, target) -> None:
    params = nnx.to_pure_dict(nnx.state(Reveal(COUNTRIES_NETWORK, rngs=nnx.Rngs(0))))
    data = {"_target_": target, "text_length": 96, "item_length": 44, "answer_length": 4}
    weights.save(folder / weights.FILE, params, COUNTRIES_NETWORK, metadata={"recipe": {"data": data}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    save(run, "recipes.countries.data.CountriesConfig")
    assert ship(run, run / "data") == len(COUNTRIES.memory_items())
    return run / "data"


@pytest.mark.long
def test_the_memory_belongs_to_the_weights_beside_it(folder):
    assistant = Assistant.load(folder, memory=folder / "memory")
    picture = augment(COUNTRIES.atlas.flags[7], 16, rng(0))
    evidence = assistant.ask(picture, "What is the capital?", k=4)
    assert len(evidence.items) == 4 and evidence.first_hop is None
    assert assistant.ask(picture, "What is the currency of this country?").first_hop is not None
    assert set(assistant.memory.sources) == set(COUNTRIES.sources)
    items = COUNTRIES.memory_items()
    some = [items[i] for i in (0, 3, 500, len(items) - 1)]
    ids = np.array([item.id for item in some])
    stored = assistant.memory.items(ids)
    assert [item.fields for item in stored] == [item.fields for item in some]
    assert all(isinstance(item.picture, bytes | None) and len(item.picture or b"") < 9216 for item in stored)
    keys, values = assistant.encode(some)
    np.testing.assert_allclose(assistant.memory.keys(ids), keys, atol=1e-5)
    np.testing.assert_allclose(assistant.memory.values(ids), values, atol=0.01 * np.abs(values).max())


@pytest.mark.long
def test_refused_runs_and_folders(folder, tmp_path):
    save(tmp_path, "a.World")
    refused(ValueError, ship, tmp_path, tmp_path / "data", match=r"a\.World")
    assert not (tmp_path / "data").exists()
    refused(FileExistsError, ship, folder.parent, folder, match="data")
