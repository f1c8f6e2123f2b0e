"""Every network against the reference's outputs (`tests/data/reveal`)."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from reveal_networks import REFERENCE, close, fill, fixture, parameters

from reveal.network.fusion import AttentiveFusion, score_prior
from reveal.network.heads import EmbeddingHead, ValueHead, scores
from reveal.network.layers import Embedding, Linear
from reveal.network.porting import from_scenic
from reveal.network.t5 import Encoder
from reveal.network.vit import Vit
from reveal.training.losses import contrastive, disentangle, gap

RNGS = nnx.Rngs(0)


def test_score_prior():
    io, params = fixture("score_prior"), parameters("score_prior")
    raw = scores(jnp.asarray(io["in:query"]), jnp.asarray(io["in:keys"]))
    close(raw, io["out:raw_scores"])
    scale, bias = (jnp.asarray(params[name][0]) for name in ("scale", "bias"))
    close(score_prior(raw, scale, bias, jnp.ones(raw.shape, bool)), io["out:prior"])


def test_text_encoder():
    """At unmasked tokens: the reference masks queries too, so that its padding holds averages."""
    io, params = fixture("lower_t5_encoder"), parameters("lower_t5_encoder")
    embedding, encoder = Embedding(96, 32, rngs=RNGS), Encoder(REFERENCE, REFERENCE.text_layers, rngs=RNGS)
    fill({"embedding": embedding, "text": encoder}, params)
    tokens, mask = jnp.asarray(io["in:tokens"]), io["out:mask"]
    close(np.asarray(encoder(embedding(tokens), tokens > 0))[mask], io["out:encoded"][mask])


def test_key_head():
    io, params = fixture("key_head"), parameters("key_head")
    head, projection = EmbeddingHead(REFERENCE, rngs=RNGS), Linear(32, 16, rngs=RNGS)
    fill({"key_head": head, "projection": projection}, params)
    close(head(jnp.asarray(io["in:encoded"]), jnp.asarray(io["in:mask"]), projection), io["out:key"])


def test_value_head():
    io, params = fixture("perceiver_value_head"), parameters("perceiver_value_head")
    head = ValueHead(REFERENCE, rngs=RNGS)
    fill({"value_head": head}, params, "value_perceiver/")
    values = head(jnp.asarray(io["in:encoded"]), jnp.asarray(io["in:mask"]))
    close(values, io["out:values_times4"])
    close(disentangle(values), io["out:disentangle"], 1e-6)


@pytest.fixture(scope="module")
def fusions():
    """For each prior: the fixture's fusion."""
    io = {key: jnp.asarray(value) for key, value in fixture("fusion_with_prior").items()}
    values, mask = io["in:values"].reshape(2, 3, 3, 32), io["in:values_mask"].reshape(2, 3, 3)
    prior = io["in:att_mask"][:, 11:, 0].reshape(2, 3, 3)[..., 0]
    found = {}
    for mode in ("multiply", "off"):
        module = AttentiveFusion(dataclasses.replace(REFERENCE, prior=mode), rngs=RNGS)
        modules = {"fusion.encoder": module.encoder, "fusion.norm": module.norm}
        fill(modules, parameters("fusion_with_prior"), "fusion_encoder/")
        run = jax.jit(partial(module, shares=True))
        found[mode] = run(io["in:encoder"], io["in:encoder_mask"], values, mask, prior)
    return io, found


@pytest.mark.parametrize(("mode", "suffix"), [("multiply", ""), ("off", "_noprior")])
def test_fusion(fusions, mode, suffix):
    io, found = fusions
    mask = np.asarray(io["out:fused_mask"])
    np.testing.assert_array_equal(found[mode].mask, mask)
    close(np.asarray(found[mode].states)[mask], np.asarray(io["out:fused" + suffix])[mask])


