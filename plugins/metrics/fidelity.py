"""How well a picture obeys its condition: named objects that a config lists, as `common.evaluation.metrics`.

    metrics:
      edges: {_target_: plugins.metrics.fidelity.EdgeF1}
      area:  {_target_: plugins.metrics.fidelity.MaskIou}

| object | better | what it is | home |
| --- | --- | --- | --- |
| `EdgeF1` | higher | F1 of the edges, 1 pixel of tolerance | `edge_maps.py` |
| `EdgeDistance` | lower | chamfer distance of the edges, in pixels | `edge_maps.py` |
| `MaskIou` | higher | overlap of what stands on plain ground | `masks.py` |

An object compares a generated picture with the real one that its condition was made of, both RGB in [0, 1] and `h w 3`.
Where there is only the condition, `EdgeF1(target="condition")` takes it for an edge map, bright on dark: the extractor
that made it is then another one than the score's, so that even the real picture does not reach 1 (with Canny 100/200,
unblurred: 0.74 on the held-out pictures of data/captioned64).

Depth and landmarks need an estimator as well: their objects are in `estimated.py`. Named colours (`colours.py`) are
functions only: they need a word. A number of any of them means little alone: see `anchors.py`.

A picture with NaN in it scores NaN, never a good score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.evaluation.metrics import Metric, Picture
from plugins.conditions.mask import THRESHOLD, foreground
from plugins.metrics import edge_maps
from plugins.metrics.masks import iou


@dataclass(frozen=True)
class _OfEdges(Metric):
    """What `target` pictures are: "picture", or "condition" for an edge map."""

    target: str = "picture"

    def __post_init__(self):
        if self.target not in ("picture", "condition"):
            raise ValueError(f"target is {self.target!r}: choose picture or condition")

    def _maps(self, prediction: Picture, target: Picture) -> tuple[edge_maps.Edges, edge_maps.Edges]:
        read = edge_maps.edges if self.target == "picture" else edge_maps.lines
        return edge_maps.edges(prediction), read(target)


@dataclass(frozen=True)
class EdgeF1(_OfEdges):
    """`edge_maps.edge_f1`."""

    tolerance: int = edge_maps.TOLERANCE
    higher_is_better: ClassVar[bool] = True

    def __call__(self, prediction: Picture, target: Picture) -> float:
        if not np.isfinite(prediction).all():
            return float("nan")
        return edge_maps.edge_f1(*self._maps(prediction, target), self.tolerance).f1


@dataclass(frozen=True)
class EdgeDistance(_OfEdges):
    """`edge_maps.chamfer`."""

    higher_is_better: ClassVar[bool] = False
    digits: ClassVar[int] = 2
    unit: ClassVar[str] = "px"

    def __call__(self, prediction: Picture, target: Picture) -> float:
        if not np.isfinite(prediction).all():
            return float("nan")
        return edge_maps.chamfer(*self._maps(prediction, target))


@dataclass(frozen=True)
class MaskIou(Metric):
    """`iou` of both foregrounds."""

    threshold: float = THRESHOLD
    higher_is_better: ClassVar[bool] = True

    def __call__(self, prediction: Picture, target: Picture) -> float:
        if not np.isfinite(prediction).all():
            return float("nan")
        return iou(*(foreground(image, threshold=self.threshold) for image in (prediction, target)))
