"""Training a control: the base stays, the control learns what the condition shows, and the evaluation measures it."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from prepared import dark_squares, write_prepared
from refusal import refused
from tiny_base import WIDTH, diffusion_base, random, train

from common.training.task import Context
from plugins.control import load
from plugins.control.training.control_task import KINDS, ControlSheet, ControlTask, draw
from plugins.data.captioned_batches import CaptionedConfig
from plugins.evaluation.control_fidelity import ControlEvaluation
from plugins.metrics.fidelity import MaskIou

SIDE = 16


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "tiny"
    diffusion_base().save(folder)
    return str(folder)


@functools.cache
def task_of(base: str, **options) -> ControlTask:
    return ControlTask(base, **options)


def trained(task: ControlTask) -> dict:
    """Random parameters, those that start at zero included."""
    return nnx.to_pure_dict(nnx.state(random(KINDS[task.kind], task.config)))


def batch_of(count: int) -> dict[str, np.ndarray]:
    """White images with a dark square somewhere, which is what the condition shows."""
    image = dark_squares(count, SIDE).astype(np.float32) / 255
    return {"image": image, "condition": 1 - image, "tokens": np.full((count, 16), 999, np.int32)}


def encoded(count: int) -> dict[str, np.ndarray]:
    """As a cache gives it: neither autoencoder nor text encoder runs, nor is compiled."""
    rng, (side, width) = np.random.default_rng(0), (SIDE // 2, WIDTH)
    mean, states = (rng.standard_normal(shape, np.float32) for shape in ((count, side, side, 4), (count, 16, width)))
    latents = {"latents_mean": mean, "latents_std": np.full_like(mean, 0.1)}
    return {**latents, "states": states, "condition": batch_of(count)["condition"]}


def context(task: ControlTask, step: int) -> Context:
    return Context(jnp.int32(step), jax.random.fold_in(jax.random.key(0), step), task.frozen())


@functools.cache
def gradient(base: str, **options):
    """Loss and metrics, gradients, and the bytes that they took meanwhile."""
    task = task_of(base, **options)
    arguments = trained(task), encoded(4), context(task, 0)
    compiled = jax.jit(jax.value_and_grad(task.loss, has_aux=True)).lower(*arguments).compile()
    return *compiled(*arguments), compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_of_a_control_learns_and_none_of_the_base(base, kind):
    task = task_of(base, kind=kind)
    (_, metrics), grads, _ = gradient(base, kind=kind)
    still = [jax.tree_util.keystr(p) for p, g in jax.tree_util.tree_leaves_with_path(grads) if not jnp.abs(g).any()]
    assert not still and set(metrics) == {"denoising"}
    assert jax.tree.structure(jax.eval_shape(task.init, jax.random.key(1))) == jax.tree.structure(grads)
    assert "unet" in task.frozen() and "unet" not in grads


@pytest.mark.long
def test_a_new_controlnet_is_the_bases_encoder_and_changes_no_prediction(base):
    """bfloat16 changes it by rounding."""
    task, batch = task_of(base, kind="controlnet"), encoded(2)
    start = task.start()
    np.testing.assert_array_equal(start["conv_in"]["kernel"], task.pipeline.unet.conv_in.kernel[...])
    forward = jax.jit(task.forward)
    seen = forward(start, batch, context(task, 0))
    other = forward(start, batch | {"condition": 0 * batch["condition"]}, context(task, 0))
    np.testing.assert_array_equal(seen.prediction, other.prediction)
    cheap = dataclasses.replace(task, dtype="bfloat16")
    jax.tree.map(np.testing.assert_array_equal, cheap.start(), start)  # not rounded
    half = jax.jit(cheap.forward)(start, batch, context(cheap, 0))
    assert half.prediction.dtype == jnp.float32
    np.testing.assert_allclose(seen.prediction, half.prediction, atol=0.3)


@pytest.mark.long
def test_a_frozen_base_has_the_type_of_the_computation(base):
    """All but the autoencoder, whose latents are the training's data; the image summary too."""
    task = task_of(base, dtype="bfloat16")
    found = {kind: {str(leaf.dtype) for leaf in jax.tree.leaves(tree)} for kind, tree in task.frozen().items()}
    assert found == {"unet": {"bfloat16"}, "text_encoder": {"bfloat16"}, "vae": {"float32"}}
    sheet = dataclasses.replace(task, samples=ControlSheet(rows=1, steps=2)).pictures(trained(task), batch_of(1))
    assert np.isfinite(sheet["samples"]).all()


