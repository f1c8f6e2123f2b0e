"""Every network against the reference's outputs (`tests/data/reveal`)."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from reveal_networks import REFERENCE, arrays, close, filled, fixture, parameters

from reveal.network.fusion import AttentiveFusion, score_prior
from reveal.network.heads import EmbeddingHead, ValueHead, scores
from reveal.network.layers import Embedding, Linear
from reveal.network.porting import from_scenic
from reveal.network.t5 import Encoder
from reveal.network.vit import Vit
from reveal.training.losses import contrastive, disentangle, gap

RNGS = nnx.Rngs(0)


def test_score_prior():
    io = arrays("score_prior")
    raw = scores(io["in:query"], io["in:keys"])
    close(raw, io["out:raw_scores"])
    scale, bias = io["param:scale"][0], io["param:bias"][0]
    close(score_prior(raw, scale, bias, jnp.ones(raw.shape, bool)), io["out:prior"])


def test_text_encoder():
    """At unmasked tokens: the reference masks queries too, so that its padding holds averages."""
    embedding, encoder = Embedding(96, 32, rngs=RNGS), Encoder(REFERENCE, REFERENCE.text_layers, rngs=RNGS)
    io = filled("lower_t5_encoder", {"embedding": embedding, "text": encoder})
    tokens, mask = io["in:tokens"], np.asarray(io["out:mask"])
    close(np.asarray(encoder(embedding(tokens), tokens > 0))[mask], np.asarray(io["out:encoded"])[mask])


@pytest.mark.long
def test_heads_and_vit():
    head, projection, values = (
        EmbeddingHead(REFERENCE, rngs=RNGS),
        Linear(32, 16, rngs=RNGS),
        ValueHead(REFERENCE, rngs=RNGS),
    )
    io = filled("key_head", {"key_head": head, "projection": projection})
    close(head(io["in:encoded"], io["in:mask"], projection), io["out:key"])
    io = filled("perceiver_value_head", {"value_head": values}, "value_perceiver/")
    found = values(io["in:encoded"], io["in:mask"])
    close(found / 4, io["out:values_times4"] / 4)  # the tolerance of a module, before its factor of 4
    close(disentangle(found), io["out:disentangle"], 1e-6)
    vit = Vit(REFERENCE.vit, 32, rngs=RNGS)
    io = filled("vit_mu8", {"vit": vit}, "img_encoder/")
    close(jax.jit(vit)(io["in:image"]), io["out:img_tokens_times4"])


@pytest.mark.parametrize(("mode", "suffix"), [("multiply", ""), ("off", "_noprior")])
def test_fusion(mode, suffix):
    """Shares: of both layers, heads and unmasked query tokens; rows of 20 = 11 of the query + 3 items of 3."""
    module = AttentiveFusion(dataclasses.replace(REFERENCE, prior=mode), rngs=RNGS)
    io = filled("fusion_with_prior", {"fusion.encoder": module.encoder, "fusion.norm": module.norm}, "fusion_encoder/")
    values, mask = io["in:values"].reshape(2, 3, 3, 32), io["in:values_mask"].reshape(2, 3, 3)
    prior = io["in:att_mask"][:, 11:, 0].reshape(2, 3, 3)[..., 0]
    found = jax.jit(partial(module, shares=True))(io["in:encoder"], io["in:encoder_mask"], values, mask, prior)
    mask = np.asarray(io["out:fused_mask"])
    np.testing.assert_array_equal(found.mask, mask)
    close(np.asarray(found.states)[mask], np.asarray(io["out:fused" + suffix])[mask])
    if mode == "multiply":
        rows = zip(np.asarray(io["out:attention"]), np.asarray(io["in:encoder_mask"]), strict=True)
        close(found.shares, [row[:11][mask].mean(axis=0)[11:].reshape(3, 3).sum(-1) for row, mask in rows])


def test_contrastive():
    """The reference reports each of four devices' parts, ours the mean over all."""
    io = arrays("contrastive_4dev")
    query, keys = (io[name].reshape(8, -1, 16) for name in ("in:query", "in:keys"))
    found = contrastive(query[:, 0], keys, temperature=0.2)
    close(found.loss, io["out:loss"].mean())
    close(found.accuracy, io["out:acc"].mean())


@pytest.mark.long
def test_the_whole_network():
    """The memory fixture from end to end; two of the four retrieved items are re-encoded, other items' pictures are 0.

    The search uses the reference's scores, cosine times gate."""
    io = fixture("memory_retrieval_4dev")
    model = from_scenic(parameters("memory_retrieval_4dev"), REFERENCE)
    rows = {key: jnp.asarray(value.reshape(-1, *value.shape[2:])) for key, value in io.items() if value.ndim > 1}
    expected = {key.removeprefix("out:"): np.asarray(value) for key, value in rows.items()}
    graph, params = nnx.split(model)
    found = jax.jit(run, static_argnums=0)(graph, params, rows)
    np.testing.assert_array_equal(found.pop("text_tokens"), expected["retr_data/text_tokens"])
    full = (np.asarray(rows["in:tokens"]) > 0).all(axis=1)  # the reference counts padding too
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
