# ruff: noqa: I001
# fmt: off
from . import anchors as anchors, estimated as estimated, features as features, fidelity as fidelity
from . import frechet as frechet, quality as quality
from .anchors import Mean as Mean, derangement as derangement, flat as flat, score_rows as score_rows
from .anchors import table as table
from .estimated import DepthErrors as DepthErrors, DepthRmse as DepthRmse, FaceFound as FaceFound, FaceNme as FaceNme
from .estimated import PosePck as PosePck, depth_errors as depth_errors, nme as nme, pck as pck
from .features import Clip as Clip, FeatureExtractor as FeatureExtractor, clip as clip
from .fidelity import EdgeDistance as EdgeDistance, EdgeF1 as EdgeF1, EdgeScore as EdgeScore, MaskIou as MaskIou
from .fidelity import chamfer as chamfer, edge_f1 as edge_f1, edges as edges, foreground as foreground, iou as iou
from .frechet import Statistics as Statistics, frechet_distance as frechet_distance
from .quality import Estimate as Estimate, PrecisionRecall as PrecisionRecall, clip_score as clip_score, cmmd as cmmd
from .quality import compare as compare, compare_with_texts as compare_with_texts, kid as kid
from .quality import precision_recall as precision_recall
