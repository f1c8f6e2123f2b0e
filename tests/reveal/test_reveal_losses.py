"""The losses, against their sums written out."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reveal_networks import close

from common.training.objectives import L1, Scope, total
from common.training.task import Context
from reveal.network.model import Query
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


def test_disentangle_is_the_mean_over_pairs():
    values = normal(3, 2, 4, 5)
    centred = np.asarray(unit(values - values.mean(1, keepdims=True)))
    pairs = [(v[i] @ v[j]) ** 2 for v in centred for i, j in itertools.combinations(range(4), 2)]
    close(disentangle(values), sum(pairs) / (2 * 16), 1e-6)
    assert disentangle(jnp.ones((1, 3, 5))) < 1e-6  # equal tokens have no direction, and no NaN


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
