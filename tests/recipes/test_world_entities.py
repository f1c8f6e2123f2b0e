"""Who there is: names and parts that can be told from each other, on paper and in pictures."""

import itertools

import numpy as np
import pytest
from reveal_networks import one_line

from recipes.small_world import drawing, entities
from recipes.small_world.entities import BLOBS, COUNT, MOST_DISTRACTORS, MOST_HELD_OUT, PARTS

EVERY = np.arange(COUNT)


def rngs(count, seed=0) -> list[np.random.Generator]:
    return [np.random.default_rng([seed, number]) for number in range(count)]


def test_every_combination_is_one_entity_with_a_name_of_its_own():
    assert sorted(map(tuple, entities.parts(EVERY))) == list(itertools.product(*map(range, PARTS)))
    names = [entities.name(entity) for entity in EVERY]
    assert len(set(names)) == COUNT and all(len(name.split()) == 3 for name in names)
    for part in range(3):  # each part's value has a syllable, and no other value has it
        pairs = {(value, name.split()[part]) for value, name in zip(entities.parts(EVERY)[:, part], names, strict=True)}
        assert len(pairs) == len({value for value, _ in pairs}) == len({word for _, word in pairs}) == PARTS[part]
    assert entities.name(37) == "de nu ro" and entities.looks(37) == "striped orange ring"


def test_distractors_differ_from_all_others():
    numbers = np.arange(COUNT, COUNT + MOST_DISTRACTORS)
    parts = entities.parts(numbers)
    assert len(set(map(tuple, parts))) == MOST_DISTRACTORS == 8192
    assert parts[:, 0].min() == PARTS[0] and parts[:, 0].max() == PARTS[0] + BLOBS - 1
    assert [len(set(column)) for column in parts[:40].T] == [40, *PARTS[1:]]
    assert len({entities.name(number) for number in numbers[::7]}) == len(numbers[::7])
    assert len(entities.name(COUNT).split()) == 4 and "blob" in entities.looks(COUNT)


def test_a_number_that_is_nobodys():
    for number in (-1, COUNT + MOST_DISTRACTORS):
        with pytest.raises(ValueError, match="0 to 8447") as error:
            entities.parts(np.array([number]))
        assert str(number) in one_line(error)


def test_near_ones_share_two_parts():
    near = entities.near()
    assert (near.sum(1) == 17).all() and (near == near.T).all()
    other = np.flatnonzero(near[37])
    assert {tuple(sorted(row)) for row in entities.parts(other) == entities.parts(np.array([37]))} == {(0, 1, 1)}


@pytest.mark.parametrize("count", [0, 51, MOST_HELD_OUT])
def test_every_part_stays(count):
    for seed in range(5):
        apart = entities.held_out(np.random.default_rng(seed), count)
        assert len(set(apart)) == count and (np.diff(apart) > 0).all()
        kept = entities.parts(np.setdiff1d(EVERY, apart))
        assert [len(set(column)) for column in kept.T] == list(PARTS)
    others = entities.held_out(np.random.default_rng(9), count)
    assert (list(apart) != list(others)) == (count > 0)


def test_too_many_held_out():
    with pytest.raises(ValueError, match="249 entities held out: keep to 0 to 248"):
        entities.held_out(np.random.default_rng(0), MOST_HELD_OUT + 1)


def test_a_picture_depends_on_its_own_chance_alone():
    parts = entities.parts(np.array([3, 40, 300]))
    together = drawing.draw(parts, rngs(3), 32)
    assert together.dtype == np.float32 and together.shape == (3, 32, 32, 3)
    assert together.min() >= 0 and together.max() <= 1
    alone = drawing.draw(parts[1:2], rngs(3)[1:2], 32)
    np.testing.assert_array_equal(alone[0], together[1])
    many = drawing.draw(np.repeat(parts[1:2], 300, axis=0), rngs(300, seed=1), 16)  # more than are drawn at once
    assert np.abs(many[1:] - many[:-1]).mean(axis=(1, 2, 3)).min() > 0.02


def features(images):
    """What tells shape, colour and texture: where the figure is, its bright pixels' hue, how its dark ones repeat."""
    edges = np.concatenate([images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1]], axis=1)
    figure = np.abs(images - np.median(edges, axis=1)[:, None, None]).max(-1) > 0.15
    bright = figure & (images.max(-1) > 0.5)
    hue = np.stack([image[mask].mean(0) for image, mask in zip(images, bright, strict=True)])
    waves = np.abs(np.fft.fft2(images.max(-1) < 0.3))[:, :12, :12] / figure.sum((1, 2))[:, None, None]
    return [figure.reshape(len(images), -1), hue / hue.max(1, keepdims=True), waves.reshape(len(images), -1)]


@pytest.mark.parametrize("size", [16, 32])
def test_the_nearest_mean_tells_every_part(size):
    """And that without learning more than a mean: the world can be learnt."""
    drawn = [np.random.default_rng(seed).integers(0, COUNT, count) for seed, count in ((0, 1500), (1, 400))]
    parts = [entities.parts(numbers) for numbers in drawn]
    known, asked = (features(drawing.draw(p, rngs(len(p), seed), size)) for seed, p in enumerate(parts))
    for part, least in enumerate((0.85, 0.97, 0.9)):
        own = [parts[0][:, part] == value for value in range(PARTS[part])]
        means = np.stack([known[part][rows].mean(axis=0) for rows in own])
        nearest = np.square(asked[part][:, None] - means).sum(-1).argmin(1)
        assert np.mean(nearest == parts[1][:, part]) > least


def test_the_sheet(tmp_path):
    drawing.main(tmp_path / "sheet.png", size=16, larger=1)
    assert (tmp_path / "sheet.png").stat().st_size > 10_000
