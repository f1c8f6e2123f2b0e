"""Training of global matching: its losses on known flow, what it trains, and its addition to other weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusal import refused
from toy import parameters, toy

from common.training.task import Context
from film import matching
from film.config import KEYS, FilmConfig
from film.io.weights import load, save_model
from film.matching import unit
from recipes.film_small.matching import MatchingTask, at_cells, choice_terms, main, similarity_terms

CONFIG = FilmConfig(5, 5, 1, 2, (1, 1), (8, 8), 8, bilateral=True, blend=True, matching=True)


@pytest.fixture(autouse=True)
def one_round(monkeypatch):
    """So that programs are small."""
    monkeypatch.setattr(matching, "ROUNDS", ((1,), (1,)))


def test_known_flow_is_taken_at_the_middle_of_cells_and_in_cells():
    rows, columns = jnp.meshgrid(jnp.arange(8.0), jnp.arange(12.0), indexing="ij")
    flow = jnp.stack([columns, rows], axis=-1)[None]
    assert at_cells(flow, 4).shape == (1, 2, 3, 2) and at_cells(flow, 3).shape == (1, 4, 6, 2)
    np.testing.assert_array_equal(at_cells(flow, 4)[0, 1, 2], [10 / 16, 6 / 16])
    np.testing.assert_array_equal(at_cells(flow, 3)[0, 1, 2], [5 / 8, 3 / 8])


def test_true_matches_have_the_least_loss_and_hidden_cells_do_not_count():
    """x1 is x0 moved by two cells to the right; the frame in between lies half-way."""
    keys = unit(jax.random.normal(jax.random.key(0), (2, 5, 9, KEYS[0])))
    first, second, one = keys[:, :, 2:], keys[:, :, :-2], jnp.broadcast_to(jnp.array([1.0, 0.0]), (2, 5, 7, 2))
    seen = np.ones((2, 5, 7), bool)
    seen[:, :, 0] = False  # shown by x1 alone

    def terms(to_other, seen):
        return similarity_terms(first, second, -one, to_other, jnp.asarray(seen), jnp.array([30.0]))

    loss, wrong = terms(one, seen)
    assert loss.shape == (2,) and float(loss.max()) < 0.1 and float(wrong.max()) == 0
    assert float(terms(one - jnp.array([2.0, 0.0]), seen)[0].min()) > 5
    half, _ = terms(0.5 * one, seen)  # between two cells: both are asked for
    assert 10 < float(half.min()) < 20 and float(terms(one, np.ones_like(seen))[0].min()) > float(loss.max())
    assert float(jnp.abs(terms(one, np.zeros_like(seen))[0]).max()) == 0


def test_the_choice_is_of_the_candidate_with_the_least_error():
    truth = jnp.full((1, 2, 2, 2), 3.0)
    candidates = jnp.stack([truth + 5, truth, truth + 0.5], axis=1)
    scores = 20.0 * jnp.broadcast_to(jnp.eye(3)[:, None, :, None, None], (3, 1, 3, 2, 2))
    worst, best = (choice_terms(candidates, scores[k], truth) for k in (0, 1))
    assert {name: float(value[0]) for name, value in best.items() if name != "choice"} == {
        "wrong_estimated": 1, "wrong_chosen": 0, "wrong_best": 0,
    }  # fmt: skip
    assert float(worst["wrong_chosen"][0]) == 1 and float(worst["choice"][0]) > 5 > 2 > float(best["choice"][0])
    alike = choice_terms(jnp.stack([truth] * 3, axis=1), jnp.zeros((1, 3, 2, 2)), truth)
    assert float(alike["choice"][0]) == 0


def test_the_task_needs_matching_and_what_it_trains_is_added_to_other_weights(tmp_path):
    refused(ValueError, MatchingTask, dataclasses.replace(CONFIG, matching=False), match="task.model.matching=true")
    trained, other = toy(CONFIG, seed=1), toy(dataclasses.replace(CONFIG, matching=False), seed=2)
    for name, model in (("trained", trained), ("other", other)):
        save_model(tmp_path / f"{name}.safetensors", model)
    paths = [str(tmp_path / f"{name}.safetensors") for name in ("trained", "other")]
    main(*paths, tmp_path / "both.safetensors", dtype="float32")
    both = load(tmp_path / "both.safetensors")
    assert both.config == CONFIG
    for path, value in parameters(both).items():
        source = trained if path.startswith("matcher") else other
        np.testing.assert_array_equal(value, parameters(source)[path], err_msg=path)
    refused(ValueError, main, *paths[::-1], tmp_path / "none.safetensors", match="no matching")
    assert not (tmp_path / "none.safetensors").exists()


def batch_of(valid: list[float]) -> dict[str, jax.Array]:
    images, share = jax.random.uniform(jax.random.key(0), (2, 2, 64, 64, 3)), jnp.array(valid)[:, None, None]
    flow, valid = jnp.full((2, 16, 16, 2), 4.0), jnp.broadcast_to(share, (2, 16, 16))
    flows = dict(flow0=-flow, flow1=3 * flow, flow01=4 * flow, flow10=-4 * flow, valid0=valid, valid1=valid)
    return flows | dict(x0=images[0], x1=images[1], time=jnp.full((2, 1), 0.25))


def test_a_step_changes_the_loss_of_matching_alone():
    """Gradients of keys and scorers are finite, and there are none of other parts. A scene without known flow, as one
    of a film, does not count."""
    model = toy(CONFIG, seed=3)
    task, params = MatchingTask(CONFIG), nnx.to_pure_dict(nnx.state(model))
    context = Context(jnp.int32(0), jax.random.key(0), {})
    gradient_of = jax.jit(jax.grad(lambda params, batch: task.loss(params, batch, context), has_aux=True))
    gradients, metrics = gradient_of(params, batch_of([1.0, 1.0]))
    for name, part in gradients.items():
        norms = [float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(part)]
        assert np.isfinite(norms).all() and (max(norms) > 0) == (name == "matcher"), name
    shares = {name: float(value) for name, value in metrics.items() if name.startswith("wrong")}
    assert len(shares) == 12 and all(0 <= share <= 1 for share in shares.values())
    one = batch_of([1.0, 0.0])
    results = [gradient_of(params, one | {name: one[name].at[1].multiply(2.0) for name in names})[1]["choice"]
               for names in ((), ("flow1", "flow01"))]  # fmt: skip
    assert float(results[0]) == float(results[1])
