"""Training with a search engine on the host: it finds what the exact search finds, in the keys that the step reads."""

import dataclasses
import json
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_worlds import WORLD
from little_worlds import WORLD_NETWORK as NETWORK

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

PLAIN = dataclasses.replace(WORLD, shuffle=False)
LM = Weights(contrastive=0, disentangle=0, gap=0)


class NumpyEngine:
    """Brute force. Records its updates and the version of each search."""

    def __init__(self):
        self.searched, self.updates = [], []

    def update(self, rows, sources, version):
        self.rows, self.keys, self.version = rows, rows.keys(0, len(rows)), version
        self.updates.append(version)

    def search(self, queries, k, *, sources=None, log_gate=None) -> SearchResult:
        self.searched.append(self.version)
        scores = queries @ self.keys.T + log_gate[:, self.rows.source]
        allowed = np.isin(self.rows.source, range(4) if sources is None else sources)
        ids, source = (np.broadcast_to(x, scores.shape) for x in (self.rows.ids, self.rows.source))
        return merge(ids, np.where(allowed, scores, -np.inf), source, k, self.version)


def losses(folder: Path, engine, steps: int = 6, data=PLAIN, **fields) -> list[float]:
    """Of a run of so many steps."""
    task = Joint(data, NETWORK, k=3, weights=LM, engine=engine, refresh=RefreshConfig(2, 1), **fields)
    options = dict(log_every=1, picture_every=100, checkpoint_every=100, progress=False, devices=1)
    train(task, data, OptimConfig(lr=1e-2), TrainerConfig(steps=steps, **options), folder, 3)
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    return losses(tmp_path_factory.mktemp("exact"), None)


def test_an_engine_searches_the_keys_of_the_step_and_so_does_a_resumed_run(tmp_path, exact):
    first, second = NumpyEngine(), NumpyEngine()
    losses(tmp_path, first, steps=3)
    np.testing.assert_allclose(losses(tmp_path, second), exact, rtol=1e-5)
    # Versions are those of steps 0, 2 and 4, each in use a step later: that of step 2 was in use after step 3.
    assert [*first.updates[:1], *second.updates] == [0, 1, 2]
    assert set(first.searched) == {0} and second.searched == sorted(second.searched) and set(second.searched) == {1, 2}


def test_milvus_finds_the_same_and_resumes(tmp_path, exact):
    pytest.importorskip("pymilvus")
    from reveal.memory import MilvusEngine

    for steps in (3, 6):
        found = losses(tmp_path / "run", MilvusEngine(str(tmp_path / "keys.db"), overwrite=True), steps=steps)
    np.testing.assert_allclose(found, exact, rtol=1e-5)


def test_ids_with_gaps_are_mapped_to_rows(tmp_path):
    """With a permutation of tokens in each batch, so that all items are re-encoded from their rows."""
    wanted, found = (losses(tmp_path / str(n), e, 3, WORLD) for n, e in enumerate((None, NumpyEngine())))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_refusals(monkeypatch):
    with pytest.raises(ValueError, match="ExactEngine"):
        Joint(WORLD, NETWORK, engine=ExactEngine())
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="NumpyEngine"):
        Joint(WORLD, NETWORK, engine=NumpyEngine())


def test_a_failing_engine_ends_the_run_without_a_checkpoint(tmp_path):
    class Gone(NumpyEngine):
        def search(self, queries, k, **how):
            raise ConnectionError("http://host:19530")

    with pytest.raises(ConnectionError, match=r"^http://host:19530$"):
        losses(tmp_path, Gone())
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))


def test_a_query_that_is_not_finite_finds_nothing():
    """The loss is NaN then, and the trainer reports its questions. A failure waits for `check`."""
    task = Joint(PLAIN, NETWORK, k=3, engine=NumpyEngine())
    contents = task.frozen()["contents"]
    keys = np.random.default_rng(0).normal(size=(len(contents.id), 8)).astype(np.float32)
    task.on_refresh(Version(0, 0, 0.0, {"keys": keys}), {"contents": contents}, {})
    vectors = jnp.stack([jnp.full(8, jnp.nan), jnp.ones(8)])
    query = Query(jnp.zeros((2, 1, 16)), jnp.ones((2, 1), bool), vectors, jnp.zeros((2, 4)))
    search = jax.jit(lambda: task.search_engine(query, Contents(*contents), make_mesh(1)).rows)
    with pytest.raises(ValueError, match=r"NumpyEngine.* 2 CPU devices"):
        task.search_engine(query, Contents(*contents), make_mesh(2))
    rows = np.asarray(search())
    assert (rows[0] == -1).all() and (rows[1] >= 0).all()
    del task.engine.keys
    assert (np.asarray(search()) == -1).all()
    with pytest.raises(AttributeError):
        task.check()
    task.check()
