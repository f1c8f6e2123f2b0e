"""Training a control: the base stays, the control learns what the condition says, and the evaluation sees it."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tiny_base import diffusion_base, random

from common.training.task import Context
from plugins.control.contract import ControlNetwork
from plugins.control.controlnet import ControlNet
from plugins.control.loading import load
from plugins.control.mediapipe import MediaPipePlugin
from plugins.control.training.control_task import ControlTask
from plugins.data.captioned_batches import CaptionedConfig
from plugins.evaluation.control_fidelity import ControlEvaluation
from plugins.metrics.fidelity import MaskIou
from recipes.captioned_pictures.train_tokenizer import train_bpe, write_tokenizer

SIDE = 16


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "tiny"
    diffusion_base().save(folder)
    return str(folder)


@functools.cache
def task_of(base: str, **options) -> ControlTask:
    return ControlTask(base, **options)


def batch_of(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """White pictures with a dark square somewhere, which is what the condition shows."""
    rng = np.random.default_rng(seed)
    condition = np.zeros((count, SIDE, SIDE, 3), np.float32)
    for one in condition:
        top, left = rng.integers(0, SIDE - 8, 2)
        one[top : top + 8, left : left + 8] = 1
    return {"image": 1 - condition, "condition": condition, "tokens": np.full((count, 16), 999, np.int32)}


def context(task: ControlTask, step: int) -> Context:
    return Context(jnp.int32(step), jax.random.fold_in(jax.random.key(0), step), task.frozen())


@pytest.mark.parametrize("kind", ["mediapipe", "controlnet", "t2i_adapter"])
def test_every_weight_of_a_control_learns_and_none_of_the_base(base, kind):
    task, batch = task_of(base, kind=kind), batch_of(4)
    made = task.network(jax.jit(task.init)(jax.random.key(1)))
    assert isinstance(made, ControlNetwork)
    params = nnx.to_pure_dict(nnx.state(random(type(made), made.config)))  # as if trained: no layer is silent
    (_, metrics), grads = jax.jit(jax.value_and_grad(task.loss, has_aux=True))(params, batch, context(task, 0))
    silent = [
        jax.tree_util.keystr(p) for p, g in jax.tree_util.tree_leaves_with_path(grads) if not jnp.abs(g).max() > 0
    ]
    assert not silent and set(metrics) == {"denoising"}
    assert "unet" in task.frozen() and "unet" not in params


@pytest.mark.parametrize("kind", ["mediapipe", "controlnet"])
def test_a_new_control_has_the_loss_of_the_base(base, kind):
    """Zeros are added: the base alone has this very loss. Remat and bfloat16 change it by rounding."""
    task, batch = task_of(base, kind=kind), batch_of(4)
    start = task.start() or jax.jit(task.init)(jax.random.key(1))
    forward = jax.jit(task.forward)
    seen = forward(start, batch, context(task, 0))
    alone = forward(start, batch | {"condition": 0 * batch["condition"]}, context(task, 0))
    np.testing.assert_array_equal(seen.prediction, alone.prediction)
    again = jax.jit(dataclasses.replace(task, remat=True).forward)(start, batch, context(task, 0))
    np.testing.assert_allclose(seen.prediction, again.prediction, atol=1e-4)
    half = jax.jit(dataclasses.replace(task, dtype="bfloat16").forward)(start, batch, context(task, 0))
    assert half.prediction.dtype == jnp.float32
    np.testing.assert_allclose(seen.prediction, half.prediction, atol=0.3)


@pytest.mark.slow
def test_remat_of_a_controlnet_changes_no_gradient_and_saves_memory(base):
    batch = batch_of(4)

    def gradient(remat):
        task = task_of(base, kind="controlnet", remat=remat)
        params = nnx.to_pure_dict(nnx.state(random(ControlNet, task.config)))
        compiled = jax.jit(jax.grad(task.loss, has_aux=True)).lower(params, batch, context(task, 0)).compile()
        return compiled(params, batch, context(task, 0))[0], compiled.memory_analysis().temp_size_in_bytes

    (plain, whole), (again, less) = gradient(False), gradient(True)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=1e-3)
    assert less < 0.8 * whole, (less, whole)


def test_a_controlnet_starts_with_the_bases_encoder(base):
    task = task_of(base, kind="controlnet")
    start = task.start()
    assert start is not None
    np.testing.assert_array_equal(start["conv_in"]["kernel"], task.pipeline.unet.conv_in.kernel[...])
    assert task_of(base, kind="mediapipe").start() is None


def test_cubic_timesteps_lean_towards_noise(base):
    """1 - u^3 has mean 3/4, and half its mass above 1 - 1/8."""
    t = np.asarray(task_of(base, timesteps="cubic").draw(jax.random.key(0), 4000))
    assert t.min() >= 0 and t.max() == 999
    assert abs(t.mean() / 1000 - 0.75) < 0.01 and abs((t > 875).mean() - 0.5) < 0.01
    even = np.asarray(task_of(base, timesteps="uniform").draw(jax.random.key(0), 4000))
    assert abs(even.mean() - 499.5) < 5


def test_what_is_exported_is_read_again(base, tmp_path):
    task = task_of(base)
    params = nnx.to_pure_dict(nnx.state(random(MediaPipePlugin, task.config)))
    folder = task.export(tmp_path / "weights.safetensors", params, {"steps": 3})
    found = load(folder)
    assert found.config == task.config and json.loads((folder / "training.json").read_text()) == {"steps": 3}
    condition = jnp.asarray(batch_of(1)["condition"])
    for ours, theirs in zip(found.encode(condition), task.network(params).encode(condition), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    again = task_of(base, start_from=str(folder)).start()
    np.testing.assert_array_equal(again["stem"]["kernel"], params["stem"]["kernel"])


@pytest.mark.slow
def test_a_control_learns_where_things_are(base):
    """The base is random: what it predicts gets better where the features tell the layout, and not with wrong ones."""
    task, batch, optimiser = task_of(base, timesteps="uniform"), batch_of(16), optax.adam(3e-3)
    frozen = task.frozen()

    @jax.jit
    def step(params, state, number):
        where = Context(number, jax.random.fold_in(jax.random.key(2), number), frozen)
        (loss, _), grads = jax.value_and_grad(task.loss, has_aux=True)(params, batch, where)
        updates, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    params = jax.jit(task.init)(jax.random.key(1))
    state, losses = optimiser.init(params), []
    for number in range(60):
        params, state, loss = step(params, state, jnp.int32(number))
        losses.append(float(loss))
    assert np.mean(losses[-10:]) < 0.85 * np.mean(losses[:5])
    wrong = batch | {"condition": np.roll(batch["condition"], 1, 0)}
    right, other = (float(task.loss(params, b, context(task, 1000))[0]) for b in (batch, wrong))
    assert right < other


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, count = tmp_path_factory.mktemp("pictures"), 8
    np.save(folder / "images.npy", (255 * batch_of(count)["image"]).astype(np.uint8))
    entry = dict(style="3d emoji", tags=[], mirror=True)
    entries = [dict(entry, label=f"thing {i}", split="unseen" if i < 4 else "train") for i in range(count)]
    (folder / "index.json").write_text(json.dumps(dict(pictures=entries)))
    write_tokenizer(folder / "tokenizer", *train_bpe([f"thing {i}, 3d emoji" for i in range(count)], 600))
    return str(folder)


def test_batches_bring_the_condition_of_their_picture(pictures):
    data = CaptionedConfig(pictures, batch_size=4, length=16, buffer=1, condition="canny", vary={"low": [20, 60]})
    batch = next(data.batches(0))
    assert batch["condition"].shape == (4, SIDE, SIDE, 3) and batch["condition"].dtype == np.float32
    for image, condition in zip(batch["image"], batch["condition"], strict=True):
        assert set(np.unique(condition)) == {0, 1}
        ys, xs = np.nonzero(condition[..., 0])
        dark = np.nonzero(image[..., 0] < 0.5)
        for edge, inside in zip((ys, xs), dark, strict=True):
            assert abs(edge.min() - inside.min()) <= 1 and abs(edge.max() - inside.max()) <= 1
    np.testing.assert_array_equal(batch["condition"], next(data.batches(0))["condition"])
    CaptionedConfig(pictures, condition="face", options={"most": 2})  # nothing is looked for yet
    with pytest.raises(ValueError, match=r"vary\.low is"):
        CaptionedConfig(pictures, condition="canny", vary={"low": [60, 20]})
    with pytest.raises(ValueError, match="canny has no option 'sigma'"):
        CaptionedConfig(pictures, condition="canny", options={"sigma": 1})


def test_the_evaluation_puts_three_rows_side_by_side(base, pictures, tmp_path):
    data = CaptionedConfig(pictures, split="unseen", batch_size=2, length=16, condition="canny")
    evaluation = ControlEvaluation(data, {"area": MaskIou()}, base, 4, 4, (0.0, 1.0), steps=2, rows=2)
    names = evaluation.prepare()
    assert names == ["area/with control", "area/no control", "area/wrong control"]
    task = task_of(base)
    params = nnx.to_pure_dict(nnx.state(random(MediaPipePlugin, task.config)))
    scores = evaluation.score(task, params)
    assert list(scores) == names and len(set(scores.values())) == 3
    assert evaluation.score(task, params) == scores
    weights = task.export(tmp_path / "weights", params, {})
    table = evaluation.run(str(weights), tmp_path / "out")
    assert "with control, strength 1" in table and (tmp_path / "out" / "sheet.png").is_file()
    report = json.loads((tmp_path / "out" / "results.json").read_text())["scores"]
    assert report["with control, strength 0"]["area"] == report["no control"]["area"]
    assert report["with control, strength 1"]["area"]["value"] == pytest.approx(scores["area/with control"])
    with pytest.raises(FileExistsError):
        evaluation.run(str(weights), tmp_path / "out")
