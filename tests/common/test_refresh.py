"""Refreshed arrays: swapped whole, in time, without making a step wait, and again after any end of the run."""

import json
import logging
import signal
import threading
import time

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from refusal import refused
from toy_task import Fit, Follow, Line, at, crash, finish, log_of, start, two_processes

from common.training import refresh
from common.training.mesh import DATA, FSDP, make_mesh
from common.training.optimizer import OptimConfig
from common.training.refresh import make_refresh, spare_devices
from common.training.task import RefreshConfig
from common.training.trainer import TrainerConfig, train

TRAINER = dict(steps=20, log_every=1, picture_every=100, checkpoint_every=100)
PARAMS = {"layer": {"kernel": np.ones((3, 2), np.float32), "bias": np.zeros(2, np.float32)}}
LIMIT = 60  # seconds that a thread of a test waits at most


def run(folder, task, data=None, **trainer) -> dict:
    config = TrainerConfig(**TRAINER | dict(progress=False) | trainer)
    return json.loads(train(task, data or Line(), OptimConfig(lr=0.05), config, folder, 3).read_text())


def follow(every: int = 5, lag: int | None = 3, spare: int = 0, **fields) -> Follow:
    return Follow(refresh=RefreshConfig(every, lag, spare), **fields)


def refresh_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "refresh"]


def wait_for_refresh() -> None:
    for thread in refresh_threads():
        thread.join(LIMIT)


@pytest.mark.parametrize("lag", [None, 0, 3])
def test_an_error_of_a_refresh_ends_the_run(tmp_path, lag):
    refused(RuntimeError, run, tmp_path, follow(lag=lag, before=at(1, crash)), Line(hook=at(7, wait_for_refresh)))
    assert log_of(tmp_path)[-1]["step"] < 10


def test_an_error_of_the_first_refresh_of_a_resumed_run_moves_no_checkpoint(tmp_path):
    run(tmp_path, follow(lag=None), steps=4, checkpoint_every=2)
    refused(RuntimeError, run, tmp_path, follow(lag=None, before=at(0, crash)), steps=6)
    assert not (tmp_path / "damaged").exists() and (tmp_path / "checkpoints" / "4").exists()


def test_an_error_after_the_last_step_is_logged(tmp_path, caplog):
    run(tmp_path, follow(lag=None, before=at(1, crash), while_drawing=wait_for_refresh), steps=5)
    assert "step 5 failed: RuntimeError: power cut" in caplog.text


def test_invalid_settings(monkeypatch):
    assert "refresh.spare is 2 " in refused(ValueError, make_mesh, 0, 1, 2)
    assert "trainer.devices is 2" in refused(ValueError, make_mesh, 2, 1, 1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert "refresh.lag is null" in refused(ValueError, spare_devices, follow(lag=None))
    assert "refresh.spare is 1" in refused(ValueError, make_mesh, 0, 1, 1)


def test_tasks_with_and_without_refreshed_arrays(tmp_path):
    """A run without them, or without a lag, can be resumed by a task that has them."""
    for task in (Fit(), Follow(refresh=None)):
        plain = make_refresh(task, make_mesh(), {})
        assert plain.arrays is None and plain.saved() == {} and plain.scalars(3) == {}
    run(tmp_path, Fit(), steps=4)
    assert {p.name for p in (tmp_path / "checkpoints" / "4").iterdir() if p.is_dir()} == {"state", "data"}
    run(tmp_path, follow(lag=None), steps=8)
    run(tmp_path, follow(lag=3), steps=12)
    assert log_of(tmp_path)[-1]["refresh_version"] >= 1
    assert "refresh_version" not in log_of(tmp_path)[0]


def test_shardings_of_the_arrays(tmp_path):
    refreshed = make_refresh(follow(), make_mesh(2, fsdp=2), {"offset": np.zeros(2, np.float32)})
    refreshed.start(0, PARAMS)
    specs = jax.tree.map(lambda x: x.sharding.spec, refreshed.arrays)
    assert specs == {"kernel": PartitionSpec(), "more": {"rows": PartitionSpec((DATA, FSDP)), "host": PartitionSpec()}}


def test_a_snapshot_of_split_parameters_is_whole(tmp_path):
    """Else the thread of the refresh would gather them while the training's steps communicate."""
    task, mesh = follow(), make_mesh(2, fsdp=2)
    split = jax.device_put(PARAMS, NamedSharding(mesh, PartitionSpec()))
    split["layer"]["kernel"] = jax.device_put(PARAMS["layer"]["kernel"], NamedSharding(mesh, PartitionSpec(None, FSDP)))
    make_refresh(task, mesh, {"offset": np.zeros(2, np.float32)}).start(0, split)
    ((seen, _),) = task.seen
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(seen))
    jax.tree.map(np.testing.assert_array_equal, seen, PARAMS)


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_swap_comes_exactly_lag_steps_after_its_snapshot(tmp_path, lag):
    """`away` is the distance of the parameters from those of the arrays: none in the step after lag 0."""
    run(tmp_path, follow(lag=lag), steps=14)
    rows = {row["step"]: row for row in log_of(tmp_path)}
    for step, row in rows.items():
        of = max(s for s in (-lag, 5, 10) if s + lag <= step)
        assert row["refresh_version"] == max(of, 0) // 5
        assert row["refresh_staleness"] == step - max(of, 0)
    assert rows[1]["away"] == 0
    assert all((row["away"] == 0) == (lag == 0 and step % 5 == 1) for step, row in rows.items() if step > 1)


