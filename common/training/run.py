"""From a Hydra config to a run: builds the named objects, keeps the run folder's record, calls the trainer.

A run folder holds `config.yaml` (everything, resolved), `metrics.jsonl`, `pictures/`, `checkpoints/`, `tensorboard/`
and, at the end, `weights.safetensors`. The same command again resumes; another recipe under the same name is refused
(`record.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from common.runtime import setup
from common.training import distributed, renamed
from common.training.config import instantiate
from common.training.run_record import claimed, kept_trace, record
from common.training.trainer import train

log = logging.getLogger(__name__)
logging.getLogger("absl").setLevel(logging.WARNING)  # orbax tells of every file
logging.getLogger("jax").setLevel(logging.WARNING)  # and JAX of every backend that is not there
SHOW_ALL = bool(os.environ.get("HYDRA_FULL_ERROR"))  # what the user asked for, before `program` sets it
PARTS = ("task", "data", "optim", "trainer", "logger", "evaluation")


def train_from_config(config: DictConfig) -> None:
    """Runs or resumes the experiment; user errors end the program with one line and exit code 2."""
    with one_line_errors():
        setup()
        distributed.join(instantiate(config.cluster, "cluster"))  # before any array exists
        parts = build(config)  # every value is checked before anything is written
        folder = folder_of(config)
        about = {"seed": config.seed, "experiment": config.name, "recipe": asked_of(config)}
        with contextlib.ExitStack() as claim:
            distributed.on_first(lambda: claim.enter_context(claimed(folder)))
            distributed.on_first(lambda: record(config, folder, parts["optim"].knows_its_end))
            with kept_trace(folder / distributed.own_name("error.log")):
                path = train(**parts, folder=folder, **about)
        log.info("weights: %s", path)


def evaluate_from_config(config: DictConfig) -> None:
    """Prints the table of the experiment's evaluation and writes it to the output folder."""
    with one_line_errors():
        setup()
        if config.evaluation is None:
            raise ValueError("this experiment has no evaluation; give one, for instance experiment=film_small")
        evaluation = instantiate(_chosen(config), "evaluation")
        output = Path(config.output or Path("runs") / config.name / "evaluation")
        weights = config.weights or Path("runs") / config.name
        log.info(evaluation.run(str(weights), output, overwrite=config.overwrite))


def _chosen(config: DictConfig) -> dict[str, Any]:
    """The experiment's evaluation with what the command asks for: some of its sets and metrics, a limit, scales."""
    evaluation: dict[str, Any] = OmegaConf.to_container(config.evaluation, resolve=True)  # type: ignore[assignment]
    asked = OmegaConf.to_container(config, resolve=True)
    for group in ("sets", "metrics"):
        if (names := asked.get(group)) is not None:  # type: ignore[union-attr]
            names, there = [names] if isinstance(names, str) else names, evaluation.get(group, {})
            unknown = [name for name in names if name not in there]
            if unknown:
                raise ValueError(f"{group} names {unknown[0]!r}: this experiment has {', '.join(there) or 'none'}")
            evaluation[group] = {name: there[name] for name in names}
            if group == "metrics" and (watched := evaluation.get("training_metrics")):
                evaluation["training_metrics"] = [name for name in watched if name in names or name not in there]
    given = {key: asked.get(key) for key in ("limit", "scales")}  # type: ignore[union-attr]
    return evaluation | {key: value for key, value in given.items() if value is not None}


def build(config: DictConfig) -> dict[str, Any]:
    """The objects of a run by the names that `train` gives them."""
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ValueError(f"no value for {', '.join(missing)}: choose an experiment, for instance experiment=film_small")
    parts = {name: instantiate(config[name], name) for name in PARTS}
    return {("config" if name == "trainer" else name): part for name, part in parts.items()}


def folder_of(config: DictConfig) -> Path:
    """`runs/NAME`; in a sweep, a folder below it for each job, named by what it changes."""
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        return Path(HydraConfig.get().runtime.output_dir)
    return Path("runs") / config.name


def asked_of(config: DictConfig) -> dict[str, Any]:
    """What goes into the weights about how they were made."""
    whole: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    return {name: whole[name] for name in ("seed", "task", "data", "optim")}


def program(main: Callable[[], None]) -> None:
    """Runs a Hydra program so that also what Hydra itself refuses (an unknown key) is one line and exit code 2."""
    sys.argv[1:] = map(renamed.override, sys.argv[1:])
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing several lines and leaving with 1
    with one_line_errors():
        main()


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns errors that a user can mend into one line on stderr and exit code 2; HYDRA_FULL_ERROR=1 shows where."""
    try:
        yield
    except KeyboardInterrupt as stop:
        print(stop.args[0] if stop.args else "stopped", file=sys.stderr)
        raise SystemExit(130) from stop
    except (ValueError, TypeError, OSError, ImportError, FloatingPointError, HydraException) as error:
        if SHOW_ALL:
            raise
        cause = error.__cause__ if isinstance(error, HydraException) and error.__cause__ else error
        line = " ".join(str(cause).split())  # Hydra's own take several
        where = " ".join(getattr(error, "__notes__", ())) or "HYDRA_FULL_ERROR=1 shows where"
        print(f"error: {line} ({where})", file=sys.stderr)
        raise SystemExit(2) from error
