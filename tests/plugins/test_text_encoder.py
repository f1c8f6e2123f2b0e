"""The text encoder against the reference's states, and its configuration against transformers'."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import DATA, assert_near, network
from refusal import refused

from common.nn.text_encoder import TextConfig, TextEncoder
from common.nn.transformer import ACTIVATIONS

TINY = TextConfig(50, 16, 32, 2, 2, 8, eos_token_id=49)


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(DATA / "text_encoder_io.npz", allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def tokens(reference) -> np.ndarray:
    return reference["input_ids"].astype(np.int32)


@pytest.fixture(scope="module")
def states(tokens):
    return network("text_encoder")(tokens)


def close(ours, theirs):
    assert_near(ours, theirs, rtol=0, atol=2e-5)


def test_the_references_states(reference, states):
    close(states.last, reference["last_hidden_state"])
    close(states.pooled, reference["pooler_output"])
    assert len(states.hidden) == 4
    for i, hidden in enumerate(states.hidden):
        close(hidden, reference[f"hidden_{i}"])


def test_clip_skip_leaves_layers_out_of_the_last_states_only(reference, states, tokens):
    skipped = network("text_encoder")(tokens, skip=1)
    close(skipped.last, reference["clip_skip2_final_ln"])
    np.testing.assert_array_equal(skipped.pooled, states.pooled)
    assert np.abs(np.asarray(skipped.last) - np.asarray(states.last)).max() > 0.1


def test_masked_tokens_are_not_looked_at(reference, tokens):
    mask = reference["attention_mask"].astype(bool)
    assert not mask.all()
    encoder = network("text_encoder")
    close(encoder(tokens, mask=mask).last, reference["last_hidden_state_masked"])
    other = np.where(mask, tokens, 5)
    changed, kept = encoder(other, mask=mask).last, encoder(tokens, mask=mask).last
    np.testing.assert_array_equal(np.asarray(changed)[mask], np.asarray(kept)[mask])


def test_a_token_sees_no_later_one(states, tokens):
    changed = tokens.copy()
    changed[:, 40:] = 7
    last = np.asarray(network("text_encoder")(changed).last)
    close(last[:, :40], np.asarray(states.last)[:, :40])
    assert np.abs(last[:, 40:] - np.asarray(states.last)[:, 40:]).max() > 0.1


@pytest.mark.parametrize("end, place", [(49, 2), (2, 4), (3, 0)])
def test_which_token_is_pooled(end, place):
    """The first end token; for 2, as old files say, the largest number; without any, the first token."""
    encoder = TextEncoder(dataclasses.replace(TINY, eos_token_id=end), rngs=nnx.Rngs(0))
    row = jnp.array([[4, 5, 49 if end == 49 else 6, 1, 49, 49]])
    found = encoder(row)
    np.testing.assert_array_equal(found.pooled[0], found.last[0, place])


def test_counts_of_the_published_networks():
    for config, count in ((TextConfig.clip_l(), 123_060_480), (TextConfig.openclip_h(), 340_387_840)):
        state = nnx.state(nnx.eval_shape(lambda config=config: TextEncoder(config, rngs=nnx.Rngs(0))))
        assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state)) == count


def test_activations():
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    exact = [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()]
    np.testing.assert_allclose(ACTIVATIONS["gelu"](jnp.asarray(x)), exact, atol=1e-6)
    np.testing.assert_allclose(ACTIVATIONS["quick_gelu"](jnp.asarray(x)), x / (1 + np.exp(-1.702 * x)), atol=1e-6)


def test_half_precision_and_jit(tokens, states):
    graphdef, params = nnx.split(network("text_encoder"))
    params = nnx.to_pure_dict(params)
    run = jax.jit(lambda params: nnx.merge(graphdef, params)(tokens))
    close(run(params).last, states.last)
    rounded = run(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params))
    assert rounded.last.dtype == jnp.bfloat16
    assert np.abs(np.asarray(rounded.last, np.float32) - np.asarray(states.last)).mean() < 0.05


def test_calls_out_of_range(tokens):
    encoder = network("text_encoder")
    refused(ValueError, encoder, np.zeros((1, 78), np.int32), match=r"78.*77")
    refused(ValueError, encoder, tokens, skip=3, match="skip is 3")
