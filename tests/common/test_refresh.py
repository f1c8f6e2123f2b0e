"""Arrays that follow the parameters: swapped whole, in time, without making a step wait, and again after any end."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from line import Fit, Line
from refreshing import Follow

from common.training import refresh
from common.training.checkpoint import Checkpoints
from common.training.mesh import DATA, FSDP, make_mesh, spare_mesh
from common.training.optimizer import OptimConfig
from common.training.refresh import make_refresh
from common.training.task import RefreshConfig, RefreshedTask, Task
from common.training.trainer import TrainerConfig, train

PROGRAM = Path(__file__).parent / "refreshing.py"
TRAINER = dict(steps=20, log_every=1, picture_every=100, checkpoint_every=100)
PARAMS = {"layer": {"kernel": np.ones((3, 2), np.float32), "bias": np.zeros(2, np.float32)}}
LIMIT = 60  # seconds that a thread of a test waits at most


def run(folder, task, data=None, **trainer) -> dict:
    """The exported weights of a run."""
    config = TrainerConfig(**TRAINER | dict(progress=False) | trainer)
    return json.loads(train(task, data or Line(), OptimConfig(lr=0.05), config, folder, 3).read_text())


def log_of(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_times(folder) -> list[dict]:
    times = ("steps_per_s", "refresh_seconds")
    return [{name: value for name, value in row.items() if name not in times} for row in log_of(folder)]


def follow(every: int = 5, lag: int | None = 3, spare: int = 0, **fields) -> Follow:
    return Follow(refresh=RefreshConfig(every, lag, spare), **fields)


def fail(step: int):
    def hook(n: int) -> None:
        if n == step:
            raise RuntimeError("power cut")

    return hook


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        (dict(every=0), r"refresh\.every is 0"),
        (dict(every=5, lag=5), r"refresh\.lag is 5: .*4"),
        (dict(lag=-1), r"refresh\.lag is -1: .*99"),
        (dict(spare=-1), r"refresh\.spare is -1"),
    ],
)
def test_settings_that_cannot_be(fields, value):
    with pytest.raises(ValueError, match=value) as error:
        RefreshConfig(**fields)
    assert "\n" not in str(error.value)


def test_devices_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"refresh\.spare is 2: there are 2 devices, and training needs one"):
        run(tmp_path, follow(spare=2))
    with pytest.raises(ValueError, match=r"trainer\.devices is 2: there are 1 beside the 1 of refresh.spare"):
        run(tmp_path, follow(spare=1), devices=2)


def test_several_processes_need_a_lag(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"refresh\.lag is null: several processes .* set a lag"):
        make_refresh(follow(lag=None), make_mesh(2), {})
    with pytest.raises(ValueError, match=r"refresh\.spare is 1: several processes train on all 2 devices; give 0"):
        make_mesh(0, 1, 1)


def test_who_renews():
    assert isinstance(follow(), RefreshedTask) and isinstance(follow(), Task)
    assert not isinstance(Fit(), RefreshedTask)
    for task in (Fit(), Follow(refresh=None)):
        plain = make_refresh(task, make_mesh(), {})
        assert plain.arrays is None and plain.saved() == {} and plain.scalars(3) == {}


def test_where_arrays_lie(tmp_path):
    task = follow()
    run(tmp_path, task, steps=1)
    context = task.traces[0]
    assert dict(context.mesh.shape) == {DATA: 2, FSDP: 1}
    made = make_refresh(task, make_mesh(2, fsdp=2), {"offset": np.zeros(2, np.float32)})
    made.start(0, PARAMS, Checkpoints(tmp_path / "none"))
    places = jax.tree.map(lambda x: x.sharding.spec, made.arrays)
    whole, split = PartitionSpec(), PartitionSpec((DATA, FSDP))
    assert places == {"kernel": whole, "more": {"rows": split, "host": whole}}
    rows = made.arrays["more"]["rows"]
    assert {shard.data.shape for shard in rows.addressable_shards} == {(4, 2)}


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_swap_comes_exactly_lag_steps_after_its_snapshot(tmp_path, lag):
    """What the loss sees is `away`, how far the parameters are from the arrays: none in the step after lag 0."""
    run(tmp_path, follow(lag=lag), steps=14)
    rows = {row["step"]: row for row in log_of(tmp_path)}
    for step, row in rows.items():
        of = max(s for s in (-lag, 5, 10) if s + lag <= step)
        assert row["refresh_version"] == max(of, 0) // 5
        assert row["refresh_staleness"] == step - max(of, 0)
        assert row["refresh_seconds"] > 0
    assert rows[1]["away"] == 0
    assert all((row["away"] == 0) == (lag == 0 and step % 5 == 1) for step, row in rows.items() if step > 1)


def test_one_program_for_all_versions(tmp_path):
    """One device and two, with the versions of a start, a swap and a checkpoint."""
    for devices in (1, 2):
        folder = tmp_path / str(devices)
        for steps in (12, 20):
            task = follow(every=2, lag=1)
            run(folder, task, steps=steps, devices=devices)
            assert len(task.traces) == 1
        assert log_of(folder)[-1]["refresh_version"] == 9


def test_no_step_waits_for_a_refresh(tmp_path, caplog):
    """The second refresh begins after step 5 and is held until batch 18 is drawn. The third is left out."""
    caplog.set_level(logging.INFO)
    go, done = threading.Event(), threading.Event()

    def slow(n: int) -> None:
        if n == 1:
            assert go.wait(LIMIT)

    def draw(n: int) -> None:
        if n == 18:
            go.set()
            threads = [thread for thread in threading.enumerate() if thread.name == "refresh"]
            for thread in threads:
                thread.join(LIMIT)
            done.set()

    task = follow(lag=None, before=slow)
    run(tmp_path, task, Line(hook=draw), steps=19)
    assert done.is_set()
    rows = log_of(tmp_path)
    assert [row["refresh_version"] for row in rows] == [0] * 17 + [1] * 2
    assert [row["refresh_staleness"] for row in rows] == [*range(1, 18), 13, 14]
    said = [record.message for record in caplog.records]
    assert said.count("refresh of step 10 skipped: that of step 5 is not done") == 1
    assert not any("step 15 skipped" in line for line in said)
    assert any(line.startswith("refreshed arrays: version 1 of step 5, in use from step 19 (") for line in said)


def test_the_snapshot_is_of_its_step(tmp_path):
    """The state's memory is given to the next step; a copy is not."""
    task = follow(lag=3, every=4)
    run(tmp_path / "all", task, steps=8)
    weights = run(tmp_path / "four", follow(lag=3, every=4), steps=4)["params"]
    np.testing.assert_array_equal(task.seen[1][0]["layer"]["kernel"], np.float32(weights["layer"]["kernel"]))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Twenty steps without a stop, by lag."""
    folders = {lag: tmp_path_factory.mktemp(f"straight_{lag}") for lag in (0, 3)}
    return {lag: (folder, run(folder, follow(lag=lag))) for lag, folder in folders.items()}


@pytest.mark.parametrize(("lag", "stop"), [(0, 3), (0, 10), (3, 5), (3, 6), (3, 8)])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, straight, lag, stop):
    """Also from a checkpoint between snapshot and swap."""
    folder, weights = straight[lag]
    run(tmp_path, follow(lag=lag), steps=stop)
    task = follow(lag=lag)
    assert run(tmp_path, task) == weights
    assert without_times(tmp_path) == without_times(folder)
    assert len(task.seen) == 20 // 5 - stop // 5  # nothing is made twice


def test_a_crash_during_a_refresh_loses_nothing(tmp_path, straight):
    """The checkpoint of step 6 waits for the refresh of step 5; that of step 10 is under way when batch 12 fails."""
    folder, weights = straight[3]
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, follow(), Line(hook=fail(12)), checkpoint_every=6)
    assert run(tmp_path, follow(), checkpoint_every=6) == weights
    assert without_times(tmp_path) == without_times(folder)


def test_a_run_stopped_during_a_refresh_goes_on(tmp_path, straight):
    stop = Line(hook=lambda n: os.kill(os.getpid(), signal.SIGTERM) if n == 7 else None)
    with pytest.raises(KeyboardInterrupt, match="saved at step 7"):
        run(tmp_path, follow(), stop)
    assert run(tmp_path, follow()) == straight[3][1]


def test_without_a_lag_versions_go_on_and_arrays_are_made_anew(tmp_path, monkeypatch, caplog):
    """The refresh of step 10 never ends: the run stops all the same, and leaves no more than a number."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(refresh, "PATIENCE", 0.1)
    never = threading.Event()
    hold = follow(lag=None, before=lambda n: n == 2 and never.wait(LIMIT))
    run(tmp_path, hold, Line(hook=join_at(7)), steps=12)
    assert "the refresh of step 10 is not done; the run ends without it" in caplog.text
    never.set()
    last = log_of(tmp_path)[-1]
    assert (last["refresh_version"], last["refresh_staleness"]) == (1, 7)
    assert {p.name for p in (tmp_path / "checkpoints" / "12").iterdir()} >= {"state", "data", "renewal"}
    assert not (tmp_path / "checkpoints" / "12" / "renewed").exists()
    task = follow(lag=None)
    run(tmp_path, task, steps=14)
    last = log_of(tmp_path)[-1]
    assert (last["refresh_version"], last["refresh_staleness"]) == (2, 2)
    assert len(task.seen) == 1


