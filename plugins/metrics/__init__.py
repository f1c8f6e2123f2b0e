"""How well a controlled model obeys its condition, and how good its pictures are.

Two questions that pull against each other: a picture may follow every edge and look like nothing, or look fine and
ignore them. Both are answered beside anchors, because no number of either kind means anything alone.

| question | compares | modules |
| --- | --- | --- |
| fidelity | each picture with its target | `fidelity`, `estimated`: of `edge_maps`, `masks`, `depth`, `landmarks` |
| quality | a set of pictures with a real set | `features`, then `quality` (made of `frechet` and `kernels`) |
| against what | control, no control, wrong control | `anchors` |

    from plugins import metrics
    metrics.edge_f1(metrics.edges(picture), metrics.edges(real)).f1
    network = metrics.features.lite0()
    metrics.compare(network.name, network(pictures), network(real))

Pictures are RGB in [0, 1]; all is NumPy, except for the networks of features. Names are imported when they are first
used (PEP 562), as in `plugins.diffusion`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.lazy import lazy

if TYPE_CHECKING:
    from plugins.metrics.anchors import Mean, Row, derangement, flat, table, with_anchors
    from plugins.metrics.colours import COLOURS, colour_accuracy, dominant_colour
    from plugins.metrics.depth import DepthErrors, depth_errors
    from plugins.metrics.edge_maps import EdgeScore, chamfer, edge_f1, edges
    from plugins.metrics.estimated import DepthRmse, FaceFound, FaceNme, PosePck
    from plugins.metrics.features import FeatureExtractor
    from plugins.metrics.fidelity import EdgeDistance, EdgeF1, MaskIou
    from plugins.metrics.frechet import Statistics, frechet_distance
    from plugins.metrics.kernels import Estimate, Subsets, cmmd, kid, kid_subsets
    from plugins.metrics.landmarks import detection_rate, nme, pck
    from plugins.metrics.masks import foreground, iou
    from plugins.metrics.quality import PrecisionRecall, clip_score, compare, precision_recall

__all__ = [
    "COLOURS",
    "DepthErrors",
    "DepthRmse",
    "EdgeDistance",
    "EdgeF1",
    "EdgeScore",
    "Estimate",
    "FaceFound",
    "FaceNme",
    "FeatureExtractor",
    "MaskIou",
    "Mean",
    "PosePck",
    "PrecisionRecall",
    "Row",
    "Statistics",
    "Subsets",
    "chamfer",
    "clip_score",
    "cmmd",
    "colour_accuracy",
    "compare",
    "depth_errors",
    "derangement",
    "detection_rate",
    "dominant_colour",
    "edge_f1",
    "edges",
    "flat",
    "foreground",
    "frechet_distance",
    "iou",
    "kid",
    "kid_subsets",
    "nme",
    "pck",
    "precision_recall",
    "table",
    "with_anchors",
]

_HOMES = {
    "COLOURS": "colours",
    "DepthErrors": "depth",
    "DepthRmse": "estimated",
    "EdgeDistance": "fidelity",
    "EdgeF1": "fidelity",
    "EdgeScore": "edge_maps",
    "Estimate": "kernels",
    "FaceFound": "estimated",
    "FaceNme": "estimated",
    "FeatureExtractor": "features",
    "MaskIou": "fidelity",
    "Mean": "anchors",
    "PosePck": "estimated",
    "PrecisionRecall": "quality",
    "Row": "anchors",
    "Statistics": "frechet",
    "Subsets": "kernels",
    "chamfer": "edge_maps",
    "clip_score": "quality",
    "cmmd": "kernels",
    "colour_accuracy": "colours",
    "compare": "quality",
    "depth_errors": "depth",
    "derangement": "anchors",
    "detection_rate": "landmarks",
    "dominant_colour": "colours",
    "edge_f1": "edge_maps",
    "edges": "edge_maps",
    "flat": "anchors",
    "foreground": "masks",
    "frechet_distance": "frechet",
    "iou": "masks",
    "kid": "kernels",
    "kid_subsets": "kernels",
    "nme": "landmarks",
    "pck": "landmarks",
    "precision_recall": "quality",
    "table": "anchors",
    "with_anchors": "anchors",
}

__getattr__, __dir__ = lazy(__name__, __all__, _HOMES)
