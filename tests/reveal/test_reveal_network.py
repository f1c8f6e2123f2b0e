"""The networks against the reference's outputs (tests/data/reveal); the whole: its size, and what has an effect."""

import dataclasses
import json
import math
from functools import partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusal import refused
from reveal_networks import REFERENCE, arrays, close, filled, fixture, parameters, shallow, small

from common.nn.init import blank
from reveal.network.config import Prior, RevealConfig
from reveal.network.fusion import AttentiveFusion, score_prior
from reveal.network.generator import Decoding
from reveal.network.heads import EmbeddingHead, ValueHead, scores
from reveal.network.layers import Embedding, Linear, Mode
from reveal.network.model import Reveal
from reveal.network.porting import from_scenic
from reveal.network.t5 import Encoder
from reveal.network.vit import Vit
from reveal.training.losses import contrastive, disentangle, gap, generation

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
    head, projection = EmbeddingHead(REFERENCE, rngs=RNGS), Linear(32, 16, rngs=RNGS)
    io = filled("key_head", {"key_head": head, "projection": projection})
    close(head(io["in:encoded"], io["in:mask"], projection), io["out:key"])
    values = ValueHead(REFERENCE, rngs=RNGS)
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


@pytest.mark.parametrize(("call", "value"), [
    (lambda: small().encode(), "neither tokens nor image"),
    (lambda: small().encode(image=jnp.zeros((1, 20, 16, 3))), "20x16.*16x16"),
    (lambda: RevealConfig.from_json({"depth": 3}), "'depth'"),
    (lambda: RevealConfig.from_json({"vit": {"side": 3}}), "'side'"),
])  # fmt: skip
def test_refusals(call, value):
    refused(ValueError, call, match=value)


def test_porting_names_what_does_not_fit():
    variables = parameters("memory_retrieval_4dev")
    extra = {**variables, "optimizer/step": np.zeros(1)}
    del extra["head_out/kernel"]
    with pytest.raises(ValueError, match=r"(?s)(?=.*head_out/kernel)(?=.*optimizer/step)"):
        from_scenic(extra, REFERENCE)
    with pytest.raises(ValueError, match="head_out/kernel"):
        from_scenic(variables, dataclasses.replace(REFERENCE, key_dim=8))


PRESETS = {"tiny": 1_061_894, "base": 475_978_757, "large": 1_429_956_101, "full": 2_138_249_349}


def by_hand(c: RevealConfig) -> int:
    """From the paper's figures: kernels, norms, tables."""
    d, inner = c.width, c.heads * c.head_dim
    attention, mlp, table = 4 * d * inner, 3 * d * c.mlp, 32 * c.heads
    encoder, decoder = attention + mlp + 2 * d, 2 * attention + mlp + 3 * d
    text = c.vocab_size * d + (c.encoder_layers - c.fusion_layers) * encoder + table
    head = c.fusion_layers * encoder + table + d
    value = c.fusion_layers * decoder + table + d + c.value_tokens * d
    fusion = head + 2
    generator = c.decoder_layers * decoder + table + d + d * c.vocab_size
    gate = (c.key_dim + 1) * c.sources
    v, w = c.vit, c.vit.width
    block = 4 * (w * w + w) + (w * v.mlp + v.mlp) + (v.mlp * w + w) + 4 * w
    vit = 3 * v.patch**2 * w + w + v.tokens * w + v.depth * block + 2 * w + w * d + d
    return text + 2 * head + d * c.key_dim + value + fusion + generator + gate + vit


@pytest.mark.parametrize("name", PRESETS)
def test_sizes(name):
    config, count = getattr(RevealConfig, name)(), PRESETS[name]
    assert by_hand(config) == count and f"{count:,} parameters" in (getattr(RevealConfig, name).__doc__ or "")
    if name == "tiny":  # the others differ in numbers only
        assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(blank(Reveal, config)[1])) == count


def test_json():
    for config in (REFERENCE, RevealConfig.full()):
        assert RevealConfig.from_json(json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert RevealConfig.from_json({}) == RevealConfig.base()
