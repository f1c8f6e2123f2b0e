from . import (
    anchors as anchors,
)
from . import (
    colours as colours,
)
from . import (
    depth as depth,
)
from . import (
    edge_maps as edge_maps,
)
from . import (
    estimated as estimated,
)
from . import (
    features as features,
)
from . import (
    fidelity as fidelity,
)
from . import (
    frechet as frechet,
)
from . import (
    kernels as kernels,
)
from . import (
    landmarks as landmarks,
)
from . import (
    masks as masks,
)
from . import (
    quality as quality,
)
from .anchors import (
    Mean as Mean,
)
from .anchors import (
    Row as Row,
)
from .anchors import (
    derangement as derangement,
)
from .anchors import (
    flat as flat,
)
from .anchors import (
    table as table,
)
from .anchors import (
    with_anchors as with_anchors,
)
from .colours import (
    COLOURS as COLOURS,
)
from .colours import (
    colour_accuracy as colour_accuracy,
)
from .colours import (
    dominant_colour as dominant_colour,
)
from .depth import (
    DepthErrors as DepthErrors,
)
from .depth import (
    depth_errors as depth_errors,
)
from .edge_maps import (
    EdgeScore as EdgeScore,
)
from .edge_maps import (
    chamfer as chamfer,
)
from .edge_maps import (
    edge_f1 as edge_f1,
)
from .edge_maps import (
    edges as edges,
)
from .estimated import (
    DepthRmse as DepthRmse,
)
from .estimated import (
    FaceFound as FaceFound,
)
from .estimated import (
    FaceNme as FaceNme,
)
from .estimated import (
    PosePck as PosePck,
)
from .features import (
    FeatureExtractor as FeatureExtractor,
)
from .fidelity import (
    EdgeDistance as EdgeDistance,
)
from .fidelity import (
    EdgeF1 as EdgeF1,
)
from .fidelity import (
    MaskIou as MaskIou,
)
from .frechet import (
    Statistics as Statistics,
)
from .frechet import (
    frechet_distance as frechet_distance,
)
from .kernels import (
    Estimate as Estimate,
)
from .kernels import (
    Subsets as Subsets,
)
from .kernels import (
    cmmd as cmmd,
)
from .kernels import (
    kid as kid,
)
from .kernels import (
    kid_subsets as kid_subsets,
)
from .landmarks import (
    detection_rate as detection_rate,
)
from .landmarks import (
    nme as nme,
)
from .landmarks import (
    pck as pck,
)
from .masks import (
    foreground as foreground,
)
from .masks import (
    iou as iou,
)
from .quality import (
    PrecisionRecall as PrecisionRecall,
)
from .quality import (
    clip_score as clip_score,
)
from .quality import (
    compare as compare,
)
from .quality import (
    precision_recall as precision_recall,
)
