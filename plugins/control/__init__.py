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
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
