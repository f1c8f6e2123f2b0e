"""Decoding against whole texts at once, and beam search against an exhaustive search."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reveal_networks import close, small

from reveal.network.fusion import Fused
from reveal.network.generator import Decoding, generate
from reveal.network.t5 import Cache

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
