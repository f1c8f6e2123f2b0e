"""How good a set of pictures is: numbers from features `n d` of generated pictures beside those of real ones.

| function | better | what it asks | home |
| --- | --- | --- | --- |
| `frechet_distance` | lower | are mean and spread of both sets the same? (FID, 1706.08500) | `frechet.py` |
| `kid` | lower, 0 | are pictures more like those of their own set? (1801.01401) | `kernels.py` |
| `cmmd` | lower, 0 | the same in CLIP's embedding, with a Gaussian kernel (2401.09603) | `kernels.py` |
| `precision_recall` | higher, 1 | do the pictures look real? is all that is real among them? (1904.06991) | here |
| `clip_score` | higher | does each picture go with its text? mean cosine (2104.08718) | here |

Which features decides what a number may be called. `FID` and `KID` stand for Inception's of 2015, `CMMD` for CLIP's;
`compare` puts the network's name in the place of these for all others, as no such number can be compared with theirs.
Published numbers also hold for one set of real pictures, one resizing and one number of pictures only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from plugins.metrics.features import INCEPTION
from plugins.metrics.frechet import Statistics, checked, frechet_distance
from plugins.metrics.kernels import cmmd, kid, squared_distances, unit

__all__ = [
    "PrecisionRecall",
    "Statistics",
    "clip_score",
    "cmmd",
    "compare",
    "frechet_distance",
    "kid",
    "precision_recall",
]

NEIGHBOURS = 3  # of the paper


class PrecisionRecall(NamedTuple):
    """Shares in [0, 1]: of generated pictures that look real, of real ones that the generator could have made."""

    precision: float
    recall: float


def precision_recall(
    generated: Float[np.ndarray, "n d"], real: Float[np.ndarray, "m d"], k: int = NEIGHBOURS
) -> PrecisionRecall:
    """Improved precision and recall (Kynkäänniemi et al., 1904.06991, section 2 and algorithm 1).

    A set's manifold is the union of balls around its pictures, each as large as the distance to its k-th nearest
    neighbour, itself not counted. Precision is the share of generated pictures in the real manifold, recall the
    share of real ones in the generated manifold. Both grow with k and depend on n and m: compare equal ones only.

    Raises ValueError for sets of k pictures or fewer, or values that are not finite."""
    if k < 1:
        raise ValueError(f"k={k} neighbours: there has to be 1 or more; {NEIGHBOURS} is the paper's")
    fake, true = checked(generated, k + 1), checked(real, k + 1)
    apart = squared_distances(fake, true)
    precision = (apart <= radii(true, k)).any(axis=1).mean()
    recall = (apart <= radii(fake, k)[:, None]).any(axis=0).mean()
    return PrecisionRecall(float(precision), float(recall))


def radii(features: Float[np.ndarray, "n d"], k: int) -> Float[np.ndarray, " n"]:
    """Squared distance of each row to its k-th nearest other row."""
    apart = squared_distances(features, features)
    np.fill_diagonal(apart, np.inf)
    return np.partition(apart, k - 1, axis=1)[:, k - 1]


def clip_score(images: Float[np.ndarray, "n d"], texts: Float[np.ndarray, "n d"]) -> float:
    """Mean cosine of CLIP's embeddings of each picture and its own text, in [-1, 1]; around 0.3 for good pairs.

    Raw: some multiply it by 100, and the paper by 2.5 after cutting off what is below 0. Raises ValueError for an
    embedding of length 0, values that are not finite, or none at all."""
    images, texts = (unit(checked(x, 1)) for x in (images, texts))
    return float(np.mean(np.sum(images * texts, axis=1)))


def compare(name: str, generated: Float[np.ndarray, "n d"], real: Float[np.ndarray, "m d"]) -> dict[str, float]:
    """One row of a table: all distances of two sets of features by the extractor `name`, under honest titles."""
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
