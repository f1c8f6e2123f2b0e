"""Distances between sets: closed forms, no bias where none is promised, and an error bar that is one."""

from pathlib import Path

import numpy as np
import pytest
from networks import one_line
from scipy.linalg import sqrtm

from plugins.metrics import Statistics, clip_score, cmmd, compare, frechet_distance, kid, precision_recall
from plugins.metrics.features import INCEPTION, LITE0
from plugins.metrics.frechet import factor
from plugins.metrics.kernels import polynomial


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
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-10)


def test_frechet_of_gaussians_that_do_not_commute():
    """In two dimensions tr M^(1/2) = sqrt(tr M + 2 sqrt(det M)) by Cayley and Hamilton."""
    roots = np.array([[[1.0, 0.0], [0.8, 0.3]], [[0.2, 0.0], [-1.5, 2.0]]])
    first, second = (root @ root.T for root in roots)
    product = first @ second
    root_trace = np.sqrt(np.trace(product) + 2 * np.sqrt(np.linalg.det(product)))
    expected = np.trace(first) + np.trace(second) - 2 * root_trace + 5
    a, b = exact(np.zeros(2), roots[0], 40), exact(np.array([1.0, 2.0]), roots[1], 60, seed=1)
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-10)


def test_frechet_with_fewer_pictures_than_features():
    """One direction each, at an angle, in 500 dimensions: tr (C1 C2)^(1/2) = s1 s2 |cos|."""
    along, n = np.zeros((2, 500)), 7
    along[0, 3], along[1, 3], along[1, 400] = 2.0, 0.6, 0.8
    steps = [exact(np.zeros(1), np.ones((1, 1)), n, seed) for seed in (0, 1)]
    a, b = (step * direction + 1 for step, direction in zip(steps, along, strict=True))
    assert frechet_distance(a, b) == pytest.approx(4 + 1 - 2 * 2 * 1 * 0.6, rel=1e-10)


@pytest.mark.parametrize("n", [20, 300])
def test_equal_sets_are_at_distance_0(n):
    features = np.random.default_rng(0).random((n, 64), np.float32)  # as a network gives them
    assert frechet_distance(features, features) < 1e-10
    assert frechet_distance(features, features[::-1].copy()) < 1e-10
    other = features + np.float32(0.5)
    assert frechet_distance(features, other) == pytest.approx(64 * 0.25, rel=1e-5) == frechet_distance(other, features)


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
    assert polynomial(a, b)[2, 3] == pytest.approx((a[2] @ b[3] / 4 + 1) ** 3)


def test_kid_does_not_depend_on_the_number_of_pictures():
    """Its mean over many small sets is what a large pair of sets has; that of Fréchet is far above."""
    rng = np.random.default_rng(0)

    def sets(n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.random((n, 6)), rng.random((n, 6)) ** 1.5

    large = sets(3000)
    few = [sets(6) for _ in range(400)]
    values = [kid(*pair).value for pair in few]
    assert np.mean(values) == pytest.approx(kid(*large).value, abs=4 * np.std(values) / np.sqrt(400))
    assert np.mean([frechet_distance(*pair) for pair in few]) > 2 * frechet_distance(*large)


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


# ---- statistics


def summed_up(mean: np.ndarray, root: np.ndarray) -> Statistics:
    return Statistics(mean, root @ root.T, 1000)


def by_matrix_root(a: Statistics, b: Statistics) -> float:
    """As pytorch-fid and clean-fid compute it."""
    root = np.real(sqrtm(a.covariance @ b.covariance))
    return np.sum((a.mean - b.mean) ** 2) + np.trace(a.covariance) + np.trace(b.covariance) - 2 * np.trace(root)


@pytest.mark.parametrize("d", [1, 16])
def test_frechet_of_statistics_is_that_of_the_matrix_root(d):
    rng = np.random.default_rng(d)
    a, b = (summed_up(rng.standard_normal(d), rng.standard_normal((d, d))) for _ in range(2))
    assert frechet_distance(a, b) == pytest.approx(by_matrix_root(a, b), rel=1e-8)
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a), rel=1e-10)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("n", [7, 200])
def test_features_and_their_statistics_say_the_same(n):
    """Also where there are fewer pictures than features, and the covariances are singular."""
    rng = np.random.default_rng(n)
    a, b = rng.random((n, 40)), rng.random((n + 5, 40)) ** 2
    expected = frechet_distance(a, b)
    for pair in ((Statistics.of(a), b), (a, Statistics.of(b)), (Statistics.of(a), Statistics.of(b))):
        assert frechet_distance(*pair) == pytest.approx(expected, rel=1e-7)
    np.testing.assert_allclose(Statistics.of(a).covariance, np.cov(a.T), atol=1e-12)


