"""Control: small networks that steer a frozen diffusion model with a picture. Four ways, one contract (`contract.py`).

    from plugins import control
    network = control.load("canny-plugin")                        # a folder, a single file, a shipped name
    images = pipeline("a red apple", controls=[network.on(edges, strength=0.8)])

| way | what it is | adds | runs | parameters at SD 1.5 |
| --- | --- | --- | --- | --- |
| `MediaPipePlugin` | a mobile network | a feature to each of 4 levels | once per picture | 6 M |
| `T2IAdapter` | a plain convolutional network | a feature to each of 4 levels | once per picture | 77 M, light 19 M |
| `ControlNet` | a copy of the UNet's encoder | a residual to each of 12 skips and the middle | every step | 361 M |
| `PlugAndPlay` | no network: features of another picture | features, queries, keys of the UNet | every step | none |

They add up: any number of them may be given to a call, each with its strength, its factors for the levels, its part of
the run, and on the half with the prompt alone or on both. `load` and `save` read and write the files of diffusers and
read those of the first releases.

Names are imported when they are first used (PEP 562), as in `plugins.diffusion`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.lazy import lazy

if TYPE_CHECKING:
    from plugins.control.contract import Control, ControlNetwork, guess_levels
    from plugins.control.controlnet import ControlNet
    from plugins.control.controlnet_config import ControlNetConfig
    from plugins.control.loading import load, save
    from plugins.control.mediapipe import MediaPipePlugin
    from plugins.control.mediapipe_config import MediaPipeConfig
    from plugins.control.plug_and_play import PlugAndPlay
    from plugins.control.t2i_adapter import T2IAdapter
    from plugins.control.t2i_adapter_config import T2IAdapterConfig

__all__ = [
    "Control",
    "ControlNet",
    "ControlNetConfig",
    "ControlNetwork",
    "MediaPipeConfig",
    "MediaPipePlugin",
    "PlugAndPlay",
    "T2IAdapter",
    "T2IAdapterConfig",
    "guess_levels",
    "load",
    "save",
]

_HOMES = {
    "Control": "contract",
    "ControlNet": "controlnet",
    "ControlNetConfig": "controlnet_config",
    "ControlNetwork": "contract",
    "MediaPipeConfig": "mediapipe_config",
    "MediaPipePlugin": "mediapipe",
    "PlugAndPlay": "plug_and_play",
    "T2IAdapter": "t2i_adapter",
    "T2IAdapterConfig": "t2i_adapter_config",
    "guess_levels": "contract",
    "load": "loading",
    "save": "loading",
}

__getattr__, __dir__ = lazy(__name__, __all__, _HOMES)
