# fmt: off
# ruff: noqa: I001
from . import contract, controlnet, export, ip_adapter, loading, mediapipe, plug_and_play, single_file
from . import t2i_adapter, training
from .contract import Control, ControlNetwork, guess_levels
from .controlnet import ControlNet, ControlNetConfig
from .ip_adapter import IPAdapter, load_ip_adapter
from .loading import load, save
from .mediapipe import MediaPipeConfig, MediaPipePlugin
from .plug_and_play import PlugAndPlay
from .t2i_adapter import T2IAdapter, T2IAdapterConfig

__all__ = ["Control", "ControlNet", "ControlNetConfig", "ControlNetwork", "IPAdapter", "MediaPipeConfig"]
__all__ += ["MediaPipePlugin", "PlugAndPlay", "T2IAdapter", "T2IAdapterConfig", "contract", "controlnet", "export"]
__all__ += ["guess_levels", "ip_adapter", "load", "load_ip_adapter", "loading", "mediapipe"]
__all__ += ["plug_and_play", "save", "single_file", "t2i_adapter", "training"]
