"""Whether a control network fits a base, in one line that names what does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_fit(what: str, found: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    """Raises ValueError unless both have the same values; `what` is the network's kind, keys are said in the line."""
    differ = [f"{name} {found[name]}, the base {base[name]}" for name in found if found[name] != base[name]]
    if differ:
        raise ValueError(f"the {what} has {'; '.join(differ)}: take one that was trained for this base, or its base")
