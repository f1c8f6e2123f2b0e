"""Decoding against the whole rows of a decoder at random, and beam search against a search of everything."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reveal_networks import close, one_line, small

from reveal.network.fusion import Fused
from reveal.network.generator import Beam, Greedy, Sampling, cut, generate
from reveal.network.t5 import Cache

LENGTH = 7


@pytest.fixture(scope="module")
def fused():
    """What a decoder may read: six contexts, some of them masked in part."""
    states = 2 * jax.random.normal(jax.random.key(0), (6, 5, 20))
    mask = jnp.arange(5) < jnp.array([5, 1, 2, 3, 4, 5])[:, None]
    return Fused(states, mask, jnp.zeros((6, 0)), None)


@pytest.fixture(scope="module")
def likelihood(fused):
    """Whole rows at once: the log-probabilities of all tokens after each place of a text."""
    model = small()

    @jax.jit
    def run(tokens):
        inputs = jnp.concatenate([jnp.full((len(tokens), 1), model.config.bos), tokens[:, :-1]], axis=1)
        return jax.nn.log_softmax(model.logits(fused, inputs))

    return run


def text_log_probability(log, tokens) -> np.ndarray:
    """Of rows of tokens, the padding after their end apart."""
    each = np.take_along_axis(np.asarray(log), np.asarray(tokens)[..., None], axis=-1)[..., 0]
    ended = np.cumsum(np.asarray(tokens) == 1, axis=1) - (np.asarray(tokens) == 1) > 0
    assert (np.asarray(tokens)[ended] == 0).all()
    return np.where(ended, 0, each).sum(axis=1)


def test_greedy_is_the_argmax_of_whole_rows(fused, likelihood):
    found = small().generate(fused, Greedy(LENGTH))
    assert found.tokens.shape == (6, LENGTH) and found.tokens.dtype == jnp.int32
    log = likelihood(found.tokens)
    ended = np.cumsum(np.asarray(found.tokens) == 1, axis=1) - (np.asarray(found.tokens) == 1) > 0
    np.testing.assert_array_equal(np.where(ended, 0, np.argmax(log, axis=-1)), found.tokens)
    close(found.log_probability, text_log_probability(log, found.tokens), 1e-4)


@pytest.mark.parametrize("penalty", [0, 0.6])
def test_one_beam_is_greedy(fused, penalty):
    jax.tree.map(
        partial(close, atol=1e-5),
        small().generate(fused, Beam(LENGTH, 1, penalty)),
        small().generate(fused, Greedy(LENGTH)),
    )


def test_beams_find_likelier_texts(fused, likelihood):
    greedy, beam = small().generate(fused, Greedy(LENGTH)), small().generate(fused, Beam(LENGTH, 12, 0))
    close(beam.log_probability, text_log_probability(likelihood(beam.tokens), beam.tokens), 1e-4)
    gained = np.asarray(beam.log_probability - greedy.log_probability)
    assert gained.min() > -1e-5 and gained.max() > 0.01


@pytest.mark.parametrize("penalty", [0, 1.5])
def test_wide_enough_a_beam_finds_the_best_text_of_all(fused, likelihood, penalty):
    """Of the 29 + 28 * 29 texts of up to two tokens, by probability or by the penalised measure."""
    found = small().generate(fused, Beam(2, 29, penalty))
    first = np.asarray(likelihood(jnp.zeros((6, 2), jnp.int32)))[:, 0]
    best = np.full(6, -np.inf)
    for token in range(29):
        second = np.asarray(likelihood(jnp.full((6, 2), token, jnp.int32)))[:, 1]
        rated = first[:, token] if token == 1 else (first[:, token, None] + second).max(axis=-1) / (7 / 6) ** penalty
        best = np.maximum(best, rated)
    lengths = np.where(np.asarray(found.tokens)[:, 0] == 1, 1, 2)
    close(np.asarray(found.log_probability) / ((5 + lengths) / 6) ** penalty, best, 1e-5)


def toy(log_probability):
    """A "decoder" whose next token depends on the last one alone; its cache counts places."""
    table = jnp.asarray(log_probability, jnp.float32)
    start = Cache(past=(), context=(), masked=jnp.zeros((1, 1, 1, 1)), place=jnp.zeros((), jnp.int32))
    return lambda tokens, cache: (table[tokens], cache._replace(place=cache.place + 1)), start


def test_an_ended_text_waits_and_a_penalty_prefers_longer_ones():
    """Token 1 ends: alone 0.4; 2 then 1: 0.6 * 0.6 = 0.36, which is more per (5 + n) / 6 once the penalty counts."""
    step, start = toy(np.log([[1, 1, 1, 1], [1, 1, 1, 1], [1e-9, 0.6, 0.2, 0.2], [1e-9, 0.4, 0.6, 1e-9]]))
    for penalty, expected in ((0, [1, 0, 0, 0]), (2, [2, 1, 0, 0])):
        found = generate(step, start, Beam(4, 3, penalty), bos=3, eos=1)
        np.testing.assert_array_equal(found.tokens[0], expected)


def test_texts_stop_at_their_end():
    """A network that ends at once writes one token, whatever the length."""
    step, start = toy(np.where(np.arange(4) == 1, 0.0, -50.0)[None].repeat(4, 0))
    for how in (Greedy(5), Beam(5, 2), Sampling(5)):
        found = generate(step, start, how, bos=2, eos=1, key=jax.random.key(0))
        np.testing.assert_array_equal(found.tokens, [[1, 0, 0, 0, 0]])


def test_sampling_is_a_function_of_its_key(fused, likelihood):
    draw = lambda seed, **how: small().generate(fused, Sampling(LENGTH, **how), jax.random.key(seed))  # noqa: E731
    first, again, other = draw(0), draw(0), draw(1)
    np.testing.assert_array_equal(first.tokens, again.tokens)
    assert (np.asarray(first.tokens) != np.asarray(other.tokens)).any()
    close(first.log_probability, text_log_probability(likelihood(first.tokens), first.tokens), 1e-4)
    greedy = small().generate(fused, Greedy(LENGTH)).tokens
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-6}):
        np.testing.assert_array_equal(draw(2, **narrow).tokens, greedy)


def test_sampling_follows_the_distribution():
    """20,000 first tokens of one decoder, all and of the likeliest."""
    probability = np.array([0.05, 0.1, 0.3, 0.35, 0.2])
    step, start = toy(np.log(probability)[None].repeat(5, 0))
    start = start._replace(masked=jnp.zeros((20_000, 1, 1, 1)))
    cases = [({}, probability), ({"top_k": 2}, [0, 0, 0.3, 0.35, 0]), ({"top_p": 0.7}, [0, 0, 0.3, 0.35, 0.2])]
    cases.append(({"temperature": 0.5}, probability**2))
    for how, expected in cases:
        found = generate(step, start, Sampling(1, **how), bos=2, eos=1, key=jax.random.key(0))
        drawn = np.bincount(np.asarray(found.tokens)[:, 0], minlength=5) / 20_000
        close(drawn, np.asarray(expected) / np.sum(expected), 0.015)


def test_what_is_cut():
    logits = jnp.log(jnp.array([[0.1, 0.4, 0.3, 0.2], [0.97, 0.01, 0.01, 0.01]]))
    kept = lambda **how: np.isfinite(np.asarray(cut(logits, Sampling(**how)))).astype(int).tolist()  # noqa: E731
    assert kept() == [[1, 1, 1, 1], [1, 1, 1, 1]]
    assert kept(top_k=3) == [[0, 1, 1, 1], [1, 1, 1, 1]]  # equals at the border stay
    assert kept(top_k=9) == kept()
    assert kept(top_p=0.6) == [[0, 1, 1, 0], [1, 0, 0, 0]]
    assert kept(top_k=2, top_p=0.5) == [[0, 1, 0, 0], [1, 0, 0, 0]]


def test_ways_to_decode_that_are_none(fused):
    with pytest.raises(ValueError, match="sampling needs a key"):
        small().generate(fused, Sampling(2))
    wrong = [
        (Greedy, {"length": 0}, "length is at least 1"),
        (Beam, {"width": 0}, "length and width are at least 1"),
        (Beam, {"penalty": -1}, "penalty is not negative"),
        (Sampling, {"temperature": 0}, "temperature is positive"),
        (Sampling, {"top_k": -1, "top_p": 0}, "top_k is not negative; 0 < top_p <= 1"),
    ]
    for how, fields, told in wrong:
        with pytest.raises(ValueError) as caught:
            how(**fields)
        assert told in one_line(caught)
