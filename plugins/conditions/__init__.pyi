from . import (
    canny as canny,
)
from . import (
    connections as connections,
)
from . import (
    depth as depth,
)
from . import (
    detection as detection,
)
from . import (
    drawing as drawing,
)
from . import (
    face as face,
)
from . import (
    holistic as holistic,
)
from . import (
    landmark_files as landmark_files,
)
from . import (
    landmarks as landmarks,
)
from . import (
    mask as mask,
)
from . import (
    mirror as mirror,
)
from . import (
    onnx_depth as onnx_depth,
)
from . import (
    registry as registry,
)
from .depth import (
    DepthModel as DepthModel,
)
from .depth import (
    draw_depth as draw_depth,
)
from .depth import (
    normalise as normalise,
)
from .depth import (
    read_depth as read_depth,
)
from .detection import (
    find_faces as find_faces,
)
from .detection import (
    find_holistic as find_holistic,
)
from .face import (
    draw_face as draw_face,
)
from .holistic import (
    draw_holistic as draw_holistic,
)
from .landmark_files import (
    read_landmarks as read_landmarks,
)
from .landmark_files import (
    write_landmarks as write_landmarks,
)
from .landmarks import (
    Landmarks as Landmarks,
)
from .mask import (
    read_mask as read_mask,
)
from .onnx_depth import (
    OnnxDepth as OnnxDepth,
)
from .registry import (
    CONDITIONS as CONDITIONS,
)
from .registry import (
    make as make,
)
