"""The two stages: what is read, what gets a gradient, and that the search finds what the memory holds."""

import dataclasses
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_worlds import WORLD
from little_worlds import WORLD_NETWORK as NETWORK
from refusal import refused

from common.training.mesh import by_rows, make_mesh, place, shardings
from common.training.objectives import L1
from common.training.task import Context
from reveal.memory.engines.exact import Hits
from reveal.network import weights
from reveal.network.config import RevealConfig
from reveal.network.model import Query
from reveal.training import device_memory
from reveal.training.augment import Augment
from reveal.training.device_memory import Contents, Encoded
from reveal.training.joint import Joint
from reveal.training.losses import Output, Weights
from reveal.training.warm_start import WarmStart

LM = Weights(contrastive=0, disentangle=0, gap=0)


def select(items, rows):
    return type(items)(*(array[rows] for array in vars(items).values()))


SHUFFLED = select(WORLD.items, np.random.default_rng(0).permutation(len(WORLD.items)))


@pytest.fixture(scope="module")
def batch():
    return {name: array for name, array in next(iter(WORLD.batches(0))).items() if name != "id"}


@pytest.fixture(scope="module")
def initial():
    """Parameters without and with `copying`."""
    tasks = [WarmStart(WORLD, NETWORK, copying=copying) for copying in (False, True)]
    return jax.jit(lambda key: [task.init(key) for task in tasks])(jax.random.key(0))


@pytest.fixture(scope="module")
def params(initial):
    return initial[0]


@pytest.fixture(scope="module")
def encoded(params):
    """Of the whole memory."""
    return Joint(WORLD, NETWORK).refresh_arrays(params, Joint(WORLD, NETWORK).frozen())


def context(task, encoded=None) -> Context:
    return Context(jnp.zeros((), jnp.int32), jax.random.key(1), task.frozen(), encoded, make_mesh())


def gradient(task, params, batch, encoded=None):
    return jax.jit(jax.grad(lambda p: task.loss(p, batch, context(task, encoded)), has_aux=True))(params)


def trained(grads) -> set[str]:
    """The parts with a gradient above rounding."""
    return {name for name, tree in grads.items() if sum(np.abs(x).sum() for x in jax.tree.leaves(tree)) > 1e-6}


def of_three_sources(*_):
    """Search results: the gate matters only where there are several sources."""
    rows = 4 * jnp.arange(4)[:, None] + jnp.arange(3)
    return Hits(rows.astype(jnp.int32), jnp.zeros((4, 3)), jnp.tile(jnp.arange(3, dtype=jnp.int32), (4, 1)))


def test_rows_are_in_order_of_ids_and_padded():
    items = WORLD.items
    contents = device_memory.contents_of(SHUFFLED, 4)
    assert len(contents.id) % device_memory.ROWS == 0
    np.testing.assert_array_equal(contents.id[: len(items)], np.sort(items.id))
    assert (contents.id[len(items) :] == -1).all() and (contents.source[len(items) :] == 4).all()
    newcomer = WORLD.memory_items(WORLD.world.newcomers)[0].id
    ids = jnp.array([[int(items.id[5]), 10**6, newcomer], [int(items.id.max()), -1, newcomer]])
    rows = np.asarray(device_memory.rows_of(contents, ids))
    assert (rows[:, 1:] == -1).all()
    np.testing.assert_array_equal(contents.id[rows[:, 0]], ids[:, 0])


