"""From a Hydra config to a run: finds the experiment, builds its objects, checks the run folder, calls the trainer.

Experiments are in `configs/experiment/ROOM/NAME.yaml`; `experiment=NAME` and `experiment=ROOM/NAME` mean the same. A
run folder holds

    config.yaml           everything, resolved: the same command resumes, another recipe under the same name is refused
    metrics.jsonl, pictures/, checkpoints/, tensorboard/, and at the end weights.safetensors
    .lock                 held by the process that trains; the system releases it, however the process ends
    error.log             the traceback of the error that ended a run
"""

import contextlib
import dataclasses
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

import configs
from common.io.files import atomic_output, try_lock
from common.runtime import setup
from common.terminal import EXHAUSTED
from common.training import distributed
from common.training.config import instantiate, name_of, packages_of
from common.training.logger import LoggerConfig
from common.training.optimizer import OptimConfig
from common.training.trainer import TrainerConfig, train

log = logging.getLogger(__name__)
logging.getLogger("absl").setLevel(logging.WARNING)  # orbax logs every file
logging.getLogger("jax").setLevel(logging.WARNING)  # and JAX every missing backend
SHOW_ALL = bool(os.environ.get("HYDRA_FULL_ERROR"))  # by the user, before `program` sets it
DEFAULTS = {  # (group, name) of configs that are the defaults of a dataclass
    ("optim", "adam"): OptimConfig,
    ("trainer", "default"): TrainerConfig,
    ("logger", "tensorboard"): LoggerConfig,
    ("cluster", "default"): distributed.ClusterConfig,
}
RECIPE = re.compile(r"^(seed|task|data|optim|trainer\.(accumulate|steps))(\.|$)")  # fixed for a resumed run
# Exceptions, which change no weights
HARMLESS = re.compile(r"^(data\.(threads|buffer)|task\.refresh\.spare|task\.(image_summaries|metrics)(\..*)?)$")
OUT_OF_MEMORY = (
    "out of memory: lower data.batch_size, or set task.remat=true, task.dtype=bfloat16, or, on several devices, "
    "trainer.fsdp. trainer.accumulate saves memory, but losses that compare examples or count tokens then see one part"
)


def train_from_config(config: DictConfig) -> None:
    """Runs or resumes the experiment."""
    sweep = in_sweep()  # a folder for each job
    with one_line_errors(sweep):
        setup()
        distributed.join(instantiate(config.cluster, "cluster"))
        objects = build(config)  # every value is checked before anything is written
        folder = Path(HydraConfig.get().runtime.output_dir if sweep else f"runs/{config.name}")
        metadata = {"seed": config.seed, "experiment": config.name, "recipe": recipe_of(config)}
        with contextlib.ExitStack() as locked:
            distributed.on_first(lambda: locked.enter_context(lock(folder)))
            distributed.on_first(lambda: record(config, folder, objects["optim"]))
            name = "error.log" if distributed.is_first() else f"error_{jax.process_index()}.log"
            (folder / name).unlink(missing_ok=True)  # of an attempt before
            try:
                path = train(**objects, folder=folder, **metadata)
            except Exception as error:
                (folder / name).write_text(traceback.format_exc())
                exhausted = isinstance(error, jax.errors.JaxRuntimeError) and EXHAUSTED in str(error)
                if exhausted or isinstance(error, MemoryError):
                    error = MemoryError(OUT_OF_MEMORY)
                error.add_note(f"{folder / name} has the traceback")
                raise error
        log.info("weights: %s", path)


def evaluate_from_config(config: DictConfig) -> None:
    """Prints the table of the experiment's evaluation and writes it to the output folder."""
    with one_line_errors(in_sweep()):
        setup()
        if config.evaluation is None:
            raise ValueError("this experiment has no evaluation; choose evaluation=... or experiment=film_small")
        evaluation, folder = instantiate(_selected(config), "evaluation"), Path("runs") / config.name
        output = Path(config.output or folder / "evaluation")
        log.info(evaluation.run(str(config.weights or folder), output, overwrite=config.overwrite))


