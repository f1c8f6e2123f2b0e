"""FILM's training program on many devices and in two processes: the loss curve of one device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from toy_task import finish, two_processes

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


def losses(folder: Path, devices: int, *more: str) -> list[float]:
    finish(start(folder, devices, *more))
    rows = [json.loads(line) for line in (folder / "runs/run/metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows]


@pytest.mark.slow
def test_any_number_of_devices_gives_the_same_curve(tmp_path):
    """Also with parts of a batch on split parameters."""
    alone = losses(tmp_path / "1", 1)
    assert len(alone) == 6
    for devices, options in ((2, []), (4, ["trainer.accumulate=2", "trainer.fsdp=2"])):
        np.testing.assert_allclose(losses(tmp_path / str(devices), devices, *options), alone, rtol=1e-5)


@pytest.mark.slow
def test_an_error_of_one_process_ends_all(tmp_path):
    """The run has another recipe: only the first process looks, and none is left waiting."""
    finish(start(tmp_path, 1, "trainer.steps=3"))
    clusters = [[f"cluster.{name}={value}" for name, value in each.items()] for each in two_processes()]
    for run in [start(tmp_path, 1, "seed=5", *words) for words in clusters]:
        output, _ = run.communicate(timeout=300)
        assert run.returncode == 2 and "seed" in output, output
