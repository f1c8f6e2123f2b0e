"""How far apart two sets of pictures are: Fréchet distance and kernel distance of their features.

A generator is judged by a set of its pictures beside a set of real ones. Each picture becomes a vector of d features
(here EfficientNet-Lite0's, `common/efficientnet.py`: d = 1280), and the two clouds of vectors are compared.

**Fréchet distance** (FID; Heusel et al., 1706.08500, section 2) takes each cloud for a Gaussian of its mean m and
covariance C:

    |m1 - m2|^2 + tr C1 + tr C2 - 2 tr (C1 C2)^(1/2)

The last trace needs no root of a matrix. With centred features as rows, C1 = A'A and C2 = B'B, the eigenvalues of C1 C2
other than 0 are those of (AB')(AB')', so the trace is the sum of the singular values of AB': real and never negative,
also where there are fewer pictures than features and both covariances are singular. The estimate is too large by an
amount that depends on the numbers of pictures (Chong and Forsyth, 1911.07023): compare distances of equal numbers only.

**Kernel distance** (KID; Bińkowski et al., 1801.01401, section 4) is the squared maximum mean discrepancy with the
kernel k(x, y) = (x.y / d + 1)^3, without the terms of a picture with itself:

    mean k(a, a') + mean k(b, b') - 2 mean k(a, b)        a, a' and b, b' different pictures

Its expectation does not depend on the numbers of pictures, so it is the one to trust for a few hundred. It is 0 on
average for sets of the same kind, and may be below 0. The published program averages over subsets of 1000; all pictures
at once have the same expectation and a smaller variance.

Published FID and KID use another network's features (Inception's): **no number of this module can be compared with
theirs**, only with others of the same features, the same resizing and the same real pictures.

Everything is computed in float64. Memory: two matrices of n x m.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

DEGREE = 3
FEWEST = 3  # pictures of a set: leaving one out must leave a pair


class Estimate(NamedTuple):
    """A number and its standard error: how much it would vary with other pictures of the same two kinds."""

    value: float
    error: float


def frechet(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"]) -> float:
    """Fréchet distance of two sets of features; 0 for equal sets, never negative.

    Raises ValueError for less than 3 rows or for values that are not finite."""
    a, b = _checked(a), _checked(b)
    shift = float(np.sum(np.square(a.mean(axis=0) - b.mean(axis=0))))
    root_a, root_b = factor(a), factor(b)
    spread = float(np.sum(np.square(root_a)) + np.sum(np.square(root_b)))
    common = float(np.linalg.svd(root_a @ root_b.T, compute_uv=False).sum())
    return max(0.0, shift + spread - 2 * common)


def factor(features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "r d"]:
    """A matrix A with A'A = the covariance (unbiased), and no more rows than d."""
    centred = (features - features.mean(axis=0)) / np.sqrt(len(features) - 1)
    return centred if centred.shape[0] <= centred.shape[1] else np.asarray(np.linalg.qr(centred, mode="r"))


def kid(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"]) -> Estimate:
    """Kernel distance of two sets of features, with its standard error by the jackknife: from how the value changes
    as each picture in turn is left out (Efron and Stein, 1981).

    Raises ValueError for less than 3 rows or for values that are not finite."""
    a, b = _checked(a), _checked(b)
    (n, m), (rows_a, rows_b) = (len(a), len(b)), (_sums_of_others(a), _sums_of_others(b))
    across = kernel(a, b)
    own_a, own_b, both = rows_a.sum(), rows_b.sum(), across.sum()
    value = own_a / (n * (n - 1)) + own_b / (m * (m - 1)) - 2 * both / (n * m)
    without_a = (own_a - 2 * rows_a) / ((n - 1) * (n - 2)) - 2 * (both - across.sum(axis=1)) / ((n - 1) * m)
    without_b = (own_b - 2 * rows_b) / ((m - 1) * (m - 2)) - 2 * (both - across.sum(axis=0)) / (n * (m - 1))
    variance = (n - 1) * np.var(without_a) + (m - 1) * np.var(without_b)
    return Estimate(float(value), float(np.sqrt(variance)))


def kernel(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
    """(a.b / d + 1)^3 for each pair of rows."""
    return (a @ b.T / a.shape[1] + 1) ** DEGREE


def _sums_of_others(features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
    """For each row, the sum of its kernels with all other rows."""
    pairs = kernel(features, features)
    return pairs.sum(axis=1) - np.diagonal(pairs)


def _checked(features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    if len(features) < FEWEST:
        raise ValueError(f"a set of {len(features)} pictures; a distance between sets takes {FEWEST} or more")
    if not np.isfinite(features).all():
        raise ValueError("features hold NaN or infinity; look at the pictures that they are of")
    return features.astype(np.float64)