def in_sweep() -> bool:
    """Whether this is a job of a sweep (`-m`)."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def _selected(config: DictConfig) -> dict[str, Any]:
    """The evaluation of the experiment with the `sets`, `metrics`, `limit` and `scales` of the command."""
    whole = _plain(config)
    evaluation = whole["evaluation"]
    for group in ("sets", "metrics"):
        if (names := whole.get(group)) is not None:
            names, known = [names] if isinstance(names, str) else names, evaluation.get(group, {})
            if unknown := [name for name in names if name not in known]:
                raise ValueError(f"{group} names {unknown[0]!r}: this experiment has {', '.join(known) or 'none'}")
            evaluation[group] = {name: known[name] for name in names}
            if during := evaluation.get(f"training_{group}"):
                evaluation[f"training_{group}"] = [name for name in during if name in names or name not in known]
    return evaluation | {key: whole[key] for key in ("limit", "scales") if whole.get(key) is not None}


def build(config: DictConfig, packages: Collection[str] | None = None) -> dict[str, Any]:
    """The objects of a run by the names that `train` gives them; `packages` as in `instantiate`."""
    if missing := sorted(OmegaConf.missing_keys(config)):
        raise ValueError(f"no value for {', '.join(missing)}: choose an experiment, for instance experiment=film_small")
    names = ("task", "data", "optim", "trainer", "logger", "evaluation")
    return {("config" if name == "trainer" else name): instantiate(config[name], name, packages) for name in names}


def recipe_of(config: DictConfig) -> dict[str, Any]:
    """The part of the config that determines the weights, for their metadata."""
    whole = _plain(config)
    return {name: whole[name] for name in ("seed", "task", "data", "optim")}


def _plain(config: DictConfig) -> dict[str, Any]:
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


def record(config: DictConfig, folder: Path, optim: OptimConfig) -> None:
    """Writes `config.yaml`. Raises ValueError to resume a checkpoint with another recipe, including the number of steps
    if learning rates of the steps done depend on it. A file or folder may have moved, under its name: then the old
    place is empty. Objects are compared, not text: a run folder may leave out or write out defaults."""
    path = folder / "config.yaml"
    saved = [int(x.name) for x in (folder / "checkpoints").glob("[0-9]*") if x.name.isdigit()]  # orbax's temporary: no
    if path.exists() and saved:
        packages = packages_of(config)  # the file may not name more
        before, now = (_values(x, packages) for x in (OmegaConf.load(path), config))  # type: ignore[arg-type]
        changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        if optim.same_until(max(saved), before["trainer.steps"], now["trainer.steps"]):
            changed = [key for key in changed if key != "trainer.steps"]
        for key in [key for key in changed if _has_moved(before.get(key), now.get(key))]:
            log.info("%s has moved: %s is now %s", key, before[key], now[key])
            changed.remove(key)
        if changed:
            raise ValueError(f"{folder} has other values of {', '.join(changed)}; choose a new name=... for this run")
    with atomic_output(path, overwrite=True) as temporary:
        OmegaConf.save(config, temporary, resolve=True)


def _has_moved(before: Any, now: Any) -> bool:
    paths = [Path(value) for value in (before, now) if isinstance(value, str | Path)]
    return len({path.name for path in paths}) == 1 and [path.exists() for path in paths] == [False, True]


def _values(config: DictConfig, packages: Collection[str]) -> dict[str, Any]:
    """The values that determine the weights of a run, by path."""

    def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if dataclasses.is_dataclass(value):
            fields = [field.name for field in dataclasses.fields(value) if field.init and field.compare]
            value = {"_target_": name_of(type(value)), **{name: getattr(value, name) for name in fields}}
        elif isinstance(value, list | tuple):
            if any(dataclasses.is_dataclass(item) or isinstance(item, Mapping) for item in value):
                value = dict(enumerate(value))
            else:
                value = repr(list(value)).replace("(", "[").replace(")", "]")
        if isinstance(value, Mapping):
            for key, item in value.items():
                yield from leaves(item, f"{path}.{key}")
        else:
            yield path, value

    names = ("seed", "task", "data", "optim", "trainer")
    found = {key: value for name in names for key, value in leaves(instantiate(config[name], name, packages), name)}
    return {key: found[key] for key in found if RECIPE.match(key) and not HARMLESS.match(key)}


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Holds the folder, made if missing, for this process. Raises ValueError while another process trains in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:
        if not try_lock(file.fileno()):
            raise ValueError(f"{folder}: another process trains there; stop it, or choose a new name=...")
        yield


def program(main: Callable[[], None]) -> None:
    """Runs a Hydra program; errors of Hydra itself (an unknown key) become one line and exit code 2, too."""
    sys.argv[1:] = [short_name(word) for word in sys.argv[1:]]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, instead of printing several lines and exit code 1
    with one_line_errors():
        main()


@contextlib.contextmanager
def one_line_errors(job: bool = False) -> Iterator[None]:
    """Turns user errors into one line on stderr and exit code 2; HYDRA_FULL_ERROR=1 shows the traceback. Of a `job` of
    a sweep the line is logged, and raised as ValueError: Hydra goes on with the other jobs, and raises it at the
    end."""
    try:
        yield
    except KeyboardInterrupt as stop:
        print(stop.args[0] if stop.args else "stopped", file=sys.stderr)
        raise SystemExit(130) from stop
    except (ValueError, TypeError, OSError, ImportError, FloatingPointError, MemoryError, HydraException) as error:
        if SHOW_ALL:
            raise
        cause = error.__cause__ if isinstance(error, HydraException) and error.__cause__ else error
        line = " ".join(str(cause).split())  # Hydra's own take several
        where = "; ".join(getattr(error, "__notes__", ())) or "HYDRA_FULL_ERROR=1 shows the traceback"
        if job:
            log.error("error: %s (%s)", line, where)
            failed = ValueError(line)  # JAX's own may not travel between processes
            failed.add_note(where)
            raise failed from error
        print(f"error: {line} ({where})", file=sys.stderr)
        raise SystemExit(2) from error


def short_name(word: str) -> str:
    """The short form of an override: "experiment=film/film_l1" is "experiment=film_l1"."""
    return re.sub(r"(?<=[=,])\w+/(?=\w)", "", word) if word.startswith("experiment=") else word


def register() -> None:
    """Registers the short name of each experiment and the groups of `DEFAULTS` with Hydra."""
    store = ConfigStore.instance()
    for path in sorted(Path(configs.__file__).parent.glob("experiment/*/*.yaml")):
        node = {"defaults": [f"{path.parent.name}/{path.stem}"]}
        store.store(group="experiment", name=path.stem, node=node, package="_global_")
    for (group, name), kind in DEFAULTS.items():
        store.store(group=group, name=name, node={"_target_": name_of(kind), **vars(kind())})


register()