def test_loading_copies_images_once():
    count, shape = 3 * device_memory.ROWS - 1, (32, 32, 3)
    items = select(WORLD.items, np.zeros(count, int))
    items = dataclasses.replace(items, id=np.arange(count)[::-1], image=np.zeros((count, *shape), np.uint8))
    tracemalloc.start()
    device_memory.contents_of(items, 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert items.image.nbytes < peak < 1.3 * items.image.nbytes


@pytest.fixture(scope="module")
def whole():
    return Joint(WORLD, NETWORK).frozen()


@pytest.fixture(scope="module", params=[1, 2])
def split(request, whole, params):
    """Mesh, contents and encoded contents of two devices."""
    mesh, task = make_mesh(2, request.param), Joint(WORLD, NETWORK)
    frozen = place(whole, shardings(mesh, whole, task.frozen_rules))
    return mesh, frozen, task.refresh_arrays(params, frozen)


@pytest.mark.long
def test_each_device_holds_and_encodes_its_rows(split, whole, encoded):
    mesh, frozen, found = split
    contents = frozen["contents"]
    for name in ("tokens", "image", "has_image"):
        array = getattr(contents, name)
        assert {len(shard.data) for shard in array.addressable_shards} == {len(array) // 2}
    for name, array in encoded.items():
        assert len(found[name].addressable_shards[0].data) == len(array) // 2
        np.testing.assert_allclose(found[name], array, atol=1e-5)
    rows = jnp.asarray(np.random.default_rng(0).integers(-1, 300, (8, 3)))
    for part in (rows, rows[:3]):  # what the devices divide, and what they do not
        both = device_memory.take(contents, part, mesh), device_memory.take(whole["contents"], part)
        assert all((a == b).all() and a.dtype == b.dtype for a, b in zip(*both, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("split", [2], indirect=True)
def test_a_refresh_gathers_split_parameters_once(split, params, monkeypatch):
    mesh, frozen, found = split
    halves = jax.tree.map(lambda x: jax.device_put(x, by_rows(mesh, x.shape)), params)
    assert not all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(halves))
    whole, encode_chunk = [], device_memory._encode_chunk

    def watched(graph, params, *rest):
        whole.append(all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(params)))
        return encode_chunk(graph, params, *rest)

    monkeypatch.setattr(device_memory, "_encode_chunk", watched)
    encoded = Joint(WORLD, NETWORK).refresh_arrays(halves, frozen)
    assert whole and all(whole)
    np.testing.assert_allclose(encoded["keys"], found["keys"], atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("split", [2], indirect=True)
def test_a_step_on_two_devices_reads_finds_and_learns_the_same(split, whole, params, encoded, batch):
    mesh, frozen, found = split
    task = Joint(WORLD, NETWORK, k=3, reencode=2, weights=LM)
    plain = {name: array for name, array in batch.items() if name != "permutation"}

    def step(*memory):
        given = Context(jnp.zeros((), jnp.int32), jax.random.key(1), *memory)
        return jax.jit(jax.value_and_grad(lambda p: task.loss(p, plain, given), has_aux=True))(params)

    results = step(frozen, found, mesh), step(whole, encoded, None)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *results)


def test_what_a_step_reads_is_gathered_an_item_at_a_time():
    """Of each question: all at once would be as large as the whole batch, on every device."""
    mesh, rng = make_mesh(2), np.random.default_rng(0)
    arrays, rows = {"values": rng.random((64, 4, 256), np.float32)}, rng.integers(0, 64, (32, 20))
    split = {"values": jax.device_put(arrays["values"], by_rows(mesh, arrays["values"].shape))}
    gather = jax.jit(lambda arrays, rows: device_memory.gather(arrays, rows, mesh)).lower(split, rows).compile()
    found = gather(split, rows)["values"]
    np.testing.assert_array_equal(found, arrays["values"][rows])
    assert gather.memory_analysis().temp_size_in_bytes < 0.75 * found.nbytes


def test_what_is_encoded_anew_is_not_read_from_the_memory(params, batch, encoded, monkeypatch):
    read, gather = [], device_memory.gather
    monkeypatch.setattr(device_memory, "gather", lambda *inputs: read.append(inputs[1].shape) or gather(*inputs))
    plain = {name: array for name, array in batch.items() if name != "permutation"}
    task = Joint(WORLD, NETWORK, k=3, reencode=1, weights=LM)
    jax.eval_shape(lambda: task.loss(params, plain, context(task, encoded)))
    assert read == [(4, 2), (4, 1)]


RETRIEVER = {"query_head", "key_head", "projection", "gate"}
READER = {"value_head", "fusion", "decoder", "text", "embedding"}


@pytest.mark.long
def test_the_warm_start_trains_everything(params, batch):
    more = {"extra": L1("output.values", "output.values")}
    task = WarmStart(WORLD, NETWORK, k=3, weights=Weights(0.5, gate=0.1), augment=Augment(), losses=more)
    grads, metrics = gradient(task, params, batch)
    losses = {"generation", "contrastive", "gate", "disentangle", "gap", "extra"}
    assert set(metrics) == losses | {"accuracy", "nearest"} and metrics["extra"] == 0
    assert trained(grads) == RETRIEVER | READER | {"vit"}


@pytest.mark.long
def test_reconstruction_generates_items_from_their_values_alone(params, batch):
    """Neither the question nor other items matter."""
    task = WarmStart(WORLD, NETWORK, k=1, weights=dataclasses.replace(LM, reconstruct=1))

    @jax.jit
    @jax.value_and_grad
    def loss(params, batch):
        return task.loss(params, batch, context(task))[1]["reconstruct"]

    value, grads = loss(params, batch)
    assert trained(grads) >= {"value_head", "fusion", "decoder", "text"} and not trained(grads) & RETRIEVER
    others = {name: np.roll(batch[name], 1, axis=0) for name in ("negatives", "answer")}
    assert loss(params, batch | others | {"image": 1 - batch["image"]})[0] == value
    assert loss(params, batch | {"gold": np.full_like(batch["gold"], batch["gold"][0])})[0] != value


def test_reconstruction_permutes_tokens_and_weighs_rare_ones(params, batch):
    task = WarmStart(WORLD, NETWORK, k=1)
    contents = Contents(*task.frozen()["contents"])
    tokens = device_memory.take(contents, device_memory.rows_of(contents, jnp.asarray(batch["negatives"]))).tokens

    @jax.jit
    def run():
        model, values = task.model(params), jnp.ones((*tokens.shape[:2], NETWORK.value_tokens, NETWORK.width))
        output = Output(task.query(model, batch, jax.random.key(0)), values, jnp.zeros((4, 2, NETWORK.vocab_size)))
        found = task.reconstruction(model, output, tokens, batch, jax.random.key(0))
        return found.text, found.text_weights

    text, weights_of_tokens = run()
    table = jnp.asarray(batch["permutation"])
    expected = jnp.stack([row[of] for row, of in zip(table, tokens, strict=True)])
    np.testing.assert_array_equal(text, expected.reshape(text.shape))
    np.testing.assert_array_equal(weights_of_tokens, task.rarity[np.asarray(tokens).reshape(text.shape)])
    known, counts = np.unique(WORLD.items.tokens, return_counts=True)
    assert task.rarity.shape == (NETWORK.vocab_size,) and task.rarity[known].min() == pytest.approx(20 / counts.max())
    assert (task.rarity[known[counts <= 20]] == 1).all()


def test_copying_initialises_cross_attention_alone(initial):
    params, copying = jax.device_get(initial)
    kernels = []
    for part in ("value_head", "decoder"):
        for layer in copying[part]["layers"].values():
            value, out = (layer["cross_attention"][name]["kernel"] for name in ("value", "out"))
            np.testing.assert_allclose(value @ out, np.eye(16), atol=1e-5)
            kernels.append(np.asarray(value))
    assert len({kernel.tobytes() for kernel in kernels}) == len(kernels) == 2
    differs = jax.tree.map(lambda a, b: (a != b).any(), copying, params)
    paths = [".".join(str(step.key) for step in path) for path, new in jax.tree.leaves_with_path(differs) if new]
    assert len(paths) == 4 and all(".cross_attention." in path for path in paths)


def test_the_gold_item_is_read_in_any_slot():
    slots = np.asarray(WarmStart(WORLD, NETWORK, k=3).slots(jax.random.key(0), jnp.tile(jnp.arange(6), (64, 1))))
    assert ((slots == 0).sum(axis=1) == 1).all() and {0, 1, 2} == set(np.argmax(slots == 0, axis=1))
    assert all(len(set(row)) == 3 for row in slots.tolist())


@pytest.mark.long
def test_the_loss_on_the_answer_trains_the_retriever(params, batch, encoded, monkeypatch):
    """And its gradients are the finite differences, with the hits held fast."""
    task = Joint(WORLD, NETWORK, k=3, weights=LM)
    monkeypatch.setattr(Joint, "search", of_three_sources)
    loss = jax.jit(jax.value_and_grad(lambda p: task.loss(p, batch, context(task, encoded)), has_aux=True))
    (_, metrics), grads = jax.device_get(loss(params))
    params = jax.device_get(params)
    assert set(metrics) == {"generation", "accuracy", "recall_1", "recall_3"} and trained(grads) >= RETRIEVER | READER
    for part in (*RETRIEVER, "value_head"):
        direction = jax.tree.map(np.zeros_like, params) | {part: grads[part]}  # the steepest, well above noise
        length = np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(direction)))
        step = 0.02 / length
        ahead, behind = (jax.tree.map(lambda p, d, s=s: p + s * d, params, direction) for s in (step, -step))
        difference = float(loss(ahead)[0][0] - loss(behind)[0][0]) / 0.04
        assert difference == pytest.approx(length, rel=0.05), part