def join_at(step: int):
    """As a batch is drawn, waits for the refresh under way."""

    def hook(n: int) -> None:
        if n == step:
            for thread in threading.enumerate():
                if thread.name == "refresh":
                    thread.join(LIMIT)

    return hook


def test_a_plain_tasks_checkpoints_stay_as_they_are(tmp_path):
    """And one of them, or one of a run without a lag, can be gone on from by a task that renews."""
    run(tmp_path, Fit(), steps=4)
    parts = {p.name for p in (tmp_path / "checkpoints" / "4").iterdir() if p.is_dir()}
    assert parts == {"state", "data"}
    run(tmp_path, follow(lag=None), steps=8)
    run(tmp_path, follow(lag=3), steps=12)
    assert log_of(tmp_path)[-1]["refresh_version"] >= 1
    assert "refresh_version" not in log_of(tmp_path)[0]


@pytest.mark.parametrize("lag", [None, 0, 3])
def test_an_error_of_renew_ends_the_run(tmp_path, lag):
    def broken(n: int) -> None:
        if n == 1:
            raise ArithmeticError("no keys")

    with pytest.raises(ArithmeticError, match="no keys"):
        run(tmp_path, follow(lag=lag, before=broken), Line(hook=join_at(7)))
    assert log_of(tmp_path)[-1]["step"] < 10


