"""What a run folder knows about its run: the recipe it was begun with, that somebody is at work, why it stopped.

config.yaml   everything, resolved: the same command resumes, another recipe under the same name is refused
.lock         held while a process trains there; the system lets go of it, however the process ends
error.log     the traceback of what ended a run, when that was no wish of the user's
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from common.io.files import atomic_output

RECIPE = ("seed", "task", "data", "optim", "trainer.accumulate")  # what a run may not change when it is resumed,
LENGTH = "trainer.steps"  # this too if the learning rate depends on it,
# And these never matter.
HARMLESS = re.compile(r"^(data\.(threads|buffer)|task\.renewal\.spare|task\.(panels|metrics)(\..*)?)$")


def recipe_of(config: DictConfig, whole_length: bool = False) -> dict[str, Any]:
    """The values that decide over a run's weights, by path; the number of steps only with `whole_length`."""
    leaves = dict(_leaves(OmegaConf.to_container(config, resolve=True)))
    kept = (*RECIPE, LENGTH) if whole_length else RECIPE
    return {
        key: value
        for key, value in leaves.items()
        if any(key == name or key.startswith(f"{name}.") for name in kept) and not HARMLESS.match(key)
    }


def record(config: DictConfig, folder: Path, whole_length: bool = False) -> None:
    """Writes `config.yaml`. If there is a checkpoint to resume, it is compared with the config of its run first:
    ValueError names the values of the recipe that differ."""
    path = folder / "config.yaml"
    if path.exists() and any((folder / "checkpoints").glob("[0-9]*")):
        before, now = (recipe_of(x, whole_length) for x in (OmegaConf.load(path), config))  # type: ignore[arg-type]
        changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        if changed:
            raise ValueError(
                f"{folder} was begun with other values of {', '.join(changed)}; choose a new name=... for this run"
            )
    with atomic_output(path, overwrite=True) as temporary:
        OmegaConf.save(config, temporary, resolve=True)


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """The folder, made if it is not there, for this process alone: ValueError while another one is at work in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        try:
            import fcntl  # there is none on Windows

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"{folder}: another process is training there; wait for it, stop it, or choose a new name=..."
            ) from error
        except (ImportError, OSError):  # a file system without locks
            pass
        yield


@contextlib.contextmanager
def kept_trace(path: Path) -> Iterator[None]:
    """Writes the traceback of an error to `path`, for the user sees one line of it."""
    try:
        yield
    except Exception as error:
        path.write_text(traceback.format_exc())
        error.add_note(f"{path} shows where")
        raise


def _leaves(tree: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(tree, dict):
        return [leaf for key, value in tree.items() for leaf in _leaves(value, f"{prefix}{key}.")]
    return [(prefix[:-1], tree)]