def test_the_step_is_compiled_once_for_all_versions(tmp_path):
    """With the versions of a start, a swap and a checkpoint."""
    for steps in (12, 20):
        task = follow(every=2, lag=1)
        run(tmp_path, task, steps=steps)
        assert len(task.traces) == 1 and dict(task.traces[0].mesh.shape) == {DATA: 2, FSDP: 1}
    assert log_of(tmp_path)[-1]["refresh_version"] == 9


def test_no_step_waits_for_a_refresh(tmp_path, caplog):
    """The second refresh begins after step 5 and is held until batch 18 is drawn. The third is skipped."""
    caplog.set_level(logging.INFO)
    go = threading.Event()

    def release() -> None:
        go.set()
        wait_for_refresh()

    task = follow(lag=None, before=at(1, lambda: go.wait(LIMIT)))
    run(tmp_path, task, Line(hook=at(18, release)), steps=19)
    rows = log_of(tmp_path)
    assert [row["refresh_version"] for row in rows] == [0] * 17 + [1] * 2
    assert [row["refresh_staleness"] for row in rows] == [*range(1, 18), 13, 14]
    messages = [record.message for record in caplog.records]
    assert sum("step 10 skipped" in line for line in messages) == 1
    assert not any("step 15 skipped" in line for line in messages)
    assert any("version 1 of step 5, in use from step 19 (" in line for line in messages)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Twenty steps without a stop, by lag: the folder, the weights and the task."""
    runs = {lag: (tmp_path_factory.mktemp(f"straight_{lag}"), follow(lag=lag)) for lag in (0, 3)}
    return {lag: (folder, run(folder, task), task) for lag, (folder, task) in runs.items()}


@pytest.mark.long
@pytest.mark.parametrize(("lag", "stop"), [(0, 3), (0, 10), (3, 6), (3, 8)])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, straight, lag, stop):
    """Also from a checkpoint between snapshot and swap."""
    folder, weights, _ = straight[lag]
    stopped = run(tmp_path, follow(lag=lag), Line(hook=at(stop, wait_for_refresh)), steps=stop)["params"]
    task = follow(lag=lag)
    assert run(tmp_path, task) == weights
    assert log_of(tmp_path) == log_of(folder)
    assert len(task.seen) == 20 // 5 - stop // 5  # nothing is computed twice
    if stop == 10:  # a snapshot is of its step, though the memory of the state is given to the next
        seen = straight[lag][2].seen[2][0]
        np.testing.assert_array_equal(seen["layer"]["kernel"], np.float32(stopped["layer"]["kernel"]))


@pytest.mark.long
@pytest.mark.parametrize("stop", [5, 6])
def test_no_checkpoint_waits_for_a_refresh(tmp_path, straight, monkeypatch, caplog, stop):
    """The refresh of step 5 is held; a resumed run begins it again, with the same parameters."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(refresh, "PATIENCE", 0.1)
    folder, weights, uninterrupted = straight[3]
    go = threading.Event()
    run(tmp_path, follow(before=at(1, lambda: go.wait(LIMIT))), steps=stop)
    assert "the refresh of step 5 is not done" in caplog.text
    go.set()
    wait_for_refresh()
    task = follow()
    assert run(tmp_path, task) == weights and log_of(tmp_path) == log_of(folder)
    assert len(task.seen) == 4
    jax.tree.map(np.testing.assert_array_equal, task.seen[0], uninterrupted.seen[1])


