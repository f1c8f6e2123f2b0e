"""The configs: each composes, and a composed run trains, resumes, and refuses in one line."""

import copy
import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import pytest
from command import mistake
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict
from refusal import refused
from toy_task import Fit, log_of

import film
from common.training.config import instantiate
from common.training.export import export
from common.training.optimizer import OptimConfig, Optimizer, make_optimizer
from common.training.run import build, evaluate_from_config, lock, short_name, train_from_config
from common.training.task import Task
from film.model import FilmConfig
from plugins.diffusion.networks.unet_config import UNetConfig
from recipes.film_small.held_out import CUTS, PAIRS
from reveal.network.config import RevealConfig

ROOT = Path(film.__file__).parents[1]
EXPERIMENTS = sorted(path.stem for path in (ROOT / "configs" / "experiment").glob("*/*.yaml"))


def composed(*words: str, config_name: str = "train") -> DictConfig:
    """What `python train.py WORDS` would see."""
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config = compose(config_name, list(words), return_hydra_config=True)
        HydraConfig.instance().set_config(config)  # for ${hydra:...}
        own = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
        return OmegaConf.create(OmegaConf.to_container(own, resolve=True))


@pytest.fixture(autouse=True)
def leave_the_process_alone(monkeypatch):
    monkeypatch.setattr("common.training.run.setup", lambda: None)


@pytest.mark.long
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_each_experiment_composes_and_builds(experiment):
    parts = build(composed(f"experiment={experiment}"))
    tiny = experiment == "film_shapes"  # of a notebook
    if experiment.startswith("film") and not tiny:
        paper = experiment in ("film_l1", "film_vgg", "film_style")
        added = experiment in ("film_small_occlusion", "film_small_device")
        small = FilmConfig.small(coverage=added, sided_levels=2 if added else 0, matching=not added)
        assert parts["task"].model == (FilmConfig.paper() if paper else small)
    assert isinstance(parts["task"], Task)
    assert (100 if tiny else 1000) <= parts["config"].steps >= parts["config"].checkpoint_every


@pytest.mark.parametrize("experiment", ["film/film_style", "control_canny", "reveal_vqa"])  # long and short names
def test_debugging_takes_minutes(experiment):
    config = composed(short_name(f"experiment={experiment}"), "debug=cpu")
    assert config.name == f"{Path(experiment).name}_debug" and build(config)["config"].steps <= 100


@pytest.mark.parametrize(("experiment", "model", "preset"), [
    ("diffusion_small_start", "plugins/sd15", UNetConfig.sd15()),
    ("diffusion_small_start", "plugins/sd21", UNetConfig.sd21()),
    ("reveal_vqa", "reveal/large", RevealConfig.large(bos=32001, sources=4)),
    ("reveal_vqa", "reveal/full", RevealConfig.full(bos=32001, sources=4)),
])  # fmt: skip
def test_published_sizes_are_choices_of_the_model_group(experiment, model, preset):
    task = build(composed(f"experiment={experiment}", f"model={model}"))["task"]
    assert preset in (getattr(task, "unet", None), getattr(task, "network", None))


def test_commands_change_a_network_and_mix_data():
    parts = build(composed("experiment=film_small_flow", "data=film_synthetic", "+task.model.flow_convs=[3,3,3,6]"))
    task, data = parts["task"], parts["data"]
    assert task.model == dataclasses.replace(FilmConfig.small(), flow_convs=(3, 3, 3, 6))
    assert [type(part).__name__ for part in data.parts] == ["TripletConfig", "SyntheticConfig"]
    assert {part.crop for part in data.parts} == {128} and data.parts[1].source.motion == (0.25, 60.0)


def test_the_papers_recipe():
    """Supplement and `training/` of the reference: every number, at both sides of each boundary."""
    parts = build(composed("experiment=film_style"))
    losses, data, optim = parts["task"].losses, parts["data"], parts["optim"]
    assert {name: type(term).__name__ for name, term in losses.items()} == dict(l1="L1", vgg="Vgg", style="Style")
    for step, weights in {0: (1, 1, 0), 1_500_000: (1, 1, 0), 1_500_001: (1, 0.25, 40)}.items():
        assert tuple(float(term.weight(jnp.int32(step))) for term in losses.values()) == weights
    assert (data.batch_size, data.crop, parts["config"].steps) == (8, 256, 3_000_000)
    assert optim == OptimConfig("adam", 1e-4, "staircase", decay_every=750_000, decay_rate=0.464158)
    for name, terms in (("film_l1", ["l1"]), ("film_vgg", ["l1", "vgg"])):
        assert list(build(composed(f"experiment={name}"))["task"].losses) == terms


