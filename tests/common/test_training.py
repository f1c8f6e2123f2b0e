"""The trainer on a toy: a line is fitted, and stopping, resuming, splitting and failing do what they promise."""

import dataclasses
import functools
import json
import os
import shutil
import signal
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from line import TRUTH, Fit, Line

from common.evaluation.evaluation import Evaluation
from common.io.images import read_image
from common.training.checkpoint import Checkpoints
from common.training.logger import Logger
from common.training.optimizer import OptimConfig, make_optimizer
from common.training.state import TrainState, as_seed, train_step
from common.training.trainer import TrainerConfig, train

with warnings.catch_warnings():  # beartype on OmegaConf's DictConfig, a subclass of typing.MutableMapping
    warnings.simplefilter("ignore")
    from common.training.export import export

QUIET = TrainerConfig(steps=20, log_every=5, picture_every=10, checkpoint_every=10, progress=False)
ADAM = OptimConfig(lr=0.05)


def run(folder, config=QUIET, data=None, optim=ADAM, task=None, seed=3, **metadata) -> dict:
    """The exported weights of a run."""
    return json.loads(train(task or Fit(), data or Line(), optim, config, folder, seed, **metadata).read_text())


def log_of(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_speed(rows: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if name != "steps_per_s"} for row in rows]


def replace(**changes) -> TrainerConfig:
    return dataclasses.replace(QUIET, **changes)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Twenty steps without a stop, with an average of the weights."""
    folder = tmp_path_factory.mktemp("straight")
    return folder, run(folder, optim=dataclasses.replace(ADAM, ema=0.9), experiment="line")


AVERAGED = dataclasses.replace(ADAM, ema=0.9)


def test_the_loss_falls_and_the_line_is_found(tmp_path):
    weights = run(tmp_path, replace(steps=300, log_every=50, picture_every=300, checkpoint_every=300))
    rows = log_of(tmp_path)
    assert rows[-1]["loss"] < 1e-3 * rows[0]["loss"]
    np.testing.assert_allclose(weights["params"]["layer"]["kernel"], TRUTH, atol=0.02)
    np.testing.assert_allclose(weights["params"]["layer"]["bias"], 0.25, atol=0.02)


def test_what_a_run_leaves(straight):
    folder, weights = straight
    rows = log_of(folder)
    assert [row["step"] for row in rows] == [5, 10, 15, 20]
    assert rows[0].keys() == {"step", "loss", "grad_norm", "update_norm", "mse", "lr", "steps_per_s"}
    assert all(row["grad_norm"] > 0 and row["steps_per_s"] > 0 for row in rows)
    assert {p.name for p in (folder / "pictures").iterdir()} == {"fit_0000010.png", "fit_0000020.png"}
    np.testing.assert_allclose(read_image(folder / "pictures" / "fit_0000020.png"), 0.5, atol=1 / 255)
    assert {p.name for p in (folder / "checkpoints").iterdir()} == {"10", "20"}
    assert list((folder / "tensorboard").iterdir())
    assert (weights["steps"], weights["seed"], weights["experiment"]) == (20, 3, "line")


def test_names_may_have_blanks(tmp_path, caplog):
    """Which TensorBoard does not take: it would warn of each."""
    logger = Logger(tmp_path)
    logger.scalars(1, {"edges/no control": 0.5})
    logger.close()
    assert log_of(tmp_path) == [{"step": 1, "edges/no control": 0.5}] and not caplog.records
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"edges/no_control" in events.read_bytes()


def test_logged_numbers_are_means_over_the_steps_since(tmp_path, straight):
    run(tmp_path, replace(log_every=1), optim=AVERAGED)
    each, coarse = log_of(tmp_path), log_of(straight[0])
    for i, row in enumerate(coarse):
        mean = np.mean([fine["loss"] for fine in each[5 * i : 5 * i + 5]])
        assert row["loss"] == pytest.approx(mean, rel=1e-5)


def test_the_average_is_exported(tmp_path, straight):
    plain = run(tmp_path)["params"]["layer"]["kernel"]
    averaged = straight[1]["params"]["layer"]["kernel"]
    far = [float(np.abs(np.array(kernel) - TRUTH).mean()) for kernel in (plain, averaged)]
    assert far[0] < far[1]  # it lags behind


def test_a_longer_run_goes_on_where_the_shorter_one_ended(tmp_path, straight):
    run(tmp_path, replace(steps=10), optim=AVERAGED)
    resumed = run(tmp_path, optim=AVERAGED, experiment="line")
    assert resumed == straight[1]
    assert without_speed(log_of(tmp_path)) == without_speed(log_of(straight[0]))


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_ends_in_the_same_weights(tmp_path, straight, sent):
    """Stopped in step 13, between two checkpoints and two lines of the log."""
    before = signal.getsignal(sent)
    stop = Line(hook=lambda n: os.kill(os.getpid(), sent) if n == 13 else None)
    with pytest.raises(KeyboardInterrupt, match="saved at step 13"):
        run(tmp_path, data=stop, optim=AVERAGED)
    assert signal.getsignal(sent) is before
    assert not (tmp_path / "weights.safetensors").exists()
    assert run(tmp_path, optim=AVERAGED, experiment="line") == straight[1]
    assert [row["step"] for row in log_of(tmp_path)] == [5, 10, 15, 20]


def test_a_wish_to_stop_during_the_pictures_is_not_lost(tmp_path, straight):
    """It comes after step 12's own look at the wish: the run may stop later, but must have saved what it says."""
    task = Fit(while_painting=lambda: os.kill(os.getpid(), signal.SIGTERM))
    config = replace(picture_every=12, checkpoint_every=100)
    with pytest.raises(KeyboardInterrupt, match="saved at step") as stop:
        run(tmp_path, config, task=task, optim=AVERAGED)
    saved = Checkpoints(tmp_path)
    assert f"step {saved.latest()};" in str(stop.value)
    saved.close()


