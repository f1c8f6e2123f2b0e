"""Export the averaged weights of the newest checkpoint of a run, as the end of the run would.

    python -m common.training.export runs/NAME

writes runs/NAME/weights..., which `start_from` and inference read. It works on a CPU, whatever devices the run has, so
the run may go on. A run folder may come from somebody else, so its config makes objects of this project only;
`--packages edge_loss` admits classes of a package of your own.
"""

from pathlib import Path

import jax
import tyro
from omegaconf import DictConfig, OmegaConf

from common.io.files import require_file
from common.runtime import setup
from common.training import distributed
from common.training.checkpoint import Checkpoints
from common.training.config import PROJECT
from common.training.mesh import make_mesh
from common.training.optimizer import make_optimizer
from common.training.run import build, one_line_errors, recipe_of
from common.training.state import abstract_state


def export(folder: tyro.conf.Positional[Path], packages: tyro.conf.UseAppendAction[tuple[str, ...]] = ()) -> Path:
    """Exports the averaged weights of the newest checkpoint of a run; gives their path.

    Args:
        folder: Run folder, such as runs/NAME.
        packages: Package of your own whose classes the run's config may name.
    """
    config = OmegaConf.load(require_file(folder / "config.yaml"))
    assert isinstance(config, DictConfig), "a run writes a mapping"
    objects = build(config, PROJECT | set(packages))
    task, optim, settings = objects["task"], objects["optim"], objects["config"]
    checkpoints = Checkpoints(folder)
    step = checkpoints.latest()
    if step is None:
        raise FileNotFoundError(f"{folder}: no checkpoint yet; the first comes at step {settings.checkpoint_every}")
    mesh, tx = make_mesh(1), make_optimizer(optim, settings.steps)  # a checkpoint fits any number of devices
    state, _ = checkpoints.restore(step, abstract_state(task, tx, optim, mesh, settings.sharding))
    checkpoints.close()
    metadata = {"steps": step, "seed": config.seed, "experiment": config.name, "recipe": recipe_of(config)}
    return task.export(folder / "weights.safetensors", distributed.fetch(state.averaged), metadata)


if __name__ == "__main__":
    with one_line_errors():
        jax.config.update("jax_platforms", "cpu")
        setup()
        print(tyro.cli(export, prog="python -m common.training.export"))