@pytest.mark.long
def test_remat_of_a_controlnet_changes_no_gradient_and_saves_memory(base):
    (loss, plain, memory), (same, again, less) = (
        gradient(base, kind="controlnet", **options) for options in ({}, {"remat": True})
    )
    assert float(loss[0]) == pytest.approx(float(same[0]), rel=1e-5)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=1e-3)
    assert less < 0.8 * memory, (less, memory)


def test_an_exported_control_is_loaded_and_trained_further(base, tmp_path):
    task = task_of(base)
    params = trained(task)
    folder = task.export(tmp_path / "weights.safetensors", params, {"steps": 3})
    found = load(folder)
    assert found.config == task.config and json.loads((folder / "training.json").read_text()) == {"steps": 3}
    for again in (nnx.to_pure_dict(nnx.state(found)), task_of(base, start_from=str(folder)).start()):
        jax.tree.map(np.testing.assert_array_equal, again, params)
    assert task.start() is None
    of_masks = task_of(base, start_from=str(folder), shape=dataclasses.replace(task.config, condition="mask"))
    jax.tree.map(np.testing.assert_array_equal, of_masks.start(), params)
    with pytest.raises(ValueError, match="weights"):
        task_of(base, kind="t2i_adapter", start_from=str(folder)).start()


@pytest.mark.long
def test_a_control_learns_the_layout(base):
    """The base is random: its predictions get better where features show the layout, and not with wrong ones."""
    task, batch = task_of(base, timesteps="uniform"), batch_of(16)
    params, rows = train(task, batch, steps=60)
    losses = [row["denoising"] for row in rows]
    assert np.mean(losses[-10:]) < 0.85 * np.mean(losses[:5])
    loss, wrong = jax.jit(task.loss), batch | {"condition": np.roll(batch["condition"], 1, 0)}
    assert loss(params, batch, context(task, 1000))[0] < loss(params, wrong, context(task, 1000))[0]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    splits = [{"split": "unseen"}] * 4 + [{"split": "train"}] * 4
    return write_prepared(tmp_path_factory.mktemp("pictures"), dark_squares(8, SIDE), lambda i: splits[i])


@pytest.mark.long
def test_the_evaluation_has_two_anchors(base, pictures, tmp_path, monkeypatch):
    """A command draws on all devices, a training on one, with parameters that are on it."""
    devices, places = [], []

    def spied(pipeline, prompts, network, conditions, settings, strength, mesh):
        devices.append(1 if mesh is None else mesh.size)
        if network is not None:
            places.append({isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(nnx.state(network))})
        return draw(pipeline, prompts, network, conditions, settings, strength, mesh)

    monkeypatch.setattr("plugins.evaluation.control_fidelity.draw", spied)
    data = CaptionedConfig(pictures, split="unseen", batch_size=2, length=16, condition="canny")
    evaluation = ControlEvaluation(data, {"area": MaskIou()}, base, 4, 4, (0.0, 1.0), steps=2, rows=2)
    names = evaluation.prepare()
    assert names == ["area/with control", "area/no control", "area/wrong control"]
    task = task_of(base)
    params = jax.device_get(trained(task))
    scores = evaluation.score(task, params)
    assert set(devices) == {1} and places == [{True}] * 2
    assert list(scores) == names and len(set(scores.values())) == 3
    assert evaluation.score(task, params) == scores
    weights = task.export(tmp_path / "weights", params, {})
    devices.clear()
    table = evaluation.run(str(weights), tmp_path / "out")
    assert set(devices) == {2}
    assert "with control, strength 1" in table and (tmp_path / "out" / "sheet.png").is_file()
    report = json.loads((tmp_path / "out" / "results.json").read_text())["scores"]
    assert report["with control, strength 0"]["area"] == report["no control"]["area"]
    assert report["with control, strength 1"]["area"]["value"] == pytest.approx(scores["area/with control"])
    refused(FileExistsError, evaluation.run, str(weights), tmp_path / "out")