def test_a_crash_repeats_the_steps_since_the_checkpoint(tmp_path, straight):
    def fail(n: int) -> None:
        if n == 18:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, data=Line(hook=fail), optim=AVERAGED)
    assert [row["step"] for row in log_of(tmp_path)] == [5, 10, 15]
    assert run(tmp_path, optim=AVERAGED, experiment="line") == straight[1]
    assert without_speed(log_of(tmp_path)) == without_speed(log_of(straight[0]))


def test_a_finished_run_does_nothing_again(tmp_path):
    first = run(tmp_path)

    def never(n: int) -> None:
        raise AssertionError(f"batch {n} was asked for")

    rows = log_of(tmp_path)
    assert run(tmp_path, data=Line(hook=never)) == first
    assert log_of(tmp_path) == rows


def test_steps_are_traced(tmp_path):
    run(tmp_path, replace(steps=4, profile=[2, 3]))
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_a_saved_state_may_be_donated_while_it_is_written(tmp_path):
    state, checkpoints = {"x": jnp.arange(2.0**18)}, Checkpoints(tmp_path)
    double = jax.jit(lambda tree: jax.tree.map(lambda x: 2 * x, tree), donate_argnums=0)
    position = {"drawn": [1]}
    checkpoints.save(1, state, position)
    position["drawn"].append(2)
    for _ in range(3):
        state = double(state)
    checkpoints.wait()
    restored, position = checkpoints.restore(1, state)
    checkpoints.close()
    np.testing.assert_array_equal(restored["x"], np.arange(2.0**18, dtype=np.float32))
    assert position == {"drawn": [1]}


def test_a_step_moves_nothing_to_the_device_by_accident(tmp_path, monkeypatch):
    """Arrays of the host that a step is given, such as refreshed ones, are an error after the first."""
    monkeypatch.setattr("common.training.trainer.shard_batch", lambda mesh, batch, parts: batch)
    with pytest.raises(Exception, match="transfer"):
        run(tmp_path, replace(steps=3))


def test_old_checkpoints_go(tmp_path):
    run(tmp_path, replace(checkpoint_every=4, keep=2))
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"16", "20"}


def test_every_kth_checkpoint_stays(tmp_path):
    run(tmp_path, replace(checkpoint_every=2, keep=1, keep_every=8))
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"8", "16", "20"}


@dataclasses.dataclass(frozen=True)
class Distance(Evaluation):
    """Scores by a given list: what is kept must follow the scores, not the order."""

    values: tuple[float, ...]
    seen: list = dataclasses.field(default_factory=list)

    def prepare(self):
        return ["toy/distance"]

    def score(self, task, params):
        self.seen.append(params)
        return {"toy/distance": self.values[len(self.seen) - 1]}

    def files(self):
        return []

    def evaluate(self, weights, output):
        raise NotImplementedError


