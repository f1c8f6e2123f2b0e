"""T5's parts that no fixture reaches: far distances, the cache, frozen layers, recomputation."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from reveal_networks import SMALL, close, small

from reveal.network.config import RevealConfig
from reveal.network.layers import Embedding
from reveal.network.t5 import Decoder, Encoder
from reveal.network.t5_layers import Positions, buckets


@pytest.mark.parametrize(("both_ways", "exact", "count"), [(True, 8, 16), (False, 16, 32)])
def test_buckets(both_ways, exact, count):
    """Exact when near; then each octave of `exact`..128 has as many buckets; 128 and more share the last."""
    past = buckets(300, 300, both_ways)[:, 0]  # distances 0 to 299 back
    np.testing.assert_array_equal(past[:exact], np.arange(exact))
    assert (np.diff(past) >= 0).all() and set(past[128:].tolist()) == {count - 1}
    octaves = (count - exact) / math.log2(128 / exact)
    for doublings in range(int(math.log2(128 / exact))):
        assert past[exact * 2**doublings] == exact + int(doublings * octaves)
    future = buckets(1, 300, both_ways)[0]
    np.testing.assert_array_equal(future[1:], past[1:] + count if both_ways else 0)


def test_a_table_has_a_number_per_head_and_bucket():
    table = Positions(3, both_ways=True, rngs=nnx.Rngs(0))
    bias = table(4, 6)
    assert bias.shape == (1, 3, 4, 6)
    np.testing.assert_array_equal(bias[0, :, 2, 0], table.rel_embedding[...][:, 2])
    np.testing.assert_array_equal(bias[0, :, 0, 2], table.rel_embedding[...][:, 16 + 2])


@pytest.fixture(scope="module")
def states():
    return jax.random.normal(jax.random.key(1), (2, 5, 20)), jnp.array([[True] * 5, [True, False, True, False, False]])


def test_masked_states_are_not_read(states):
    x, mask = states
    encoder = Encoder(SMALL, 2, rngs=nnx.Rngs(0))
    run = jax.jit(lambda x: encoder(x, mask))
    changed = jnp.where(mask[..., None], x, 1e3)
    np.testing.assert_array_equal(np.asarray(run(x))[mask], np.asarray(run(changed))[mask])


def gradients(encoder, x, mask, **options):
    graphdef, params = nnx.split(encoder)
    loss = lambda params, x: jnp.sin(nnx.merge(graphdef, params)(x, mask, **options)).sum()  # noqa: E731
    return jax.jit(jax.value_and_grad(loss, (0, 1)))(nnx.to_pure_dict(params), x)


def test_frozen_layers_and_recomputation(states):
    encoder = Encoder(SMALL, 2, rngs=nnx.Rngs(0))
    plain, again = gradients(encoder, *states), gradients(encoder, *states, remat=True)
    jax.tree.map(partial(close, atol=1e-4), again, plain)
    value, (params, inputs) = gradients(encoder, *states, frozen=1)
    close(value, plain[0])
    assert all(not leaf.any() for leaf in jax.tree.leaves((params["layers"][0], inputs)))
    jax.tree.map(partial(close, atol=1e-4), params["layers"][1], plain[1][0]["layers"][1])


@pytest.fixture(scope="module")
def written(request):
    """A decoder, its embedding, two contexts and two texts."""
    config = dataclasses.replace(SMALL, tied=getattr(request, "param", False))
    embedding, decoder = Embedding(29, 20, rngs=nnx.Rngs(4)), Decoder(config, rngs=nnx.Rngs(5))
    context = jax.random.normal(jax.random.key(2), (2, 4, 20))
    mask = jnp.array([[True] * 4, [True, False, False, True]])
    tokens = jax.random.randint(jax.random.key(3), (2, 6), 1, 29).at[:, 0].set(2)
    return embedding, decoder, context, mask, tokens


def test_a_decoder_sees_the_past_and_what_is_not_masked(written):
    embedding, decoder, context, mask, tokens = written
    run = jax.jit(lambda context, tokens: decoder(embedding, tokens, context, mask))
    logits = run(context, tokens)
    close(run(jnp.where(mask[..., None], context, 1e3), tokens), logits, 0)
    later = run(context, tokens.at[:, 4:].set(7))
    close(later[:, :4], logits[:, :4], 0)
    assert np.abs(np.asarray(later - logits))[:, 4].min(axis=-1).max() > 0


@pytest.mark.parametrize("written", [False, True], indirect=True, ids=["apart", "tied"])
def test_token_by_token_is_all_at_once(written):
    """With two rows on each context, which is kept once."""
    embedding, decoder, context, mask, tokens = written
    rows = jnp.repeat(tokens, 2, axis=0).at[1::2, 2:].add(-1)
    whole = decoder(embedding, rows, jnp.repeat(context, 2, axis=0), jnp.repeat(mask, 2, axis=0))
    cache = decoder.start(context, mask, length=6, rows=2)
    assert cache.context[0][0].shape == (2, 4, 3, 4)
    step = jax.jit(lambda tokens, cache: decoder.step(embedding, tokens, cache))
    for place in range(6):
        logits, cache = step(rows[:, place], cache)
        close(logits, whole[:, place])


@pytest.mark.parametrize("written", [True], indirect=True)
def test_a_tied_decoder_writes_with_the_vectors_that_it_reads_with(written):
    """A vector twice as long, of a token that the text has not, is a logit twice as high."""
    embedding, decoder, context, mask, tokens = written
    assert decoder.logits is None
    logits, token = decoder(embedding, tokens, context, mask), (set(range(29)) - set(np.ravel(tokens).tolist())).pop()
    embedding.embedding[...] = embedding.embedding[...].at[token].multiply(2)
    longer = decoder(embedding, tokens, context, mask)
    close(longer[..., token], 2 * logits[..., token])
    close(jnp.delete(longer, token, axis=-1), jnp.delete(logits, token, axis=-1), 0)
    embedding.embedding[...] = embedding.embedding[...].at[token].divide(2)


def test_half_precision():
    """Parameters of bfloat16 are all it takes; keys and logits stay float32."""
    graphdef, params = nnx.split(small())
    half = nnx.merge(graphdef, jax.tree.map(lambda x: x.astype(jnp.bfloat16), params))
    tokens = jnp.array([[2, 5, 9, 0]])

    @nnx.jit
    def run(model):
        query = model.encode_query(tokens, jnp.full((1, 16, 16, 3), 0.3))
        return query, model.logits(model.fuse(query), tokens)

    (query, logits), (exact, wanted) = run(half), run(small())
    assert query.states.dtype == jnp.bfloat16 and query.vector.dtype == logits.dtype == jnp.float32
    assert np.abs(np.asarray(query.vector - exact.vector)).max() < 0.1
    assert np.abs(np.asarray(logits - wanted)).mean() < 0.1


def test_one_token_of_the_last_layer_is_the_same_token_of_all():
    config = RevealConfig.tiny()
    encoder = Encoder(config, 2, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (3, 7, config.width))
    mask = jnp.ones((3, 7), bool).at[1, :4].set(False)
    places = jnp.array([0, 4, 6])
    prior = 1 + jax.random.uniform(jax.random.key(1), (3, 7, 1))
    whole = encoder(x, mask, prior=prior)
    one = encoder(x, mask, prior=prior, only=places)
    assert one.shape == (3, 1, config.width)
    np.testing.assert_allclose(one[:, 0], whole[jnp.arange(3), places], atol=1e-5)
