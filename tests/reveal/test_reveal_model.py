"""REVEAL put together: what is masked has no effect, what is retrieved has, and the loss reaches the retriever."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from reveal_networks import REFERENCE, SMALL, close, one_line, parameters, small

from common.weights import porting
from reveal.network.generator import Greedy
from reveal.network.heads import ValueHead, scores
from reveal.network.model import Frozen, Reveal
from reveal.network.porting import from_scenic
from reveal.training.losses import generation

TEXT = jnp.array([[2, 5, 9, 4], [3, 7, 0, 0], [0, 0, 0, 0]])
HAS_IMAGE = jnp.array([True, False, True])
IMAGE = jax.random.uniform(jax.random.key(0), (3, 16, 16, 3))


@pytest.fixture(scope="module")
def programs():
    """Queries, items and the logits after a fusion with three items, each as one program."""
    model = small()
    values = jax.random.normal(jax.random.key(1), (3, 3, 3, 20))
    ranked = jnp.array([[0.9, 0.1, -0.5], [0.3, 0.2, 0.1], [-0.1, 0.0, 0.4]])

    def answer(tokens, image, has_image, values=values, ranked=ranked, present=None, **options):
        fused = model.fuse(model.encode_query(tokens, image, has_image), values, ranked, present, **options)
        return fused, model.logits(fused, TEXT)

    options = ("mode", "shares", "remat")
    return jax.jit(model.encode_item), jax.jit(answer, static_argnames=options)


def spoiled(image):
    """Other pixels, and one that is no number, where there is no picture."""
    other = jnp.full_like(image, 0.7).at[:, 3, 3].set(jnp.nan)
    return jnp.where(HAS_IMAGE[:, None, None, None], image, other)


def test_a_picture_that_is_not_there_changes_no_bit(programs):
    encode_item, answer = programs
    for program in (encode_item, answer):
        jax.tree.map(
            np.testing.assert_array_equal, program(TEXT, spoiled(IMAGE), HAS_IMAGE), program(TEXT, IMAGE, HAS_IMAGE)
        )
    everything = encode_item(TEXT, IMAGE, jnp.ones(3, bool))
    changed = np.abs(np.asarray(everything.key - encode_item(TEXT, IMAGE, HAS_IMAGE).key)).max(axis=-1)
    np.testing.assert_array_equal(changed > 1e-3, ~np.asarray(HAS_IMAGE))


def test_no_gradient_comes_from_a_picture_that_is_not_there():
    graphdef, params = nnx.split(small())

    def loss(params, image):
        return jnp.square(nnx.merge(graphdef, params).encode_item(TEXT[1:2], image, HAS_IMAGE[1:2]).value).sum()

    found = jax.jit(jax.grad(loss))(nnx.to_pure_dict(params), spoiled(IMAGE)[1:2])
    assert all(not leaf.any() for leaf in jax.tree.leaves(found["vit"]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


def test_rows_of_a_mixed_batch_are_the_rows_alone(programs):
    """Text and picture; text only, cut to its length; picture only."""
    mixed = programs[0](TEXT, IMAGE, HAS_IMAGE)
    alone = [
        programs[0](TEXT[:1], IMAGE[:1]),
        programs[0](TEXT[1:2, :2]),
        programs[0](None, IMAGE[2:]),
    ]
    for i, item in enumerate(alone):
        jax.tree.map(close, jax.tree.map(lambda x, i=i: x[i : i + 1], mixed), item)
    close(jnp.linalg.norm(mixed.key, axis=-1), np.ones(3))


@pytest.mark.parametrize("mode", ["multiply", "logits", "off"])
def test_items_that_are_absent_have_no_effect(programs, mode):
    answer = programs[1]
    present = jnp.array([[True, True, False], [True, False, False], [False, False, False]])
    values = jax.random.normal(jax.random.key(1), (3, 3, 3, 20))
    other = jnp.where(present[..., None, None], values, jnp.nan)
    ranked = jnp.where(present, 0.3, 9.0)
    fused, logits = answer(TEXT, IMAGE, HAS_IMAGE, values, ranked, present, mode=mode, shares=True)
    again = answer(TEXT, IMAGE, HAS_IMAGE, other, jnp.where(present, ranked, -7), present, mode=mode, shares=True)
    mask = np.asarray(fused.mask)
    np.testing.assert_array_equal(np.asarray(fused.states)[mask], np.asarray(again[0].states)[mask])
    np.testing.assert_array_equal(logits, again[1])
    close(fused.prior, [[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    assert not np.asarray(fused.shares)[~np.asarray(present)].any()


def test_what_the_prior_does(programs):
    """Equal scores: all modes agree. Others: the better item gets more attention where the prior is on."""
    answer = programs[1]
    even = jnp.zeros((3, 3))
    outputs = [answer(TEXT, IMAGE, HAS_IMAGE, ranked=even, mode=mode)[1] for mode in ("multiply", "logits", "off")]
    for output in outputs[:2]:
        close(output, outputs[2], 1e-4)
    shares = {}
    for mode in ("logits", "off"):
        fused, logits = answer(TEXT, IMAGE, HAS_IMAGE, mode=mode, shares=True)
        shares[mode] = np.asarray(fused.shares)
        close(np.asarray(fused.prior).mean(axis=1), np.ones(3))
        assert np.abs(np.asarray(logits - outputs[2])).max() > 1e-3 or mode == "off"
    assert ((shares["logits"] > shares["off"]) == (np.asarray(fused.prior) > 1)).mean() > 0.7
    assert shares["off"].min() > 0 and shares["off"].sum(axis=1).max() < 1
    hopeless = answer(TEXT, IMAGE, HAS_IMAGE, ranked=even.at[:, 2].set(-40), mode="logits", shares=True)[0].shares
    assert hopeless[:, 2].max() < 1e-12 < hopeless[:, :2].min()
    assert answer(TEXT, IMAGE, HAS_IMAGE)[0].shares is None


@pytest.mark.parametrize("mode", ["multiply", "logits", "off"])
def test_the_loss_on_the_text_reaches_the_retriever(mode):
    graphdef, params = nnx.split(small(prior=mode))
    values = jax.random.normal(jax.random.key(1), (3, 2, 3, 20))
    keys = jax.random.normal(jax.random.key(2), (3, 2, 7))

    def loss(params, remat):
        model = nnx.merge(graphdef, params)
        query = model.encode_query(TEXT, IMAGE, HAS_IMAGE, remat=remat)
        ranked = scores(query.vector, keys, query.log_gate, jnp.array([[0, 1]] * 3))
        fused = model.fuse(query, values, ranked, remat=remat)
        return generation(model.logits(fused, jnp.array([[2, 5, 6]] * 3), remat=remat), jnp.array([[5, 6, 1]] * 3))

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    found = gradient(nnx.to_pure_dict(params), False)
    for part in ("query_head", "gate", "projection"):
        moved = any(np.abs(np.asarray(leaf)).max() > 1e-9 for leaf in jax.tree.leaves(found[part]))
        assert moved == (mode != "off"), part
    if mode == "multiply":
        jax.tree.map(partial(close, atol=1e-5), gradient(nnx.to_pure_dict(params), True), found)


def test_a_query_without_items():
    """The same as one with all items absent."""
    model = small()

    @jax.jit
    def run():
        query = model.encode_query(TEXT, IMAGE, HAS_IMAGE)
        nothing = model.fuse(query, shares=True)
        none_found = model.fuse(query, jnp.zeros((3, 2, 3, 20)), None, jnp.zeros((3, 2), bool))
        return nothing, model.logits(nothing, TEXT), model.logits(none_found, TEXT)

    nothing, logits, same = run()
    assert nothing.prior.shape == nothing.shares.shape == (3, 0) and nothing.states.shape == (3, 8, 20)
    close(logits, same)
    assert model.generate(nothing, Greedy(3)).tokens.shape == (3, 3)


def test_scores_add_the_gate():
    """Ranks by cosine and trust; where the reference multiplies, a distrusted source helps bad matches."""
    query, keys = jnp.array([[1.0, 0.0]]), jnp.array([[[-0.5, 0.0], [-0.4, 0.0], [0.9, 0.0]]])
    sources, log_gate = jnp.array([[0, 1, 0]], jnp.uint8), jnp.log(jnp.array([[0.9, 0.1]]))
    close(scores(query, keys), [[-0.5, -0.4, 0.9]])
    gated = scores(query, keys, log_gate, sources)
    close(gated, np.array([[-0.5, -0.4, 0.9]]) + np.log([[0.9, 0.1, 0.9]]))
    assert gated[0, 0] > gated[0, 1]


def test_the_gate_is_a_distribution_and_value_lengths_are_free():
    gate = small().gate(jnp.ones((3, 7)))
    close(jnp.exp(gate).sum(axis=-1), np.ones(3))
    for c in (1, 5):
        head = ValueHead(dataclasses.replace(SMALL, value_tokens=c), rngs=nnx.Rngs(0))
        assert jax.eval_shape(head, jnp.ones((2, 4, 20)), jnp.ones((2, 4), bool)).shape == (2, c, 20)


def test_frozen_encoders():
    graphdef, params = nnx.split(small())

    def loss(params, frozen):
        return jnp.sin(nnx.merge(graphdef, params).encode_item(TEXT[:1], IMAGE[:1], frozen=frozen).value).sum()

    found = jax.jit(jax.grad(loss), static_argnums=1)(nnx.to_pure_dict(params), Frozen(text=1, image=1))
    still = (found["text"]["layers"][0], found["vit"]["layers"], found["vit"]["patches"], found["embedding"])
    assert all(not leaf.any() for leaf in jax.tree.leaves(still))
    assert all(leaf.any() for leaf in jax.tree.leaves((found["text"]["layers"][1], found["vit"]["head"])))


def test_calls_that_cannot_be():
    model = small()
    wrong = [
        (partial(model.encode), "neither tokens nor image"),
        (partial(model.encode, image=jnp.zeros((1, 20, 16, 3))), "pictures are 20x16, this network reads 16x16"),
        (partial(model.encode, TEXT, frozen=Frozen(text=3)), "the encoders have 2, 1"),
        (lambda: model.fuse(model.encode(TEXT), mode="add"), "prior mode is 'add'; choose one of multiply"),
    ]
    for call, told in wrong:
        with pytest.raises(ValueError) as caught:
            call()
        assert told in one_line(caught)


def test_every_parameter_has_one_place_and_one_name():
    model = Reveal(dataclasses.replace(SMALL, sources=5), rngs=nnx.Rngs(0))
    leaves = porting.flatten(nnx.to_pure_dict(nnx.state(model)))
    assert len({id(leaf) for leaf in leaves.values()}) == len(leaves)


def test_porting_names_what_does_not_fit():
    variables = parameters("memory_retrieval_4dev")
    extra = {**variables, "optimizer/step": np.zeros(1)}
    del extra["head_out/kernel"]
    with pytest.raises(ValueError, match=r"2 in all: 1 x source key missing, 1 x source key not used"):
        from_scenic(extra, REFERENCE)
    with pytest.raises(ValueError, match="shape differs"):
        from_scenic(variables, dataclasses.replace(REFERENCE, key_dim=8))