@pytest.mark.parametrize(("error", "step", "action"), [
    (RuntimeError, 12, crash), (KeyboardInterrupt, 7, lambda: signal.raise_signal(signal.SIGTERM)),
])  # fmt: skip
def test_a_run_that_ends_during_a_refresh_resumes(tmp_path, straight, error, step, action):
    """The refresh of step 5 may be under way at the checkpoint of step 6; that of step 10 is when batch 12 fails."""
    folder, weights, _ = straight[3]
    refused(error, lambda: run(tmp_path, follow(), Line(hook=at(step, action)), checkpoint_every=6))
    assert run(tmp_path, follow(), checkpoint_every=6) == weights
    assert log_of(tmp_path) == log_of(folder)


def test_without_a_lag_a_resumed_run_recomputes(tmp_path, monkeypatch, caplog):
    """The refresh of step 10 never ends: the run ends all the same, and its checkpoint has a number only."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(refresh, "PATIENCE", 0.1)
    never = threading.Event()
    task = follow(lag=None, before=at(2, lambda: never.wait(LIMIT)))
    run(tmp_path, task, Line(hook=at(7, wait_for_refresh)), steps=12)
    assert "the refresh of step 10 is not done" in caplog.text
    never.set()
    last = log_of(tmp_path)[-1]
    assert (last["refresh_version"], last["refresh_staleness"]) == (1, 7)
    items = {p.name for p in (tmp_path / "checkpoints" / "12").iterdir()}
    assert items >= {"state", "data", "renewal"} and "renewed" not in items
    task = follow(lag=None)
    run(tmp_path, task, steps=14)
    last = log_of(tmp_path)[-1]
    assert (last["refresh_version"], last["refresh_staleness"], len(task.seen)) == (2, 2, 1)


def test_a_refresh_in_parts_is_cancelled_at_the_end_of_the_run(tmp_path):
    class InParts(Follow):
        def refresh_arrays(self, params, frozen, check_cancelled):
            while len(self.seen) == 1:
                time.sleep(0.001)
                check_cancelled()
            return super().refresh_arrays(params, frozen)

    clock = time.perf_counter()
    run(tmp_path, InParts(refresh=RefreshConfig(5, None)), steps=7)
    assert not refresh_threads() and time.perf_counter() - clock < refresh.PATIENCE


def test_arrays_have_constant_shapes():
    results = [{"kernel": np.zeros((1, 2))}, {"kernel": np.zeros((2, 2))}]

    class Odd(Follow):
        def refresh_arrays(self, params, frozen, check_cancelled=None):
            return results.pop(0)

    refreshed = make_refresh(Odd(refresh=RefreshConfig(1, 0)), make_mesh(1), {})
    with pytest.raises(ValueError, match=r"task\.refresh_arrays gave"):
        refreshed.start(0, PARAMS)
        refreshed.after_step(1, PARAMS)
    assert not results


def test_a_spare_device_refreshes(tmp_path):
    """Training on the first device, refreshing on the second: the same run."""
    trained, spare = jax.devices()
    task = follow(spare=1)
    weights = run(tmp_path / "spare", task)
    assert task.traces[0].mesh.devices.tolist() == [[trained]]
    for params, frozen in task.seen:
        assert {leaf.devices() == {spare} for leaf in jax.tree.leaves((params, frozen))} == {True}
    assert weights == run(tmp_path / "shared", follow(), devices=1)


def test_a_refresh_moves_to_another_number_of_devices(tmp_path, straight):
    run(tmp_path, follow(), steps=7, devices=1)
    moved = run(tmp_path, follow())["params"]["layer"]
    for name, value in straight[3][1]["params"]["layer"].items():
        np.testing.assert_allclose(moved[name], value, atol=1e-5)


@pytest.mark.slow
def test_a_refresh_that_never_ends_does_not_hold_the_program(tmp_path):
    finish(start(tmp_path, trainer=TRAINER, refresh=dict(every=5, lag=None), stuck=1))
    assert (tmp_path / "weights.safetensors").exists()


@pytest.mark.slow
def test_two_processes_refresh_together(tmp_path, straight):
    """From a checkpoint with arrays under way, a single process goes on."""
    short, refreshed = TRAINER | dict(steps=7), dict(every=5, lag=3)
    finish(*[start(tmp_path, 2, cluster=one, trainer=short, refresh=refreshed) for one in two_processes()])
    finish(start(tmp_path, trainer=TRAINER, refresh=refreshed))
    losses = [[row["loss"] for row in log_of(folder)] for folder in (tmp_path, straight[3][0])]
    np.testing.assert_allclose(*losses, rtol=1e-5)
