"""From a Hydra config to a run: finds the named experiment, builds its objects, keeps the run folder, calls the trainer.

Experiments lie in `configs/experiment/ROOM/NAME.yaml`; `experiment=NAME` and `experiment=ROOM/NAME` mean the same. Groups
whose files would only repeat the defaults of a dataclass (`DEFAULTS`) have no file: they are registered from the class.

A run folder holds

    config.yaml           everything, resolved: the same command resumes, another recipe under the same name is refused
    metrics.jsonl, pictures/, checkpoints/, tensorboard/, and at the end weights.safetensors
    .lock                 held while a process trains there; the system releases it, however the process ends
    error.log             the traceback of what ended a run, when the user did not stop it
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

import configs
from common.io.files import atomic_output
from common.runtime import setup
from common.training import distributed, renamed
from common.training.config import instantiate
from common.training.logger import LoggerConfig
from common.training.optimizer import OptimConfig
from common.training.trainer import TrainerConfig, train

log = logging.getLogger(__name__)
logging.getLogger("absl").setLevel(logging.WARNING)  # orbax tells of every file
logging.getLogger("jax").setLevel(logging.WARNING)  # and JAX of every backend that is not there
SHOW_ALL = bool(os.environ.get("HYDRA_FULL_ERROR"))  # what the user asked for, before `program` sets it
PARTS = ("task", "data", "optim", "trainer", "logger", "evaluation")
DEFAULTS = {  # (group, name) of configs that are the defaults of a dataclass
    ("optim", "adam"): OptimConfig,
    ("trainer", "default"): TrainerConfig,
    ("logger", "tensorboard"): LoggerConfig,
    ("cluster", "default"): distributed.ClusterConfig,
}
RECIPE = re.compile(r"^(seed|task|data|optim|trainer\.accumulate)(\.|$)")  # what a resumed run may not change
HARMLESS = re.compile(
    r"^(data\.(threads|buffer)|task\.refresh\.spare|task\.(panels|image_summaries|metrics)(\..*)?)$"
)  # but these


def train_from_config(config: DictConfig) -> None:
    """Runs or resumes the experiment; user errors end the program with one line and exit code 2."""
    with one_line_errors():
        setup()
        distributed.join(instantiate(config.cluster, "cluster"))  # before any array exists
        parts = build(config)  # every value is checked before anything is written
        folder = folder_of(config)
        about = {"seed": config.seed, "experiment": config.name, "recipe": recipe_of(config)}
        with contextlib.ExitStack() as claim:
            distributed.on_first(lambda: claim.enter_context(lock(folder)))
            distributed.on_first(lambda: record(config, folder, parts["optim"].knows_its_end))
            with keep_traceback(folder / distributed.own_name("error.log")):
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
    """The experiment's evaluation with the choices of the command: some of its sets and metrics, a limit, scales."""
    whole: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    evaluation = whole["evaluation"]
    for group in ("sets", "metrics"):
        if (names := whole.get(group)) is not None:
            names, known = [names] if isinstance(names, str) else names, evaluation.get(group, {})
            if unknown := [name for name in names if name not in known]:
                raise ValueError(f"{group} names {unknown[0]!r}: this experiment has {', '.join(known) or 'none'}")
            evaluation[group] = {name: known[name] for name in names}
            if group == "metrics" and (during := evaluation.get("training_metrics")):
                evaluation["training_metrics"] = [name for name in during if name in names or name not in known]
    given = {key: whole.get(key) for key in ("limit", "scales")}
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


def recipe_of(config: DictConfig) -> dict[str, Any]:
    """Provenance of weights: what goes into their metadata about how they were made."""
    whole: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    return {name: whole[name] for name in ("seed", "task", "data", "optim")}


def record(config: DictConfig, folder: Path, fixed_length: bool = False) -> None:
    """Writes `config.yaml`. If there is a checkpoint to resume, compares it with the config of that run first.

    Raises ValueError that names the values of the recipe that differ: all that decides over the weights, with the number
    of steps if the learning rate depends on it (`fixed_length`). Objects are compared, not words: an old run folder may
    use old names, and leave out or write out what is a default."""
    path = folder / "config.yaml"
    if path.exists() and any((folder / "checkpoints").glob("[0-9]*")):
        before, now = (_values(x, fixed_length) for x in (OmegaConf.load(path), config))  # type: ignore[arg-type]
        changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        if changed:
            raise ValueError(
                f"{folder} was begun with other values of {', '.join(changed)}; choose a new name=... for this run"
            )
    with atomic_output(path, overwrite=True) as temporary:
        OmegaConf.save(config, temporary, resolve=True)


def _values(config: DictConfig, fixed_length: bool) -> dict[str, Any]:
    """The values that decide over a run's weights, by path."""

    def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if dataclasses.is_dataclass(value):
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            fields = [field.name for field in dataclasses.fields(value) if field.init and field.compare]
            value = {"_target_": kind, **{name: getattr(value, name) for name in fields}}
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from leaves(inner, f"{path}.{key}")
        elif isinstance(value, list | tuple):
            if any(dataclasses.is_dataclass(inner) or isinstance(inner, Mapping) for inner in value):
                yield from leaves({str(i): inner for i, inner in enumerate(value)}, path)
            else:
                yield path, repr(list(value)).replace("(", "[").replace(")", "]")
        else:
            yield path, value

    names = ("seed", "task", "data", "optim", "trainer")
    found = {key: value for name in names for key, value in leaves(instantiate(config[name], name), name)}
    kept = {key for key in found if RECIPE.match(key) or (fixed_length and key == "trainer.steps")}
    return {key: found[key] for key in kept if not HARMLESS.match(key)}


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """The folder, made if missing, for this process alone. Raises ValueError while another one trains in it."""
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
def keep_traceback(path: Path) -> Iterator[None]:
    """Writes the traceback of an error to `path`; the terminal shows one line of it."""
    try:
        yield
    except Exception as error:
        path.write_text(traceback.format_exc())
        error.add_note(f"{path} shows where")
        raise


def program(main: Callable[[], None]) -> None:
    """Runs a Hydra program so that also what Hydra itself refuses (an unknown key) is one line and exit code 2."""
    sys.argv[1:] = [short_name(renamed.override(word)) for word in sys.argv[1:]]
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


def short_name(word: str) -> str:
    """An override as `register` knows it: "experiment=film/film_l1" is "experiment=film_l1"."""
    return re.sub(r"(?<=[=,])\w+/(?=\w)", "", word) if word.startswith("experiment=") else word


def register() -> None:
    """Makes Hydra find each experiment by its short name, and the groups of `DEFAULTS`."""
    store = ConfigStore.instance()
    for path in sorted(Path(configs.__file__).parent.glob("experiment/*/*.yaml")):
        node = {"defaults": [f"{path.parent.name}/{path.stem}"]}
        store.store(group="experiment", name=path.stem, node=node, package="_global_")
    for (group, name), kind in DEFAULTS.items():
        fields = {field.name: getattr(kind(), field.name) for field in dataclasses.fields(kind)}
        node = {"_target_": f"{kind.__module__}.{kind.__qualname__}", **fields}
        store.store(group=group, name=name, node=node)


register()