@pytest.mark.parametrize(
    ("name", "quarters", "test"), [("film_held_out", 0, 0), ("film_test", 0, 1), ("film_quarters", 1, 0)]
)
def test_evaluations_have_the_sets_that_are_cut(name, quarters, test):
    config = composed("experiment=film_small", f"evaluation={name}", config_name="eval").evaluation
    cut = [key for key, (_, cut) in CUTS.items() if cut.quarters == quarters] + ([] if quarters else [*PAIRS])
    cut = [key for key in cut if key.startswith("test/") == test]
    assert {f"data/held_out/{key}" for key in cut} == {set_.folder for set_ in config.sets.values()}
    assert list(config.sets) == [key.removeprefix("test/") for key in cut]
    built = instantiate(config, "evaluation")
    assert next(iter(built.metrics)) == "psnr" and "lpips" in built.metrics and built.training != test
    assert built.moments == (("direct", "midpoints") if quarters else ())
    for group, names in (built.groups or {}).items():  # in each a clip weighs once, and all of the sets are in one
        clips = [name.partition("_")[0] for name in names]
        assert set(names) <= set(cut_names := list(config.sets)) and (group == "all") == (len(names) == len(cut_names))
        assert group == "all" or len(set(clips)) == len(clips)


@pytest.fixture(scope="module")
def toy_config():
    settings = dict(steps=4, log_every=2, picture_every=4, checkpoint_every=2, devices=1, progress=False)
    words = [f"trainer.{key}={value}" for key, value in settings.items()]
    config = composed("experiment=film_small", "name=toy", "optim.name=adam", "optim.warmup=0", *words)
    config.task, config.data = {"_target_": "toy_task.Fit"}, {"_target_": "toy_task.Line"}
    return config


@pytest.fixture
def toy_run(tmp_path, monkeypatch, toy_config):
    """The config of a run of a second with a cosine schedule; `toy_run(key=value)` changes it."""
    monkeypatch.chdir(tmp_path)

    def make(**changes) -> DictConfig:
        config = copy.deepcopy(toy_config)
        for key, value in changes.items():
            OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
        return config

    return make


def refusal(capsys, config: DictConfig, command=train_from_config) -> str:
    return mistake(capsys, command, config)


def test_a_run_trains_resumes_and_is_guarded(toy_run, capsys):
    folder = Path("runs/toy")
    train_from_config(toy_run())
    assert [row["step"] for row in log_of(folder)] == [2, 4]
    assert {"config.yaml", "checkpoints", "pictures"} <= {p.name for p in folder.iterdir()}
    assert OmegaConf.load(folder / "config.yaml").optim.schedule == "cosine"
    metadata = json.loads((folder / "weights.safetensors").read_text())
    assert (metadata["steps"], metadata["experiment"]) == (4, "toy")
    assert metadata["recipe"]["data"] == {"_target_": "toy_task.Line"}

    before = [(folder / name).read_bytes() for name in ("weights.safetensors", "metrics.jsonl")]
    train_from_config(toy_run())  # the same command again
    for change in ({"seed": 1}, {"optim__lr": 0.5}, {"data__size": 16}, {"task__scale": 2.0}, {"optim__ema": 0.0}):
        (key,) = change
        assert key.replace("__", ".") in refusal(capsys, toy_run(**change))
    without = toy_run()
    with open_dict(without):
        del without.optim["ema"]
    assert "optim.ema" in refusal(capsys, without)
    assert "trainer.steps" in refusal(capsys, toy_run(trainer__steps=6))  # a cosine of another length
    assert [(folder / name).read_bytes() for name in ("weights.safetensors", "metrics.jsonl")] == before
    train_from_config(toy_run(data__threads=2, task__image_summaries=["a"]))  # no weight depends on these


