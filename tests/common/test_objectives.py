"""Terms find their inputs by path, weigh by the step, and share the pass of a perceptual network; schedules."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusal import refused

from common import losses
from common.perceptual import vgg
from common.training import objectives
from common.training.objectives import L1, L2, Psnr, Schedule, Scope, as_schedule
from common.training.task import Context


class Output(NamedTuple):
    image: jax.Array
    inner: dict


def pictures(seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).random((2, 32, 32, 3)), jnp.float32)


def scope(step: int = 0, frozen=None) -> Scope:
    output = Output(pictures(0), {"half": 0.5 * pictures(0)})
    return Scope(output, {"y": pictures(1)}, Context(jnp.int32(step), jax.random.key(0), frozen or {}))


def test_terms_are_the_losses_of_the_same_name():
    for term in (L1(), L2(), Psnr(), objectives.Ssim()):
        function = getattr(losses, type(term).__name__.lower())
        assert isinstance(term, objectives.Term)
        assert float(term(scope())) == pytest.approx(float(function(pictures(0), pictures(1))))


def test_paths_lead_into_fields_and_entries():
    term = L1(prediction="output.inner.half", target="output.image")
    assert float(term(scope())) == pytest.approx(float(jnp.mean(pictures(0)) / 2))
    expected = losses.charbonnier(pictures(0) / 2, pictures(1), 0.1)
    assert float(objectives.Charbonnier("output.inner.half", epsilon=0.1)(scope())) == pytest.approx(float(expected))


def test_the_total_weighs_by_step_and_reports_the_plain_values():
    terms = {"a": L1(), "b": L2(weight={"kind": "step", "corners": [[0, 0.0], [10, 40.0]]})}
    for step, weight in ((0, 0), (10, 0), (11, 40)):  # the step named keeps the old weight
        loss, values = objectives.total(terms, scope(step))
        assert float(loss) == pytest.approx(float(values["a"]) + weight * float(values["b"]), rel=1e-6)
        assert float(values["b"]) == pytest.approx(float(losses.l2(pictures(0), pictures(1))))
    loss, values = objectives.total(terms, scope(11), {"psnr": Psnr(), "a": Psnr()})  # no metric takes a loss's name
    assert values.keys() == {"a", "b", "weight_b", "psnr"}
    assert float(loss) == pytest.approx(float(values["a"] + 40 * values["b"]))


def test_perceptual_terms_share_their_pass(monkeypatch):
    monkeypatch.setattr(vgg, "WIDTHS", (4, 4, 4, 4, 4))
    calls, features, network = [], losses.perceptual_features, vgg.random_vgg(16)
    monkeypatch.setattr(objectives.losses, "perceptual_features", lambda *a: calls.append(1) or features(*a))
    terms = {"vgg": objectives.Vgg(), "style": objectives.Style(weight=2.0)}
    loss, values = objectives.total(terms, scope(frozen={"vgg": network}))
    assert len(calls) == 1
    expected = [float(function(pictures(0), pictures(1), network)) for function in (losses.vgg, losses.style)]
    assert [float(value) for value in values.values()] == pytest.approx(expected, rel=1e-5)
    assert float(loss) == pytest.approx(expected[0] + 2 * expected[1], rel=1e-5)


def test_refusals_of_terms():
    for path in ("output.picture", "batch.x9", "nowhere.image", "output.inner.third"):
        assert path in refused(ValueError, L1(prediction=path), scope())
    assert "'vgg'" in refused(ValueError, objectives.Vgg(), scope())  # a network that is not loaded


@pytest.mark.parametrize(("schedule", "expected"), [
    ([[100, 2.0], [200, 4.0], [300, 1.0]], {0: 2, 100: 2, 150: 3, 200: 4, 250: 2.5, 300: 1, 10**6: 1}),
    # TensorFlow's PiecewiseConstantDecay([1500000, 2000000], [1.0, 0.25, 0.0]), as in the reference's losses
    (
        {"kind": "step", "corners": [[0, 1.0], [1_500_000, 0.25], [2_000_000, 0.0]]},
        {0: 1, 1: 1, 1_499_999: 1, 1_500_000: 1, 1_500_001: 0.25, 2_000_000: 0.25, 2_000_001: 0},
    ),
    # exact where float32 has no such step
    *[
        ({"kind": "step", "corners": [[0, 1.0], [at, 0.5]]}, {at - 1: 1, at: 1, at + 1: 0.5, 2**31 - 1: 0.5})
        for at in (2**24 + 1, 2**31 - 8)
    ],
    ([[2**30 + 3, 0.0], [2**30 + 7, 8.0]], {2**30 + i: max(0, min(8, 2 * i - 6)) for i in range(2, 9)}),
    ([[0, 1.0], [2**31 - 1, 3.0]], {0: 1, 2**30: 2, 2**31 - 1: 3}),
    *[(value, {0: 3, 7: 3, 10**9: 3}) for value in (3, 3.0, [[7, 3.0]], Schedule([[5, 3.0]]))],
])  # fmt: skip
def test_schedules(schedule, expected):
    traced = jax.jit(as_schedule(schedule))
    assert [float(traced(jnp.int32(step))) for step in expected] == pytest.approx(list(expected.values()))
    assert as_schedule(schedule) == as_schedule(schedule, "elsewhere")


INVALID = {
    "no corners": [[], {"kind": "step"}],
    "steps that do not rise": [[[0, 1.0], [5, 2.0], [5, 3.0]], [[9, 1.0], [5, 2.0]]],
    "steps that are not int32": [[[-1, 1.0]], [[2**31, 1.0]], [[0.5, 1.0]]],
    "values": [[[0, math.nan]], [0, 1.0], [[0, "much"]]],
    "other types": ["linear", None],
    "keys": [{"kind": "cubic", "corners": [[0, 1.0]]}, {"corners": [[0, 1.0]], "colour": 1}],
}


@pytest.mark.parametrize("reason", INVALID)
def test_invalid_schedules_are_refused_in_one_line(reason):
    for value in INVALID[reason]:
        assert refused(ValueError, as_schedule, value, "loss.vgg.weight").startswith("loss.vgg.weight")
