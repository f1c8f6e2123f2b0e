"""FILM's training program on many devices and in two processes: the loss curve of one device."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import film

ROOT = Path(film.__file__).parents[1]
SHAPE = {
    **{"pyramid_levels": 3, "fusion_pyramid_levels": 2, "specialized_levels": 1, "sub_levels": 2},
    **{"filters": 8, "flow_convs": "[1,1]", "flow_filters": "[8,8]"},
}
WORDS = [
    *("experiment=film_small_l1", "debug=cpu", "name=run", "data.batch_size=8", "data.crop=16"),
    *("task.model._target_=film.model.FilmConfig", *(f"+task.model.{key}={value}" for key, value in SHAPE.items())),
    *("task.levels=3", "trainer.devices=0", "trainer.steps=6", "trainer.log_every=1", "trainer.checkpoint_every=3"),
    *("optim.name=adam", "optim.lr=1e-3", "optim.warmup=0", "trainer.progress=false"),
]


def start(folder: Path, devices: int, *more: str) -> subprocess.Popen:
    """`python train.py WORDS` in `folder`, with as many CPU devices."""
    folder.mkdir(exist_ok=True)
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, str(ROOT / "train.py"), *WORDS, *more]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return subprocess.Popen(words, cwd=folder, env=environment, **pipes)  # type: ignore[call-overload]


def start_two(folder: Path, devices: int, *more: str) -> list[subprocess.Popen]:
    """The same in two processes that are one run."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        cluster = [f"cluster.coordinator=localhost:{free.getsockname()[1]}", "cluster.processes=2", *more]
    return [start(folder, devices, *cluster, f"cluster.process={i}") for i in range(2)]


def finish(*runs: subprocess.Popen) -> None:
    for run in runs:
        output, _ = run.communicate(timeout=600)
        assert run.returncode == 0, output


def losses(folder: Path) -> np.ndarray:
    rows = [json.loads(line) for line in (folder / "runs/run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    return np.array([row["loss"] for row in rows])


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> np.ndarray:
    folder = tmp_path_factory.mktemp("alone")
    finish(start(folder, 1))
    return losses(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "options"), [(2, []), (8, []), (4, ["trainer.accumulate=2", "trainer.fsdp=2"])])
def test_any_number_of_devices_gives_the_same_curve(tmp_path, alone, devices, options):
    """Also with parts of a batch on split parameters."""
    finish(start(tmp_path, devices, *options))
    np.testing.assert_allclose(losses(tmp_path), alone, rtol=1e-5)


@pytest.mark.slow
def test_an_error_of_one_process_ends_all(tmp_path):
    """The run has another recipe: only the first process looks, and none is left waiting."""
    finish(start(tmp_path, 1, "trainer.steps=3"))
    for run in start_two(tmp_path, 1, "seed=5"):
        output, _ = run.communicate(timeout=300)
        assert run.returncode == 2 and "seed" in output, output
