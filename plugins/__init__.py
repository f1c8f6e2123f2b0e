"""Control plugins: small networks that steer a frozen text-to-image diffusion model with a picture.

    import plugins
    pipeline = plugins.diffusion.load("stable-diffusion-v1-5", "bfloat16")
    image = pipeline("a red apple")[0]                            # RGB float32 in [0, 1]
    plugin = plugins.control.load("canny-plugin")
    edges = plugins.conditions.canny(image)
    again = pipeline("a glass apple", controls=[plugin.on(edges)])[0]

Submodules are imported when they are first used (PEP 562): `import plugins` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.lazy import lazy

if TYPE_CHECKING:
    from plugins import conditions, control, diffusion, metrics

__all__ = ["conditions", "control", "diffusion", "metrics"]

__getattr__, __dir__ = lazy(__name__, __all__)