@pytest.mark.parametrize(("highest", "best"), [(True, 8), (False, 12)])
def test_the_best_checkpoint_stays_and_is_exported(tmp_path, highest, best):
    evaluation = Distance((1.0, 5.0, 0.5, 2.0, 3.0))
    config = replace(checkpoint_every=4, evaluate_every=4, keep=1, best="toy/distance", best_is_highest=highest)
    train(Fit(), Line(), ADAM, config, tmp_path, 3, evaluation)
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {str(best), "20"}
    exported = json.loads((tmp_path / "best.safetensors").read_text())
    assert exported["steps"] == best and exported["toy/distance"] == evaluation.values[best // 4 - 1]
    scored = evaluation.seen[best // 4 - 1]["layer"]["kernel"]
    np.testing.assert_array_equal(np.float32(exported["params"]["layer"]["kernel"]), scored)
    rows = [row for row in log_of(tmp_path) if "toy/distance" in row]
    assert [row["toy/distance"] for row in rows] == list(evaluation.values)


def test_a_best_score_that_nobody_gives(tmp_path):
    config = replace(checkpoint_every=4, evaluate_every=4, best="psnr")
    with pytest.raises(ValueError, match=r"'psnr': the evaluation gives toy/distance"):
        train(Fit(), Line(), ADAM, config, tmp_path, 3, Distance((1.0,)))
    assert not (tmp_path / "checkpoints").exists()  # told before the first step


def test_a_score_that_fails_costs_no_steps(tmp_path):
    with pytest.raises(IndexError):
        train(Fit(), Line(), ADAM, replace(checkpoint_every=4, evaluate_every=4), tmp_path, 3, Distance((1.0,)))
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"4", "8"}


def test_frozen_parameters_have_no_backward_pass():
    """Two layers are two products forward and three backward: both kernels, and what is between."""
    params = {"first": {"kernel": jnp.ones((3, 3))}, "second": {"kernel": jnp.ones((3, 3))}}

    class Two(Fit):
        def loss(self, params, batch, context):
            return jnp.sum(batch["x"] @ params["first"]["kernel"] @ params["second"]["kernel"]), {}

    def products(*frozen: str) -> int:
        optim = OptimConfig(multipliers=[[f"^{name}/", 0] for name in frozen])
        tx = make_optimizer(optim, 1)
        state = TrainState(jnp.zeros((), jnp.int32), params, tx.init(params), None)
        step = jax.jit(functools.partial(train_step, Two(), tx, optim, 1))
        return step.lower(state, {"x": jnp.ones((2, 3))}, {}).as_text().count("dot_general")

    assert [products(), products("second"), products("first")] == [5, 4, 3]


def test_not_a_number_is_never_the_best(tmp_path):
    evaluation = Distance((1.0, float("nan"), 0.5, float("nan"), 0.7))
    config = replace(checkpoint_every=4, evaluate_every=4, keep=1, best="toy/distance")
    train(Fit(), Line(), ADAM, config, tmp_path, 3, evaluation)
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"4", "20"}
    assert json.loads((tmp_path / "best.safetensors").read_text())["steps"] == 4


def test_scores_without_an_evaluation(tmp_path):
    with pytest.raises(ValueError, match="no evaluation"):
        run(tmp_path, replace(evaluate_every=10))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"evaluate_every": 15}, "multiple of checkpoint_every, 10"),
        ({"best": "psnr"}, "set trainer.evaluate_every"),
        ({"accumulate": 0}, "trainer.accumulate is 0"),
        ({"sharding": [["kernel", "split"]]}, "'split' is not a tactic"),
        ({"sharding": [["(", "fsdp"]]}, "not a regular expression"),
        ({"profile": [3]}, r"trainer.profile is \[3\]"),
        ({"profile": [3, 2]}, r"trainer.profile is \[3, 2\]"),
    ],
)
def test_trainer_settings_that_cannot_be(fields, said):
    with pytest.raises(ValueError, match=said):
        replace(**fields)


def test_a_batch_in_parts_is_the_batch(tmp_path):
    """Two parts of four examples: mean of means. The noise differs, a thousandth of the loss."""
    whole, parts = (run(tmp_path / str(n), replace(accumulate=n))["params"]["layer"] for n in (1, 2))
    for name in whole:
        np.testing.assert_allclose(whole[name], parts[name], atol=2e-4)


def test_a_batch_that_does_not_make_equal_parts(tmp_path):
    with pytest.raises(ValueError, match="batch of 8 does not split over 2 devices in 3 parts each"):
        run(tmp_path, replace(accumulate=3))


def test_two_devices_learn_what_one_learns(tmp_path):
    one, two = (run(tmp_path / str(n), replace(devices=n))["params"]["layer"] for n in (1, 2))
    for name in one:
        np.testing.assert_allclose(one[name], two[name], atol=1e-5)


