"""The whole network: masked inputs have no effect, retrieved items have, and the loss reaches the retriever."""

import dataclasses
from functools import partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusal import refused
from reveal_networks import REFERENCE, close, parameters, shallow, small

from reveal.network.config import Prior
from reveal.network.generator import Decoding
from reveal.network.heads import scores
from reveal.network.layers import Mode
from reveal.network.porting import from_scenic
from reveal.training.losses import generation

TEXT = jnp.array([[2, 5, 9, 4], [3, 7, 0, 0], [0, 0, 0, 0]])
HAS_IMAGE = jnp.array([True, False, True])
IMAGE = jax.random.uniform(jax.random.key(0), (3, 16, 16, 3))
SPOILED = jnp.where(HAS_IMAGE[:, None, None, None], IMAGE, jnp.full_like(IMAGE, 0.7).at[:, 3, 3].set(jnp.nan))
VALUES = jax.random.normal(jax.random.key(1), (3, 3, 3, 20))
ALL = jnp.ones((3, 3), bool)
RANKED = jnp.array([[0.9, 0.1, -0.5], [0.3, 0.2, 0.1], [-0.1, 0.0, 0.4]])
encode_item = jax.jit(small().encode_item)


@pytest.fixture(scope="module")
def answers():
    """For each prior: the fusion with three items and its logits, as one compiled function."""

    def answer(model, image, values=VALUES, ranked=RANKED, present=ALL):
        fused = model.fuse(model.encode_query(TEXT, image, HAS_IMAGE), values, ranked, present, shares=True)
        return fused, model.logits(fused, TEXT)

    return {prior: jax.jit(partial(answer, shallow(prior=prior))) for prior in get_args(Prior)}


def test_a_missing_image_has_no_effect(answers):
    for run in (lambda image: encode_item(TEXT, image, HAS_IMAGE), answers["multiply"]):
        jax.tree.map(np.testing.assert_array_equal, run(SPOILED), run(IMAGE))
    everything, masked = encode_item(TEXT, IMAGE, jnp.ones(3, bool)), encode_item(TEXT, IMAGE, HAS_IMAGE)
    changed = np.abs(np.asarray(everything.key - masked.key)).max(axis=-1)
    np.testing.assert_array_equal(changed > 1e-3, ~np.asarray(HAS_IMAGE))


def test_rows_of_a_mixed_batch_equal_single_rows():
    """Text and image; text only, cut to its length; image only."""
    mixed = encode_item(TEXT, IMAGE, HAS_IMAGE)
    for i, single in enumerate(((TEXT[:1], IMAGE[:1]), (TEXT[1:2, :2],), (None, IMAGE[2:]))):
        jax.tree.map(close, jax.tree.map(lambda x, i=i: x[i : i + 1], mixed), encode_item(*single))
    close(jnp.linalg.norm(mixed.key, axis=-1), np.ones(3))


