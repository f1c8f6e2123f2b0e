"""Small networks that control a frozen diffusion model with an image: five methods, one contract (`contract.py`).

    from plugins import control
    network = control.load("canny-plugin")                        # a folder, a single file, a shipped name
    images = pipeline("a red apple", controls=[network.on(edges, strength=0.8)])

| method | what it is | adds | runs | parameters at SD 1.5 |
| --- | --- | --- | --- | --- |
| `MediaPipePlugin` | a mobile network | a feature to each of 4 levels | once per image | 6 M |
| `T2IAdapter` | a plain convolutional network | a feature to each of 4 levels | once per image | 77 M, light 19 M |
| `ControlNet` | a copy of the UNet's encoder | a residual to each of 12 skips and the middle | every step | 361 M |
| `PlugAndPlay` | no network: features of a source image | features, queries, keys of the UNet | every step | none |
| `IPAdapter` | a picture as prompt | keys and values to each of 16 cross-attentions | once per picture | 22 M |

A call takes any number of controls and adds their outputs. `load` and `save` read and write the files of diffusers;
`load` reads those of the first releases too.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