def test_statistics_are_kept_as_others_keep_them(tmp_path):
    kept = Statistics.of(np.random.default_rng(0).random((9, 4)))
    kept.save(tmp_path / "real.npz")
    with np.load(tmp_path / "real.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["mu"], kept.mean)
        np.testing.assert_array_equal(file["sigma"], kept.covariance)
    assert Statistics.load(tmp_path / "real.npz").count == 9
    with pytest.raises(FileExistsError):
        kept.save(tmp_path / "real.npz")
    np.savez_compressed(tmp_path / "theirs.npz", mu=kept.mean.astype(np.float32), sigma=kept.covariance)
    theirs = Statistics.load(tmp_path / "theirs.npz")
    assert theirs.count is None and frechet_distance(kept, theirs) < 1e-6


def test_files_that_are_no_statistics_are_one_line(tmp_path):
    folder: Path = tmp_path
    np.savez(folder / "other.npz", mu=np.zeros(3))
    np.savez(folder / "shape.npz", mu=np.zeros(3), sigma=np.zeros((2, 2)))
    np.savez(folder / "pickle.npz", mu=np.array([{}], object), sigma=np.zeros((1, 1)))
    np.save(folder / "array.npy", np.zeros(3))
    (folder / "text.npz").write_text("hello")
    (folder / "empty.npz").write_bytes(b"")
    for name in ("other.npz", "shape.npz", "pickle.npz", "array.npy", "text.npz", "empty.npz"):
        with pytest.raises(ValueError, match=name) as error:
            Statistics.load(folder / name)
        one_line(error)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Statistics.load(folder / "nowhere.npz")
    with pytest.raises(ValueError, match=r"\.npz"):
        Statistics(np.zeros(1), np.zeros((1, 1))).save(folder / "real.npy")


# ---- kernel distances with a Gaussian


def test_cmmd_is_the_formula():
    a, b = (np.random.default_rng(seed).standard_normal((n, 4)) for seed, n in ((0, 5), (1, 6)))
    x, y = ([row / np.sqrt(np.sum(row**2)) for row in rows] for rows in (a, b))

    def mean(first: list, second: list, same: bool) -> float:
        pairs = [(p, q) for i, p in enumerate(first) for j, q in enumerate(second) if same or i != j]
        return np.mean([np.exp(-np.sum((p - q) ** 2) / 200) for p, q in pairs])

    across = mean(x, y, True)
    assert cmmd(a, b) == pytest.approx(1000 * (mean(x, x, False) + mean(y, y, False) - 2 * across), rel=1e-9)
    program = 1000 * (mean(x, x, True) + mean(y, y, True) - 2 * across)
    assert cmmd(a, b, unbiased=False) == pytest.approx(program, rel=1e-9)
    assert cmmd(7 * a, b) == pytest.approx(cmmd(a, b), rel=1e-9)


def test_cmmd_of_opposites_is_the_most_there_is():
    a = np.tile([1.0, 0.0], (4, 1))
    assert cmmd(a, -a) == pytest.approx(2000 * (1 - np.exp(-1 / 50)), rel=1e-9)
    assert cmmd(a, -a, unbiased=False) == pytest.approx(39.6, abs=0.01)
    assert cmmd(a, a, unbiased=False) == 0


# ---- precision, recall, and texts


def test_precision_and_recall_of_points_on_a_line():
    """k = 1. Real 0, 1, 10, 12 with radii 1, 1, 2, 2; generated 2, 3, 13, 40 with radii 1, 1, 10, 27."""
    real, generated = np.array([[0.0], [1], [10], [12]]), np.array([[2.0], [3], [13], [40]])
    found = precision_recall(generated, real, k=1)
    assert found.precision == 2 / 4  # 2 lies at 1 + 1, 13 within 12 + 2; 3 and 40 in no ball
    assert found.recall == 3 / 4  # 1 lies at 2 - 1, 10 and 12 within 13 - 10; 0 in no ball
    assert precision_recall(real, generated, k=1) == (found.recall, found.precision)
    assert precision_recall(generated, real, k=2).precision == 3 / 4  # radius of 1 is 9, of 10 it is 9, of 12 it is 11


def test_precision_and_recall_tell_poor_from_narrow():
    rng = np.random.default_rng(0)
    real = rng.standard_normal((400, 8))
    assert precision_recall(real, real) == (1, 1)
    narrow = precision_recall(0.3 * rng.standard_normal((400, 8)), real)
    wild = precision_recall(4 * rng.standard_normal((400, 8)), real)
    apart = precision_recall(rng.standard_normal((400, 8)) + 50, real)
    assert narrow.precision > 0.9 > 0.3 > narrow.recall
    assert wild.precision < 0.1 < 0.7 < wild.recall
    assert apart == (0, 0)


def test_precision_and_recall_by_double_loops():
    rng = np.random.default_rng(5)
    a, b = rng.random((12, 3)), rng.random((15, 3)) + 0.4

    def covered(points: np.ndarray, by: np.ndarray, k: int) -> float:
        balls = [sorted(np.linalg.norm(x - y) for y in by)[k] for x in by]  # the 0-th is itself
        inside = [any(np.linalg.norm(p - x) <= r for x, r in zip(by, balls, strict=True)) for p in points]
        return float(np.mean(inside))

    for k in (1, 3, 5):
        assert precision_recall(a, b, k) == pytest.approx((covered(a, b, k), covered(b, a, k)))
    assert 0 < covered(a, b, 3) < 1


def test_clip_score_is_the_mean_cosine_of_pairs():
    images, texts = np.array([[3.0, 4], [0, 2]], np.float32), np.array([[1.0, 0], [0, -5]], np.float32)
    assert clip_score(images, texts) == pytest.approx((0.6 - 1) / 2)
    assert clip_score(images, images) == pytest.approx(1)
    assert clip_score(images[:1], texts[:1]) == pytest.approx(0.6)


def test_only_inceptions_distance_is_called_fid():
    a, b = (np.random.default_rng(seed).random((8, 4)) for seed in (0, 1))
    published, ours = compare(INCEPTION, a, b), compare(LITE0, a, b)
    assert list(published) == ["FID", "KID", "KID error", "precision", "recall"]
    assert list(published.values()) == list(ours.values())
    assert not any("FID" in title or "KID" in title for title in ours)
    assert ours["Fréchet efficientnet-lite0"] == frechet_distance(a, b)
    assert (published["KID"], published["KID error"]) == kid(a, b)
    assert (published["precision"], published["recall"]) == precision_recall(a, b)


POINTS = np.random.default_rng(0).random((4, 2))
UNIT = np.tile([1.0, 0.0], (4, 1))


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: frechet_distance(POINTS, POINTS[:2]), "2"),
        (lambda: kid(POINTS, POINTS[:2]), "2"),
        (lambda: kid(POINTS + np.array([0, np.inf]), POINTS), "infinity"),
        (lambda: frechet_distance(np.zeros((5, 3)), Statistics(np.zeros(4), np.eye(4))), "3 and 4"),
        (lambda: precision_recall(POINTS, np.tile(POINTS, (2, 1)), 0), "k=0"),
        (lambda: precision_recall(POINTS, np.tile(POINTS, (2, 1)), 4), "4"),
        (lambda: cmmd(UNIT, UNIT * np.array([[1], [1], [0], [1]])), "embedding 2"),
        (lambda: clip_score(UNIT, 0 * UNIT), "embedding 0"),
    ],
)
def test_invalid_sets_are_refused(call, value):
    with pytest.raises(ValueError, match=value) as error:
        call()
    one_line(error)
