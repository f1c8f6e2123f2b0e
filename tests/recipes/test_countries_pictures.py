"""Invented flags are many, in flags' colours and repeatable; a look changes a flag, and never into another one."""

import numpy as np
import pytest

from recipes.countries import drawing, looks
from recipes.countries.charges import CHARGES, SHARES
from recipes.countries.drawing import GROUND_SHARES, GROUNDS, PARTS, chances, flag, flags
from recipes.countries.facts import Atlas, alone, parts_of

REAL = Atlas.create().flags
MADE = flags(120)


def rng(*seed) -> np.random.Generator:
    return np.random.default_rng(list(seed))


def test_a_flag_depends_on_seed_and_number_alone():
    np.testing.assert_array_equal(flags(10), MADE[:10])
    assert np.abs(flags(10, seed=1).astype(int) - MADE[:10]).mean(axis=(1, 2, 3)).min() > 2


def test_almost_all_invented_flags_can_be_told_apart():
    assert alone(parts_of(MADE)).mean() > 0.9


def test_invented_flags_are_as_varied_as_real_ones():
    """In how many colours they have, how detailed they are, and how far they are from their nearest."""
    for measure in (edges, colours, apart):
        real, made = measure(REAL[::2]), measure(MADE)
        assert 0.5 < np.median(made) / np.median(real) < 2, measure.__name__


def edges(some) -> np.ndarray:
    return np.abs(np.diff(some.astype(float), axis=2)).mean(axis=(1, 2, 3))


def colours(some) -> np.ndarray:
    return np.array([len(np.unique(one.reshape(-1, 3) // 64, axis=0)) for one in some], float)


def apart(some) -> np.ndarray:
    parts = parts_of(some).reshape(len(some), -1)
    distance = np.abs(parts[:, None] - parts[None]).mean(-1) + np.eye(len(parts))
    return distance.min(1)


def test_siblings_share_all_chances_but_one():
    own = [chances(0, number) for number in range(300)]
    alike = [sum(part[1] != number for part in parts) for number, parts in enumerate(own)]
    siblings = [count for count in alike if count]
    assert 60 < len(siblings) < 140 and set(siblings) <= {len(PARTS) - 1, len(PARTS)}
    assert siblings.count(len(PARTS) - 1) == len(siblings)


def test_every_ground_and_charge_leaves_something():
    palette = [(200, 0, 0), (255, 255, 255), (0, 0, 150), (0, 120, 0), (250, 210, 0)]
    for ground in GROUNDS:
        canvas = np.zeros((192, 256, 3), np.uint8)
        ground(canvas, rng(1), palette)
        assert canvas.any(axis=-1).mean() > 0.9, ground.__name__
    for charge in CHARGES:
        canvas = np.zeros((192, 256, 3), np.uint8)
        charge(canvas, rng(2), (128, 96), 60.0, palette)
        ys, xs = np.nonzero(canvas.any(axis=-1))
        assert 300 < len(ys) < 30000, charge.__name__
        assert abs(xs.mean() - 128) < 45 and abs(ys.mean() - 96) < 45
    assert abs(sum(GROUND_SHARES) - 1) < 1e-9 and abs(SHARES.sum() - 1) < 1e-9


def test_a_bare_ground_always_gets_a_charge():
    plain = next(
        n for n in range(500) if drawing.GROUNDS[int(rng(0, n, 0).choice(9, p=GROUND_SHARES))] is drawing.plain
    )
    no_hoist = next(n for n in range(500) if rng(0, n, 2).choice(4, p=[0.62, 0.14, 0.06, 0.18]) == 0)
    for number in range(20):
        shown = flag([(0, plain, 0), (0, number, 1), (0, no_hoist, 2), (0, number, 3)])
        assert (shown != shown[0, 0]).any()


# ---- looks


def test_a_look_follows_from_its_chance_and_is_a_picture():
    first, again, other = (looks.look(REAL[0], 48, rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert first.shape == (48, 48, 3) and first.dtype == np.float32 and np.abs(first - other).mean() > 0.02
    shown = np.stack([looks.look(REAL[number], 32, rng(number)) for number in range(50)])
    assert shown.min() >= 0 and shown.max() <= 1


def test_a_look_shows_its_flag_more_than_any_other():
    """The middle of the picture, on the average over many looks, has the flag's own mean colour."""
    plain = np.broadcast_to(np.array([220, 20, 30], np.uint8), (48, 64, 3)).copy()
    shown = np.mean([looks.look(plain, 32, rng(7, seed))[8:24, 12:20] for seed in range(60)], axis=(0, 1, 2))
    assert shown[0] > 0.6 and shown[1] < 0.35 and shown[2] < 0.35


def test_most_looks_show_ground_and_some_are_full():
    red = np.broadcast_to(np.array([255, 0, 0], np.uint8), (48, 64, 3)).copy()
    shown = np.stack([looks.look(red, 32, rng(8, seed)) for seed in range(200)])
    covered = ((shown[..., 0] - shown[..., 1]) > 0.2).mean(axis=(1, 2))
    assert 0.1 < (covered > 0.97).mean() < 0.4 and covered.min() > 0.2
    grey = shown[covered < 0.9][:, 0, 0]
    assert np.median(np.ptp(grey, axis=-1)) < 0.2


def test_a_question_without_a_flag_is_grey():
    np.testing.assert_array_equal(looks.nothing(8), np.full((8, 8, 3), 0.5, np.float32))


@pytest.mark.parametrize("size", [16, 64])
def test_the_whole_sheet(size):
    sheet = drawing.sheet(20, size=size)
    assert sheet.ndim == 3 and sheet.shape[1] > 20 * size and sheet.max() <= 1
