"""The trainer on a toy: a line is fitted, and stopping, resuming, splitting and failing do what they promise."""

import dataclasses
import json
import os
import signal
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from common.images import read_image
from common.training.checkpoint import Checkpoints
from common.training.logger import Logger
from common.training.mesh import make_mesh, shard_batch
from common.training.optimizer import OptimConfig, make_optimizer, make_schedule
from common.training.trainer import TrainerConfig, train

TRUTH = np.array([[1.0, -2.0], [0.5, 3.0], [-1.0, 0.0]], np.float32)
QUIET = TrainerConfig(steps=20, log_every=5, picture_every=10, checkpoint_every=10, progress=False)
ADAM = OptimConfig(lr=0.05)
Hook = Callable[[int], None]


class Points:
    """Endless batches of points on a line; number n depends on n alone. `hook(n)` runs as batch n is drawn."""

    def __init__(self, seed: int, size: int, hook: Hook, spoilt: int):
        self.seed, self.size, self.hook, self.spoilt, self.drawn = seed, size, hook, spoilt, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.drawn += 1
        self.hook(self.drawn)
        x = np.random.default_rng([self.seed, self.drawn]).standard_normal((self.size, 3)).astype(np.float32)
        y = x @ TRUTH + 0.25
        return dict(x=x, y=y if self.drawn != self.spoilt else np.full_like(y, np.nan))

    def get_state(self):
        return {"drawn": self.drawn}

    def set_state(self, state):
        self.drawn = state["drawn"]


@dataclasses.dataclass(frozen=True)
class Line:
    size: int = 8
    hook: Hook = lambda _: None
    spoilt: int = 0

    def batches(self, seed: int) -> Points:
        return Points(seed, self.size, self.hook, self.spoilt)


@dataclasses.dataclass(frozen=True)
class Fit:
    """Least squares; the step and a random start are part of it, so that losing either would show."""

    while_painting: Callable[[], None] = lambda: None

    def init(self, key):
        return {"layer": {"kernel": 0.1 * jax.random.normal(key, (3, 2)), "bias": jnp.zeros((2,))}}

    def loss(self, params, batch, step):
        error = batch["x"] @ params["layer"]["kernel"] + params["layer"]["bias"] - batch["y"]
        loss = jnp.mean(jnp.square(error))
        return loss * (1 + 1e-3 * step.astype(jnp.float32)), {"mse": loss}

    def pictures(self, params, batch):
        self.while_painting()
        return {"fit": np.full((4, 6, 3), 0.5, np.float32)}

    def export(self, path, params, metadata):
        path.write_text(json.dumps({"params": jax.tree.map(lambda x: x.tolist(), params), **metadata}))


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
    assert rows[0].keys() == {"step", "loss", "grad_norm", "mse", "steps_per_s"}
    assert all(row["grad_norm"] > 0 and row["steps_per_s"] > 0 for row in rows)
    assert {p.name for p in (folder / "pictures").iterdir()} == {"fit_0000010.png", "fit_0000020.png"}
    np.testing.assert_allclose(read_image(folder / "pictures" / "fit_0000020.png"), 0.5, atol=1 / 255)
    assert {p.name for p in (folder / "checkpoints").iterdir()} == {"10", "20"}
    assert list((folder / "tensorboard").iterdir())
    assert (weights["steps"], weights["seed"], weights["experiment"]) == (20, 3, "line")


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


def test_old_checkpoints_go(tmp_path):
    run(tmp_path, replace(checkpoint_every=4, keep=2))
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"16", "20"}


def test_two_devices_learn_what_one_learns(tmp_path):
    one, two = (run(tmp_path / str(n), replace(devices=n))["params"]["layer"] for n in (1, 2))
    for name in one:
        np.testing.assert_allclose(one[name], two[name], atol=1e-5)


def test_a_run_moves_to_another_number_of_devices(tmp_path, straight):
    run(tmp_path, replace(steps=10, devices=2), optim=AVERAGED)
    moved = run(tmp_path, replace(devices=1), optim=AVERAGED)["params"]["layer"]
    for name, value in straight[1]["params"]["layer"].items():
        np.testing.assert_allclose(moved[name], value, atol=1e-5)


def test_a_batch_lies_on_all_devices():
    mesh = make_mesh(2)
    x = shard_batch(mesh, {"x": np.arange(8.0).reshape(4, 2)})["x"]
    assert {shard.data.shape for shard in x.addressable_shards} == {(2, 2)}


def test_a_batch_that_does_not_split_is_refused(tmp_path):
    with pytest.raises(ValueError, match="batch of 7 does not split over 2") as error:
        run(tmp_path, data=Line(size=7))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("devices", [3, -1])
def test_more_devices_than_there_are(devices):
    with pytest.raises(ValueError, match="this machine has 2"):
        make_mesh(devices)


def test_not_a_number_ends_the_run(tmp_path):
    with pytest.raises(FloatingPointError, match="nan") as error:
        run(tmp_path, data=Line(spoilt=13))
    assert "\n" not in str(error.value) and "15" in str(error.value)
    assert not (tmp_path / "weights.safetensors").exists()
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"10"}


