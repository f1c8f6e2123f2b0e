"""Distances between sets: closed forms, no bias where none is promised, and an error bar that is one."""

import numpy as np
import pytest

from common.frechet import factor, frechet, kernel, kid


def exact(mean: np.ndarray, root: np.ndarray, n: int, seed: int = 0) -> np.ndarray:
    """n rows whose mean and covariance are exactly `mean` and root @ root.T."""
    draws = np.random.default_rng(seed).standard_normal((n, len(mean)))
    draws -= draws.mean(axis=0)
    white = np.linalg.solve(np.linalg.cholesky(draws.T @ draws / (n - 1)), draws.T).T
    return mean + white @ root.T


def test_frechet_of_gaussians_along_the_axes():
    """Commuting covariances: the sum of (difference of means)^2 + (difference of deviations)^2."""
    means, deviations = np.array([[0, 1, 2], [3, 1, 0.5]]), np.array([[1, 2, 0.5], [0.1, 2, 3]])
    a, b = (exact(mean, np.diag(s), n) for mean, s, n in zip(means, deviations, (50, 70), strict=True))
    expected = np.sum((means[0] - means[1]) ** 2 + (deviations[0] - deviations[1]) ** 2)
    assert frechet(a, b) == pytest.approx(expected, rel=1e-10)


def test_frechet_of_gaussians_that_do_not_commute():
    """In two dimensions tr M^(1/2) = sqrt(tr M + 2 sqrt(det M)) by Cayley and Hamilton."""
    roots = np.array([[[1.0, 0.0], [0.8, 0.3]], [[0.2, 0.0], [-1.5, 2.0]]])
    first, second = (root @ root.T for root in roots)
    product = first @ second
    root_trace = np.sqrt(np.trace(product) + 2 * np.sqrt(np.linalg.det(product)))
    expected = np.trace(first) + np.trace(second) - 2 * root_trace + 5
    a, b = exact(np.zeros(2), roots[0], 40), exact(np.array([1.0, 2.0]), roots[1], 60, seed=1)
    assert frechet(a, b) == pytest.approx(expected, rel=1e-10)


def test_frechet_with_fewer_pictures_than_features():
    """One direction each, at an angle, in 500 dimensions: tr (C1 C2)^(1/2) = s1 s2 |cos|."""
    along, n = np.zeros((2, 500)), 7
    along[0, 3], along[1, 3], along[1, 400] = 2.0, 0.6, 0.8
    steps = [exact(np.zeros(1), np.ones((1, 1)), n, seed) for seed in (0, 1)]
    a, b = (step * direction + 1 for step, direction in zip(steps, along, strict=True))
    assert frechet(a, b) == pytest.approx(4 + 1 - 2 * 2 * 1 * 0.6, rel=1e-10)


@pytest.mark.parametrize("n", [20, 300])
def test_equal_sets_are_at_distance_0(n):
    features = np.random.default_rng(0).random((n, 64), np.float32)  # as a network gives them
    assert frechet(features, features) < 1e-10
    assert frechet(features, features[::-1].copy()) < 1e-10
    other = features + np.float32(0.5)
    assert frechet(features, other) == pytest.approx(64 * 0.25, rel=1e-5) == frechet(other, features)


@pytest.mark.parametrize("n", [5, 30])
def test_a_factor_squares_to_the_covariance(n):
    features = np.random.default_rng(0).random((n, 8))
    root = factor(features)
    assert len(root) <= 8
    np.testing.assert_allclose(root.T @ root, np.cov(features.T), atol=1e-12)


def test_kid_is_the_formula():
    a, b = (np.random.default_rng(seed).random((n, 4)) for seed, n in ((0, 5), (1, 6)))
    own = [np.mean([(x @ y / 4 + 1) ** 3 for i, x in enumerate(s) for j, y in enumerate(s) if i != j]) for s in (a, b)]
    across = np.mean([(x @ y / 4 + 1) ** 3 for x in a for y in b])
    assert kid(a, b).value == pytest.approx(own[0] + own[1] - 2 * across, rel=1e-10)
    assert kernel(a, b)[2, 3] == pytest.approx((a[2] @ b[3] / 4 + 1) ** 3)


def test_kid_does_not_depend_on_the_number_of_pictures():
    """Its mean over many small sets is what a large pair of sets has; that of Fréchet is far above."""
    rng = np.random.default_rng(0)

    def sets(n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.random((n, 6)), rng.random((n, 6)) ** 1.5

    large = sets(3000)
    few = [sets(6) for _ in range(1500)]
    values = [kid(*pair).value for pair in few]
    assert np.mean(values) == pytest.approx(kid(*large).value, abs=4 * np.std(values) / np.sqrt(1500))
    assert np.mean([frechet(*pair) for pair in few]) > 2 * frechet(*large)


def test_kid_of_the_same_kind_is_0_on_average_and_below_at_times():
    rng = np.random.default_rng(1)
    values = [kid(rng.random((8, 6)), rng.random((8, 6))).value for _ in range(1500)]
    assert abs(np.mean(values)) < 4 * np.std(values) / np.sqrt(1500)
    assert min(values) < 0


def test_the_error_is_the_spread_over_other_pictures():
    rng = np.random.default_rng(2)
    estimates = [kid(rng.random((40, 6)), rng.random((60, 6)) ** 1.5) for _ in range(400)]
    spread = np.std([estimate.value for estimate in estimates])
    assert np.mean([estimate.error for estimate in estimates]) == pytest.approx(spread, rel=0.15)


def test_the_error_is_the_jackknifes():
    a, b = (np.random.default_rng(seed).random((n, 4)) for seed, n in ((0, 5), (1, 6)))
    without = [
        [kid(np.delete(a, i, 0), b).value for i in range(5)],
        [kid(a, np.delete(b, i, 0)).value for i in range(6)],
    ]
    assert kid(a, b).error == pytest.approx(np.sqrt(sum((len(v) - 1) * np.var(v) for v in without)), rel=1e-9)


@pytest.mark.parametrize("distance", [frechet, kid])
def test_what_is_no_set_is_refused(distance):
    good = np.random.default_rng(0).random((4, 2))
    with pytest.raises(ValueError, match="a set of 2 pictures"):
        distance(good, good[:2])
    with pytest.raises(ValueError, match="NaN or infinity"):
        distance(good + np.array([0, np.inf]), good)
