"""T5 beyond the fixtures, and decoding against whole texts at once and an exhaustive search."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from reveal_networks import SMALL, close, shallow, small

from reveal.network.fusion import Fused
from reveal.network.generator import Decoding, generate
from reveal.network.layers import Embedding
from reveal.network.t5 import Cache, Decoder, Encoder, position_buckets


@pytest.mark.parametrize(("bidirectional", "exact", "count"), [(True, 8, 16), (False, 16, 32)])
def test_position_buckets(bidirectional, exact, count):
    """Exact when near; then each octave of `exact`..128 has as many buckets; 128 and more share the last."""
    past = position_buckets(300, 300, bidirectional)[:, 0]  # distances 0 to 299 back
    np.testing.assert_array_equal(past[:exact], np.arange(exact))
    assert (np.diff(past) >= 0).all() and set(past[128:].tolist()) == {count - 1}
    octaves = (count - exact) / math.log2(128 / exact)
    for doublings in range(int(math.log2(128 / exact))):
        assert past[exact * 2**doublings] == exact + int(doublings * octaves)
    future = position_buckets(1, 300, bidirectional)[0]
    np.testing.assert_array_equal(future[1:], past[1:] + count if bidirectional else 0)


def test_one_token_of_the_last_layer_equals_that_of_all():
    encoder = Encoder(SMALL, 2, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (3, 7, 20))
    mask, only = jnp.ones((3, 7), bool).at[1, :4].set(False), jnp.array([0, 4, 6])
    prior = 1 + jax.random.uniform(jax.random.key(1), (3, 7, 1))
    bias = jax.random.normal(jax.random.key(2), (3, 1, 1, 7))
    whole, one = jax.jit(lambda: [encoder(x, mask, prior=prior, bias=bias, only=which) for which in (None, only)])()
    assert one.shape == (3, 1, 20)
    close(one[:, 0], whole[jnp.arange(3), only])


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def decoding(request):
    """A decoder, its embedding, two contexts with masks and two texts."""
    config = dataclasses.replace(SMALL, tied=request.param)
    embedding, decoder = Embedding(29, 20, rngs=nnx.Rngs(4)), Decoder(config, rngs=nnx.Rngs(5))
    context = jax.random.normal(jax.random.key(2), (2, 4, 20))
    mask = jnp.array([[True] * 4, [True, False, False, True]])
    return embedding, decoder, context, mask, jax.random.randint(jax.random.key(3), (2, 6), 1, 29).at[:, 0].set(2)


def test_token_by_token_equals_all_at_once(decoding):
    """With two rows per context, which is cached once."""
    embedding, decoder, context, mask, tokens = decoding
    rows = jnp.repeat(tokens, 2, axis=0).at[1::2, 2:].add(-1)
    whole = decoder(embedding, rows, jnp.repeat(context, 2, axis=0), jnp.repeat(mask, 2, axis=0))
    cache = decoder.start(context, mask, length=6, rows=2)
    assert cache.context[0][0].shape == (2, 4, 3, 4)
    step = jax.jit(lambda tokens, cache: decoder.step(embedding, tokens, cache))
    for position in range(6):
        logits, cache = step(rows[:, position], cache)
        close(logits, whole[:, position])


@pytest.mark.parametrize("decoding", [True], indirect=True)
def test_tied_logits_are_products_with_the_embedding(decoding):
    """A vector twice as long, of a token outside the text, has a logit twice as high."""
    embedding, decoder, context, mask, tokens = decoding
    run = jax.jit(lambda table: decoder(nnx.merge(graph, table), tokens, context, mask))
    graph, table = nnx.split(embedding)
    token = (set(range(29)) - set(np.ravel(tokens).tolist())).pop()
    longer = nnx.State({"embedding": embedding.embedding[...].at[token].multiply(2)})
    before, after = run(table), run(longer)
    close(after[..., token], 2 * before[..., token])
    close(jnp.delete(after, token, axis=-1), jnp.delete(before, token, axis=-1), 0)


def test_half_precision():
    """Parameters in bfloat16 are enough; keys and logits stay float32."""
    graph, params = nnx.split(shallow())
    tokens = jnp.array([[2, 5, 9, 0]])

    @jax.jit
    def run(params):
        model = nnx.merge(graph, params)
        query = model.encode_query(tokens, jnp.full((1, 16, 16, 3), 0.3))
        return query, model.logits(model.fuse(query), tokens)

    (query, logits), (exact, wanted) = run(jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)), run(params)
    assert query.states.dtype == jnp.bfloat16 and query.vector.dtype == logits.dtype == jnp.float32
    assert np.abs(np.asarray(query.vector - exact.vector)).max() < 0.1
    assert np.abs(np.asarray(logits - wanted)).mean() < 0.1


LENGTH = 5


@pytest.fixture(scope="module")
def fused():
    """Six random contexts, partly masked."""
    states = 2 * jax.random.normal(jax.random.key(0), (6, 5, 20))
    mask = jnp.arange(5) < jnp.array([5, 1, 2, 3, 4, 5])[:, None]
    return Fused(states, mask, jnp.zeros((6, 0)), None)


@pytest.fixture(scope="module")
def likelihood(fused):
    """The log-probabilities of all tokens after each position of a text."""
    model = small()

    @jax.jit
    def run(tokens):
        inputs = jnp.concatenate([jnp.full((len(tokens), 1), model.config.bos), tokens[:, :-1]], axis=1)
        return jax.nn.log_softmax(model.logits(fused, inputs))

    return run


@pytest.fixture(scope="module")
def greedy(fused):
    return small().generate(fused, Decoding(LENGTH))


def after_end(tokens) -> np.ndarray:
    return np.cumsum(np.asarray(tokens) == 1, axis=1) - (np.asarray(tokens) == 1) > 0


def text_log_probability(log, tokens) -> np.ndarray:
    each = np.take_along_axis(np.asarray(log), np.asarray(tokens)[..., None], axis=-1)[..., 0]
    assert (np.asarray(tokens)[after_end(tokens)] == 0).all()
    return np.where(after_end(tokens), 0, each).sum(axis=1)


def test_greedy_is_the_argmax(greedy, likelihood):
    assert greedy.tokens.shape == (6, LENGTH) and greedy.tokens.dtype == jnp.int32
    log = likelihood(greedy.tokens)
    np.testing.assert_array_equal(np.where(after_end(greedy.tokens), 0, np.argmax(log, axis=-1)), greedy.tokens)
    close(greedy.log_probability, text_log_probability(log, greedy.tokens), 1e-4)


def test_beams_find_more_likely_texts(fused, greedy, likelihood):
    beam = small().generate(fused, Decoding(LENGTH, 12, 0))
    close(beam.log_probability, text_log_probability(likelihood(beam.tokens), beam.tokens), 1e-4)
    gain = np.asarray(beam.log_probability - greedy.log_probability)
    assert gain.min() > -1e-5 and gain.max() > 0.01


def test_a_beam_as_wide_as_the_vocabulary_finds_the_best_text(fused, likelihood):
    """Of the 29 + 28 * 29 texts of up to two tokens, by the penalised score."""
    penalty = 1.5
    found = small().generate(fused, Decoding(2, 29, penalty))
    first = np.asarray(likelihood(jnp.zeros((6, 2), jnp.int32)))[:, 0]
    best = np.full(6, -np.inf)
    for token in range(29):
        second = np.asarray(likelihood(jnp.full((6, 2), token, jnp.int32)))[:, 1]
        two = (first[:, token, None] + second).max(axis=-1) / (7 / 6) ** penalty
        best = np.maximum(best, first[:, token] if token == 1 else two)
    lengths = np.where(np.asarray(found.tokens)[:, 0] == 1, 1, 2)
    close(np.asarray(found.log_probability) / ((5 + lengths) / 6) ** penalty, best, 1e-5)


def toy(log_probability):
    """A decoder whose next token depends on the last one alone."""
    table = jnp.asarray(log_probability, jnp.float32)
    start = Cache(past=(), context=(), context_bias=jnp.zeros((1, 1, 1, 1)), position=jnp.zeros((), jnp.int32))
    return lambda tokens, cache: (table[tokens], cache._replace(position=cache.position + 1)), start


def test_a_finished_hypothesis_waits_and_a_penalty_prefers_longer_texts():
    """Token 1 ends: alone 0.4; 2 then 1: 0.6 * 0.6 = 0.36, which is more per (5 + n) / 6 once the penalty counts."""
    step, start = toy(np.log([[1, 1, 1, 1], [1, 1, 1, 1], [1e-9, 0.6, 0.2, 0.2], [1e-9, 0.4, 0.6, 1e-9]]))
    for penalty, expected in ((0, [1, 0, 0, 0]), (2, [2, 1, 0, 0])):
        found = generate(step, start, Decoding(4, 3, penalty), bos=3, eos=1)
        np.testing.assert_array_equal(found.tokens[0], expected)
    step, start = toy(np.where(np.arange(4) == 1, 0.0, -50.0)[None].repeat(4, 0))  # texts stop at their end
    for decoding in (Decoding(5), Decoding(5, 2)):
        np.testing.assert_array_equal(generate(step, start, decoding, bos=2, eos=1).tokens, [[1, 0, 0, 0, 0]])
