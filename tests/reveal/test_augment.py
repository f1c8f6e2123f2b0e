"""Another look at a picture: a part of it, of another brightness, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reveal.training.augment import Augment
from reveal.training.device_memory import Contents


def contents(image, has_text=True):
    b, k = image.shape[:2]
    tokens = np.full((b, k, 3), 5 if has_text else 0, np.int32)
    numbers = np.arange(b * k, dtype=np.int32).reshape(b, k)
    return Contents(tokens, image, np.ones((b, k), bool), numbers, numbers)


@pytest.fixture(scope="module")
def ramp():
    """Red rises to the right, green downwards."""
    across = np.broadcast_to(np.arange(16) * 10, (16, 16))
    picture = np.stack([across, across.T, np.full((16, 16), 80)], axis=-1).astype(np.uint8)
    return np.broadcast_to(picture, (4, 3, 16, 16, 3))


def test_nothing_changes_without_cause(ramp):
    same = Augment(crop=(1, 1), brightness=0, drop=0)(jax.random.key(0), contents(ramp))
    np.testing.assert_allclose(same.image, ramp, atol=1e-3)
    assert same.has_image.all() and (same.tokens == 5).all()


def test_a_crop_is_a_part_at_its_size(ramp):
    seen = np.asarray(Augment(crop=(0.5, 0.5), brightness=0)(jax.random.key(0), contents(ramp)).image)
    steps = np.diff(seen[..., 4:12, 0], axis=-1)  # half of the ramp on the whole width: half as steep
    np.testing.assert_allclose(steps, 5, atol=1e-2)
    assert len(np.unique(seen[:, :, 8, 8, 0].round(2))) == 12  # each somewhere else
    assert seen[..., 0].min() >= 0 and seen[..., 0].max() <= 150
    np.testing.assert_allclose(seen[:, :, 2:-2, 2:-2, 2], 80, atol=1e-3)


def test_a_picture_may_be_shown_smaller_with_its_border_drawn_on(ramp):
    seen = np.asarray(Augment(crop=(2, 2), brightness=0)(jax.random.key(0), contents(ramp)).image)
    rows = seen[..., 0].reshape(-1, 16)  # red: twice as steep over half of the width, level beside it
    np.testing.assert_allclose(np.sort(np.diff(rows), axis=1)[:, 10:14], 20, atol=1e-2)
    np.testing.assert_allclose([seen[..., 0].min(), seen[..., 0].max()], [0, 150], atol=1e-3)
    assert (np.isclose(np.diff(rows), 0).sum(1) >= 6).all()


def test_a_turn_mixes_right_with_down(ramp):
    seen = np.asarray(Augment(crop=(1, 1), turn=0.5, brightness=0)(jax.random.key(0), contents(ramp)).image)
    along, across = (np.diff(seen[:, :, 6:10, 6:10, 0], axis=axis).mean((2, 3)) for axis in (3, 2))
    np.testing.assert_allclose(np.hypot(along, across), 10, rtol=1e-3)
    angles = np.arctan2(across, along)
    assert np.abs(angles).max() <= 0.5 and angles.min() < -0.1 and angles.max() > 0.1


def test_brightness_is_one_factor_for_a_picture(ramp):
    seen = np.asarray(Augment(crop=(1, 1), brightness=0.5)(jax.random.key(1), contents(ramp)).image)
    factor = seen[:, :, 5, 5, 2] / 80
    assert (factor >= 0.5).all() and (factor <= 1.5).all() and len(np.unique(factor)) == 12
    np.testing.assert_allclose(seen[..., 2], 80 * np.broadcast_to(factor[..., None, None], seen.shape[:-1]), rtol=1e-4)


def test_noise_is_of_every_value_and_as_strong_as_asked(ramp):
    seen = np.asarray(Augment(crop=(1, 1), brightness=0, noise=0.05)(jax.random.key(2), contents(ramp)).image)
    added = (seen - ramp)[..., 4:, 4:, :] / 255  # dark borders are clipped at 0
    np.testing.assert_allclose([added.mean(), added.std()], [0, 0.05], atol=3e-3)
    assert np.abs(np.corrcoef(added[0, 0].ravel(), added[0, 1].ravel())[0, 1]) < 0.15


def test_only_items_with_text_lose_their_picture(ramp):
    look = Augment(drop=0.5)
    assert 0 < look(jax.random.key(0), contents(ramp)).has_image.sum() < 12
    assert look(jax.random.key(0), contents(ramp, has_text=False)).has_image.all()


def test_the_same_key_gives_the_same_look(ramp):
    one, other = (jax.jit(Augment())(jax.random.key(3), contents(ramp)).image for _ in range(2))
    assert bool(jnp.array_equal(one, other))


def test_what_is_no_share_is_refused():
    with pytest.raises(ValueError, match=r"augment.crop is \[0.8, 0.5\]"):
        Augment(crop=(0.8, 0.5))
    with pytest.raises(ValueError, match="brightness 1 is 0 to below 1"):
        Augment(brightness=1)
    with pytest.raises(ValueError, match="noise is -1"):
        Augment(noise=-1)
