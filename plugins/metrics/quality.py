"""Quality of a set of images: distances of its features to a real set's, precision and recall, CLIP score.

**Fréchet distance** (FID), each set taken for a Gaussian of mean m and covariance C (Heusel et al., 1706.08500):

    |m1 - m2|^2 + tr C1 + tr C2 - 2 tr (C1 C2)^(1/2)

With factors C1 = A'A and C2 = B'B the last trace is the sum of the singular values of AB'. Its bias depends on the
number of images (Chong and Forsyth, 1911.07023): compare equal numbers only, and 10,000 or more with published ones.

**Kernel distances.** The squared maximum mean discrepancy, with a kernel k as the similarity of two images' features
(Gretton et al., JMLR 2012, equation 3):

    MMD^2 = mean k(a, a') + mean k(b, b') - 2 mean k(a, b)        a, a' and b, b' different images

Its expectation does not depend on the number of images, so it is the distance to trust for a few hundred; it may be
negative.

| name | features | kernel k(x, y) | paper |
| --- | --- | --- | --- |
| KID | Inception's, d = 2048 | (x.y / d + 1)^3 | Bińkowski et al., 1801.01401, section 4 |
| CMMD | CLIP's, of unit length | 1000 exp(-D / (2 sigma^2)), D = squared distance | Jayasumana et al., 2401.09603 |

`kid` takes all pairs at once, not random subsets. CMMD takes sigma = 10 and the embeddings of ViT-L/14 at 336 pixels;
its program (google-research/cmmd), unlike the paper, keeps the terms of an image with itself, some 5/n for each set.

`FID` and `KID` stand for Inception's features of 2015, `CMMD` for those of CLIP's ViT-L/14 at 336 pixels; `compare` and
`compare_with_texts` add the name of any other network. All is computed in float64; memory: matrices of n x m.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from plugins.metrics.features import CMMD_TOWER, INCEPTION

FEWEST = 3  # images of a set: leaving one out must leave a pair
DEGREE = 3  # of KID's kernel
SIGMA, SCALE = 10.0, 1000.0  # of CMMD
NEIGHBOURS = 3  # of the paper of precision and recall
Features = Float[np.ndarray, "_ d"]


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float


class PrecisionRecall(NamedTuple):
    """Shares in [0, 1]: of generated images that look real, of real ones that the generator could have made."""

    precision: float
    recall: float


def frechet_distance(a: Features, b: Features) -> float:
    """Fréchet distance of two sets of features; 0 for equal sets, never negative. Raises as `checked`."""
    a, b = checked(a), checked(b)
    shift, (root_a, root_b) = np.sum((a.mean(axis=0) - b.mean(axis=0)) ** 2), map(factor, (a, b))
    common = np.linalg.svd(root_a @ root_b.T, compute_uv=False).sum()
    return max(0.0, float(shift + np.sum(root_a**2) + np.sum(root_b**2) - 2 * common))


def factor(features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "r d"]:
    """A matrix A with A'A = the unbiased covariance, and no more rows than d."""
    centred = (features - features.mean(axis=0)) / np.sqrt(len(features) - 1)
    return centred if centred.shape[0] <= centred.shape[1] else np.asarray(np.linalg.qr(centred, mode="r"))


def checked(features: Float[np.ndarray, "n d"], fewest: int = FEWEST) -> Float[np.ndarray, "n d"]:
    """In float64. Raises ValueError for less than `fewest` rows, or values that are not finite."""
    if len(features) < fewest:
        raise ValueError(f"a set of {len(features)} images; a distance between sets takes {fewest} or more")
    if not np.isfinite(features).all():
        raise ValueError("features hold NaN or infinity; look at their images")
    return features.astype(np.float64)


