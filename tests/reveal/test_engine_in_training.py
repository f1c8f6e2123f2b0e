"""Training with a search engine on the host: it finds what the exact search finds, in the keys that the step reads."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from little_worlds import WORLD
from little_worlds import WORLD_NETWORK as NETWORK
from refusal import refused
from reveal_networks import drawn

from common.training.mesh import make_mesh
from common.training.optimizer import OptimConfig
from common.training.task import RefreshConfig, Version
from common.training.trainer import TrainerConfig, train
from reveal.memory import ExactEngine
from reveal.memory.engines.engine import SearchResult, merge
from reveal.network.model import Query
from reveal.network.weights import save
from reveal.training.device_memory import Contents
from reveal.training.joint import Joint
from reveal.training.losses import Weights

LM = Weights(contrastive=0, disentangle=0, gap=0)


class NumpyEngine:
    """Brute force."""

    def update(self, rows, sources, version):
        self.rows, self.keys, self.version = rows, rows.keys(0, len(rows)), version

    def search(self, queries, k, *, sources=None, log_gate=None) -> SearchResult:
        scores = queries @ self.keys.T + log_gate[:, self.rows.source]
        allowed = np.isin(self.rows.source, range(4) if sources is None else sources)
        ids, source = (np.broadcast_to(x, scores.shape) for x in (self.rows.ids, self.rows.source))
        return merge(ids, np.where(allowed, scores, -np.inf), source, k, self.version)


class Recorded:
    """An engine, the versions of its updates and searches; it is gone after so many of these."""

    def __init__(self, engine, searches: int = 100):
        self.engine, self.most, self.updates, self.searched = engine, searches, [], []

    def update(self, rows, sources, version):
        self.engine.update(rows, sources, version)
        self.updates.append(version)

    def search(self, queries, k, **how) -> SearchResult:
        if len(self.searched) == self.most:
            raise ConnectionError("http://host:19530")
        self.searched.append(self.updates[-1])
        return self.engine.search(queries, k, **how)


def losses(folder: Path, engine, weights: str) -> list[float]:
    """Of a run of six steps, which train the heads of queries and keys alone: all would compile for three times as
    long. Ids have gaps, and each batch permutes tokens, so that all items are encoded anew, from their rows."""
    task = Joint(WORLD, NETWORK, k=3, weights=LM, engine=engine, refresh=RefreshConfig(2, 1), start_from=weights)
    config = TrainerConfig(6, 1, picture_every=100, checkpoint_every=3, progress=False, devices=1)
    optim = OptimConfig(lr=1e-2, multipliers=[("query_head|key_head", 1), ("", 0)])
    train(task, WORLD, optim, config, folder, 3)
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    return str(save(path, nnx.to_pure_dict(nnx.state(drawn(NETWORK))), NETWORK))


@pytest.fixture(scope="module")
def exact(tmp_path_factory, weights):
    return losses(tmp_path_factory.mktemp("exact"), None, weights)


@pytest.fixture(scope="module")
def failed(tmp_path_factory, weights):
    """A run whose engine was gone after three steps."""
    folder, engine = tmp_path_factory.mktemp("failed"), Recorded(NumpyEngine(), searches=3)
    refused(ConnectionError, losses, folder, engine, weights, match=r"^http://host:19530$")
    assert set(engine.searched) == {0}
    return folder


@pytest.mark.long
def test_a_failing_engine_ends_the_run_without_a_checkpoint(failed):
    assert [path.name for path in (failed / "checkpoints").glob("[0-9]*")] == ["3"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["numpy", "milvus"])
def test_an_engine_resumes_a_run_and_searches_the_keys_of_the_step(name, tmp_path, exact, failed, weights):
    if name == "milvus":
        pytest.importorskip("pymilvus")
        from reveal.memory import MilvusEngine
    engine = Recorded(NumpyEngine() if name == "numpy" else MilvusEngine(str(tmp_path / "keys.db")))
    shutil.copytree(failed, tmp_path / "run")
    np.testing.assert_allclose(losses(tmp_path / "run", engine, weights), exact, rtol=1e-5)
    # Versions are those of steps 0, 2 and 4, each in use a step later: that of step 2 was in use after step 3.
    assert engine.updates == [1, 2] and engine.searched == sorted(engine.searched) and set(engine.searched) == {1, 2}


def test_refusals(monkeypatch):
    refused(ValueError, Joint, WORLD, NETWORK, engine=ExactEngine(), match="ExactEngine")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    refused(ValueError, Joint, WORLD, NETWORK, engine=NumpyEngine(), match="NumpyEngine")


def test_a_second_training_has_keys_of_its_own():
    """Its versions have the same numbers."""
    task, names = Joint(WORLD, NETWORK, k=3, engine=NumpyEngine()), []
    for _ in range(2):
        frozen = task.frozen()
        for number in range(2):
            keys = np.ones((len(frozen["contents"].id), 8), np.float32)
            task.on_refresh(Version(number, 0, 0.0, {"keys": keys}), frozen, {})
            names.append(task.engine.rows.memory)
    assert names[0] == names[1] and names[2] == names[3] and len(set(names)) == 2


def test_a_query_that_is_not_finite_finds_nothing():
    """The loss is NaN then, and the trainer reports its questions. A failure waits for `check`."""
    task = Joint(WORLD, NETWORK, k=3, engine=NumpyEngine())
    contents = task.frozen()["contents"]
    keys = np.random.default_rng(0).normal(size=(len(contents.id), 8)).astype(np.float32)
    task.on_refresh(Version(0, 0, 0.0, {"keys": keys}), {"contents": contents}, {})
    vectors = jnp.stack([jnp.full(8, jnp.nan), jnp.ones(8)])
    query = Query(jnp.zeros((2, 1, 16)), jnp.ones((2, 1), bool), vectors, jnp.zeros((2, 4)), jnp.zeros(2))
    search = jax.jit(lambda: task.search_engine(query, Contents(*contents), make_mesh(1)).rows)
    with pytest.raises(ValueError, match=r"NumpyEngine.* 2 CPU devices"):
        task.search_engine(query, Contents(*contents), make_mesh(2))
    rows = np.asarray(search())
    assert (rows[0] == -1).all() and (rows[1] >= 0).all()
    del task.engine.keys
    assert (np.asarray(search()) == -1).all()
    refused(AttributeError, task.check)
    task.check()
