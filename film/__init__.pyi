# ruff: noqa: F401, I001
# fmt: off
from . import cli, clip, compiled, config, data, evaluation, flow, fusion, io, losses, model, ops, porting, pyramid
from . import interpolator, moments, planning, shots, timeline, training, visualization, warp
from .config import FilmConfig as FilmConfig
from .clip import convert as convert
from .io.weights import load as load, save_model as save_model
from .model import Film as Film, FilmOutput as FilmOutput
from .interpolator import interpolate as interpolate