@pytest.mark.long
def test_stored_keys_are_constants(params, batch, encoded, monkeypatch):
    """Without re-encoding; contrastive loss and gate have their own gradients, and need gold items."""
    monkeypatch.setattr(Joint, "search", of_three_sources)
    plain = {name: array for name, array in batch.items() if name != "permutation"}
    task = Joint(WORLD, NETWORK, k=3, reencode=0, weights=Weights(0.5, gate=0.1, reconstruct=1))

    def terms(params):
        metrics = task.loss(params, plain, context(task, encoded))[1]
        return {name: metrics[name] for name in ("generation", "contrastive", "gate", "gap")}

    grads = {name: trained(tree) for name, tree in jax.jit(jax.jacrev(terms))(params).items()}
    assert {"query_head", "gate"} <= grads["generation"] and not {"key_head", "value_head"} & grads["generation"]
    assert "key_head" in grads["contrastive"] and "gate" in grads["gate"]
    without = {name: plain[name] for name in ("image", "tokens", "answer")}
    metrics = jax.eval_shape(lambda: task.loss(params, without, context(task, encoded))[1])
    assert set(metrics) == {"generation", "disentangle", "gap", "accuracy"}


@pytest.mark.long
@pytest.mark.parametrize("find", ["best", "random"])
def test_hits_are_read_with_their_scores(find, params, batch, encoded):
    task = Joint(WORLD, NETWORK, k=5, find=find, weights=LM)
    how = context(task, encoded)
    contents, stored = Contents(*how.frozen["contents"]), Encoded(**encoded)

    @jax.jit
    def run():
        model = task.model(params)
        query = task.query(model, batch, jax.random.key(0))
        hits = task.search(query, contents, stored, how)
        return query, hits, task.read(model, query, hits, contents, stored, {}, how)

    query, hits, (values, found) = run()
    live = contents.source < 4
    scores = np.asarray(query.vector @ stored.keys.T)
    scores = np.where(live, scores + np.asarray(query.log_gate)[:, np.minimum(contents.source, 3)], -np.inf)
    if find == "best":
        np.testing.assert_array_equal(hits.rows, np.argsort(-scores, axis=1, kind="stable")[:, :5])
    assert live[np.asarray(hits.rows)].all()
    np.testing.assert_allclose(found, np.take_along_axis(scores, np.asarray(hits.rows), 1), atol=1e-5)
    np.testing.assert_allclose(values, stored.values[hits.rows], atol=1e-4)


