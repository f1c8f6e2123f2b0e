"""Quality of a set of images: kernel distances, precision and recall, CLIP score; and a row of all distances.

**Kernel distances.** The squared maximum mean discrepancy, with a kernel k as the similarity of two images' features
(Gretton et al., JMLR 2012, equation 3):

    MMD^2 = mean k(a, a') + mean k(b, b') - 2 mean k(a, b)        a, a' and b, b' different images

Without the terms of an image with itself the expectation does not depend on the number of images, so it is the distance
to trust for a few hundred. It is 0 on average for sets of the same distribution, and may be negative.

| name | features | kernel k(x, y) | paper |
| --- | --- | --- | --- |
| KID | Inception's, d = 2048 | (x.y / d + 1)^3 | Bińkowski et al., 1801.01401, section 4 |
| CMMD | CLIP's, of unit length | 1000 exp(-D / (2 sigma^2)), D = squared distance | Jayasumana et al., 2401.09603 |

`kid` takes all pairs at once. The published program averages over random subsets, which has the same expectation, a
larger variance, and a spread that is no error bar, as subsets share images. CMMD takes sigma = 10 and the embeddings of
ViT-L/14 at 336 pixels; as unit vectors are at most 2 apart, it is at most 2 x 1000 x (1 - exp(-1/50)) = 39.6. Its
program (google-research/cmmd), unlike the paper, keeps the terms of an image with itself, which adds about
1000 (1 - mean k) / n for each set, some 5/n: `unbiased=False` gives that number.

**Names.** `FID` and `KID` stand for Inception's features of 2015, `CMMD` for those of CLIP's ViT-L/14 at 336 pixels;
`compare` and `compare_with_texts` add the name of any other network, which cannot be compared with published numbers.
Those also hold for one set of real images, one resizing and one number of images only. All is computed in float64;
memory: matrices of n x m.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from plugins.metrics.features import CMMD_TOWER, INCEPTION
from plugins.metrics.frechet import checked, frechet_distance

DEGREE = 3  # of KID's kernel
SIGMA, SCALE = 10.0, 1000.0  # of CMMD
NEIGHBOURS = 3  # of the paper of precision and recall


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float


class PrecisionRecall(NamedTuple):
    """Shares in [0, 1]: of generated images that look real, of real ones that the generator could have made."""

    precision: float
    recall: float


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


def cmmd(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"], unbiased: bool = True) -> float:
    """CMMD of two sets of image embeddings, which are normalised first. Raises as `checked` and `unit`."""
    a, b = unit(checked(a)), unit(checked(b))
    own_a, own_b, across = (np.exp(-squared_distances(x, y) / (2 * SIGMA**2)) for x, y in ((a, a), (b, b), (a, b)))
    distance = -2 * across.mean()
    for kernels in (own_a, own_b):
        n = len(kernels)
        distance += (kernels.sum() - n) / (n * (n - 1)) if unbiased else kernels.mean()  # k(a, a) = 1
    return SCALE * float(distance)


def precision_recall(
    generated: Float[np.ndarray, "n d"], real: Float[np.ndarray, "m d"], k: int = NEIGHBOURS
) -> PrecisionRecall:
    """Improved precision and recall (Kynkäänniemi et al., 1904.06991, section 2 and algorithm 1).

    A set's manifold is the union of balls around its images, each with the distance to the k-th nearest other image as
    its radius. Precision is the share of generated images in the real manifold, recall the share of real ones in the
    generated manifold. Both grow with k and depend on n and m: compare equal ones only. Raises as `checked`, for sets
    of k images or fewer.
    """
    if k < 1:
        raise ValueError(f"k={k} neighbours: give 1 or more; the paper's is {NEIGHBOURS}")
    fake, true = checked(generated, k + 1), checked(real, k + 1)
    distances = squared_distances(fake, true)
    precision = (distances <= radii(true, k)).any(axis=1).mean()
    recall = (distances <= radii(fake, k)[:, None]).any(axis=0).mean()
    return PrecisionRecall(float(precision), float(recall))


def radii(features: Float[np.ndarray, "n d"], k: int) -> Float[np.ndarray, " n"]:
    """Squared distance of each row to its k-th nearest other row."""
    distances = squared_distances(features, features)
    np.fill_diagonal(distances, np.inf)
    return np.partition(distances, k - 1, axis=1)[:, k - 1]


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
