"""Flags, invented and photographed, pictures without one, and the exported network with its memory."""

import dataclasses

import cv2
import numpy as np
import pytest
from flax import nnx
from little_worlds import COUNTRIES, COUNTRIES_NETWORK
from made_archives import rcc_bytes, write_deb
from refusal import refused

from common.io.images import read_image
from recipes.captioned_pictures import stamps
from recipes.countries import drawing, scenery
from recipes.countries.augmentation import VISIBLE, augment, blank_image, photograph
from recipes.countries.charges import CHARGES, SHARES
from recipes.countries.drawing import GROUND_SHARES, GROUNDS, PARTS, flags, seeds
from recipes.countries.facts import Atlas, grid_colours, nearest, unique_flags
from recipes.countries.pairs import GROUP, FlagPairs, piece
from recipes.countries.ship import ship
from reveal.assistant import Assistant
from reveal.memory import Memory
from reveal.network import weights
from reveal.network.config import TowerConfig
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


RED = np.broadcast_to(np.array([255, 0, 0, 255], np.uint8), (72, 96, 4))
BLACK = np.zeros((60, 80, 3), np.uint8)


def test_a_cut_flag_is_mostly_outside_the_picture():
    def red(seed, **options) -> float:
        shown = photograph(RED, 1.0, BLACK, 48, rng(seed), (0.8, 0.8), 0.0, **options)
        return float((shown[..., 0] > 0.3).mean())

    cut, whole = ([red(seed, **options) for seed in range(60)] for options in ({"cut": True}, {"plain": True}))
    assert max(cut) < VISIBLE[1] * 0.8**2 * 1.15 < 0.5 < min(whole)
    assert np.median(cut) > 0.02


def test_pairs_of_pictures():
    pairs = FlagPairs(world=COUNTRIES, batch_size=8)
    flags_of = np.stack([cv2.resize(flag, (96, 72)) for flag in REAL])
    opaque = np.concatenate([flags_of, np.full((*flags_of.shape[:3], 1), 255, np.uint8)], axis=-1)
    vars(pairs).update(real_drawings=(opaque[None], np.full((1, len(opaque)), 1.5)), grounds=[BLACK])
    rows = [pairs.example(0, number) for number in range(40 * GROUP)]
    assert [row["flag"] < 0 for row in rows] == [False, False, False, True] * 40
    held_out = set(COUNTRIES.atlas.held_out.tolist())
    assert held_out.isdisjoint(int(row["flag"]) for row in rows if row["flag"] < COUNTRIES.atlas.real)
    assert all(row[name].shape == (16, 16, 3) and 0 <= row[name].min() <= row[name].max() <= 1
               for row in rows for name in ("query", "key"))  # fmt: skip
    np.testing.assert_array_equal(pairs.example(0, 7)["query"], rows[7]["query"])
    part, aspect = piece(opaque[0], 1.5, rng(3))
    assert 20 < part.shape[0] < 48 and 28 < part.shape[1] < 64
    assert aspect == pytest.approx(1.5 * (part.shape[1] / 96) / (part.shape[0] / 72))


def test_pictures_without_a_flag(tmp_path, monkeypatch):
    def webp(level, suffix=".webp"):
        return cv2.imencode(suffix, np.full((30, 40, 3), level, np.uint8))[1].tobytes()

    images = "categorization/resource/images/"
    activities = {
        "categorization": {f"{images}fishes/b.webp": 20, f"{images}fishes/a.webp": 10, f"{images}birds/c.webp": 30},
        "details": {f"details/resource/image/{n}.webp": 100 + n for n in range(3)},
        "lang": {f"lang/resource/words_sample/{n}.webp": 200 + n for n in range(3)},
    }
    write_deb(tmp_path, scenery.GCOMPRIS, {
        f"usr/share/{name}.rcc": rcc_bytes({scenery.ACTIVITIES + path: webp(level) for path, level in files.items()})
        for name, files in activities.items()
    })  # fmt: skip
    write_deb(tmp_path, scenery.MATE, {"usr/nature/sea.jpg": webp(40, ".jpg"), "usr/abstract/x.jpg": webp(0, ".jpg")})
    stamp = cv2.imencode(".png", np.zeros((80, 80, 3), np.uint8))[1].tobytes()
    write_deb(
        tmp_path,
        stamps.STAMPS,
        {f"{stamps.ROOT}animals/mammals/cow.png": stamp, f"{stamps.ROOT}animals/mammals/cow.txt": b"Cow."},
    )
    refused(ValueError, scenery.fetch, tmp_path / "few", tmp_path, match="4 photographs")
    monkeypatch.setattr(scenery, "COUNT", 4)
    for _ in range(2):
        assert scenery.fetch(tmp_path / "out", tmp_path, overwrite=True) == 10
    levels = {
        name: [round(255 * float(read_image(path).mean())) for path in sorted((tmp_path / "out").glob(f"{name}_*"))]
        for name in ("test", "train", "calibration")
    }
    assert 0 < levels["test"].pop() < 200  # a black stamp on white
    assert levels == {"test": [10, 20, 40], "train": [100, 101, 200, 201], "calibration": [102, 202]}
    assert [picture.shape for picture in scenery.load(tmp_path / "out", "train", 20)] == [(15, 20, 3)] * 4
    refused(FileNotFoundError, scenery.load, tmp_path, "train", match="train_000")


def save(folder, target, network=COUNTRIES_NETWORK) -> None:
    params = nnx.to_pure_dict(nnx.state(Reveal(network, rngs=nnx.Rngs(0))))
    data = {"_target_": target, "text_length": 96, "item_length": 44, "answer_length": 4}
    weights.save(folder / weights.FILE, params, network, metadata={"recipe": {"data": data}})


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


@pytest.mark.long
def test_the_weight_of_a_tower_is_chosen_when_it_is_shipped(folder, tmp_path):
    refused(ValueError, ship, folder.parent, tmp_path / "none", 2.0, match="no tower")
    network = dataclasses.replace(COUNTRIES_NETWORK, tower=TowerConfig(width=8, key_dim=4))
    save(tmp_path, "recipes.countries.data.CountriesConfig", network)
    ship(tmp_path, tmp_path / "data", 2.0)
    keys = Memory(tmp_path / "data" / "memory").keys(np.arange(4))
    heads, tower = keys[:, : network.key_dim], keys[:, network.key_dim :]
    np.testing.assert_allclose(np.square(heads).sum(axis=1), 0.5, rtol=1e-3)
    np.testing.assert_allclose(np.square(tower).sum(axis=1), 2, rtol=1e-3)
    assert weights.load(tmp_path / "data" / weights.FILE).config.tower == TowerConfig(
        width=8, key_dim=4, weight=2.0, heads_weight=0.5
    )
