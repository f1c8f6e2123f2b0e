"""Augmentation changes what it says, per image, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np

from reveal.training.augment import Augment
from reveal.training.device_memory import Contents


def augmented(seed: int, has_text: bool = True, **options) -> Contents:
    b, k = RAMP.shape[:2]
    tokens, ids = np.full((b, k, 3), 5 * has_text, np.int32), np.arange(b * k, dtype=np.int32).reshape(b, k)
    augment = Augment(**{"crop": (1, 1), "brightness": 0} | options)
    return jax.jit(augment)(jax.random.key(seed), Contents(tokens, RAMP, np.ones((b, k), bool), ids, ids))


ACROSS = np.broadcast_to(np.arange(16) * 10, (16, 16))  # red rises to the right, green downwards
IMAGE = np.stack([ACROSS, ACROSS.T, np.full((16, 16), 80)], axis=-1).astype(np.uint8)
RAMP = np.broadcast_to(IMAGE, (4, 3, 16, 16, 3))


def test_a_crop_is_resized_to_the_whole():
    image = np.asarray(augmented(0, crop=(0.5, 0.5)).image)
    np.testing.assert_allclose(np.diff(image[..., 4:12, 0], axis=-1), 5, atol=1e-2)  # half as steep
    assert len(np.unique(image[:, :, 8, 8, 0].round(2))) == 12  # each elsewhere
    assert image[..., 0].min() >= 0 and image[..., 0].max() <= 150
    np.testing.assert_allclose(image[:, :, 2:-2, 2:-2, 2], 80, atol=1e-3)


def test_a_crop_above_one_shrinks_the_image_and_extends_its_border():
    image = np.asarray(augmented(0, crop=(2, 2)).image)
    rows = image[..., 0].reshape(-1, 16)  # red: twice as steep over half of the width, level beside it
    np.testing.assert_allclose(np.sort(np.diff(rows), axis=1)[:, 10:14], 20, atol=1e-2)
    np.testing.assert_allclose([image[..., 0].min(), image[..., 0].max()], [0, 150], atol=1e-3)
    assert (np.isclose(np.diff(rows), 0).sum(1) >= 6).all()


def test_a_turn_rotates():
    image = augmented(0, turn=0.5).image
    along, across = (np.diff(image[:, :, 6:10, 6:10, 0], axis=axis).mean((2, 3)) for axis in (3, 2))
    np.testing.assert_allclose(np.hypot(along, across), 10, rtol=1e-3)
    angles = np.arctan2(across, along)
    assert np.abs(angles).max() <= 0.5 and angles.min() < -0.1 and angles.max() > 0.1


def test_brightness_is_one_factor_per_image_and_follows_the_key():
    image = np.asarray(augmented(1, brightness=0.5).image)
    factor = image[:, :, 5, 5, 2] / 80
    assert (factor >= 0.5).all() and (factor <= 1.5).all() and len(np.unique(factor)) == 12
    np.testing.assert_allclose(
        image[..., 2], 80 * np.broadcast_to(factor[..., None, None], image.shape[:-1]), rtol=1e-4
    )
    assert bool(jnp.array_equal(augmented(1, brightness=0.5).image, image))


def test_noise_is_independent():
    added = (augmented(2, noise=0.05).image - RAMP)[..., 4:, 4:, :] / 255  # dark borders are clipped at 0
    np.testing.assert_allclose([added.mean(), added.std()], [0, 0.05], atol=3e-3)
    assert np.abs(np.corrcoef(added[0, 0].ravel(), added[0, 1].ravel())[0, 1]) < 0.15


def test_nothing_changes_but_images_of_items_with_text_that_are_dropped():
    same = augmented(0)
    np.testing.assert_allclose(same.image, RAMP, atol=1e-3)
    assert same.has_image.all() and (same.tokens == 5).all()
    assert 0 < augmented(0, drop=0.5).has_image.sum() < 12
    assert augmented(0, drop=0.5, has_text=False).has_image.all()
