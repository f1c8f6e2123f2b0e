"""Flow pretraining: each level's target, minus the forced error, and the errors themselves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from refusal import refused
from toy import CONFIG
from translation import MOTION, SIDE, batch, partly_valid

from common.training.task import Context
from recipes.film_small.flow_pretraining import FlowTask, smooth_error, teacher_at


def test_the_flow_tasks_target_at_each_level():
    """In pixels of the level, and without what is not valid."""
    for level in range(4):
        size = (SIDE >> level, SIDE >> level)
        flow, valid = teacher_at(batch(), level, size)
        assert valid.shape == (2, *size)
        np.testing.assert_allclose(flow, np.broadcast_to(np.array(MOTION) / 2**level, (2, *size, 2)), rtol=1e-5)
        flow, valid = teacher_at(partly_valid(), level, size)
        assert 0 < float(valid.mean()) < 1
        away = np.abs(np.asarray(flow) - np.array(MOTION) / 2**level) * (np.asarray(valid) > 1e-3)[..., None]
        assert away.max() < 1e-4


def test_the_flow_task_asks_for_minus_the_forced_error(monkeypatch):
    def answers(task, params, given):
        truth = [teacher_at(data, level, flow.shape[1:3])[0] for level, flow in enumerate(given["forced"])]
        return [params * (forced - flow) for forced, flow in zip(given["forced"], truth, strict=True)]

    data, task = batch(), FlowTask(dataclasses.replace(CONFIG, bilateral=True, blend=True))
    monkeypatch.setattr(FlowTask, "_predictions", answers)
    loss_of = jax.jit(lambda answer: task.loss(answer, data, Context(jnp.int32(0), jax.random.key(0), {})))
    for answer, missed in ((-1.0, 0.0), (0.0, 1.0), (1.0, 2.0)):
        loss, metrics = loss_of(jnp.float32(answer))
        assert list(metrics) == ["missed_0", "missed_1", "missed_2"]
        np.testing.assert_allclose(list(metrics.values()), missed, atol=1e-5)
        assert (float(loss) < 1e-5) == (missed == 0)


def test_forced_errors_are_smooth_and_of_the_given_strength():
    error = np.asarray(smooth_error(jax.random.key(0), (64, 32, 32, 2), (0.5, 2.0)))
    strength = np.sqrt((error**2).mean(axis=(1, 2, 3)))
    assert 0.2 < strength.min() < 0.7 < 1.0 < strength.max() < 2.5
    assert np.abs(np.diff(error, axis=2)).mean() < 0.25 * np.abs(error).mean()
    refused(ValueError, FlowTask, CONFIG, match="bilateral")