def test_not_a_number_is_never_saved(tmp_path):
    with pytest.raises(FloatingPointError):
        run(tmp_path, replace(checkpoint_every=7), data=Line(spoilt=13))
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"7"}


def test_another_seed_is_another_run(tmp_path):
    one, other = (run(tmp_path / str(seed), replace(steps=5), seed=seed) for seed in (0, 1))
    assert one["params"] != other["params"]


@pytest.mark.parametrize(
    ("config", "values"),
    [
        (OptimConfig(lr=0.1), {0: 0.1, 50: 0.1, 10**7: 0.1}),
        (OptimConfig(lr=0.1, warmup=10), {0: 0.0, 5: 0.05, 10: 0.1, 60: 0.1}),
        (
            OptimConfig(lr=0.1, schedule="staircase", decay_every=10, decay_rate=0.5),
            {0: 0.1, 9: 0.1, 10: 0.05, 19: 0.05, 20: 0.025},
        ),
        (OptimConfig(lr=0.1, schedule="cosine", final_lr=0.1), {0: 0.1, 50: 0.055, 100: 0.01, 200: 0.01}),
        (OptimConfig(lr=0.1, schedule="cosine", warmup=20), {10: 0.05, 20: 0.1, 60: 0.05, 100: 0.0}),
    ],
)
def test_learning_rates(config, values):
    schedule = make_schedule(config, 100)
    for step, value in values.items():
        assert float(schedule(step)) == pytest.approx(value, abs=1e-7)


def test_the_papers_schedule():
    schedule = make_schedule(OptimConfig(schedule="staircase"), 3_000_000)
    rates = [float(schedule(step)) for step in (0, 749_999, 750_000, 1_500_000, 2_250_000)]
    np.testing.assert_allclose(rates, [1e-4, 1e-4, 0.464158e-4, 0.2154e-4, 1e-5], rtol=1e-3)


def first_update(config: OptimConfig, grads, params=None):
    params = params or jax.tree.map(jnp.zeros_like, grads)
    tx = make_optimizer(config, 100)
    return jax.jit(tx.update)(grads, tx.init(params), params)[0]


def gradients() -> dict[str, jax.Array]:
    return {"kernel": jax.random.normal(jax.random.key(0), (3, 3, 4, 6)), "bias": jnp.array([3.0, -0.001])}


def test_adams_first_step_is_the_sign():
    updates, grads = first_update(OptimConfig(lr=0.1), gradients()), gradients()
    for name in grads:
        np.testing.assert_allclose(updates[name], -0.1 * np.sign(grads[name]), rtol=0.01)


def test_clipping_bounds_the_gradients_norm():
    small, large = ({"x": jnp.array([s, 1e-8], jnp.float32)} for s in (0.5, 500.0))
    config = OptimConfig(lr=0.1, clip=1.0)
    ratio = [float(first_update(config, grads)["x"][1]) for grads in (small, large)]
    assert abs(ratio[1]) < 0.1 * abs(ratio[0])  # 1e-8 was shrunk with the rest, towards Adam's epsilon


def test_adamw_shrinks_what_gets_no_gradient():
    params = {"x": jnp.array([2.0])}
    update = first_update(OptimConfig("adamw", lr=0.1, weight_decay=0.5), {"x": jnp.zeros(1)}, params)
    assert float(update["x"][0]) == pytest.approx(-0.1 * 0.5 * 2)


def test_muon_moves_all_directions_alike_and_leaves_biases_to_adam():
    grads = gradients()
    grads["kernel"] += 5.0  # one direction outweighs all others
    updates = first_update(OptimConfig("muon", lr=0.1), grads)
    before, after = (np.linalg.svd(np.asarray(x["kernel"]).reshape(36, 6), compute_uv=False) for x in (grads, updates))
    assert before.min() < 0.1 * before.max() and after.min() > 0.4 * after.max()
    step = np.asarray(updates["bias"]) / -np.sign(grads["bias"])  # Adam's, by optax with Nesterov's look ahead
    assert step.min() == pytest.approx(step.max(), rel=0.01) and 0.5 < step.max() / (0.05 * 0.1) < 2


def test_muon_trains(tmp_path):
    run(tmp_path, replace(steps=60, log_every=20), optim=OptimConfig("muon", lr=0.1))
    rows = log_of(tmp_path)
    assert rows[-1]["loss"] < 0.3 * rows[0]["loss"]


@pytest.mark.parametrize(
    ("fields", "said"), [({"name": "sgd"}, "adam"), ({"schedule": "linear"}, "cosine"), ({"ema": 1.0}, "ema")]
)
def test_unknown_recipes_are_refused(fields, said):
    with pytest.raises(ValueError, match=said) as error:
        OptimConfig(**fields)
    assert "\n" not in str(error.value)


def test_the_log_forgets_steps_that_will_be_done_again(tmp_path):
    lines = [json.dumps({"step": step, "loss": 1.0}) for step in (5, 10, 15)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 2']) + "\n")
    logger = Logger(tmp_path, 10)
    logger.scalars(12, {"loss": 0.5})
    logger.close()
    assert log_of(tmp_path) == [{"step": 5, "loss": 1.0}, {"step": 10, "loss": 1.0}, {"step": 12, "loss": 0.5}]


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
