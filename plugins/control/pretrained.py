"""Where control networks lie: from a name to a path, without opening weights. Needs no JAX.

The package ships a control as `plugins/weights/NAME/`; the `_class_name` in its config.json marks it as one.
"""

from __future__ import annotations

import json
from pathlib import Path

from plugins.control import controlnet_config, mediapipe_config, t2i_adapter_config
from plugins.diffusion.io.pretrained import WEIGHTS

CONFIG = "config.json"
ARCHITECTURES = (controlnet_config.ARCHITECTURE, t2i_adapter_config.ARCHITECTURE, mediapipe_config.ARCHITECTURE)


def names(weights: Path = WEIGHTS) -> list[str]:
    """Names of the controls that come with the package."""
    return sorted(path.parent.name for path in weights.glob(f"*/{CONFIG}") if _is_control(path))


def find(name_or_path: str | Path, weights: Path = WEIGHTS) -> Path:
    """The folder of a shipped name, or the path itself: a folder or a single file.

    Raises FileNotFoundError that lists the names.
    """
    wanted = str(name_or_path)
    if wanted in names(weights):
        return weights / wanted
    if Path(wanted).exists():
        return Path(wanted)
    shipped = ", ".join(names(weights)) or "none is shipped"
    raise FileNotFoundError(
        f"no control {wanted!r}: give a folder of diffusers, a single safetensors file, or a shipped name ({shipped})"
    )


def _is_control(path: Path) -> bool:
    try:
        return json.loads(path.read_text("utf-8")).get("_class_name") in ARCHITECTURES
    except (OSError, ValueError, AttributeError):
        return False
