# ruff: noqa: F401, I001
# fmt: off
from . import cli, clip, config, convolution, data, evaluation, flow, fusion, io, model, ops, porting, pyramid
from . import recursion, resample, training, visualization, warp
from .config import FilmConfig as FilmConfig
from .io.weights import load as load, save_model as save_model
from .model import Film as Film, FilmOutput as FilmOutput
from .recursion import interpolate as interpolate
