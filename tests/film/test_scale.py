"""FILM's training program on many devices and in two processes: the loss curve of one device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from toy import WORDS
from toy_task import finish, two_processes

import film

ROOT = Path(film.__file__).parents[1]
COMMAND = [
    *("experiment=film_small_l1", "debug=cpu", "name=run", "data.batch_size=8", "data.crop=16", *WORDS),
    *("trainer.devices=0", "trainer.steps=6", "trainer.log_every=1", "trainer.checkpoint_every=3"),
    *("optim.name=adam", "optim.lr=1e-3", "optim.warmup=0", "trainer.progress=false"),
]


def start(folder: Path, devices: int, *more: str) -> subprocess.Popen:
    """`python train.py COMMAND` in `folder`, with as many CPU devices."""
    folder.mkdir(exist_ok=True)
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, str(ROOT / "train.py"), *COMMAND, *more]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return subprocess.Popen(words, cwd=folder, env=environment, **pipes)  # type: ignore[call-overload]


def losses(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "runs/run/metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    finish(start(folder, 1))
    assert len(losses(folder)) == 6
    return folder


@pytest.mark.slow
def test_four_devices_give_the_curve_of_one(tmp_path, alone):
    """With parts of a batch on split parameters."""
    finish(start(tmp_path, 4, "trainer.accumulate=2", "trainer.fsdp=2"))
    np.testing.assert_allclose(losses(tmp_path), losses(alone), rtol=1e-5)


@pytest.mark.slow
def test_an_error_of_one_process_ends_all(alone):
    """The run has another recipe: only the first process looks, and none is left waiting."""
    clusters = [[f"cluster.{name}={value}" for name, value in each.items()] for each in two_processes()]
    for run in [start(alone, 1, "seed=5", *words) for words in clusters]:
        output, _ = run.communicate(timeout=300)
        assert run.returncode == 2 and "seed" in output, output
