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

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugins import conditions, control, diffusion, metrics

__all__ = ["conditions", "control", "diffusion", "metrics"]


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
