"""Small networks that control a frozen diffusion model with an image: five methods, one contract (`contract.py`).

    from plugins import control
    network = control.load("canny-plugin")                        # a folder, a single file, a shipped name
    images = pipeline("a red apple", controls=[network.on(edges, strength=0.8)])

`MediaPipePlugin`, `T2IAdapter` and `IPAdapter` run once per image, `ControlNet` and `PlugAndPlay` in every step: the
table in docs/control.md says what each adds to the UNet.

A call takes any number of controls and adds their outputs. `load` and `save` read and write the files of diffusers;
`load` reads those of the first releases too.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
