"""The picture tower, views of a picture, and calibrated doubt."""

import dataclasses
import json
from unittest.mock import create_autospec

import jax
import numpy as np
import pytest
from flax import nnx
from refusal import refused
from reveal_networks import SMALL as PLAIN
from reveal_networks import drawn

from reveal.memory import Item, Memory
from reveal.metrics.calibration import calibration_error, reliability
from reveal.network import weights
from reveal.network.config import TowerConfig
from reveal.processing.doubt import FEATURES, TERMS, Doubt, Logistic, Signals, fit, fit_probe
from reveal.processing.images import Views
from reveal.reader import Reader, best_view

CONFIG = dataclasses.replace(PLAIN, tower=TowerConfig(width=8, key_dim=6, weight=0.36))
RNG = np.random.default_rng(0)
PAIRS = (0.0,) * (len(TERMS) - len(FEATURES))
IMAGES = RNG.random((3, 16, 16, 3), np.float32)
TOKENS = RNG.integers(3, 29, (3, 5))


@pytest.fixture(scope="module")
def model():
    return drawn(CONFIG)


def test_keys_have_the_tower_beside_the_heads(model):
    has = np.array([True, True, False])
    encode = jax.jit(model.encode_item)
    item = encode(TOKENS, IMAGES, has)
    assert item.key.shape == (3, CONFIG.vector_dim) == (3, PLAIN.key_dim + 6)
    np.testing.assert_allclose(np.linalg.norm(item.key, axis=1), 1, rtol=1e-5)
    picture = np.concatenate([model.embed_pictures(IMAGES[:2]), model.no_picture()[None]])
    np.testing.assert_allclose(item.key[:, PLAIN.key_dim :], 0.6 * picture, atol=1e-5)
    np.testing.assert_allclose(encode(TOKENS).key[2], item.key[2], atol=1e-5)
    heavy = drawn(dataclasses.replace(PLAIN, tower=TowerConfig(width=8, key_dim=6, weight=1.44, heads_weight=0.16)))
    key = heavy.encode_item(TOKENS, IMAGES, has).key  # 0.16 = 0.4^2, the heads have 0.8^2 above
    np.testing.assert_allclose(key, item.key * np.repeat([0.5, 2], [PLAIN.key_dim, 6]), atol=1e-5)
    refused(ValueError, TowerConfig, weight=1.5, match="heads_weight")


def test_views_differ_in_the_tower_alone(model):
    query = jax.tree.map(lambda x: x[:1], jax.jit(model.encode_query)(TOKENS, IMAGES))
    vectors, no_picture = map(np.asarray, model.view_vectors(query, IMAGES))
    np.testing.assert_allclose(no_picture, 0.6 * vectors[:, PLAIN.key_dim :] @ model.no_picture(), atol=1e-6)
    np.testing.assert_allclose(no_picture[0], query.no_picture[0], atol=1e-6)
    np.testing.assert_allclose(vectors[0], query.vector[0], atol=1e-5)
    assert (vectors[:, : PLAIN.key_dim] == vectors[0, : PLAIN.key_dim]).all() and (vectors[1] != vectors[0]).any()


def test_a_file_without_a_tower_begins_one_with_a_tower(model, tmp_path):
    plain = nnx.to_pure_dict(nnx.state(drawn(PLAIN, 1)))
    weights.save(tmp_path / "plain.safetensors", plain, PLAIN)
    params = weights.load_params(tmp_path / "plain.safetensors", CONFIG)
    assert jax.tree.structure(params) == jax.tree.structure(nnx.to_pure_dict(nnx.state(model)))
    np.testing.assert_array_equal(params["projection"]["kernel"], plain["projection"]["kernel"])
    weights.save(tmp_path / "tower.safetensors", params, CONFIG)
    assert weights.load(tmp_path / "tower.safetensors").config == CONFIG
    heavy = dataclasses.replace(CONFIG, tower=TowerConfig(width=8, key_dim=6, weight=1.5, heads_weight=0.5))
    same = weights.load_params(tmp_path / "tower.safetensors", heavy)
    jax.tree.map(np.testing.assert_array_equal, same, params)
    with pytest.raises(ValueError, match=r"set task\.network"):
        weights.load_params(tmp_path / "tower.safetensors", PLAIN)


def test_windows_cover_the_image_and_small_ones_cost_more():
    image, views = np.arange(40 * 60 * 3, dtype=np.uint8).reshape(40, 60, 3), Views(((0.75, 2), (0.5, 3)), 0.2, 0.5)
    shown = views.of(image, 20)
    assert shown.shape == (views.count, 20, 20, 3) == (1 + 4 + 9, 20, 20, 3) and 0 <= shown.min() <= shown.max() <= 1
    np.testing.assert_array_equal(Views().of(image, 20), shown[:1])
    for view, least in ((1, 0.05), (5, 0.1)):
        gain = np.eye(14)[view]
        assert views.best((least - 1e-3) * gain, np.zeros(14)) == 0
        assert views.best((least + 1e-3) * gain, np.zeros(14)) == view
    assert views.best(np.full(14, 0.7), np.full(14, 0.1) - 0.5 * np.eye(14)[7]) == 7
    assert Views.from_json(json.loads(json.dumps(dataclasses.asdict(views)))) == views
    assert Views.from_json([[0.75, 2], [0.5, 3]]) == Views(views.windows)