def test_sources_may_be_left_out_and_so_may_the_memory(params, batch, encoded):
    task = Joint(WORLD, NETWORK, k=4, sources=[1, 3], weights=LM)
    how = context(task, encoded)

    @jax.jit
    def found():
        query = task.query(task.model(params), batch, jax.random.key(0))
        return task.search(query, Contents(*how.frozen["contents"]), Encoded(**encoded), how).sources

    assert set(np.asarray(found()).ravel().tolist()) <= {1, 3}
    grads, metrics = gradient(Joint(WORLD, NETWORK, k=0), params, batch, encoded)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((grads, metrics))) and "gap" not in metrics
    assert "recall_1" not in metrics and "decoder" in trained(grads) and "value_head" not in trained(grads)


def test_random_items_are_live_ones_of_the_sources():
    task = Joint(WORLD, NETWORK, k=4, find="random", sources=[1])
    query = Query(jnp.zeros((6, 1, 1)), jnp.ones((6, 1), bool), jnp.zeros((6, 8)), jnp.zeros((6, 4)), jnp.zeros(6))
    contents = Contents(*task.frozen()["contents"])
    stored = Encoded(jnp.zeros((len(contents.id), 8)), jnp.zeros((len(contents.id), 2, 16)))
    few = np.cumsum(contents.source == 1) <= 3  # three items of that source
    few = contents._replace(source=np.where((contents.source != 1) | few, contents.source, 4))
    how = context(task, {})
    assert set(np.asarray(task.search(query, contents, stored, how).sources).ravel().tolist()) == {1}
    hits = task.search(query, few, stored, how)
    np.testing.assert_array_equal(np.sort(hits.rows, axis=1), [[-1, *np.flatnonzero(few.source == 1)]] * 6)
    np.testing.assert_array_equal(hits.sources, [[1, 1, 1, -1]] * 6)


def test_weights_carry_their_config(tmp_path, params):
    path = WarmStart(WORLD, NETWORK).export(tmp_path / "weights.safetensors", params, {"steps": 3})
    assert weights.load(path).config == NETWORK
    other = WarmStart(WORLD, dataclasses.replace(NETWORK, prior="logits"), start_from=str(path)).start()
    jax.tree.map(np.testing.assert_array_equal, other, params)  # the prior has no parameters of its own
    with pytest.raises(ValueError, match="task"):
        WarmStart(WORLD, start_from=str(path)).start()


STALE = Joint(WORLD, NETWORK, k=3, reencode=1)


@pytest.mark.parametrize(("call", "value"), [
    (lambda: WarmStart(WORLD, NETWORK, k=3).slots(jax.random.key(0), jnp.zeros((4, 2), jnp.int32)), "task.k is 3"),
    (lambda: Joint(WORLD, NETWORK, k=2, reencode=3), "reencode is 3"),
    (lambda: WarmStart(WORLD, RevealConfig.tiny(100)).config, "vocab_size is 100.* 224"),
    (lambda: WarmStart(WORLD, NETWORK).loss({}, {"image": 0}, context(STALE)), "gold"),
    (lambda: STALE.loss({}, {"permutation": 0}, context(STALE)), "task.reencode is 1"),
])  # fmt: skip
def test_refusals(call, value):
    refused(ValueError, call, match=value)