def test_weights_are_exported_from_a_run_that_goes_on(toy_run):
    """The averaged weights of the newest checkpoint, which is kept; also without the devices of the run."""
    folder = Path("runs/toy")
    refused(FileNotFoundError, export, folder, match=r"config\.yaml")
    train_from_config(toy_run(optim__ema=0.5))
    before = (folder / "weights.safetensors").rename("before.json").read_text()
    with pytest.raises(ValueError, match=r"toy_task"):  # the folder may be somebody else's
        export(folder)
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("  devices: 1\n  fsdp: 1\n", "  devices: 64\n  fsdp: 64\n"))
    assert OmegaConf.load(path).trainer.fsdp == 64
    assert json.loads(export(folder, ("toy_task",)).read_text()) == json.loads(before)
    shutil.rmtree(folder / "checkpoints")
    refused(FileNotFoundError, export, folder, ("toy_task",), match="step 2")


def test_two_programs_do_not_train_in_one_folder(toy_run, capsys):
    with lock(Path("runs/toy")):
        assert "runs/toy" in refusal(capsys, toy_run())
    assert sorted(path.name for path in Path("runs/toy").iterdir()) == [".lock"]


@pytest.mark.parametrize(("error", "text"), [
    (TypeError("a bug"), "a bug"),
    (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes."), "trainer.accumulate"),
    (MemoryError(), "trainer.accumulate"),
])  # fmt: skip
def test_a_crash_leaves_its_traceback(toy_run, capsys, monkeypatch, error, text):
    def crash(*_):
        raise error

    monkeypatch.setattr(Fit, "pictures", crash)
    line = refusal(capsys, toy_run())
    assert text in line and "runs/toy/error.log" in line
    assert "in crash" in Path("runs/toy/error.log").read_text()


def test_weights_that_a_run_started_from_are_not_needed_to_resume(toy_run, capsys):
    """They may move, under their name. A run with a constant learning rate may also go on for longer."""
    train_from_config(toy_run(name="before", trainer__steps=2))
    start = "runs/before/weights.safetensors"
    later = dict(name="after", task__start_from=start, optim__schedule="constant")
    train_from_config(toy_run(**later))
    shutil.copytree("runs/before", "copy")
    moved = later | {"task__start_from": start.replace("runs/before", "copy")}
    assert "task.start_from" in refusal(capsys, toy_run(**moved))  # perhaps other weights of that name
    shutil.rmtree("runs/before")
    train_from_config(toy_run(**later, trainer__steps=6))
    assert json.loads(Path("runs/after/weights.safetensors").read_text())["steps"] == 6
    Path("copy/weights.safetensors").rename("copy/others.safetensors")
    assert "task.start_from" in refusal(capsys, toy_run(**moved | {"task__start_from": "copy/others.safetensors"}))
    Path("copy/others.safetensors").rename("copy/weights.safetensors")
    train_from_config(toy_run(**moved, trainer__steps=6))
    assert OmegaConf.load("runs/after/config.yaml").task.start_from == moved["task__start_from"]


def test_the_length_of_a_run_may_change_until_its_cooldown(toy_run, capsys, monkeypatch):
    """As `film_small_device` is ended, and then the same weights as if it had been planned so."""
    cooled = dict(optim__schedule="constant", optim__cooldown=2)
    train_from_config(toy_run(**cooled, name="planned", trainer__steps=5))
    with monkeypatch.context() as patched:
        patched.setattr(Fit, "pictures", None)
        # after the checkpoint of step 2
        assert "None" in refusal(capsys, toy_run(**cooled, trainer__steps=1000, trainer__picture_every=2))
    assert "trainer.steps" in refusal(capsys, toy_run(**cooled, trainer__steps=3))
    train_from_config(toy_run(**cooled, trainer__steps=5))
    planned, ended = (json.loads(Path(f"runs/{name}/weights.safetensors").read_text()) for name in ("planned", "toy"))
    assert planned["params"] == ended["params"]
    assert "trainer.steps" in refusal(capsys, toy_run(**cooled, trainer__steps=6))


def test_a_run_folder_that_leaves_out_defaults_is_resumed(toy_run, capsys):
    """Objects are compared."""
    path = Path("runs/toy/config.yaml")
    train_from_config(toy_run(trainer__steps=1, optim__schedule="constant"))
    old = path.read_text().replace("  momentum: null\n", "")
    assert path.read_text() != old
    path.write_text(old)
    train_from_config(toy_run(trainer__steps=2, optim__schedule="constant"))
    assert "optim.lr" in refusal(capsys, toy_run(optim__lr=0.5, optim__schedule="constant"))


def test_a_first_try_that_failed_does_not_bind(toy_run, capsys):
    """A missing test set is an error before the first step; nothing was trained, so nothing has to be the same.
    Neither after a kill during the first checkpoint."""
    trainer = dict(trainer__evaluate_every=2, evaluation__sets__film__folder="nowhere")
    assert "nowhere" in refusal(capsys, toy_run(**trainer))
    assert "nowhere" in refusal(capsys, toy_run(task__start_from="nowhere"))
    assert not list(Path("runs/toy").glob("checkpoints/*"))
    Path("runs/toy/checkpoints/1.orbax-checkpoint-tmp").mkdir(parents=True)
    train_from_config(toy_run(trainer__steps=1))


def test_user_errors_are_one_line(toy_run, capsys):
    for change, value in (
        ({"optim__name": "sgd"}, "sgd"),
        ({"trainer__devices": 9}, "9"),
        ({"task": {"_target_": "toy_task.NoSuchThing"}}, "NoSuchThing"),
        ({"task": "???"}, "task"),
    ):
        assert value in refusal(capsys, toy_run(**change))
    config = toy_run(evaluation=None, weights=None, output=None, overwrite=False)
    assert "evaluation" in refusal(capsys, config, evaluate_from_config)


def program(folder: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(ROOT / script), *words], cwd=folder, capture_output=True, text=True)