@pytest.mark.parametrize("asked", [False, True])
def test_doubt_finds_the_probabilities_that_made_the_answers(asked):
    question = Logistic((3.0, -1.0), 0.5) if asked else None
    signals = Signals(*RNG.normal(size=(6, 4000)), RNG.normal(size=(4000, 2)))
    true = Doubt((2.0, 1.0, -0.5, 0.0, -1.0, 0.5, 1.5 * asked, *PAIRS), 0.3, 0.5, question)
    right = RNG.random(4000) < true.probability(signals)
    found = fit(signals, right, question, lost=0.05)
    probability = found.probability(signals)
    assert np.abs(probability - true.probability(signals)).mean() < 0.03
    assert (probability[right] < found.threshold).mean() == pytest.approx(0.05, abs=0.01)
    assert calibration_error(probability, right) < 0.03
    assert Doubt.from_json(json.loads(json.dumps(found.as_json()))) == found
    refused(ValueError, fit, signals, np.ones(4000, bool), match="calibration needs")


def test_a_strange_question_is_doubted_and_a_usual_one_gains_nothing():
    known, strange = RNG.normal(2, 1, (30, 8)), RNG.normal(0, 1, (3000, 8))
    probe = fit_probe(known, strange)
    assert (probe.log_odds(RNG.normal(2, 1, (500, 8))) > 0).mean() > 0.95 > 0.05 > (probe.log_odds(strange) > 0).mean()
    doubt = Doubt((0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, *PAIRS), 2.0, 0.5, probe)
    zeros = np.zeros(3)
    texts = np.stack([np.full(8, level) for level in (-2.0, 2.0, 4.0)])
    odd, usual, more = doubt.probability(Signals(*[zeros] * 6, texts))
    zero = np.zeros(())
    assert doubt.probability(Signals(*[zero] * 6, texts[1])) == pytest.approx(usual)
    assert odd < 0.01 < 0.85 < usual and more == pytest.approx(usual, abs=0.05)


@pytest.mark.parametrize("fields", [
    {"weights": {"scores": 1}, "bias": 0, "threshold": 0},
    {"weights": {"score": 1}, "bias": 0},
    {"weights": ["score"], "bias": 0, "threshold": 0},
    {"weights": {}, "bias": None, "threshold": 0},
    {"weights": {}, "bias": 0, "threshold": 0, "question": {"bias": 0}},
    {"weights": {}, "bias": 0, "threshold": 0, "question": [1]},
])  # fmt: skip
def test_other_descriptions_of_doubt_are_refused(fields):
    with pytest.raises(ValueError, match="weight"):
        Doubt.from_json(fields)


def test_weights_of_older_files_are_read():
    weights = {"score": 1, "gate": 2, "likelihood": 3, "empty": 4}
    doubt = Doubt.from_json({"weights": weights, "bias": 5, "threshold": 0})
    assert doubt == Doubt((1.0, 0.0, 0.0, 2.0, 3.0, 4.0, 0.0, *PAIRS), 5.0, 0.0)


def test_the_pictures_part_of_a_score(model, tmp_path):
    """Of the best item, beside the whole score; and the mean of the question's tokens, which no picture changes."""
    reader = Reader(model, read_item=lambda items: {"tokens": TOKENS, "image": IMAGES, "has_image": np.ones(3, bool)})
    reader.build(tmp_path / "m", [Item("a", {"text": "x"}) for _ in range(3)], ("a", "b"))
    output, pictures = reader.ask(TOKENS, IMAGES, k=2), np.asarray(model.embed_pictures(IMAGES))
    best = pictures[output.retrieved.ids[:, 0]]
    np.testing.assert_allclose(output.picture, 0.36 * (pictures * best).sum(axis=1), atol=1e-5)
    np.testing.assert_allclose(output.no_picture, 0.36 * pictures @ model.no_picture(), atol=1e-5)
    other = reader.ask(TOKENS, IMAGES[::-1], k=2)
    np.testing.assert_allclose(output.text, other.text, atol=1e-5)
    assert output.signals().text.shape == (3, CONFIG.width) and (output.signals().picture == output.picture).all()


def test_a_view_of_nothing_known_counts_less():
    memory = create_autospec(Memory, instance=True)
    memory.search.return_value.scores = np.array([[0.7], [0.9]])
    vectors, gate, views = np.zeros((2, 4)), np.zeros((1, 2)), Views(((0.5, 1),), 0.2)
    assert best_view(views, memory, vectors, np.zeros(2), gate, None) == 1
    assert best_view(views, memory, vectors, np.array([0.1, 0.4]), gate, None) == 0


def test_views_are_chosen_a_batch_at_a_time(model, tmp_path):
    """Each question gets the view that shows a stored image, in whatever batch and place it is."""
    rows = {"tokens": TOKENS, "image": IMAGES, "has_image": np.ones(3, bool)}
    reader = Reader(model, read_item=lambda items: rows, batch=2)
    reader.build(tmp_path / "m", [Item("a", {"text": "x"}) for _ in range(3)], ("a", "b"))
    noise = np.random.default_rng(5).random(IMAGES.shape, np.float32)
    views = [np.stack([IMAGES[n] if n == at else noise[n] for at in range(3)]) for n in range(3)]
    two = Views(((0.5, 1), (0.4, 1)), size_cost=0.0)
    chosen = reader.best_views(TOKENS, iter(views), two)
    expected = [reader.best_views(TOKENS[n : n + 1], views[n : n + 1], two)[0] for n in range(3)]
    np.testing.assert_array_equal(chosen, expected)
    assert [np.array_equal(chosen[n], IMAGES[n]) for n in range(3)] == [True] * 3


def test_reliability_is_that_of_equal_groups():
    probability, right = np.array([0.9, 0.1, 0.2, 0.8]), np.array([True, False, True, True])
    assert reliability(probability, right, 2) == [pytest.approx((0.15, 0.5, 2)), pytest.approx((0.85, 1.0, 2))]
    assert calibration_error(probability, right, 2) == pytest.approx((0.35 + 0.15) / 2)
    refused(ValueError, reliability, probability, right, 5, match="as many answers")
