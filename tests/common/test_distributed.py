"""Many devices, several processes, sudden deaths: always the run that one quiet process on one device would do."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from common.training.distributed import ClusterConfig

LINE = Path(__file__).parent / "line.py"
TRAINER = dict(steps=12, log_every=1, picture_every=6, checkpoint_every=3)


def start(folder: Path, devices: int, **settings) -> subprocess.Popen:
    """A run of `line.py` that sees `devices` CPU devices."""
    settings["trainer"] = TRAINER | settings.get("trainer", {})
    root = str(LINE.parents[2])
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": root,
    }
    words = [sys.executable, str(LINE), str(folder), json.dumps(settings)]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*runs: subprocess.Popen) -> None:
    for run in runs:
        output, _ = run.communicate(timeout=300)
        assert run.returncode == 0, output


def losses(folder: Path) -> np.ndarray:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, TRAINER["steps"] + 1))
    return np.array([row["loss"] for row in rows])


def weights(folder: Path) -> dict:
    return json.loads((folder / "weights.safetensors").read_text())["params"]["layer"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    finish(start(folder, 1))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 8])
def test_any_number_of_devices_gives_the_same_curve(tmp_path, alone, devices):
    finish(start(tmp_path, devices))
    np.testing.assert_allclose(losses(tmp_path), losses(alone), rtol=1e-5)


@pytest.mark.slow
def test_split_parameters_give_the_same_curve(tmp_path, alone):
    finish(start(tmp_path, 4, trainer=dict(fsdp=2), smallest_split=0))
    np.testing.assert_allclose(losses(tmp_path), losses(alone), rtol=1e-5)


@pytest.mark.slow
def test_a_checkpoint_moves_between_devices_and_layouts(tmp_path, alone):
    """Split over two of four devices, whole on one, whole on four, split over two."""
    for devices, fsdp, steps in ((4, 2, 3), (1, 1, 6), (4, 1, 9), (2, 2, 12)):
        finish(start(tmp_path, devices, trainer=dict(steps=steps, fsdp=fsdp), smallest_split=0))
    np.testing.assert_allclose(losses(tmp_path), losses(alone), rtol=1e-5)


@pytest.mark.slow
def test_two_processes_train_and_save_together(tmp_path, alone):
    """The second half is done by a single process, from the two's checkpoint."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    cluster = [dict(coordinator=address, processes=2, process=i) for i in range(2)]
    finish(*[start(tmp_path, 2, cluster=one, trainer=dict(steps=6)) for one in cluster])
    assert (tmp_path / "weights.safetensors").exists()
    finish(start(tmp_path, 1))
    np.testing.assert_allclose(losses(tmp_path), losses(alone), rtol=1e-5)


@pytest.mark.slow
def test_killed_five_times_it_ends_in_the_same_weights_bit_for_bit(tmp_path, alone):
    for step in (2, 5, 6, 10, 11):  # before the first checkpoint, between two, and right after one
        run = start(tmp_path, 1, kill=step)
        output, _ = run.communicate(timeout=300)
        assert run.returncode == -9, output
    finish(start(tmp_path, 1))
    assert weights(tmp_path) == weights(alone)
    np.testing.assert_array_equal(losses(tmp_path), losses(alone))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(processes=2), "cluster.coordinator"),
        (dict(coordinator="localhost:1", processes=2, process=2), "from 0 to 1"),
        (dict(process=-1), "from 0 to 0"),
    ],
)
def test_clusters_that_cannot_be(fields, said):
    with pytest.raises(ValueError, match=said):
        ClusterConfig(**fields)
