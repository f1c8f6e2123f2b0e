# fmt: off
# ruff: noqa: I001
from . import contract, controlnet, export, loading, mediapipe, onnx_graph, plug_and_play, single_file, t2i_adapter
from . import training
from .contract import Control, ControlNetwork, guess_levels
from .controlnet import ControlNet, ControlNetConfig
from .loading import load, save
from .mediapipe import MediaPipeConfig, MediaPipePlugin
from .plug_and_play import PlugAndPlay
from .t2i_adapter import T2IAdapter, T2IAdapterConfig

__all__ = ["Control", "ControlNet", "ControlNetConfig", "ControlNetwork", "MediaPipeConfig", "MediaPipePlugin"]
__all__ += ["PlugAndPlay", "T2IAdapter", "T2IAdapterConfig", "contract", "controlnet", "export", "guess_levels", "load"]
__all__ += ["loading", "mediapipe", "onnx_graph", "plug_and_play", "save", "single_file", "t2i_adapter", "training"]
