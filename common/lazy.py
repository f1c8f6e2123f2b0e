"""Packages whose names are imported when they are first used (PEP 562).

    __getattr__, __dir__ = lazy(__name__, __all__, {"Film": "model", "load": "loading"})

`import film` then costs nothing, and a command answers `--help` and mistyped words without waiting for JAX.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy(
    package: str, names: Sequence[str], homes: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The package's `__getattr__` and `__dir__`: `homes` says in which submodule a name lives; submodules are found by
    themselves. `names` is what `dir` shows beside what is there."""
    homes, own = homes or {}, vars(sys.modules[package])

    def get(name: str) -> Any:
        if name in homes:
            value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
            own[name] = value  # found without this function from now on, and instead of a module of the same name
            return value
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted({*own, *names})
