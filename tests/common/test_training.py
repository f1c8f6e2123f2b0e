"""The trainer on a toy: a line is fitted; stopping, resuming, splitting and failing do what they promise."""

import contextlib
import dataclasses
import json
import math
import re
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusal import refused
from toy_task import TRUTH, Distance, Fit, Line, at, checkpoints_of, crash, log_of

from common.io.images import read_image
from common.training import distributed
from common.training.checkpoint import Checkpoints
from common.training.logger import Logger, LoggerConfig
from common.training.optimizer import OptimConfig, make_optimizer
from common.training.state import TrainState, as_seed, ema_decay, train_step
from common.training.trainer import TrainerConfig, train

QUIET = TrainerConfig(steps=20, log_every=5, picture_every=10, checkpoint_every=10, progress=False)
ADAM = OptimConfig(lr=0.05, ema=0.9)


def run(folder, data=None, optim=ADAM, task=None, seed=3, evaluation=None, **trainer) -> dict:
    config = dataclasses.replace(QUIET, **trainer)
    path = train(task or Fit(), data or Line(), optim, config, folder, seed, evaluation, experiment="line")
    return json.loads(path.read_text())


def layer(weights: dict) -> np.ndarray:
    return np.vstack([weights["params"]["layer"]["kernel"], weights["params"]["layer"]["bias"]])


