"""The losses, against their sums written out; augmentation changes what it says, per image, and nothing else."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reveal_networks import close

from common.training.objectives import L1, Scope, total
from common.training.task import Context
from reveal.network.model import Query
from reveal.training.augment import Augment
from reveal.training.device_memory import Contents
from reveal.training.losses import Output, Weights, contrastive, disentangle, gap, gate, generation

LOGITS, TARGETS = jax.random.normal(jax.random.key(0), (2, 3, 5)), jnp.array([[1, 4, 0], [2, 0, 0]])


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def unit(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def test_generation_is_smoothed_cross_entropy_of_unpadded_tokens():
    log = np.asarray(jax.nn.log_softmax(LOGITS))
    wanted = np.full((2, 3, 5), 0.1 / 5)
    np.put_along_axis(wanted, np.asarray(TARGETS)[..., None], 0.9 + 0.1 / 5, axis=-1)
    expected = -(log * wanted).sum(-1)[np.asarray(TARGETS) > 0].mean()
    close(generation(LOGITS, TARGETS, smoothing=0.1), expected, 1e-6)
    padding = LOGITS.at[0, 2].set(jnp.nan).at[1, 1:].set(1e9)
    close(generation(padding, TARGETS, smoothing=0.1), expected, 1e-6)
    assert generation(LOGITS, jnp.zeros_like(TARGETS)) == 0


def test_generation_weighs_tokens():
    close(generation(LOGITS, TARGETS, jnp.full((2, 3), 7.0)), generation(LOGITS, TARGETS), 1e-6)
    first, second = (generation(LOGITS[:1, i : i + 1], TARGETS[:1, i : i + 1]) for i in (0, 1))
    weights = jnp.array([[1.0, 3.0, 5.0], [0.0, 2.0, 2.0]])  # that of padding does not count
    close(generation(LOGITS, TARGETS, weights), (first + 3 * second) / 4, 1e-6)
    assert generation(LOGITS, TARGETS, jnp.zeros((2, 3))) == 0


@pytest.mark.parametrize("k", [1, 3])
def test_contrastive_with_hard_negatives(k):
    """The reference scales its labels by K while its scores are in another order: correct for K = 1 only."""
    query, keys = unit(normal(1, 4, 6)), unit(normal(2, 4, k, 6))
    scores = np.asarray(query) @ np.asarray(keys).reshape(4 * k, -1).T / 0.2
    expected = np.mean([np.log(np.exp(row).sum()) - row[i * k] for i, row in enumerate(scores)])
    close(contrastive(query, keys).loss, expected)
    perfect = contrastive(keys[:, 0], keys)
    assert perfect.accuracy == 1 and perfect.loss < contrastive(query, keys).loss


def test_contrastive_leaves_out_other_keys_of_the_same_item():
    query, keys = unit(normal(1, 3, 6)), unit(normal(2, 3, 2, 6))
    found = contrastive(query, keys, jnp.array([[7, 1], [2, 3], [4, 7]])).loss
    scores = np.asarray(query @ keys.reshape(6, -1).T) / 0.2
    rows = zip([np.delete(scores[0], 5), scores[1], scores[2]], [scores[i, 2 * i] for i in range(3)], strict=True)
    close(found, np.mean([np.log(np.exp(row).sum()) - positive for row, positive in rows]))


def test_equal_tokens_have_no_direction():
    """And no NaN; all else of `disentangle` is in the reference's fixture (test_reveal_network)."""
    assert disentangle(jnp.ones((1, 3, 5))) < 1e-6


def test_gap_compares_lengths():
    values, tokens = normal(4, 2, 3, 5), normal(5, 2, 4, 5)
    mask = jnp.array([[True, True, False, False], [True, False, False, False]])
    lengths = np.linalg.norm(np.asarray(tokens), axis=-1)[np.asarray(mask)]
    close(gap(values, tokens, mask), abs(1 - np.linalg.norm(np.asarray(values), axis=-1).mean() / lengths.mean()))
    assert np.isfinite(np.asarray(jax.grad(lambda v: gap(v, tokens, mask))(jnp.zeros_like(values)))).all()


@pytest.fixture(scope="module")
def scope():
    query = Query(
        normal(0, 2, 4, 5), jnp.ones((2, 4), bool), unit(normal(1, 2, 6)), jnp.log(jnp.full((2, 2), 0.5)), jnp.zeros(2)
    )
    output = Output(query, normal(2, 2, 1, 3, 5), LOGITS, unit(normal(3, 2, 2, 6)), jnp.arange(4).reshape(2, 2))
    output = output._replace(source=jnp.array([0, 1]), text=TARGETS, text_logits=LOGITS, text_weights=jnp.ones((2, 3)))
    return Scope(output, {"answer": TARGETS}, Context(jnp.zeros((), jnp.int32), jax.random.key(0), {}))


def test_the_total_of_all_terms(scope):
    weights, output = Weights(0.25, 0.01, 0.001, 0.5, 0.125), scope.roots["output"]
    loss, values = total({**weights.terms(0.1, 0.3), "l1": L1("output.text_logits", "output.logits")}, scope)
    text = generation(LOGITS, TARGETS, smoothing=0.1)
    expected = {
        "generation": (0.75, text),
        "contrastive": (0.25, contrastive(output.query.vector, output.keys, output.ids, 0.3).loss),
        "gate": (0.125, gate(output.query.log_gate, output.source)),
        "disentangle": (0.01, disentangle(output.values)),
        "gap": (0.001, gap(output.values, output.query.states, output.query.mask)),
        "reconstruct": (0.5, text),
        "l1": (1, 0),
    }
    assert values.keys() == expected.keys()
    for name, (_, value) in expected.items():
        close(values[name], value, 1e-6)
    close(loss, sum(weight * x for weight, x in expected.values()), 1e-6)


@pytest.mark.parametrize("name", ["contrastive", "disentangle", "gap"])
def test_weight_zero_is_off(name):
    """The reference asks whether a weight is in the config, not for its value."""
    weights = dataclasses.replace(Weights(), **{name: 0})
    assert weights.terms(0.1, 0.2).keys() == Weights().terms(0.1, 0.2).keys() - {name}
    assert weights.terms(0.1, 0.2)["generation"].weight == 1 - weights.contrastive


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
    np.testing.assert_allclose(image[..., 2], np.tile(80 * factor[..., None, None], (1, 1, 16, 16)), rtol=1e-4)
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