def test_a_run_moves_to_another_number_of_devices(tmp_path, straight):
    run(tmp_path, replace(steps=10, devices=2), optim=AVERAGED)
    moved = run(tmp_path, replace(devices=1), optim=AVERAGED)["params"]["layer"]
    for name, value in straight[1]["params"]["layer"].items():
        np.testing.assert_allclose(moved[name], value, atol=1e-5)


def test_a_batch_that_does_not_split_is_refused(tmp_path):
    with pytest.raises(ValueError, match="batch of 7 does not split over 2") as error:
        run(tmp_path, data=Line(size=7))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("log_every", "checkpoint_every", "good"), [(5, 10, {"10"}), (100, 7, {"7"}), (100, 13, set())]
)
def test_not_a_number_ends_the_run_with_its_step_and_examples(tmp_path, log_every, checkpoint_every, good):
    config = replace(log_every=log_every, checkpoint_every=checkpoint_every)
    with pytest.raises(FloatingPointError, match="nan at step 13 on point 1300, point 1301, ") as error:
        run(tmp_path, config, data=Line(spoilt=13))
    assert ("step 10" if "10" in good else "step 7" if good else "no checkpoint") in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "weights.safetensors").exists()
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == good  # a broken state is never saved


def test_another_seed_is_another_run(tmp_path):
    one, other = (run(tmp_path / str(seed), replace(steps=5), seed=seed) for seed in (0, 1))
    assert one["params"] != other["params"]


def test_muon_trains(tmp_path):
    run(tmp_path, replace(steps=60, log_every=20), optim=OptimConfig("muon", lr=0.1))
    rows = log_of(tmp_path)
    assert rows[-1]["loss"] < 0.3 * rows[0]["loss"]


def test_the_log_forgets_steps_that_will_be_done_again(tmp_path):
    lines = [json.dumps({"step": step, "loss": 1.0}) for step in (5, 10, 15)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 2']) + "\n")
    logger = Logger(tmp_path, 10)
    logger.scalars(12, {"loss": 0.5, "psnr": float("inf")})
    logger.close()
    last = {"step": 12, "loss": 0.5, "psnr": None}  # JSON knows no infinity
    assert log_of(tmp_path) == [{"step": 5, "loss": 1.0}, {"step": 10, "loss": 1.0}, last]


def test_checkpoints_keep_types_and_position(tmp_path):
    state = {"a": jnp.arange(3, dtype=jnp.int32), "b": {"c": jnp.ones((2, 2), jnp.bfloat16)}, "none": None}
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None
    checkpoints.save(4, state, {"drawn": 4, "nested": [1, {"x": "y"}]})
    restored, position = checkpoints.restore(4, state)
    checkpoints.close()
    assert position == {"drawn": 4, "nested": [1, {"x": "y"}]}
    assert restored["none"] is None and restored["b"]["c"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(restored["a"], state["a"])
    assert optax.tree.norm(restored["b"]["c"].astype(jnp.float32)) == 2


def test_weights_of_a_run_that_is_not_over(tmp_path):
    """The newest checkpoint's average, and the run goes on as if nobody had asked."""
    run(tmp_path, replace(steps=20), optim=AVERAGED, experiment="line")
    (tmp_path / "weights.safetensors").unlink()
    parts = {"task": {"_target_": "line.Fit"}, "data": {"_target_": "line.Line"}}
    optim = {"_target_": "common.training.optimizer.OptimConfig", **dataclasses.asdict(AVERAGED)}
    trainer = {"_target_": "common.training.trainer.TrainerConfig", **dataclasses.asdict(replace(steps=40))}
    config = {
        **parts,
        "optim": optim,
        "trainer": trainer,
        "logger": None,
        "evaluation": None,
        "seed": 3,
        "name": "line",
    }
    with pytest.raises(FileNotFoundError, match=r"config\.yaml"):
        export(tmp_path)
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    found = json.loads(export(tmp_path).read_text())
    assert found["params"] == run(tmp_path, replace(steps=20), optim=AVERAGED)["params"]
    assert found["steps"] == 20 and found["recipe"]["optim"]["ema"] == 0.9
    for step in Checkpoints(tmp_path).scores():
        shutil.rmtree(tmp_path / "checkpoints" / str(step))
    with pytest.raises(FileNotFoundError, match="no checkpoint yet; the first comes at step 10"):
        export(tmp_path)


@pytest.mark.parametrize("seed", [0, 7, -1, 2**31 - 1])
def test_a_seed_that_is_an_argument_gives_the_same_key(seed):
    given = jax.random.key_data(jax.jit(jax.random.key)(as_seed(seed)))
    np.testing.assert_array_equal(given, jax.random.key_data(jax.random.key(seed)))