def test_attention_shares(fusions):
    """Mean over both layers, heads and unmasked query tokens; rows of 20 = 11 of the query + 3 items of 3."""
    io, found = fusions
    rows = zip(np.asarray(io["out:attention"]), np.asarray(io["in:encoder_mask"]), strict=True)
    close(found["multiply"].shares, [row[:11][mask].mean(axis=0)[11:].reshape(3, 3).sum(-1) for row, mask in rows])


def test_vit():
    io, params = fixture("vit_mu8"), parameters("vit_mu8")
    vit = Vit(REFERENCE.vit, 32, rngs=RNGS)
    fill({"vit": vit}, params, "img_encoder/")
    close(jax.jit(vit)(jnp.asarray(io["in:image"])), io["out:img_tokens_times4"])


def test_contrastive():
    """The reference reports each of four devices' parts, ours the mean over all."""
    io = fixture("contrastive_4dev")
    query, keys = (jnp.asarray(io[name]).reshape(8, -1, 16) for name in ("in:query", "in:keys"))
    found = contrastive(query[:, 0], keys, temperature=0.2)
    close(found.loss, io["out:loss"].mean())
    close(found.accuracy, io["out:acc"].mean())


def test_the_whole_network():
    """The memory fixture from end to end; two of the four retrieved items are re-encoded, other items' pictures are 0.

    The search uses the reference's scores, cosine times gate."""
    io = fixture("memory_retrieval_4dev")
    model = from_scenic(parameters("memory_retrieval_4dev"), REFERENCE)
    arrays = {key: jnp.asarray(value.reshape(-1, *value.shape[2:])) for key, value in io.items() if value.ndim > 1}
    expected = {key.removeprefix("out:"): np.asarray(value) for key, value in arrays.items()}
    graph, params = nnx.split(model)
    found = jax.jit(run, static_argnums=0)(graph, params, arrays)
    np.testing.assert_array_equal(found.pop("text_tokens"), expected["retr_data/text_tokens"])
    full = (np.asarray(arrays["in:tokens"]) > 0).all(axis=1)  # the reference counts padding too
    close(found.pop("gap")[full], io["out:gap"][full], 1e-4)
    close(found.pop("disentangle_reg"), io["out:disentangle_reg"], 1e-4)
    for name, value in found.items():
        close(value, expected[name], 1e-4)


def run(graphdef, params, io):
    """Four rows, four items each: the first two re-encoded, the others as they are stored."""
    model = nnx.merge(graphdef, params)
    query = model.encode_query(io["in:tokens"], (io["in:image"] + 1) / 2)
    all_keys, all_values = io["in:mem_keys"], io["in:mem_values"]
    gates = jnp.exp(query.log_gate)
    gated = query.vector @ all_keys.T * gates[:, io["in:mem_source_id"].reshape(-1)]
    best, ids = jax.lax.top_k(gated, 4)
    two = ids[:, :2].reshape(-1)
    item = model.encode_item(io["in:mem_text"][two], (io["in:mem_image"][two] + 1) / 2)
    keys = jnp.concatenate([item.key.reshape(4, 2, -1), all_keys[ids[:, 2:]]], axis=1)
    values = jnp.concatenate([item.value.reshape(4, 2, 3, -1), all_values[ids[:, 2:]]], axis=1)
    gate = jnp.take_along_axis(gates, io["in:mem_source_id"].reshape(-1)[ids].astype(int), axis=1)
    fused = model.fuse(query, values, scores(query.vector, keys) * gate)
    return {
        "base_query": query.vector,
        "corpus_scores": gates,
        "topk_scores": best,
        "text_tokens": io["in:mem_text"][two].reshape(4, 2, -1),
        "retr_keys": item.key.reshape(4, 2, -1),
        "retr_vals": item.value.reshape(4, 2, 3, -1),
        "retr_scores": fused.prior,
        "predicted_logits": model.logits(fused, io["in:decoder_in"]),
        "gap": jax.vmap(lambda values, states: gap(values, states[None], jnp.ones((1, len(states)), bool)))(
            item.value.reshape(4, 2, 3, -1), query.states
        ),
        "disentangle_reg": jax.vmap(disentangle)(item.value.reshape(4, 2, 3, -1)),
    }
