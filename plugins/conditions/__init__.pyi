# ruff: noqa: I001
# fmt: off
from . import canny as canny, connections as connections, depth as depth, detection as detection, drawing as drawing
from . import landmarks as landmarks, mask as mask, registry as registry, scribble as scribble
from .depth import DepthModel as DepthModel, OnnxDepth as OnnxDepth, draw_depth as draw_depth
from .depth import normalise as normalise, read_depth as read_depth
from .detection import find_faces as find_faces, find_holistic as find_holistic
from .drawing import draw_face as draw_face, draw_holistic as draw_holistic
from .landmarks import Landmarks as Landmarks, read_landmarks as read_landmarks, write_landmarks as write_landmarks
from .registry import CONDITIONS as CONDITIONS, make as make, mirror as mirror
