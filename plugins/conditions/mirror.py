"""Flipping a condition picture, for training on mirrored pictures.

Edges, depth and masks are flipped as they are. Faces and persons have a left in one colour and a right in another, and
after a flip the eye on the other side is the left one: there green and blue change places as well (`connections` has
colours for which this is all). Flipping such a picture without this teaches a plugin that colours mean nothing.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

SIDED = ("face", "holistic")  # kinds whose colours tell left from right
PLAIN = ("canny", "depth", "mask")


def mirror(kind: str, condition: Float[np.ndarray, "*b h w 3"]) -> Float[np.ndarray, "*b h w 3"]:
    """The condition picture of the flipped picture; twice is once back. Raises ValueError for an unknown kind."""
    if kind not in (*SIDED, *PLAIN):
        raise ValueError(f"no condition is called {kind!r}; choose one of {', '.join(sorted((*PLAIN, *SIDED)))}")
    flipped = condition[..., ::-1, :]
    return np.ascontiguousarray(flipped[..., [0, 2, 1]] if kind in SIDED else flipped)
