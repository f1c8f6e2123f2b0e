"""The two stages: what is read, what gets a gradient, and that a search finds what the bank holds."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_world import NETWORK, WORLD

from reveal.memory.engines.exact import Hits
from reveal.network.config import RevealConfig
from reveal.training import device_memory
from reveal.training.augment import Augment
from reveal.training.device_memory import Contents, Held
from reveal.training.losses import Weights

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from common.training.mesh import make_mesh
    from common.training.task import Context
    from reveal.training.joint import Joint
    from reveal.training.warm_start import WarmStart

LM = Weights(contrastive=0, disentangle=0, gap=0)


@pytest.fixture(scope="module")
def batch():
    batch = next(iter(WORLD.batches(0)))
    return {name: array for name, array in batch.items() if name != "id"}


@pytest.fixture(scope="module")
def params():
    return jax.jit(Joint(WORLD, NETWORK).init)(jax.random.key(0))


def context(task, params, held=True):
    frozen = task.frozen()
    refreshed = task.refresh_arrays(params, frozen) if held else None
    return Context(jnp.zeros((), jnp.int32), jax.random.key(1), frozen, refreshed, make_mesh())


def gradient(task, params, batch):
    how = context(task, params, isinstance(task, Joint))
    grads, metrics = jax.jit(jax.grad(lambda p: task.loss(p, batch, how), has_aux=True))(params)
    return grads, metrics


def moved(grads, *path):
    for name in path:
        grads = grads[name]
    return sum(float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(grads)) > 1e-6  # more than rounding


def of_three_sources(*_):
    """Found items: a gate between sources matters only where there are several."""
    rows = 4 * jnp.arange(4)[:, None] + jnp.arange(3)
    return Hits(rows.astype(jnp.int32), jnp.zeros((4, 3)), jnp.tile(jnp.arange(3, dtype=jnp.int32), (4, 1)))


def rows_of(items, rows):
    return type(items)(*(array[rows] for array in vars(items).values()))


def test_rows_are_in_the_order_of_ids_and_filled_up():
    items = WORLD.items
    contents = device_memory.contents_of(rows_of(items, np.random.default_rng(0).permutation(len(items))), 4)
    assert len(contents.id) % device_memory.ROWS == 0
    np.testing.assert_array_equal(contents.id[: len(items)], np.sort(items.id))
    assert (contents.id[len(items) :] == -1).all() and (contents.source[len(items) :] == 4).all()
    asked = jnp.array([[int(items.id[5]), 10**6], [int(items.id.max()), -1]])
    rows = np.asarray(device_memory.rows_of(contents, asked))
    assert rows[0, 1] == rows[1, 1] == -1
    np.testing.assert_array_equal(contents.id[rows[:, 0]], asked[:, 0])
    with pytest.raises(ValueError, match="some have the same id"):
        device_memory.contents_of(rows_of(items, [0, 0]), 4)
    with pytest.raises(ValueError, match=r"an item has source 3, the network knows 2: raise task.network.sources"):
        device_memory.contents_of(items, 2)


def test_newcomers_are_not_in_the_bank():
    contents = device_memory.contents_of(WORLD.items, 4)
    ids = [item.id for item in WORLD.memory_items(WORLD.world.newcomers)]
    assert (np.asarray(device_memory.rows_of(contents, jnp.asarray(ids))) == -1).all()


def test_the_warm_start_teaches_everything(params, batch):
    grads, metrics = gradient(
        WarmStart(WORLD, NETWORK, k=3, weights=Weights(0.5, gate=0.1), augment=Augment()), params, batch
    )
    assert set(metrics) == {"generation", "contrastive", "gate", "disentangle", "gap", "accuracy", "nearest"}
    for part in ("query_head", "key_head", "projection", "value_head", "gate", "fusion", "decoder", "vit", "text"):
        assert moved(grads, part), part


def test_an_item_is_written_from_its_value_alone(params, batch):
    task = WarmStart(WORLD, NETWORK, k=1, weights=dataclasses.replace(LM, reconstruct=1))

    def reconstruct(params, batch):
        return task.loss(params, batch, context(task, params, held=False))[1]["reconstruct"]

    loss, grads = jax.jit(jax.value_and_grad(reconstruct))(params, batch)
    for part in ("value_head", "fusion", "decoder", "text"):
        assert moved(grads, part), part
    for part in ("query_head", "key_head", "projection", "gate"):  # nothing is asked, and nothing looked for
        assert not moved(grads, part), part
    others = batch | {
        "negatives": np.roll(batch["negatives"], 1, axis=0),
        "answer": np.roll(batch["answer"], 1, axis=0),
    }
    assert jax.jit(reconstruct)(params, others | {"image": 1 - batch["image"]}) == loss
    assert jax.jit(reconstruct)(params, batch | {"gold": np.full_like(batch["gold"], batch["gold"][0])}) != loss


def test_an_item_is_written_in_the_language_of_the_batch(params, batch):
    task = WarmStart(WORLD, NETWORK, k=1, weights=dataclasses.replace(LM, reconstruct=1), smoothing=0.0)
    contents = Contents(*task.frozen()["contents"])
    tokens = device_memory.take(contents, device_memory.rows_of(contents, jnp.asarray(batch["negatives"]))).tokens
    model, table = task.model(params), jnp.asarray(batch["permutation"])
    said = jnp.stack([row[of] for row, of in zip(table, tokens, strict=True)])  # one row of the batch after the other
    value = jnp.ones((*tokens.shape[:2], NETWORK.value_tokens, NETWORK.width))
    plain = {name: array for name, array in batch.items() if name != "permutation"}
    assert task.reconstruction(model, value, tokens, batch) == task.reconstruction(model, value, said, plain)


def test_who_copies_hands_on_what_it_reads(params):
    started = jax.jit(WarmStart(WORLD, NETWORK, copying=True).init)(jax.random.key(0))
    kernels = []
    for part in ("value_head", "decoder"):
        for layer in started[part]["layers"].values():
            read = layer["cross_attention"]
            np.testing.assert_allclose(read["value"]["kernel"] @ read["out"]["kernel"], np.eye(16), atol=1e-5)
            kernels.append(read["value"]["kernel"])
    assert len({kernel.tobytes() for kernel in map(np.asarray, kernels)}) == len(kernels) == 2
    differs = jax.tree.map(lambda a, b: bool((a != b).any()), started, params)
    paths = {".".join(str(step.key) for step in path) for path, new in jax.tree.leaves_with_path(differs) if new}
    assert len(paths) == 4 and all(".cross_attention." in path for path in paths)


def test_an_item_is_written_word_by_word_as_rare_as_it_is():
    task = WarmStart(WORLD, NETWORK)
    tokens, times = np.unique(WORLD.items.tokens, return_counts=True)
    assert task.rarity.shape == (NETWORK.vocab_size,) and task.rarity[tokens].min() == pytest.approx(20 / times.max())
    assert (task.rarity[tokens[times <= 20]] == 1).all()


def test_the_gold_item_is_among_those_read_and_anywhere(batch):
    task = WarmStart(WORLD, NETWORK, k=3)
    ids = jnp.tile(jnp.arange(6), (64, 1))
    chosen = np.asarray(task.slots(jax.random.key(0), ids))
    assert ((chosen == 0).sum(axis=1) == 1).all() and {0, 1, 2} == set(np.argmax(chosen == 0, axis=1))
    assert all(len(set(row)) == 3 for row in chosen.tolist())


def test_the_language_model_alone_teaches_the_retriever(params, batch, monkeypatch):
    monkeypatch.setattr(Joint, "search", of_three_sources)
    grads, metrics = gradient(Joint(WORLD, NETWORK, k=3, weights=LM), params, batch)
    assert set(metrics) == {"generation", "accuracy", "recall_1", "recall_3"}
    for part in ("query_head", "key_head", "projection", "value_head", "gate"):
        assert moved(grads, part), part


def test_held_keys_are_constants_and_the_query_still_learns(params, batch, monkeypatch):
    monkeypatch.setattr(Joint, "search", of_three_sources)
    plain = {name: array for name, array in batch.items() if name != "permutation"}
    grads, _ = gradient(Joint(WORLD, NETWORK, k=3, reencode=0, weights=LM), params, plain)
    assert moved(grads, "query_head") and moved(grads, "gate")
    assert not moved(grads, "key_head") and not moved(grads, "value_head")


@pytest.mark.parametrize("find", ["best", "random"])
def test_what_is_found_is_read_with_its_score(find, params, batch):
    task = Joint(WORLD, NETWORK, k=5, find=find, weights=LM)
    how = context(task, params)
    contents, held = Contents(*how.frozen["contents"]), Held(**how.refreshed)
    model = task.model(params)
    query = task.query(model, batch)
    hits = jax.jit(lambda: task.search(query, contents, held, how))()
    scores = np.asarray(query.vector @ held.keys.T)
    live = contents.source < 4
    scores = np.where(live, scores + np.asarray(query.log_gate)[:, np.minimum(contents.source, 3)], -np.inf)
    if find == "best":
        np.testing.assert_array_equal(hits.rows, np.argsort(-scores, axis=1, kind="stable")[:, :5])
    assert live[np.asarray(hits.rows)].all()
    values, found = task.read(model, query, hits, contents, held, {}, how.key)
    np.testing.assert_allclose(found, np.take_along_axis(scores, np.asarray(hits.rows), 1), atol=1e-5)
    np.testing.assert_allclose(values, held.values[hits.rows], atol=1e-4)


def test_sources_may_be_left_out_and_so_may_memory(params, batch):
    task = Joint(WORLD, NETWORK, k=4, sources=[1, 3], weights=LM)
    how = context(task, params)
    contents = Contents(*how.frozen["contents"])
    query = task.query(task.model(params), batch)
    hits = task.search(query, contents, Held(**how.refreshed), how)
    assert set(np.asarray(hits.sources).ravel().tolist()) <= {1, 3}
    grads, metrics = gradient(Joint(WORLD, NETWORK, k=0, weights=LM), params, batch)
    assert "recall_1" not in metrics and moved(grads, "decoder") and not moved(grads, "value_head")


def test_stale_values_are_in_another_language(params, batch):
    with pytest.raises(ValueError, match=r"task.reencode is 1, but held values are not in the language of the batch"):
        gradient(Joint(WORLD, NETWORK, k=3, reencode=1), params, batch)


def test_what_makes_no_task_is_refused():
    with pytest.raises(ValueError, match=r"task.k is -1"):
        WarmStart(WORLD, NETWORK, k=-1)
    with pytest.raises(ValueError, match="encode again 0 to k=2"):
        Joint(WORLD, NETWORK, k=2, reencode=3)
    with pytest.raises(ValueError, match="the vocabulary has 224 words"):
        _ = WarmStart(WORLD, RevealConfig.tiny(100)).config


def test_weights_say_their_shape(tmp_path, params):
    from reveal.network import weights

    task = WarmStart(WORLD, NETWORK)
    path = task.export(tmp_path / "weights.safetensors", params, {"steps": 3})
    assert weights.load(path).config == NETWORK
    again = WarmStart(WORLD, NETWORK, start_from=str(path)).start()
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), again, params))
    other = WarmStart(WORLD, dataclasses.replace(NETWORK, prior="logits"), start_from=str(path)).start()
    jax.tree.map(np.testing.assert_array_equal, other, again)  # what is made of the prior is no part of the shape
    with pytest.raises(ValueError, match=r"give task.network that shape"):
        WarmStart(WORLD, start_from=str(path)).start()


def test_gradients_are_the_finite_differences(params, batch, monkeypatch):
    """Of the loss on the text alone, towards every part of the retriever, with the items that are found held fast."""
    task = Joint(WORLD, NETWORK, k=3, weights=LM)
    how = context(task, params)
    monkeypatch.setattr(Joint, "search", of_three_sources)
    loss = jax.jit(lambda p: task.loss(p, batch, how)[0])
    grads = jax.jit(jax.grad(lambda p: task.loss(p, batch, how)[0]))(params)
    for part in ("query_head", "key_head", "value_head", "gate", "projection"):
        along = jax.tree.map(jnp.zeros_like, params) | {
            part: grads[part]
        }  # the steepest way, which is well above noise
        length = float(jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(along))))
        step = 0.02 / length
        ahead, behind = (jax.tree.map(lambda p, d, s=s: p + s * d, params, along) for s in (step, -step))
        difference = (float(loss(ahead)) - float(loss(behind))) / 0.04
        assert difference == pytest.approx(length, rel=0.05), part