def test_train_without_an_experiment_is_one_line(tmp_path):
    done = program(tmp_path, "train.py")
    assert done.returncode == 2 and "experiment=" in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_job_that_fails_does_not_end_the_sweep(tmp_path):
    done = program(tmp_path, "train.py", "-m", "experiment=film_shapes", "optim.lr=-1,-2")
    assert done.returncode == 2 and "Traceback" not in done.stderr + done.stdout
    assert all(f"error: optim.lr is {lr}: " in done.stdout for lr in (-1, -2))
    assert done.stderr.splitlines()[-1].startswith("error: optim.lr is -1: ")


@pytest.mark.parametrize("name", get_args(Optimizer))
def test_any_experiment_takes_any_optimiser(name):
    words = ["experiment=film_l1", f"optim={name}", "optim.multipliers=[[bias,0.5]]"]
    config = instantiate(composed(*words).optim, "optim")
    assert config.name == name and config.multipliers == (("bias", 0.5),) and hash(config)
    make_optimizer(config, 100_000)


@pytest.mark.slow
@pytest.mark.proof
def test_the_papers_recipe_runs_anywhere_and_its_weights_interpolate(tmp_path):
    """No data, no VGG file, no GPU: `debug=cpu` brings what it needs."""
    done = program(tmp_path, "train.py", "experiment=film_style", "debug=cpu")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "film_style_debug"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(5, 41, 5))
    for name in ("l1", "vgg", "style"):  # each by itself: the total changes with its weights
        assert rows[-1][name] < 0.7 * rows[0][name]
    assert (folder / "pictures" / "triplets_0000040.png").exists()
    assert film.load(folder).config == FilmConfig.small()


@pytest.mark.slow
def test_a_sweeps_jobs_have_folders_of_their_own(tmp_path):
    """With joblib's launcher, in processes of their own."""
    sweep = ["-m", "experiment=film_small_l1", "debug=cpu", "optim.lr=1e-4,3e-4", "hydra/launcher=joblib"]
    done = program(tmp_path, "train.py", *sweep, "trainer.steps=1")
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "runs").rglob("weights.safetensors"))
    assert sorted(OmegaConf.load(file.with_name("config.yaml")).optim.lr for file in files) == [1e-4, 3e-4]
    assert len({file.read_bytes() for file in files}) == 2
