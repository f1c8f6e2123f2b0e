# ruff: noqa: I001
# fmt: off
from . import contract as contract, controlnet as controlnet, export as export, ip_adapter as ip_adapter
from . import loading as loading, mediapipe as mediapipe, plug_and_play as plug_and_play
from . import single_file as single_file, t2i_adapter as t2i_adapter, training as training
from .contract import Control as Control, ControlNetwork as ControlNetwork, guess_levels as guess_levels
from .controlnet import ControlNet as ControlNet, ControlNetConfig as ControlNetConfig
from .ip_adapter import IPAdapter as IPAdapter, load_ip_adapter as load_ip_adapter
from .loading import load as load, save as save
from .mediapipe import MediaPipeConfig as MediaPipeConfig, MediaPipePlugin as MediaPipePlugin
from .plug_and_play import PlugAndPlay as PlugAndPlay
from .t2i_adapter import T2IAdapter as T2IAdapter, T2IAdapterConfig as T2IAdapterConfig