def kid(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"]) -> Estimate:
    """Kernel distance of two sets of features, with the jackknife's standard error: from how the value changes as each
    image in turn is left out (Efron and Stein, 1981). Raises as `checked`."""
    a, b = checked(a), checked(b)
    own_a, own_b, across = ((x @ y.T / a.shape[1] + 1) ** DEGREE for x, y in ((a, a), (b, b), (a, b)))
    for kernels in (own_a, own_b):
        np.fill_diagonal(kernels, 0)
    (n, m), rows_a, rows_b = across.shape, own_a.sum(axis=1), own_b.sum(axis=1)
    sum_a, sum_b, both = rows_a.sum(), rows_b.sum(), across.sum()
    value = sum_a / (n * (n - 1)) + sum_b / (m * (m - 1)) - 2 * both / (n * m)
    without_a = (sum_a - 2 * rows_a) / ((n - 1) * (n - 2)) - 2 * (both - across.sum(axis=1)) / ((n - 1) * m)
    without_b = (sum_b - 2 * rows_b) / ((m - 1) * (m - 2)) - 2 * (both - across.sum(axis=0)) / (n * (m - 1))
    variance = (n - 1) * np.var(without_a) + (m - 1) * np.var(without_b)
    return Estimate(float(value), float(np.sqrt(variance)))


def cmmd(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"]) -> float:
    """CMMD of two sets of image embeddings, which are normalised first. Raises as `checked` and `unit`."""
    a, b = unit(checked(a)), unit(checked(b))
    own_a, own_b, across = (np.exp(-squared_distances(x, y) / (2 * SIGMA**2)) for x, y in ((a, a), (b, b), (a, b)))
    own = sum((k.sum() - len(k)) / (len(k) * (len(k) - 1)) for k in (own_a, own_b))  # k(a, a) = 1
    return SCALE * float(own - 2 * across.mean())


def precision_recall(generated: Float[np.ndarray, "n d"], real: Float[np.ndarray, "m d"]) -> PrecisionRecall:
    """Improved precision and recall (Kynkäänniemi et al., 1904.06991, section 2 and algorithm 1). A set's manifold is
    the union of balls around its images that reach to the third nearest other one. Precision is the share of generated
    images in the real manifold, recall the share of real ones in the generated manifold. Both depend on n and m:
    compare equal ones only. Raises as `checked`, for 3 images or fewer."""
    fake, true = checked(generated, NEIGHBOURS + 1), checked(real, NEIGHBOURS + 1)
    distances = squared_distances(fake, true)
    precision = (distances <= radii(true)).any(axis=1).mean()
    recall = (distances <= radii(fake)[:, None]).any(axis=0).mean()
    return PrecisionRecall(float(precision), float(recall))


def radii(features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
    """Squared distance of each row to its third nearest other row."""
    distances = squared_distances(features, features)
    np.fill_diagonal(distances, np.inf)
    return np.partition(distances, NEIGHBOURS - 1, axis=1)[:, NEIGHBOURS - 1]


def clip_score(images: Float[np.ndarray, "n d"], texts: Float[np.ndarray, "n d"]) -> float:
    """Mean cosine of CLIP's embeddings of each image and its own text (2104.08718), in [-1, 1]; around 0.3 for good
    pairs. Raw: some multiply it by 100, and the paper by 2.5 after clipping at 0. Raises as `checked` and `unit`."""
    images, texts = (unit(checked(x, 1)) for x in (images, texts))
    return float(np.mean(np.sum(images * texts, axis=1)))


def compare(name: str, generated: Float[np.ndarray, "n d"], real: Float[np.ndarray, "m d"]) -> dict[str, float]:
    """All distances of two sets of features by the extractor `name`, under the titles that they may have."""
    published = name == INCEPTION
    frechet, kernel = ("FID", "KID") if published else (f"Fréchet {name}", f"kernel distance {name}")
    distance, error = kid(generated, real)
    scores = {frechet: frechet_distance(generated, real), kernel: distance, f"{kernel} error": error}
    return scores | precision_recall(generated, real)._asdict()


def compare_with_texts(
    name: str, generated: Float[np.ndarray, "n d"], real: Float[np.ndarray, "m d"], texts: Float[np.ndarray, "n d"]
) -> dict[str, float]:
    """CMMD of two sets of embeddings by the CLIP `name`, and CLIP score of the first with its texts."""
    title = "CMMD" if name == CMMD_TOWER else f"CMMD {name}"
    return {title: cmmd(generated, real), f"CLIP score {name}": clip_score(generated, texts)}


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