@pytest.mark.parametrize("prior", get_args(Prior))
def test_absent_items_have_no_effect(answers, prior):
    answer = answers[prior]
    present = jnp.array([[True, True, False], [True, False, False], [False, False, False]])
    other, ranked = jnp.where(present[..., None, None], VALUES, jnp.nan), jnp.where(present, 0.3, 9.0)
    fused, logits = answer(IMAGE, VALUES, ranked, present)
    again = answer(IMAGE, other, jnp.where(present, ranked, -7), present)
    mask = np.asarray(fused.mask)
    np.testing.assert_array_equal(np.asarray(fused.states)[mask], np.asarray(again[0].states)[mask])
    np.testing.assert_array_equal(logits, again[1])
    close(fused.prior, [[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    assert not np.asarray(fused.shares)[~np.asarray(present)].any()


def test_the_prior_shifts_attention(answers):
    """Equal scores: all modes agree. Others: the better item gets more attention where the prior is on."""
    even = jnp.zeros((3, 3))
    equal = [answers[prior](IMAGE, VALUES, even)[1] for prior in get_args(Prior)]
    for logits in equal[:2]:
        close(logits, equal[2], 1e-4)
    (fused, logits), (off, _) = answers["logits"](IMAGE), answers["off"](IMAGE)
    shares = {prior: np.asarray(found.shares) for prior, found in (("logits", fused), ("off", off))}
    close(np.asarray(fused.prior).mean(axis=1), np.ones(3))
    assert np.abs(np.asarray(logits - equal[2])).max() > 1e-3
    assert ((shares["logits"] > shares["off"]) == (np.asarray(fused.prior) > 1)).mean() > 0.7
    assert shares["off"].min() > 0 and shares["off"].sum(axis=1).max() < 1
    hopeless = answers["logits"](IMAGE, VALUES, even.at[:, 2].set(-40))[0].shares
    assert hopeless[:, 2].max() < 1e-12 < hopeless[:, :2].min()


@pytest.mark.long
@pytest.mark.parametrize("prior", ["logits", "off"])  # that of "multiply": test_reveal_tasks.py
def test_the_loss_on_the_text_reaches_the_retriever(prior):
    """With finite gradients and none from missing images; recomputation leaves them as they are, dropout does not."""
    graph, params = nnx.split(shallow(prior=prior))
    keys = jax.random.normal(jax.random.key(2), (3, 2, 7))

    def loss(params, mode, key):
        mode = mode._replace(key=key if mode.dropout else None)
        model = nnx.merge(graph, params)
        query = model.encode_query(TEXT, SPOILED, HAS_IMAGE & (prior == "off"), mode=mode)
        ranked = scores(query.vector, keys, query.log_gate, jnp.array([[0, 1]] * 3))
        fused = model.fuse(query, VALUES[:, :2], ranked, mode=mode)
        return generation(model.logits(fused, jnp.array([[2, 5, 6]] * 3), mode=mode), jnp.array([[5, 6, 1]] * 3))

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    params, one = nnx.to_pure_dict(params), jax.random.key(1)
    found = gradient(params, Mode(), one)
    largest = {name: max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree)) for name, tree in found.items()}
    assert np.isfinite(list(largest.values())).all() and (largest["vit"] > 0) == (prior == "off")
    for part in ("query_head", "gate", "projection"):
        assert (largest[part] > 1e-9) == (prior != "off"), part
    if prior == "logits":
        jax.tree.map(partial(close, atol=1e-5), gradient(params, Mode(remat=True), one), found)
        dropped = gradient(params, Mode(dropout=0.1), one)
        jax.tree.map(partial(close, atol=1e-5), gradient(params, Mode(remat=True, dropout=0.1), one), dropped)
        for other in (found, gradient(params, Mode(dropout=0.1), jax.random.key(2))):
            assert np.abs(dropped["gate"]["map"]["kernel"] - other["gate"]["map"]["kernel"]).max() > 0


def test_dropout_zeroes_channels_and_keeps_the_mean():
    """The same ones of all tokens, others in another part."""
    mode = Mode(dropout=0.25, key=jax.random.key(0))
    first, again, other = (np.asarray(one.drop(jnp.ones((64, 3, 50)), 0)) for one in (mode, mode, mode.fold(1)))
    np.testing.assert_allclose(np.unique(first), [0, 4 / 3], rtol=1e-6)
    assert abs(first.mean() - 1) < 0.05 and (first == first[:, :1]).all()
    assert (first == again).all() and (first != other).any()


def test_a_query_without_items():
    """Equals one with all items absent."""
    model = small()

    @jax.jit
    def run():
        query = model.encode_query(TEXT, IMAGE, HAS_IMAGE)
        alone = model.fuse(query, shares=True)
        absent = model.fuse(query, jnp.zeros((3, 2, 3, 20)), None, jnp.zeros((3, 2), bool))
        return alone, model.logits(alone, TEXT), model.logits(absent, TEXT)

    alone, logits, same = run()
    assert alone.prior.shape == alone.shares.shape == (3, 0) and alone.states.shape == (3, 8, 20)
    close(logits, same)
    assert model.generate(alone, Decoding(2)).tokens.shape == (3, 2)


def test_scores_add_the_log_gate():
    """Where the reference multiplies by the gate, a distrusted source gains for a negative cosine."""
    query, keys = jnp.array([[1.0, 0.0]]), jnp.array([[[-0.5, 0.0], [-0.4, 0.0], [0.9, 0.0]]])
    sources, log_gate = jnp.array([[0, 1, 0]], jnp.uint8), jnp.log(jnp.array([[0.9, 0.1]]))
    close(scores(query, keys), [[-0.5, -0.4, 0.9]])
    gated = scores(query, keys, log_gate, sources)
    close(gated, np.array([[-0.5, -0.4, 0.9]]) + np.log([[0.9, 0.1, 0.9]]))
    assert gated[0, 0] > gated[0, 1]


@pytest.mark.parametrize(
    ("inputs", "value"), [({}, "neither tokens nor image"), ({"image": jnp.zeros((1, 20, 16, 3))}, "20x16.*16x16")]
)
def test_refusals(inputs, value):
    refused(ValueError, lambda: small().encode(**inputs), match=value)


def test_porting_names_what_does_not_fit():
    variables = parameters("memory_retrieval_4dev")
    extra = {**variables, "optimizer/step": np.zeros(1)}
    del extra["head_out/kernel"]
    with pytest.raises(ValueError, match=r"(?s)(?=.*head_out/kernel)(?=.*optimizer/step)"):
        from_scenic(extra, REFERENCE)
    with pytest.raises(ValueError, match="head_out/kernel"):
        from_scenic(variables, dataclasses.replace(REFERENCE, key_dim=8))
