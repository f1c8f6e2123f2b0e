"""Training with a search on the host: it finds what the step itself would, in the keys that the step reads."""

import dataclasses
import json
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_world import NETWORK, WORLD

from reveal.memory import ExactEngine
from reveal.memory.engines.engine import SearchResult, merge
from reveal.network.model import Query
from reveal.training.device_memory import Contents
from reveal.training.losses import Weights

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from common.training.mesh import make_mesh
    from common.training.optimizer import OptimConfig
    from common.training.task import RefreshConfig, Version
    from common.training.trainer import TrainerConfig, train
    from reveal.training.joint import Joint

pytestmark = pytest.mark.slow

PLAIN = dataclasses.replace(WORLD, shuffle=False)
LM = Weights(contrastive=0, disentangle=0, gap=0)


class Plainly:
    """An engine: all scores, by NumPy. Remembers of which version it was asked."""

    def __init__(self):
        self.searched, self.told = [], []

    def update(self, rows, sources, version):
        self.rows, self.keys, self.version = rows, rows.keys(0, len(rows)), version
        self.told.append(version)

    def search(self, queries, k, *, sources=None, log_gate=None) -> SearchResult:
        self.searched.append(self.version)
        scores = queries @ self.keys.T + log_gate[:, self.rows.source]
        allowed = np.isin(self.rows.source, range(4) if sources is None else sources)
        spread = [np.broadcast_to(x, scores.shape) for x in (self.rows.ids, self.rows.source)]
        return merge(spread[0], np.where(allowed, scores, -np.inf), spread[1], k, self.version)


def run(folder: Path, engine, steps: int = 6, lag: int = 1, data=PLAIN, devices: int = 1, **fields) -> bytes:
    task = Joint(data, NETWORK, k=3, weights=LM, engine=engine, refresh=RefreshConfig(2, lag), **fields)
    trainer = TrainerConfig(
        steps=steps, log_every=1, picture_every=100, checkpoint_every=100, progress=False, devices=devices
    )
    return train(task, data, OptimConfig(lr=1e-2), trainer, folder, 3).read_bytes()


def losses_of(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def inside(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inside")
    run(folder, None)
    return losses_of(folder)


def test_the_run_is_that_of_the_search_in_the_step(tmp_path, inside):
    engine = Plainly()
    run(tmp_path, engine)
    np.testing.assert_allclose(losses_of(tmp_path), inside, rtol=1e-5)
    assert engine.told == [0, 1, 2]  # of steps 0, 2 and 4, each in use a step later
    assert engine.searched == sorted(engine.searched) and set(engine.searched) == {0, 1, 2}


def test_a_resumed_run_searches_the_keys_that_it_had(tmp_path, inside):
    run(tmp_path / "run", Plainly(), steps=3)
    engine = Plainly()
    run(tmp_path / "run", engine)
    np.testing.assert_allclose(losses_of(tmp_path / "run"), inside, rtol=1e-5)
    assert engine.told[0] == 1  # that of step 2 was in use after step 3


@pytest.mark.parametrize("sources", [None, [1, 3]])
def test_faiss_finds_the_same(tmp_path, sources):
    pytest.importorskip("faiss")
    from reveal.memory import FaissEngine

    run(tmp_path / "inside", None, sources=sources)
    run(tmp_path / "faiss", FaissEngine("flat"), sources=sources)
    np.testing.assert_allclose(losses_of(tmp_path / "faiss"), losses_of(tmp_path / "inside"), rtol=1e-5)


def test_milvus_finds_the_same_and_goes_on(tmp_path, inside):
    pytest.importorskip("pymilvus")
    from reveal.memory import MilvusEngine

    for steps in (3, 6):
        run(tmp_path / "run", MilvusEngine(str(tmp_path / "keys.db"), overwrite=True), steps=steps)
    np.testing.assert_allclose(losses_of(tmp_path / "run"), inside, rtol=1e-5)


def test_items_are_read_by_their_rows_though_the_engine_speaks_of_ids(tmp_path):
    """Ids with gaps, in the language of each batch: all items are encoded again from what the rows hold."""
    run(tmp_path / "inside", None, data=WORLD)
    run(tmp_path / "outside", Plainly(), data=WORLD)
    np.testing.assert_allclose(losses_of(tmp_path / "outside"), losses_of(tmp_path / "inside"), rtol=1e-5)


def test_an_engine_that_cannot_be_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"task.engine is ExactEngine: leave it null"):
        Joint(WORLD, NETWORK, engine=ExactEngine())
    with pytest.raises(ValueError, match=r"2 CPU devices .* may wait for each other for ever: set trainer.devices=1"):
        run(tmp_path, Plainly(), devices=2)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"task.engine is Plainly, which one process can ask: leave it null"):
        Joint(WORLD, NETWORK, engine=Plainly())


def test_an_engine_that_fails_ends_the_run_and_nothing_is_saved(tmp_path):
    class Gone(Plainly):
        def search(self, queries, k, **how):
            raise ConnectionError("http://host:19530: no Milvus there")

    with pytest.raises(ConnectionError, match=r"^http://host:19530: no Milvus there$"):
        run(tmp_path, Gone())
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))  # of steps that found nothing


def test_a_query_that_is_no_number_finds_nothing():
    """The loss is NaN then, and the trainer says of which questions."""
    task = Joint(PLAIN, NETWORK, k=3, engine=Plainly())
    contents = task.frozen()["contents"]
    count = len(contents.id)
    held = {"keys": np.random.default_rng(0).normal(size=(count, 8)).astype(np.float32)}
    task.on_refresh(Version(0, 0, 0.0, held), {"contents": contents}, {})
    vectors = jnp.stack([jnp.full(8, jnp.nan), jnp.ones(8)])
    query = Query(jnp.zeros((2, 1, 16)), jnp.ones((2, 1), bool), vectors, jnp.zeros((2, 4)))
    rows = np.asarray(jax.jit(lambda: task.ask(query, Contents(*contents), make_mesh(1)).rows)())
    assert (rows[0] == -1).all() and (rows[1] >= 0).all()
