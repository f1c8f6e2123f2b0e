"""Fréchet distance between the features of two sets of images, each taken for a Gaussian (FID).

Each picture becomes a vector of d features (`features.py`). A cloud of them is summed up by its mean m and its
covariance C, and two clouds are compared (FID; Heusel et al., 1706.08500, section 2) by

    |m1 - m2|^2 + tr C1 + tr C2 - 2 tr (C1 C2)^(1/2)

The last trace needs no root of the product, which is not symmetric and where a general matrix root goes wrong once a
covariance is singular. Two ways to it, both real and never negative:

- From features. With centred features as rows, C1 = A'A and C2 = B'B, the eigenvalues of C1 C2 other than 0 are those
  of (AB')(AB')', so the trace is the sum of the singular values of AB'. Exact also for fewer pictures than features.
- From covariances. C1 C2 has the eigenvalues of C1^(1/2) C2 C1^(1/2), which is symmetric: the trace is the sum of their
  roots. Those below rounding are taken for 0, as a root would make 1e-8 of 1e-16.

The usual `scipy.linalg.sqrtm` is no dependency and may return complex roots for singular covariances, hence numpy's own
decompositions.

The estimate is too large by an amount that depends on the numbers of pictures (Chong and Forsyth, 1911.07023): compare
distances of equal numbers only, and 10,000 or more with published ones.

A published reference set comes as its statistics, an .npz file with `mu` and `sigma` as pytorch-fid and clean-fid write
them; `Statistics` reads and writes those, with the number of pictures as `n`, which the others ignore. All is computed
in float64.
"""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from common.io.files import atomic_output

FEWEST = 3  # pictures of a set: leaving one out must leave a pair

Features = Float[np.ndarray, "_ d"]


@dataclasses.dataclass(frozen=True, eq=False)
class Statistics:
    """A set of features, summed up: mean, unbiased covariance, and how many pictures (None: the file does not say)."""

    mean: Float[np.ndarray, " d"]
    covariance: Float[np.ndarray, "d d"]
    count: int | None = None

    @classmethod
    def of(cls, features: Float[np.ndarray, "n d"]) -> Statistics:
        """Raises as `frechet_distance`."""
        features = checked(features)
        root = factor(features)
        return cls(features.mean(axis=0), root.T @ root, len(features))

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """An .npz file. Raises as `common.io.files.atomic_output`, and ValueError for another suffix."""
        if Path(path).suffix != ".npz":
            raise ValueError(f"{path}: statistics are .npz files; give it that suffix")
        arrays: dict[str, Any] = {"mu": self.mean, "sigma": self.covariance}
        if self.count is not None:
            arrays["n"] = np.int64(self.count)
        with atomic_output(path, overwrite=overwrite) as temporary:
            np.savez(temporary, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Statistics:
        """What `save`, pytorch-fid or clean-fid wrote; no pickles. Raises FileNotFoundError, ValueError."""
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} does not exist; give an .npz file of statistics, with mu and sigma")
        try:
            with np.load(path, allow_pickle=False) as file:
                mean, covariance = (np.asarray(file[key], np.float64) for key in ("mu", "sigma"))
                count = int(file["n"]) if "n" in file else None
        except (KeyError, ValueError, TypeError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            reason = " ".join(str(error).split())[:100]
            raise ValueError(
                f"{path} holds no statistics ({reason}); it has to be an .npz with mu and sigma"
            ) from error
        if mean.ndim != 1 or covariance.shape != 2 * mean.shape:
            raise ValueError(f"{path}: mu {mean.shape} and sigma {covariance.shape} should be (d,) and (d, d)")
        return cls(mean, covariance, count)


def frechet_distance(a: Features | Statistics, b: Features | Statistics) -> float:
    """Fréchet distance of two sets, each given by its features or its statistics; 0 for equal sets, never negative.

    Raises ValueError for less than 3 rows, for values that are not finite, for two numbers of features."""
    widths = [len(x.mean) if isinstance(x, Statistics) else x.shape[1] for x in (a, b)]
    if widths[0] != widths[1]:
        raise ValueError(f"sets of {widths[0]} and {widths[1]} features; both have to come from one network")
    if isinstance(a, Statistics) or isinstance(b, Statistics):
        one, other = (x if isinstance(x, Statistics) else Statistics.of(x) for x in (a, b))
        return _of_statistics(one, other)
    return _of_features(checked(a), checked(b))


def _of_features(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"]) -> float:
    shift = float(np.sum(np.square(a.mean(axis=0) - b.mean(axis=0))))
    root_a, root_b = factor(a), factor(b)
    spread = float(np.sum(np.square(root_a)) + np.sum(np.square(root_b)))
    common = float(np.linalg.svd(root_a @ root_b.T, compute_uv=False).sum())
    return max(0.0, shift + spread - 2 * common)


def _of_statistics(a: Statistics, b: Statistics) -> float:
    shift = float(np.sum(np.square(a.mean - b.mean)))
    values, vectors = np.linalg.eigh(a.covariance)
    root = vectors * np.sqrt(above_rounding(values)) @ vectors.T
    common = float(np.sqrt(above_rounding(np.linalg.eigvalsh(root @ b.covariance @ root))).sum())
    return max(0.0, shift + float(np.trace(a.covariance) + np.trace(b.covariance)) - 2 * common)


def above_rounding(values: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
    """Eigenvalues of a covariance without those that are rounding errors of 0."""
    return np.where(values > len(values) * np.finfo(np.float64).eps * values.max(), values, 0)


def factor(features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "r d"]:
    """A matrix A with A'A = the covariance (unbiased), and no more rows than d."""
    centred = (features - features.mean(axis=0)) / np.sqrt(len(features) - 1)
    return centred if centred.shape[0] <= centred.shape[1] else np.asarray(np.linalg.qr(centred, mode="r"))


def checked(features: Float[np.ndarray, "n d"], fewest: int = FEWEST) -> Float[np.ndarray, "n d"]:
    """In float64. Raises ValueError for less than `fewest` rows or for values that are not finite."""
    if len(features) < fewest:
        raise ValueError(f"a set of {len(features)} pictures; a distance between sets takes {fewest} or more")
    if not np.isfinite(features).all():
        raise ValueError("features hold NaN or infinity; look at the pictures that they are of")
    return features.astype(np.float64)
