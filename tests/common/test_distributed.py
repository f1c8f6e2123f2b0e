"""Several devices and processes, and killed processes: always the run of one process on one device."""

import json
from pathlib import Path

import numpy as np
import pytest
from toy_task import checkpoints_of, finish, log_of, start, two_processes

TRAINER = dict(steps=12, log_every=1, picture_every=6, checkpoint_every=3)


def run(folder: Path, devices: int = 1, trainer=None, **settings):
    return start(folder, devices, trainer=TRAINER | (trainer or {}), **settings)


def losses(folder: Path) -> list[float]:
    rows = log_of(folder)
    assert [row["step"] for row in rows] == list(range(1, TRAINER["steps"] + 1))
    return [row["loss"] for row in rows]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    finish(run(folder))
    return folder


@pytest.mark.slow
def test_any_devices_and_layouts_give_the_same_curve(tmp_path, alone):
    """The checkpoint moves: split over two of four devices, whole on one, whole on eight, split over two."""
    stages = [
        dict(steps=steps, devices=devices, fsdp=fsdp)
        for steps, devices, fsdp in ((3, 4, 2), (6, 1, 1), (9, 8, 1), (12, 2, 2))
    ]
    finish(run(tmp_path, 8, stages=stages, smallest_split=0))
    np.testing.assert_allclose(losses(tmp_path), losses(alone), rtol=1e-5)


@pytest.mark.slow
def test_two_processes_train_and_save_together(tmp_path, alone):
    """The first says which checkpoint is the best, even if the other does not see it yet. The second half is done by a
    single process, from the two's checkpoint."""
    trainer = dict(steps=6, evaluate_every=3, best="toy/distance", fsdp=2)
    settings, processes = dict(smallest_split=0, scores=[2.0, 1.0]), enumerate(two_processes())
    finish(*[run(tmp_path, 1, trainer, cluster=one, late=i == 1, **settings) for i, one in processes])
    assert (tmp_path / "weights.safetensors").exists()
    assert json.loads((tmp_path / "best.safetensors").read_text())["steps"] == 3
    finish(run(tmp_path))
    rows = [row["loss"] for row in log_of(tmp_path) if "loss" in row]
    np.testing.assert_allclose(rows, losses(alone), rtol=1e-5)


@pytest.mark.slow
def test_killed_three_times_it_ends_in_the_same_weights_bit_for_bit(tmp_path, alone):
    for step in (2, 6, 11):  # before the first checkpoint, between two, and right after one
        finish(run(tmp_path, kill=step), code=-9)
    finish(run(tmp_path))
    kept = [json.loads((folder / "weights.safetensors").read_text())["params"] for folder in (tmp_path, alone)]
    assert kept[0] == kept[1] and losses(tmp_path) == losses(alone)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_one_of_two_killed_ends_the_other_and_both_resume(tmp_path, alone, victim):
    """After the checkpoint of step 3, as batch 5 is drawn."""
    members = [run(tmp_path, 2, cluster=one, kill=5 if one["process"] == victim else 0) for one in two_processes()]
    outputs = [member.communicate(timeout=300)[0] for member in members]
    assert members[victim].returncode == -9 and members[1 - victim].returncode not in (0, -9), outputs[1 - victim]
    assert not (tmp_path / "weights.safetensors").exists()
    finish(*[run(tmp_path, 2, cluster=one) for one in two_processes()])
    np.testing.assert_allclose(losses(tmp_path), losses(alone), rtol=1e-5)


@pytest.mark.slow
def test_a_signal_to_one_of_two_stops_both_soon_and_saved(tmp_path, alone):
    """Long before the next log line or checkpoint."""
    rare = dict(log_every=100, checkpoint_every=100)
    finish(*[run(tmp_path, 1, rare, cluster=one, stop=3 * one["process"]) for one in two_processes()], code=-2)
    assert len(checkpoints_of(tmp_path)) == 1 and checkpoints_of(tmp_path) < {str(step) for step in range(3, 8)}
    finish(run(tmp_path))
    kept = [json.loads((folder / "weights.safetensors").read_text())["params"]["layer"] for folder in (tmp_path, alone)]
    for name, value in kept[0].items():
        np.testing.assert_allclose(value, kept[1][name], rtol=1e-4)


@pytest.mark.slow
def test_a_signal_stops_a_resumed_run_of_two_that_saves_each_step(tmp_path):
    """JAX and orbax count steps, and JAX has one counter."""
    often = dict(log_every=100, checkpoint_every=1, picture_every=0)
    finish(*[run(tmp_path, 1, often | {"steps": 4}, cluster=one) for one in two_processes()])
    finish(*[run(tmp_path, 1, often, cluster=one, stop=6 * one["process"]) for one in two_processes()], code=-2)
    assert max(map(int, checkpoints_of(tmp_path))) < 10