def flipped(data: bytes) -> bytes:
    """One bit in the middle is another."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 8]) + data[middle + 1 :]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    return folder, run(folder)


def test_the_line_is_found(tmp_path):
    every = dict(log_every=150, picture_every=300, checkpoint_every=300)
    weights = run(tmp_path, optim=OptimConfig(lr=0.05), steps=300, **every)
    np.testing.assert_allclose(layer(weights), [*TRUTH, [0.25, 0.25]], atol=0.02)


def test_outputs_of_a_run(straight):
    folder, weights = straight
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [5, 10, 15, 20]
    assert rows[0].keys() == {"step", "loss", "grad_norm", "update_norm", "mse", "lr", "steps_per_s"}
    assert {p.name for p in (folder / "pictures").iterdir()} == {"fit_0000010.png", "fit_0000020.png"}
    np.testing.assert_allclose(read_image(folder / "pictures" / "fit_0000020.png"), 0.5, atol=1 / 255)
    assert checkpoints_of(folder) == {"10", "20"} and list((folder / "tensorboard").iterdir())
    assert (weights["steps"], weights["seed"], weights["experiment"]) == (20, 3, "line")


def test_logged_numbers_are_means_over_the_steps_since(tmp_path, straight):
    """And the averaged weights, which lag behind, are exported."""
    plain = run(tmp_path, optim=OptimConfig(lr=0.05), log_every=1)
    each, coarse = log_of(tmp_path), log_of(straight[0])
    for i, row in enumerate(coarse):
        mean = np.mean([fine["loss"] for fine in each[5 * i : 5 * i + 5]])
        assert row["loss"] == pytest.approx(mean, rel=1e-5)
    distances = [np.abs(layer(weights)[:3] - TRUTH).mean() for weights in (plain, straight[1])]
    assert distances[0] < distances[1]


@pytest.mark.parametrize(("error", "first"), [
    (None, dict(steps=10)),
    (KeyboardInterrupt, dict(data=Line(hook=at(13, partial(signal.raise_signal, signal.SIGTERM))))),
    (KeyboardInterrupt, dict(data=Line(hook=at(13, partial(signal.raise_signal, signal.SIGINT))))),
    (KeyboardInterrupt, dict(data=Line(hook=at(13, lambda: [signal.raise_signal(signal.SIGTERM) for _ in range(2)])))),
    (RuntimeError, dict(data=Line(hook=at(18, crash)))),
])  # fmt: skip
def test_the_same_command_resumes_and_ends_in_the_same_weights(tmp_path, straight, error, first):
    """After a shorter run, signals between two checkpoints and two log lines, one that is repeated, and a crash."""
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(error) if error else contextlib.nullcontext() as stop:
        run(tmp_path, **first)
    assert error is not KeyboardInterrupt or "step 13" in str(stop.value)
    assert (tmp_path / "weights.safetensors").exists() == (error is None)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert run(tmp_path) == straight[1]
    assert [row["step"] for row in log_of(tmp_path)] == [5, 10, 15, 20]
    if error is not KeyboardInterrupt:  # a stop splits the mean of the log
        assert log_of(tmp_path) == log_of(straight[0])


def test_the_speed_is_that_of_the_steps(tmp_path, monkeypatch):
    """Compiling, pictures, evaluations and checkpoints are left out of `steps_per_s`."""
    make, pause = distributed.compiled, partial(time.sleep, 0.4)
    monkeypatch.setattr(distributed, "compiled", lambda *arguments: pause() or make(*arguments))
    monkeypatch.setattr(Distance, "score", lambda *_: pause() or {"toy/distance": 1.0})
    every = dict(log_every=1, picture_every=1, checkpoint_every=1, evaluate_every=1)
    run(tmp_path, task=Fit(while_drawing=pause), evaluation=Distance(()), steps=4, **every)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert min(row["steps_per_s"] for row in rows if "loss" in row) > 2.5


def test_a_signal_during_the_pictures_is_not_lost(tmp_path):
    """It comes after step 12 has read the request: the run may stop later, but must have saved that step."""
    task = Fit(while_drawing=partial(signal.raise_signal, signal.SIGTERM))
    message = refused(KeyboardInterrupt, run, tmp_path, task=task, picture_every=12, checkpoint_every=100)
    assert f"step {max(map(int, checkpoints_of(tmp_path)))};" in message


def test_a_finished_run_does_nothing_again(tmp_path):
    """Two of its steps are traced, and there are no pictures."""
    first, rows = run(tmp_path, steps=5, profile=[2, 3], picture_every=0), log_of(tmp_path)
    assert list((tmp_path / "profile").rglob("*.xplane.pb")) and not (tmp_path / "pictures").exists()
    assert run(tmp_path, data=Line(hook=lambda n: pytest.fail("a batch was drawn")), steps=5) == first
    assert re.search(r"trainer\.steps is 4.* 5", refused(ValueError, run, tmp_path, steps=4))
    assert log_of(tmp_path) == rows


def test_a_step_moves_nothing_to_the_device_by_accident(tmp_path, monkeypatch):
    """Host arrays in a step, such as refreshed ones, are an error after the first."""
    monkeypatch.setattr("common.training.trainer.shard_batch", lambda mesh, batch, microbatches: batch)
    with pytest.raises(Exception, match="transfer"):
        run(tmp_path, steps=3)


def test_old_checkpoints_are_deleted(tmp_path):
    run(tmp_path, checkpoint_every=2, keep=2, keep_every=8)
    assert checkpoints_of(tmp_path) == {"8", "16", "18", "20"}


@pytest.mark.parametrize(("scores", "highest", "best"), [
    ((1.0, 5.0, 0.5, 2.0, 3.0), True, 8),
    ((1.0, 5.0, 0.5, 2.0, 3.0), False, 12),
    ((1.0, math.nan, 0.5, math.nan, 0.7), True, 4),  # NaN is never the best
])  # fmt: skip
def test_the_best_checkpoint_stays_and_is_exported(tmp_path, scores, highest, best):
    evaluation = Distance(scores)
    every = dict(checkpoint_every=4, evaluate_every=4)
    run(tmp_path, evaluation=evaluation, **every, keep=1, best="toy/distance", best_is_highest=highest)
    assert checkpoints_of(tmp_path) == {str(best), "20"}
    exported = json.loads((tmp_path / "best.safetensors").read_text())
    assert exported["steps"] == best and exported["toy/distance"] == scores[best // 4 - 1]
    scored = evaluation.seen[best // 4 - 1]["layer"]["kernel"]
    np.testing.assert_array_equal(np.float32(exported["params"]["layer"]["kernel"]), scored)
    logged = [row["toy/distance"] for row in log_of(tmp_path) if "toy/distance" in row]
    assert logged == [None if np.isnan(score) else score for score in scores]


def test_a_run_that_is_to_stop_is_saved_without_its_evaluation(tmp_path):
    evaluation, stop = Distance((1.0,)), at(8, partial(signal.raise_signal, signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Line(hook=stop), evaluation=evaluation, checkpoint_every=4, evaluate_every=4)
    assert checkpoints_of(tmp_path) == {"4", "8"} and len(evaluation.seen) == 1


def test_an_evaluation_or_export_that_fails_loses_no_steps(tmp_path, monkeypatch):
    every = dict(checkpoint_every=4, evaluate_every=4, best="toy/distance")
    refused(IndexError, lambda: run(tmp_path, evaluation=Distance((1.0,)), **every))
    assert checkpoints_of(tmp_path) == {"4", "8"}
    monkeypatch.setattr(Fit, "export", None)
    refused(TypeError, lambda: run(tmp_path, evaluation=Distance((2.0,)), **every))
    assert checkpoints_of(tmp_path) == {"4", "8", "12"}


@pytest.mark.parametrize(("fields", "value"), [
    (dict(evaluate_every=10), r"trainer\.evaluate_every"),  # no evaluation
    (dict(best="psnr", evaluate_every=10, evaluation=Distance(())), "toy/distance"),
    (dict(accumulate=3), r"batch of 8 .* 2 devices in 3 microbatches"),
    (dict(data=Line(size=7)), "batch of 7 .* 2 devices"),
])  # fmt: skip
def test_invalid_settings(tmp_path, fields, value):
    assert re.search(value, refused(ValueError, run, tmp_path, **fields))
    assert not list(tmp_path.glob("checkpoints/*"))


class Two(Fit):
    def loss(self, params, batch, context):
        return jnp.sum(batch["x"] @ params["first"]["kernel"] @ params["second"]["kernel"]), {}


def two_layers(*frozen: str) -> tuple[Any, TrainState]:
    """A step of `Two` with an average, and a state before it, whose average is 3 throughout."""
    params = {"first": {"kernel": jnp.ones((3, 3))}, "second": {"kernel": jnp.ones((3, 3))}}
    optim = OptimConfig(ema=0.9, multipliers=[[f"^{name}/", 0] for name in frozen])
    tx = make_optimizer(optim, 1)
    state = TrainState(jnp.zeros((), jnp.int32), params, tx.init(params), jax.tree.map(lambda x: 3 * x, params))
    return jax.jit(partial(train_step, Two(), tx, optim, 1)), state


def test_frozen_parameters_have_no_backward_pass():
    """Two layers are two products forward and three backward: both kernels, and the activation between."""

    def products(*frozen: str) -> int:
        step, state = two_layers(*frozen)
        return step.lower(state, {"x": jnp.ones((2, 3))}, {}).as_text().count("dot_general")

    assert [products(), products("second"), products("first")] == [5, 4, 3]


def test_the_average_of_frozen_parameters_is_not_computed():
    step, state = two_layers("first")
    ema = step(state, {"x": jnp.ones((2, 3))}, {})[0].ema
    np.testing.assert_array_equal(ema["first"]["kernel"], 3)
    assert (ema["second"]["kernel"] < 2.9).all()


def test_no_metric_takes_the_name_of_a_watched_value(tmp_path):
    class Silent(Fit):
        def loss(self, params, batch, context):
            return super().loss(params, batch, context)[0], {"loss": jnp.zeros(())}

    assert "'loss'" in refused(ValueError, run, tmp_path, task=Silent())


@pytest.mark.parametrize(("stages", "atol"), [
    ([dict(accumulate=2)], 2e-4),  # the noise of two microbatches differs, a thousandth of the loss
    ([dict(devices=1)], 1e-5),
    ([dict(steps=10, devices=2), dict(devices=1)], 1e-5),
])  # fmt: skip
def test_microbatches_and_devices_do_not_change_the_weights(tmp_path, straight, stages, atol):
    weights = [run(tmp_path, **stage) for stage in stages][-1]
    np.testing.assert_allclose(layer(weights), layer(straight[1]), atol=atol)


@pytest.mark.parametrize(("log_every", "checkpoint_every", "good"), [(5, 10, {"10"}), (100, 13, set())])
def test_a_value_that_is_not_finite_ends_the_run(tmp_path, log_every, checkpoint_every, good):
    """With its step, its examples and the last good checkpoint; a state that is not finite is never saved."""
    with pytest.raises(FloatingPointError, match="nan at step 13 on point 1300, point 1301, ") as error:
        run(tmp_path, Line(not_finite=13), log_every=log_every, checkpoint_every=checkpoint_every)
    assert all(f"step {step}:" in str(error.value) for step in good) and "\n" not in str(error.value)
    assert ("task.start_from" in str(error.value)) == bool(good)  # a resumed run has the same rate and clip
    assert not (tmp_path / "weights.safetensors").exists() and checkpoints_of(tmp_path) == good


def test_the_log_drops_steps_that_will_be_repeated(tmp_path, caplog):
    lines = [json.dumps({"step": step, "loss": 1.0}) for step in (5, 10, 15)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 2']) + "\n")
    logger = Logger(tmp_path, 10)
    logger.scalars(12, {"edges/no control": 0.5, "psnr": float("inf")})  # TensorBoard warns of blanks
    logger.close()
    last = {"step": 12, "edges/no control": 0.5, "psnr": None}
    assert log_of(tmp_path) == [{"step": 5, "loss": 1.0}, {"step": 10, "loss": 1.0}, last]
    assert not [record for record in caplog.records if "edges" in record.getMessage()]
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"edges/no_control" in events.read_bytes()


def test_a_run_of_weights_and_biases_goes_on_where_it_is_resumed(tmp_path, monkeypatch):
    ids = []
    fake = SimpleNamespace(init=lambda id, **_: ids.append(id) or SimpleNamespace(finish=lambda: None))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    (tmp_path / "other").mkdir()
    for folder, step in ((tmp_path, 0), (tmp_path, 10), (tmp_path, 0), (tmp_path / "other", 0)):
        Logger(folder, step, LoggerConfig(wandb="project")).close()
    assert ids[0] == ids[1] and len(set(ids)) == 3


def test_checkpoints_keep_types_and_position(tmp_path):
    """Also when the saved state is donated, and the position changes, while it is written."""
    state = {"a": jnp.arange(2.0**18), "b": {"c": jnp.ones((2, 2), jnp.bfloat16)}, "none": None}
    shapes, position = jax.eval_shape(lambda: state), {"drawn": 4, "nested": [1, {"x": "y"}]}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(4, state, position)
    position["nested"].append(2)
    jax.jit(lambda tree: jax.tree.map(lambda x: 2 * x, tree), donate_argnums=0)(state)
    checkpoints.wait()
    restored, position = checkpoints.restore(4, shapes)
    checkpoints.close()
    assert position == {"drawn": 4, "nested": [1, {"x": "y"}]}
    assert restored["none"] is None and restored["b"]["c"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(restored["a"], np.arange(2.0**18))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of reads that orbax gives up
@pytest.mark.parametrize(("file", "damage"), [
    ("data/metadata", lambda data: None),
    ("state/manifest.ocdbt", lambda data: data[: len(data) // 2]),
    ("state/d/*", flipped),
])  # fmt: skip
def test_a_damaged_checkpoint_falls_back_to_an_older_one(tmp_path, straight, file, damage):
    """Deleted, cut short, or with a flipped bit: it is kept aside, beside an earlier one of its step, and the run ends
    in the same weights."""
    (tmp_path / "damaged/10").mkdir(parents=True)
    (tmp_path / "damaged/10/kept").touch()
    run(tmp_path, steps=10, checkpoint_every=5)
    path = next((tmp_path / "checkpoints/10").glob(file))
    data = damage(path.read_bytes())
    path.unlink() if data is None else path.write_bytes(data)
    assert run(tmp_path, checkpoint_every=5) == straight[1]
    assert {p.name for p in (tmp_path / "damaged").iterdir()} == {"10", "10_2"}
    assert checkpoints_of(tmp_path) == {"15", "20"}


def test_without_an_older_checkpoint_damage_is_an_error(tmp_path):
    run(tmp_path, steps=10)
    (tmp_path / "checkpoints/10/data/metadata").write_text("{")
    refused(ValueError, run, tmp_path, match="column")
    assert checkpoints_of(tmp_path) == {"10"} and not (tmp_path / "damaged").exists()


def test_of_several_processes_a_damaged_checkpoint_is_named(tmp_path, monkeypatch):
    """They resume from no older one, which their user can choose."""
    run(tmp_path, steps=10, checkpoint_every=5)
    checkpoints = Checkpoints(tmp_path)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ZeroDivisionError) as error:
        checkpoints.newest_whole(lambda step: step // (step - 10))
    assert any(str(tmp_path / "checkpoints/10") in note for note in error.value.__notes__)


def test_a_seed_that_is_an_argument_gives_the_same_key():
    for seed in (0, -1, 2**31 - 1):
        given = jax.jit(jax.random.key)(as_seed(seed))
        assert given == jax.random.key(seed) and given != jax.random.key(seed + 1)


def test_the_warm_up_of_the_average_is_the_reference_programs():
    """20 steps of (decay, average) of the parameter 1 + step, from the PyTorch library; and TensorFlow's formula."""
    average, file = 0.0, np.load(Path(__file__).parents[1] / "data/plugins/schedulers.npz")
    for step, (decay, shadow) in enumerate(file["train/ema_warmup_decay_shadow"]):
        found = float(ema_decay(jnp.int32(step), 0.9999, 2 / 3))
        average = found * average + (1 - found) * (1 + step)
        assert (found, average) == pytest.approx((decay, shadow), abs=1e-5)
    decays = [float(ema_decay(jnp.int32(step), 0.9, 0.0)) for step in (0, 8, 1000)]
    assert decays == pytest.approx([0.1, 0.5, 0.9])
