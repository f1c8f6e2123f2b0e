"""Procedural scenes: their depth is checked against geometry, captions against masks."""

import numpy as np
import pytest

from recipes.captioned_pictures import scenes
from recipes.captioned_pictures.scenes import Ball, Box, meet_ground, unit


def scene(number: int, size=(48, 64)) -> scenes.Scene:
    return scenes.scene(np.random.default_rng([7, number]), size)


def rays_of(number: int, size=(48, 64)) -> tuple[scenes.World, np.ndarray]:
    world = scenes.draw_world(np.random.default_rng([7, number]))
    return world, scenes.rays(world, *size, (0.5, 0.5))


def outside(thing: Ball | Box, place: np.ndarray) -> np.ndarray:
    """0 on the surface of the ball or box, negative inside."""
    if isinstance(thing, Ball):
        return np.linalg.norm(place - thing.centre, axis=-1) - thing.radius
    return (np.abs((place - thing.centre) @ thing.axes.T) - thing.half).max(-1)


@pytest.mark.parametrize("number", range(4))
def test_depth_lies_on_the_surfaces(number):
    """Along each ray by its depth: within 1e-4 of the surface of the ball, box or ground that the mask says, and points
    on the way to it are inside no thing."""
    made, (world, direction) = scene(number), rays_of(number)
    along = direction @ world.axes[2]
    with np.errstate(invalid="ignore"):
        place = world.eye + (made.depth.reshape(-1) / along)[:, None] * direction
    hit = np.isfinite(made.depth.reshape(-1))
    rest = hit & ~made.masks.any(0).reshape(-1)
    assert rest.any() and np.abs(place[rest, 1]).max() < 1e-4 * made.depth.reshape(-1)[rest].max()
    for thing, mask in zip(world.things, made.masks.reshape(len(world.things), -1), strict=True):
        assert np.abs(outside(thing, place[mask])).max(initial=0) < 1e-4
    length = np.where(hit, made.depth.reshape(-1) / along, 50)
    for share in np.linspace(0.02, 0.99, 40):
        place = world.eye + (share * length)[:, None] * direction
        assert all((outside(thing, place) > -1e-6).all() for thing in world.things)


def test_shapes_are_met_where_they_are():
    forward = np.array([[0.0, 0.0, 1.0]])
    ball, box = Ball(0.0, 0.0, 1.0), Box(0.0, 0.0, 2**0.5, 2.0, 1.0, 0.0)
    start = np.array([0.0, 1, -5])
    np.testing.assert_allclose(ball.meet(start, forward), 4)
    np.testing.assert_allclose(box.meet(start, forward), 4)
    np.testing.assert_allclose(Box(0.0, 0.0, 2**0.5, 2.0, 1.0, np.pi / 4).meet(start, forward), 5 - np.sqrt(2))
    assert np.isinf(ball.meet(start, -forward)).all() and np.isinf(box.meet(start, -forward)).all()  # behind
    beside = start + [1.01, 0, 0]
    assert np.isinf(ball.meet(beside, forward)).all() and np.isinf(box.meet(beside, forward)).all()
    np.testing.assert_allclose(ball.meet(np.array([0.0, 1, 0]), forward), 1)  # from inside
    np.testing.assert_allclose(meet_ground(start, unit(np.array([[0, -1.0, 1]]))), np.sqrt(2))
    assert np.isinf(meet_ground(start, forward)).all()


@pytest.mark.parametrize("size", [(48, 64), (64, 40), (1, 1)])
def test_scenes_depend_on_the_seed_alone_and_have_values_in_range(size):
    for number in range(2):
        made, again = scene(number, size), scene(number, size)
        for name in ("image", "depth", "masks"):
            np.testing.assert_array_equal(getattr(made, name), getattr(again, name))
        assert made.caption == again.caption
        assert made.image.shape == (*size, 3) and made.image.dtype == np.float32
        assert made.image.min() >= 0 and made.image.max() <= 1
        assert made.depth.shape == size and (made.depth > 0).all() and not np.isnan(made.depth).any()
        assert made.masks.shape == (len(made.names), *size) and made.masks.sum(0).max() <= 1
        assert np.isfinite(made.depth[made.masks.any(0)]).all() and (made.image.std() > 0.05 or size == (1, 1))
    assert scenes.scene(np.random.default_rng(0), 16).image.shape == (16, 16, 3)
    assert size == (1, 1) or not np.array_equal(scene(0, size).image, scene(1, size).image)


def test_captions_name_what_is_seen():
    made = scene(0)
    assert made.caption.endswith(f" on {made.ground}") and made.caption.count("ball") + made.caption.count("box") >= 1
    blank = scenes.Scene(made.image, made.depth, np.zeros_like(made.masks), made.names, "sand")
    assert blank.caption == "nothing on sand"
    full = np.zeros((3, 48, 64), bool)
    full[:, :9] = True
    three = scenes.Scene(made.image, made.depth, full, ("red ball", "orange box", "blue box"), "snow")
    assert three.caption == "a red ball, an orange box and a blue box on snow"


def test_the_sheet_is_written(tmp_path):
    scenes.main(tmp_path / "sheet.png", count=1, side=24)
    assert (tmp_path / "sheet.png").stat().st_size > 0