def test_an_error_that_comes_too_late_is_told(tmp_path, caplog):
    def broken(n: int) -> None:
        if n == 1:
            raise ArithmeticError("no keys")

    task = follow(lag=None, before=broken, while_painting=lambda: join_at(5)(5))
    run(tmp_path, task, steps=5)
    assert "the refresh of step 5 failed: ArithmeticError: no keys" in caplog.text


def test_a_refresh_in_parts_is_stopped_with_the_run(tmp_path):
    """And what it leaves is no thread."""

    class InParts(Follow):
        def refresh_arrays(self, params, frozen, check_cancelled):
            while len(self.seen) == 1:
                time.sleep(0.001)
                check_cancelled()
            return super().refresh_arrays(params, frozen)

    clock = time.perf_counter()
    run(tmp_path, InParts(refresh=RefreshConfig(5, None)), steps=7)
    assert not [thread for thread in threading.enumerate() if thread.name == "refresh"]
    assert time.perf_counter() - clock < refresh.PATIENCE


def test_shapes_stay(tmp_path):
    class Growing(Follow):
        def refresh_arrays(self, params, frozen, check_cancelled=None):
            self.seen.append(None)
            return {"kernel": np.zeros((len(self.seen), 2), np.float32)}

    made = make_refresh(Growing(refresh=RefreshConfig(1, 0)), make_mesh(1), {})
    made.start(0, PARAMS, Checkpoints(tmp_path))
    with pytest.raises(ValueError, match=r"\[2, 2, 'float32'\]} of step 1, after .*\[1, 2, 'float32'\]}: shapes"):
        made.after_step(1, PARAMS)


