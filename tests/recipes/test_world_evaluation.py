"""What the evaluation does to the memory, shown with a network that has learnt nothing."""

import json
import os
import warnings

import hydra
import numpy as np
import pytest
from flax import nnx
from little_world import NETWORK, WORLD

from reveal.memory.engines.engine import SearchResult
from reveal.network import weights
from reveal.network.model import Reveal
from reveal.reader import ReaderOutput

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from recipes.small_world.evaluation import RandomEngine, WorldEvaluation, correct
    from recipes.small_world.proof import Proof, Stage, percent, perform, plan, prove, table


@pytest.fixture(scope="module")
def model():
    return Reveal(NETWORK, rngs=nnx.Rngs(0))


def test_every_row_is_there_and_the_table_is_theirs(model, tmp_path):
    nnx_params = nnx.to_pure_dict(nnx.state(model))
    path = weights.save(tmp_path / "weights.safetensors", nnx_params, NETWORK)
    evaluation = WorldEvaluation(WORLD, renderings=1)
    told = evaluation.run(str(path), tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert [line.split(" | ")[0][2:] for line in told.splitlines()[2:]] == list(rows)
    assert rows["deleted"]["recall_4"] == 0 and rows["newcomers, before"]["recall_4"] == 0
    assert "recall_1" not in rows["no memory"]
    assert rows["held out"]["gate"] == rows["without vqa"]["gate"]
    with pytest.raises(FileExistsError, match=r"results\.json"):
        evaluation.run(str(path), tmp_path / "out")


def test_an_answer_has_to_be_whole():
    questions = {"answer": np.array([[7, 1], [7, 1], [7, 1]])}
    told = answers([[7, 1, 0], [7, 9, 1], [8, 1, 0]])
    np.testing.assert_array_equal(correct(told, questions), [True, False, False])
    assert not correct(answers([[7], [7], [8]]), questions).any()


def answers(tokens):
    nothing, ids = np.zeros((3, 0), np.float32), np.zeros((3, 0), np.int64)
    return ReaderOutput(
        np.array(tokens), SearchResult(ids, nothing, ids, 1), nothing, nothing, np.zeros((3, 4), np.float32)
    )


def test_random_items_are_live_ones_of_the_chosen_sources(model, tmp_path):
    reader = WorldEvaluation(WORLD, engine=RandomEngine()).reader(model, tmp_path / "memory")
    found = reader.memory.search(np.zeros((50, 8), np.float32), 4, sources=["captions"])
    assert set(found.sources.ravel().tolist()) == {2} and np.isin(found.ids, WORLD.items.id).all()
    assert all(len(set(row)) == 4 for row in found.ids.tolist()) and len(np.unique(found.ids)) > 50


def test_the_proof_refuses_a_row_that_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="half"):
        prove(Proof(rows=("half",)))
    assert not list(tmp_path.iterdir())


class Counted(Stage):
    """Not a training: tells its process and what it was asked to do."""

    def __call__(self):
        return {"held out": {"process": os.getpid(), "words": len(self.overrides)}}


def test_rows_of_one_shape_share_the_first_stage():
    first, second = plan(Proof(), "full", 1), plan(Proof(), "no prior", 1)
    assert first["warm"] == second["warm"] and first["joint"] != second["joint"]
    assert first["warm"] not in (plan(Proof(), "full", 2)["warm"], plan(Proof(), "c = 1", 1)["warm"])
    assert f"task.start_from=runs/{first['warm'].name}/weights.safetensors" in first["joint"].overrides
    (alone,) = plan(Proof(warm=30, joint=20), "no warm start", 0).values()
    assert "trainer.steps=50" in alone.overrides and "task.start_from=null" in alone.overrides


@pytest.mark.parametrize("row", ["full", "no memory", "random memory", "no prior, no warm start", "c = 32"])
def test_rows_are_trainings_that_can_be_made(row):
    """Its words compose, and what is set otherwise arrives."""
    for stage in plan(Proof(), row, 2).values():
        with hydra.initialize_config_module("configs", version_base="1.3"):
            config = hydra.compose("train", overrides=list(stage.overrides))
        task, evaluation = hydra.utils.instantiate(config.task), hydra.utils.instantiate(config.evaluation)
        assert config.seed == 2 and config.name == stage.name
    assert task.k == (0 if row == "no memory" else 4) and (task.start_from is None) == row.endswith("no warm start")
    assert (task.find == "random") == isinstance(evaluation.engine, RandomEngine) == (row == "random memory")
    assert task.config.prior == ("off" if row.startswith("no prior") else "multiply")
    assert task.config.value_tokens == (32 if row == "c = 32" else 4)


def test_stages_side_by_side_come_in_order(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    rows = [row["held out"] for row in perform([Counted(str(n), ("word",) * n) for n in range(5)], jobs=2)]
    assert [row["words"] for row in rows] == [0, 1, 2, 3, 4]
    assert os.getpid() not in {row["process"] for row in rows}


def test_the_proofs_table_has_means_and_ranges():
    held = {"accuracy": 0.5, "recall_1": 0.25}
    runs = [{"warm": {"held out": held}, "joint": {"held out": held | {"accuracy": a}}} for a in (0.5, 0.75)]
    told = table({"full": runs, "no memory": [{"joint": {"held out": {"accuracy": 0.03}}}]}).splitlines()
    assert told[2].startswith("| full | 2 | 62.5 (50.0 to 75.0) |") and told[2].endswith("| 25.0 (25.0 to 25.0) |")
    assert told[3].startswith("| no memory | 1 | 3.0 |")
    assert percent([None]) == ""
