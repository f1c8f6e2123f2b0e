"""Terms find what they compare by path, weigh by the step, and share a perceptual network's pass."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from common import losses
from common.perceptual.vgg import Vgg as Network
from common.perceptual.vgg import param_shapes
from common.training.objectives import L1, L2, Charbonnier, Psnr, Scope, Ssim, Style, Term, Vgg, report, total
from common.training.task import Context


class Output(NamedTuple):
    image: jax.Array
    inner: dict


def pictures(seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).random((2, 32, 32, 3)), jnp.float32)


def scope(step: int = 0, frozen=None) -> Scope:
    output = Output(pictures(0), {"half": 0.5 * pictures(0)})
    return Scope(output, {"y": pictures(1)}, Context(jnp.int32(step), jax.random.key(0), frozen or {}))


@pytest.mark.parametrize(
    ("term", "function"),
    [
        (L1(), losses.l1),
        (L2(), losses.l2),
        (Charbonnier(epsilon=0.1), lambda a, b: losses.charbonnier(a, b, 0.1)),
        (Psnr(), losses.psnr),
        (Ssim(), losses.ssim),
    ],
)
def test_terms_are_the_losses_of_the_same_name(term, function):
    assert isinstance(term, Term)
    assert float(term(scope())) == pytest.approx(float(function(pictures(0), pictures(1))))


def test_paths_lead_into_fields_and_entries():
    term = L1(prediction="output.inner.half", target="output.image")
    assert float(term(scope())) == pytest.approx(float(jnp.mean(pictures(0)) / 2))


@pytest.mark.parametrize("path", ["output.picture", "batch.x9", "nowhere.image", "output.inner.third"])
def test_a_path_that_leads_nowhere_names_what_there_is(path):
    with pytest.raises(ValueError, match=r"is not one of .*(image|y|batch|half)"):
        L1(prediction=path)(scope())


def test_the_total_weighs_by_step_and_reports_the_plain_values():
    terms = {"a": L1(), "b": L2(weight={"kind": "step", "corners": [[0, 0.0], [10, 40.0]]})}
    for step, weight in ((0, 0), (10, 0), (11, 40)):  # the step named keeps the old weight
        loss, values = total(terms, scope(step))
        assert float(loss) == pytest.approx(float(values["a"]) + weight * float(values["b"]), rel=1e-6)
        assert float(values["b"]) == pytest.approx(float(losses.l2(pictures(0), pictures(1))))
    assert report({"psnr": Psnr()}, scope()).keys() == {"psnr"}


def network(depth: int = 16) -> Network:
    rng = np.random.default_rng(3)

    def draw(shape):
        scale = np.sqrt(2 / np.prod(shape[:-1])) if len(shape) > 1 else 0.01
        return jnp.asarray(scale * rng.standard_normal(shape), jnp.float32)

    return Network(jax.tree.map(lambda leaf: draw(leaf.shape), param_shapes(depth)))


@pytest.mark.slow
def test_perceptual_terms_and_their_shared_pass(monkeypatch):
    calls, features = [], Network.features
    monkeypatch.setattr(Network, "features", lambda self, *a: calls.append(1) or features(self, *a))
    here = scope(frozen={"vgg": network()})
    loss, values = total({"vgg": Vgg(), "style": Style(weight=2.0)}, here)
    assert len(calls) == 2  # one pass for the prediction, one for the truth
    pair = pictures(0), pictures(1), network()
    assert float(values["vgg"]) == pytest.approx(float(losses.vgg(*pair)), rel=1e-5)
    assert float(values["style"]) == pytest.approx(float(losses.style(*pair)), rel=1e-5)
    assert float(loss) == pytest.approx(float(values["vgg"]) + 2 * float(values["style"]), rel=1e-5)


def test_a_network_that_is_not_loaded():
    with pytest.raises(ValueError, match=r"'vgg' of a loss is not loaded .none is.: add it to task.networks"):
        Vgg()(scope())
