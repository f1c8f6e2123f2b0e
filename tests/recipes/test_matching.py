"""Training of global matching: its losses on known flow, what it trains, and its addition to other weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from refusal import refused
from toy import parameters, toy

from film.config import FilmConfig
from film.io.weights import load, save_model
from film.matching import KEY, unit
from recipes.film_small.matching import MatchingTask, at_cells, choice_terms, main, similarity_terms

CONFIG = FilmConfig(5, 5, 1, 2, (1, 1), (8, 8), 8, bilateral=True, blend=True, matching=True)


def test_known_flow_is_taken_at_the_middle_of_cells():
    rows, columns = jnp.meshgrid(jnp.arange(8.0), jnp.arange(12.0), indexing="ij")
    cells = at_cells(jnp.stack([columns, rows], axis=-1)[None])
    assert cells.shape == (1, 2, 3, 2)
    np.testing.assert_array_equal(cells[0, 1, 2], [10, 6])


def test_true_matches_have_the_least_loss_and_hidden_cells_do_not_count():
    """x1 is x0 moved by two cells to the right; the frame in between lies half-way."""
    keys = unit(jax.random.normal(jax.random.key(0), (2, 5, 9, KEY)))
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


def test_a_step_changes_the_loss_of_matching_alone():
    """Gradients of the keys and the scorer are finite, and there are none of other parts."""
    model = toy(CONFIG, seed=3)
    task, params = MatchingTask(CONFIG), nnx.to_pure_dict(nnx.state(model))
    images = jax.random.uniform(jax.random.key(0), (2, 2, 64, 64, 3))
    flow, valid = jnp.full((2, 16, 16, 2), 4.0), jnp.ones((2, 16, 16))
    batch = dict(x0=images[0], x1=images[1], time=jnp.full((2, 1), 0.25), flow0=-flow, flow1=3 * flow)
    terms = lambda params: task._terms(params, batch | dict(valid0=valid, valid1=valid))  # noqa: E731
    gradients = jax.jit(jax.grad(lambda params: jnp.mean(terms(params)["keys"] + terms(params)["choice"])))(params)
    for name, part in gradients.items():
        norms = [float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(part)]
        assert np.isfinite(norms).all() and (max(norms) > 0) == (name == "matcher"), name
