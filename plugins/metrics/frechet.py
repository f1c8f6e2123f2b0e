"""Fréchet distance between the features of two sets of images, each taken for a Gaussian (FID).

With the mean m and the covariance C of each set's features (Heusel et al., 1706.08500, section 2), the distance is

    |m1 - m2|^2 + tr C1 + tr C2 - 2 tr (C1 C2)^(1/2)

The last trace needs no root of the product, which `scipy.linalg.sqrtm` may make complex for singular covariances. With
factors C1 = A'A and C2 = B'B the eigenvalues of C1 C2 other than 0 are those of (AB')(AB')', so the trace is the sum of
the singular values of AB'. A factor is the centred features as rows, also for fewer images than features; of a
covariance it is its eigenvectors times the roots of their eigenvalues, of which those below rounding count as 0.

The estimate has a bias that depends on the number of images (Chong and Forsyth, 1911.07023): compare distances of equal
numbers only, and 10,000 or more with published ones.

A published reference set is an .npz file with `mu` and `sigma`, as pytorch-fid and clean-fid write it; `Statistics`
reads and writes it, with the number of images as `n`, which the others ignore. All is computed in float64.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from common.io.arrays import open_arrays
from common.io.files import atomic_output

FEWEST = 3  # images of a set: leaving one out must leave a pair

Features = Float[np.ndarray, "_ d"]


@dataclasses.dataclass(frozen=True, eq=False)
class Statistics:
    """Mean, unbiased covariance and number of a set of features; None: the file has no number."""

    mean: Float[np.ndarray, " d"]
    covariance: Float[np.ndarray, "d d"]
    count: int | None = None

    @classmethod
    def of(cls, features: Float[np.ndarray, "n d"]) -> "Statistics":
        """Raises as `checked`."""
        features = checked(features)
        root = factor(features)
        return cls(features.mean(axis=0), root.T @ root, len(features))

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """An .npz file. Raises as `common.io.files.atomic_output`; ValueError for another suffix."""
        if Path(path).suffix != ".npz":
            raise ValueError(f"{path}: statistics are .npz files; give it that suffix")
        arrays: dict[str, Any] = {"mu": self.mean, "sigma": self.covariance}
        if self.count is not None:
            arrays["n"] = np.int64(self.count)
        with atomic_output(path, overwrite=overwrite) as temporary:
            np.savez(temporary, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> "Statistics":
        """A file of `save`, pytorch-fid or clean-fid. Raises as `open_arrays`."""
        with open_arrays(path) as arrays:
            mean, covariance = (np.asarray(arrays[name], np.float64) for name in ("mu", "sigma"))
            count = int(arrays["n"]) if "n" in arrays else None
        if mean.ndim != 1 or covariance.shape != 2 * mean.shape:
            raise ValueError(f"{path}: mu {mean.shape} and sigma {covariance.shape} must be (d,) and (d, d)")
        return cls(mean, covariance, count)


def frechet_distance(a: Features | Statistics, b: Features | Statistics) -> float:
    """Fréchet distance of two sets, each given as features or statistics; 0 for equal sets, never negative."""
    (mean_a, root_a), (mean_b, root_b) = (
        (x.mean, factor_of(x.covariance)) if isinstance(x, Statistics) else (x.mean(axis=0), factor(checked(x)))
        for x in (a, b)
    )
    if len(mean_a) != len(mean_b):
        raise ValueError(f"sets of {len(mean_a)} and {len(mean_b)} features; both must come from one network")
    shift, common = np.sum((mean_a - mean_b) ** 2), np.linalg.svd(root_a @ root_b.T, compute_uv=False).sum()
    return max(0.0, float(shift + np.sum(root_a**2) + np.sum(root_b**2) - 2 * common))


def factor(features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "r d"]:
    """A matrix A with A'A = the unbiased covariance, and no more rows than d."""
    centred = (features - features.mean(axis=0)) / np.sqrt(len(features) - 1)
    return centred if centred.shape[0] <= centred.shape[1] else np.asarray(np.linalg.qr(centred, mode="r"))


def factor_of(covariance: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """A matrix A with A'A = the covariance."""
    values, vectors = np.linalg.eigh(covariance)
    rounding = len(values) * np.finfo(np.float64).eps * values.max()
    return np.sqrt(np.where(values > rounding, values, 0))[:, None] * vectors.T


def checked(features: Float[np.ndarray, "n d"], fewest: int = FEWEST) -> Float[np.ndarray, "n d"]:
    """In float64. Raises ValueError for less than `fewest` rows, or values that are not finite."""
    if len(features) < fewest:
        raise ValueError(f"a set of {len(features)} images; a distance between sets takes {fewest} or more")
    if not np.isfinite(features).all():
        raise ValueError("features hold NaN or infinity; look at their images")
    return features.astype(np.float64)
