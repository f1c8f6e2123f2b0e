"""Quality of a set of images: precision and recall, CLIP score, and one row of all distances to real images.

| function | better | what it is |
| --- | --- | --- |
| `frechet.frechet_distance` | lower | distance of means and covariances (FID, 1706.08500) |
| `kernels.kid` | lower, 0 | squared MMD with a polynomial kernel (1801.01401) |
| `kernels.cmmd` | lower, 0 | squared MMD in CLIP's embedding with a Gaussian kernel (2401.09603) |
| `precision_recall` | higher, 1 | do the images look real? are all real ones covered? (1904.06991) |
| `clip_score` | higher | mean cosine of each image and its text (2104.08718) |

The features decide what a number may be called: `FID` and `KID` stand for Inception's of 2015, `CMMD` for CLIP's.
`compare` puts the network's name in their place for all others, which cannot be compared with them. Published numbers
also hold for one set of real images, one resizing and one number of images only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from plugins.metrics.features import INCEPTION
from plugins.metrics.frechet import checked, frechet_distance
from plugins.metrics.kernels import kid, squared_distances, unit

NEIGHBOURS = 3  # of the paper


class PrecisionRecall(NamedTuple):
    """Shares in [0, 1]: of generated images that look real, of real ones that the generator could have made."""

    precision: float
    recall: float


def precision_recall(
    generated: Float[np.ndarray, "n d"], real: Float[np.ndarray, "m d"], k: int = NEIGHBOURS
) -> PrecisionRecall:
    """Improved precision and recall (Kynkäänniemi et al., 1904.06991, section 2 and algorithm 1).

    A set's manifold is the union of balls around its images, each with the distance to the k-th nearest other image as
    its radius. Precision is the share of generated images in the real manifold, recall the share of real ones in the
    generated manifold. Both grow with k and depend on n and m: compare equal ones only.

    Raises as `checked`, for sets of k images or fewer.
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
    """Mean cosine of CLIP's embeddings of each image and its own text, in [-1, 1]; around 0.3 for good pairs.

    Raw: some multiply it by 100, and the paper by 2.5 after clipping at 0. Raises as `checked` and `unit`.
    """
    images, texts = (unit(checked(x, 1)) for x in (images, texts))
    return float(np.mean(np.sum(images * texts, axis=1)))


def compare(name: str, generated: Float[np.ndarray, "n d"], real: Float[np.ndarray, "m d"]) -> dict[str, float]:
    """All distances of two sets of features by the extractor `name`, under the titles that they may have."""
    published = name == INCEPTION
    frechet, kernel = ("FID", "KID") if published else (f"Fréchet {name}", f"kernel distance {name}")
    distance, shares = kid(generated, real), precision_recall(generated, real)
    return {
        frechet: frechet_distance(generated, real),
        kernel: distance.value,
        f"{kernel} error": distance.error,
        "precision": shares.precision,
        "recall": shares.recall,
    }
