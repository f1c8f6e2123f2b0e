# ruff: noqa: I001
# fmt: off
from . import anchors as anchors, estimated as estimated, features as features, fidelity as fidelity
from . import quality as quality
from .anchors import Mean as Mean, derangement as derangement, flat as flat, score_rows as score_rows
from .anchors import table as table
from .estimated import DepthRmse as DepthRmse, FaceFound as FaceFound, FaceNme as FaceNme, PosePck as PosePck
from .estimated import depth_rmse as depth_rmse, nme as nme, pck as pck
from .features import Clip as Clip, FeatureExtractor as FeatureExtractor, clip as clip
from .fidelity import EdgeDistance as EdgeDistance, EdgeF1 as EdgeF1, EdgeScore as EdgeScore, MaskIou as MaskIou
from .fidelity import chamfer as chamfer, edge_f1 as edge_f1, edges as edges, foreground as foreground, iou as iou
from .quality import Estimate as Estimate, PrecisionRecall as PrecisionRecall, clip_score as clip_score, cmmd as cmmd
from .quality import compare as compare, compare_with_texts as compare_with_texts
from .quality import frechet_distance as frechet_distance, kid as kid, precision_recall as precision_recall
