"""From plain YAML to typed objects: every key and every value is checked against the dataclass that it is for.

`hydra.utils.instantiate` builds what `_target_` names too, but leaves types to chance: `trainer.steps=abc` would fail
much later, somewhere else. Here a wrong value is one line that says where it stands, what it is and what it has to be.
A `_target_` is a dataclass or one of its presets (a classmethod).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import typing
from typing import Any

from beartype import BeartypeConf
from beartype.door import is_bearable
from omegaconf import OmegaConf

from common.training import renamed

NUMBERS = BeartypeConf(is_pep484_tower=True)  # 1 is a fine float


def instantiate(node: Any, name: str = "") -> Any:
    """The object that `_target_` names, checked, given plain lists and dicts (OmegaConf's own would leak into jit).

    Nested nodes with a `_target_` become objects first. `name` is where the node stands in the config. Raises
    ValueError for an unknown key or a value of another type.
    """
    plain = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    return _build(plain, name)


def _build(node: Any, name: str) -> Any:
    if isinstance(node, list):
        return [_build(value, f"{name}[{i}]") for i, value in enumerate(node)]
    if not isinstance(node, dict):
        return node
    node = renamed.node(node)
    values = {key: _build(value, f"{name}.{key}".lstrip(".")) for key, value in node.items() if key != "_target_"}
    if "_target_" not in node:
        return values
    target = locate(str(node["_target_"]), name)
    check(_owner(target), values, name)
    return target(**values)


def locate(path: str, name: str) -> Any:
    """The class or function at a dotted path such as "film.model.FilmConfig.small"."""
    parts = path.split(".")
    for count in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:count])
        try:
            return functools.reduce(getattr, parts[count:], importlib.import_module(module))
        except ModuleNotFoundError as error:
            if error.name is None or not (module + ".").startswith(error.name + "."):
                raise  # the module is there, something that it imports is not
        except AttributeError as error:
            raise ValueError(f"{name}._target_ is {path!r}: {error}") from error
    if parts[0] == "recipes":
        raise ValueError(f"{name}._target_ is {path!r}: recipes/ is not installed; run from a clone of the repository")
    raise ValueError(f"{name}._target_ is {path!r}: there is no such module")


def _owner(target: Any) -> type | None:
    """The dataclass that `target` makes: itself, or the one a preset (a classmethod) belongs to."""
    kind = target if isinstance(target, type) else getattr(target, "__self__", None)
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None


def check(kind: type | None, values: dict[str, Any], name: str) -> None:
    """Raises ValueError unless `values` suit the fields of the dataclass `kind`."""
    if kind is None:
        return
    hints = typing.get_type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind) if field.init]
    for key, value in values.items():
        place = f"{name}.{key}".lstrip(".")
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            rest = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise ValueError(f"{place} is not a field of {kind.__name__}: {rest}")
        truth_for_number = isinstance(value, bool) and hints[key] in (int, float)  # to Python, true is 1
        if truth_for_number or not is_bearable(value, hints[key], conf=NUMBERS):
            raise ValueError(f"{place} is {value!r}: it has to be {_said(hints[key])}")


def _said(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "").replace("collections.abc.", "")
