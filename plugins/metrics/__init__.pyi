# ruff: noqa: I001
# fmt: off
from . import anchors as anchors, colours as colours, depth as depth, edge_maps as edge_maps, estimated as estimated
from . import features as features, fidelity as fidelity, frechet as frechet, kernels as kernels, landmarks as landmarks
from . import masks as masks, quality as quality
from .anchors import Mean as Mean, Row as Row, derangement as derangement, flat as flat, table as table
from .anchors import with_anchors as with_anchors
from .colours import COLOURS as COLOURS, dominant_colour as dominant_colour
from .depth import DepthErrors as DepthErrors, depth_errors as depth_errors
from .edge_maps import EdgeScore as EdgeScore, chamfer as chamfer, edge_f1 as edge_f1, edges as edges
from .estimated import DepthRmse as DepthRmse, FaceFound as FaceFound, FaceNme as FaceNme, PosePck as PosePck
from .features import FeatureExtractor as FeatureExtractor
from .fidelity import EdgeDistance as EdgeDistance, EdgeF1 as EdgeF1, MaskIou as MaskIou, foreground as foreground
from .frechet import Statistics as Statistics, frechet_distance as frechet_distance
from .kernels import Estimate as Estimate, cmmd as cmmd, kid as kid
from .landmarks import nme as nme, pck as pck
from .masks import iou as iou
from .quality import PrecisionRecall as PrecisionRecall, clip_score as clip_score, compare as compare
from .quality import precision_recall as precision_recall
