"""Squared maximum mean discrepancy between the features of two sets of images (KID, CMMD).

With a kernel k, the similarity of two images' features (Gretton et al., JMLR 2012, equation 3),

    MMD^2 = mean k(a, a') + mean k(b, b') - 2 mean k(a, b)        a, a' and b, b' different images

Without the terms of an image with itself the expectation does not depend on the number of images, so it is the distance
to trust for a few hundred. It is 0 on average for sets of the same distribution, and may be negative.

| name | features | kernel k(x, y) | paper |
| --- | --- | --- | --- |
| KID | Inception's, d = 2048 | (x.y / d + 1)^3 | Bińkowski et al., 1801.01401, section 4 |
| CMMD | CLIP's, of unit length | 1000 exp(-D / (2 sigma^2)), D = squared distance | Jayasumana et al., 2401.09603 |

CMMD takes sigma = 10 and the image embeddings of ViT-L/14 at 336 pixels; as unit vectors are at most 2 apart, it is at
most 2 x 1000 x (1 - exp(-1/50)) = 39.6. Its program (google-research/cmmd) keeps the terms of an image with itself,
unlike the paper, which adds about 1000 (1 - mean k) / n for each set, some 5/n: `unbiased=False` gives that number.

`kid` takes all pairs at once. The published program averages over random subsets, which has the same expectation, a
larger variance, and a spread that is no error bar, as subsets share images.

With other features **the numbers cannot be compared with published ones**, only with those of the same features,
resizing and real images. All is computed in float64; memory: two matrices of n x m.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from plugins.metrics.frechet import checked

DEGREE = 3
SIGMA, SCALE = 10.0, 1000.0  # of CMMD


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float


def kid(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"]) -> Estimate:
    """Kernel distance of two sets of features, with the jackknife's standard error: from how the value changes as each
    image in turn is left out (Efron and Stein, 1981). Raises as `checked`."""
    a, b = checked(a), checked(b)
    (n, m), (rows_a, rows_b) = (len(a), len(b)), (_sums_of_others(polynomial(x, x)) for x in (a, b))
    across = polynomial(a, b)
    own_a, own_b, both = rows_a.sum(), rows_b.sum(), across.sum()
    value = own_a / (n * (n - 1)) + own_b / (m * (m - 1)) - 2 * both / (n * m)
    without_a = (own_a - 2 * rows_a) / ((n - 1) * (n - 2)) - 2 * (both - across.sum(axis=1)) / ((n - 1) * m)
    without_b = (own_b - 2 * rows_b) / ((m - 1) * (m - 2)) - 2 * (both - across.sum(axis=0)) / (n * (m - 1))
    variance = (n - 1) * np.var(without_a) + (m - 1) * np.var(without_b)
    return Estimate(float(value), float(np.sqrt(variance)))


def cmmd(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"], unbiased: bool = True) -> float:
    """CMMD of two sets of image embeddings, which are normalised first. Raises as `checked` and `unit`."""
    a, b = unit(checked(a)), unit(checked(b))
    own_a, own_b, across = (np.exp(-squared_distances(x, y) / (2 * SIGMA**2)) for x, y in ((a, a), (b, b), (a, b)))
    if not unbiased:
        return SCALE * float(own_a.mean() + own_b.mean() - 2 * across.mean())
    n, m = across.shape
    within = _sums_of_others(own_a).sum() / (n * (n - 1)) + _sums_of_others(own_b).sum() / (m * (m - 1))
    return SCALE * float(within - 2 * across.sum() / (n * m))


def polynomial(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
    """(a.b / d + 1)^3 for each pair of rows."""
    return (a @ b.T / a.shape[1] + 1) ** DEGREE


def squared_distances(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
    """|a - b|^2 for each pair of rows, at least 0 despite rounding."""
    norms = np.sum(a * a, axis=1)[:, None] + np.sum(b * b, axis=1)
    return np.maximum(norms - 2 * a @ b.T, 0)


def unit(embeddings: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Rows at unit length. Raises ValueError for a row of length 0."""
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    if not lengths.all():
        raise ValueError(f"embedding {int(lengths.argmin())} is all 0 and has no direction; look at its image or text")
    return embeddings / lengths


def _sums_of_others(kernels: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " n"]:
    """Row sums without the diagonal."""
    return kernels.sum(axis=1) - np.diagonal(kernels)