@pytest.mark.parametrize("made", [np.ones(3), [np.ones(3)], {"a": (np.ones(3),)}])
def test_arrays_come_as_dicts(tmp_path, made):
    class Odd(Follow):
        def refresh_arrays(self, params, frozen, check_cancelled=None):
            return made

    refresh = make_refresh(Odd(), make_mesh(1), {})
    with pytest.raises(ValueError, match=r"task\.refresh_arrays gave a .*: give a dict of arrays"):
        refresh.start(0, PARAMS, Checkpoints(tmp_path))


def test_a_spare_device_refreshes(tmp_path):
    """Training on the first device, refreshing on the second: the same run, elsewhere."""
    trained, spare = jax.devices()
    task = follow(spare=1)
    weights = run(tmp_path / "spare", task)
    assert task.traces[0].mesh.devices.tolist() == [[trained]]
    for params, frozen in task.seen:
        assert {leaf.devices() == {spare} for leaf in jax.tree.leaves((params, frozen))} == {True}
    assert weights == run(tmp_path / "shared", follow(), devices=1)
    assert spare_mesh(0) is None


def test_a_refresh_moves_to_another_number_of_devices(tmp_path, straight):
    run(tmp_path, follow(), steps=7, devices=1)
    moved = run(tmp_path, follow())["params"]["layer"]
    for name, value in straight[3][1]["params"]["layer"].items():
        np.testing.assert_allclose(moved[name], value, atol=1e-5)


def start(folder: Path, devices: int = 1, **settings) -> subprocess.Popen:
    """A run of `refreshing.py` that sees `devices` CPU devices."""
    settings["trainer"] = TRAINER | dict(checkpoint_every=6) | settings.get("trainer", {})
    settings["refresh"] = dict(every=5, lag=3) | settings.get("refresh", {})
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(PROGRAM.parents[2]),
    }
    words = [sys.executable, str(PROGRAM), str(folder), json.dumps(settings)]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*runs: subprocess.Popen, code: int = 0) -> None:
    for one in runs:
        output, _ = one.communicate(timeout=300)
        assert one.returncode == code, output


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    finish(start(folder))
    return folder


@pytest.mark.slow
def test_killed_during_refreshes_it_ends_in_the_same_weights(tmp_path, alone):
    for step in (2, 7, 12):  # before any checkpoint, with arrays under way in one, during a refresh
        finish(start(tmp_path, kill=step), code=-9)
    finish(start(tmp_path))
    assert without_times(tmp_path) == without_times(alone)
    kept = [json.loads((folder / "weights.safetensors").read_text())["params"] for folder in (tmp_path, alone)]
    assert kept[0] == kept[1]


@pytest.mark.slow
def test_a_refresh_that_never_ends_does_not_hold_the_program(tmp_path):
    finish(start(tmp_path, refresh=dict(lag=None), stuck=1))
    assert (tmp_path / "weights.safetensors").exists()


@pytest.mark.slow
def test_two_processes_refresh_together(tmp_path, alone):
    """From a checkpoint with arrays under way, a single process goes on."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    cluster = [dict(coordinator=address, processes=2, process=i) for i in range(2)]
    finish(*[start(tmp_path, 2, cluster=one, trainer=dict(steps=7)) for one in cluster])
    finish(start(tmp_path))
    losses = [[row["loss"] for row in without_times(folder)] for folder in (tmp_path, alone)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
