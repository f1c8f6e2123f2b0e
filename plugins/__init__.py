"""Control plugins: small networks that control a frozen text-to-image diffusion model with an image.

    import plugins
    pipeline = plugins.diffusion.load("stable-diffusion-v1-5", "bfloat16")
    image = pipeline("a red apple")[0]                            # RGB float32 in [0, 1]
    plugin = plugins.control.load("canny-plugin")
    edges = plugins.conditions.make("canny", image)
    again = pipeline("a glass apple", controls=[plugin.on(edges)])[0]

Submodules are imported when they are first used (PEP 562): `import plugins` costs nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
