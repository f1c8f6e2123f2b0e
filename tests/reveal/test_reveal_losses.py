"""The losses, against sums written out and against what their faults would be."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from reveal_networks import close, one_line

from reveal.training.losses import Weights, contrastive, disentangle, gap, generation, total


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def unit(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def test_generation_is_smoothed_cross_entropy_where_there_is_a_token():
    logits, targets = normal(0, 2, 3, 5), jnp.array([[1, 4, 0], [2, 0, 0]])
    log = np.asarray(jax.nn.log_softmax(logits))
    wanted = np.full((2, 3, 5), 0.1 / 5)
    np.put_along_axis(wanted, np.asarray(targets)[..., None], 0.9 + 0.1 / 5, axis=-1)
    expected = -(log * wanted).sum(-1)[np.asarray(targets) > 0].mean()
    close(generation(logits, targets, 0.1), expected, 1e-6)
    padding = logits.at[0, 2].set(jnp.nan).at[1, 1:].set(1e9)
    close(generation(padding, targets, 0.1), expected, 1e-6)
    assert generation(logits, jnp.zeros_like(targets)) == 0


def test_generation_counts_each_token_as_much_as_it_weighs():
    logits, targets = normal(0, 2, 3, 5), jnp.array([[1, 4, 0], [2, 0, 0]])
    close(generation(logits, targets, 0.1, jnp.full((2, 3), 7.0)), generation(logits, targets, 0.1), 1e-6)
    single = [generation(logits[i : i + 1, j : j + 1], targets[i : i + 1, j : j + 1], 0.1) for i, j in [(0, 0), (0, 1)]]
    weights = jnp.array([[1.0, 3.0, 5.0], [0.0, 2.0, 2.0]])  # padding weighs nothing, whatever it is given
    close(generation(logits, targets, 0.1, weights), (single[0] + 3 * single[1]) / 4, 1e-6)
    assert generation(logits, targets, 0.1, jnp.zeros((2, 3))) == 0


def by_hand(query, keys, temperature=0.2):
    b, k, _ = keys.shape
    scores = np.asarray(query) @ np.asarray(keys).reshape(b * k, -1).T / temperature
    return np.mean([np.log(np.exp(row).sum()) - row[i * k] for i, row in enumerate(scores)])


def test_contrastive_with_hard_negatives():
    """The reference scales its labels by K while its scores are in another order: right for one key per query only."""
    for k in (1, 3):
        query, keys = unit(normal(1, 4, 6)), unit(normal(2, 4, k, 6))
        close(contrastive(query, keys).loss, by_hand(query, keys))
        perfect = contrastive(keys[:, 0], keys)
        assert perfect.accuracy == 1 and perfect.loss < contrastive(query, keys).loss


def test_contrastive_over_a_mesh_has_the_gradient_of_the_whole_batch():
    query, keys = unit(normal(1, 4, 6)), unit(normal(2, 4, 3, 6))
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def spread(query, keys):
        part = jax.shard_map(
            lambda q, k: contrastive(q, k, axis="data").loss, mesh=mesh, in_specs=P("data"), out_specs=P()
        )
        return part(query, keys)

    whole = jax.value_and_grad(lambda q, k: contrastive(q, k).loss, (0, 1))(query, keys)
    found = jax.jit(jax.value_and_grad(spread, (0, 1)))(query, keys)
    jax.tree.map(close, found, whole)


def test_another_key_of_the_same_item_is_no_negative():
    query, keys = unit(normal(1, 3, 6)), unit(normal(2, 3, 2, 6))
    keys = keys.at[2, 1].set(keys[0, 0])
    items = jnp.array([[7, 1], [2, 3], [4, 7]])
    without = contrastive(query, keys, items=items).loss
    scores = np.asarray(query @ keys.reshape(6, -1).T) / 0.2
    rows = [np.delete(scores[0], 5), scores[1], scores[2]]
    right = [scores[i, 2 * i] for i in range(3)]
    close(without, np.mean([np.log(np.exp(row).sum()) - s for row, s in zip(rows, right, strict=True)]))


def test_disentangle_is_the_mean_over_pairs():
    values = normal(3, 2, 4, 5)
    centred = np.asarray(unit(values - values.mean(1, keepdims=True)))
    pairs = [(v[i] @ v[j]) ** 2 for v in centred for i, j in itertools.combinations(range(4), 2)]
    close(disentangle(values), sum(pairs) / (2 * 16), 1e-6)
    assert disentangle(jnp.ones((1, 3, 5))) < 1e-6  # equal tokens have no direction, and no NaN


def test_gap_compares_lengths():
    values, tokens = normal(4, 2, 3, 5), normal(5, 2, 4, 5)
    lengths = np.linalg.norm(np.asarray(tokens), axis=-1)
    mean = np.linalg.norm(np.asarray(values), axis=-1).mean()
    mask = np.array([[True, True, False, False], [True, False, False, False]])
    close(gap(values, tokens), abs(1 - mean / lengths.mean()))
    close(gap(values, tokens, jnp.asarray(mask)), abs(1 - mean / lengths[mask].mean()))
    assert np.isfinite(np.asarray(jax.grad(lambda v: gap(v, tokens))(jnp.zeros_like(values)))).all()


TERMS = {
    "generation": lambda: jnp.float32(2.0),
    "contrastive": lambda: jnp.float32(3.0),
    "disentangle": lambda: jnp.float32(5.0),
    "gap": lambda: jnp.float32(7.0),
}


def test_total_is_the_references():
    loss, values = total(TERMS, Weights(0.25, 0.01, 0.001))
    close(loss, 0.75 * 2 + 0.25 * 3 + 0.01 * 5 + 0.001 * 7, 1e-6)
    assert list(values) == list(TERMS)
    alone, _ = total({"generation": TERMS["generation"]}, Weights(0.25))
    close(alone, 2)


@pytest.mark.parametrize("name", ["contrastive", "disentangle", "gap"])
def test_what_weighs_nothing_is_not_computed(name):
    """The reference asks whether a weight is in the config, not what it is."""

    def never():
        raise AssertionError(name)

    loss, values = total(TERMS | {name: never}, dataclasses.replace(Weights(), **{name: 0}))
    assert name not in values and np.isfinite(loss)


def test_weights_that_are_none():
    for weights in ({"contrastive": 1.5}, {"gap": -1}):
        with pytest.raises(ValueError, match="contrastive is a share from 0 to 1") as caught:
            Weights(**weights)
        one_line(caught)
