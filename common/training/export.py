"""Weights of a run that is not over: the averaged weights of its newest checkpoint, as the end of it would write them.

    python -m common.training.export runs/NAME

writes runs/NAME/weights..., which `start_from` and inference read. The run itself may go on: its state is not touched.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import jax
import tyro
from omegaconf import DictConfig, OmegaConf

from common.io.files import require_file
from common.runtime import setup
from common.training import distributed
from common.training.checkpoint import Checkpoints
from common.training.mesh import make_mesh, shardings
from common.training.optimizer import make_optimizer
from common.training.run import build, one_line_errors, recipe_of
from common.training.state import init_state


def export(folder: str | Path) -> Path:
    """Where the weights are. Raises FileNotFoundError (no run, no checkpoint yet), ValueError (not its config)."""
    folder = Path(folder)
    config = OmegaConf.load(require_file(folder / "config.yaml"))
    assert isinstance(config, DictConfig), "a run writes a mapping"
    parts = build(config)
    task, optim, settings = (parts[name] for name in ("task", "optim", "config"))
    checkpoints = Checkpoints(folder)
    step = checkpoints.latest()
    if step is None:
        raise FileNotFoundError(f"{folder}: no checkpoint yet; the first comes at step {settings.checkpoint_every}")
    mesh = make_mesh(settings.devices, settings.fsdp)
    fresh = partial(init_state, task, make_optimizer(optim, settings.steps), optim, config.seed)
    shapes = jax.eval_shape(fresh)
    target = jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        shapes,
        shardings(mesh, shapes, settings.sharding),
    )
    state, _ = checkpoints.restore(step, target)
    checkpoints.close()
    about = {"steps": step, "seed": config.seed, "experiment": config.name, "recipe": recipe_of(config)}
    return task.export(folder / "weights.safetensors", distributed.fetch(state.averaged), about)


def main(folder: tyro.conf.Positional[str]) -> None:
    """Write the averaged weights of a run's newest checkpoint.

    Args:
        folder: of the run, as in runs/NAME.
    """
    with one_line_errors():
        setup()
        print(export(folder))


if __name__ == "__main__":
    tyro.cli(main, prog="python -m common.training.export")
