"""From plain YAML to typed objects: every key and value is checked against the dataclass that it is for.

`hydra.utils.instantiate` builds a `_target_` too, but checks no types: `trainer.steps=abc` would fail much later,
somewhere else. Here a wrong value is one line with its place, its value and the type. A `_target_` is a dataclass or
one of its presets (a classmethod).
"""

import dataclasses
import difflib
import functools
import importlib
import re
import typing
from typing import Any

from beartype import BeartypeConf
from beartype.door import is_bearable
from omegaconf import OmegaConf

from common.training import renamed

NUMBERS = BeartypeConf(is_pep484_tower=True)  # 1 is accepted for a float


def instantiate(node: Any, name: str = "") -> Any:
    """The checked object of a `_target_`, given plain lists and dicts (OmegaConf's own would leak into jit).

    Nested nodes with a `_target_` become objects first. `name` is the path of the node in the config. Raises ValueError
    for an unknown key or a value of another type."""
    node = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    if isinstance(node, list):
        return [instantiate(value, f"{name}[{i}]") for i, value in enumerate(node)]
    if not isinstance(node, dict):
        return node
    node = renamed.node(node)
    values = {key: instantiate(value, f"{name}.{key}".lstrip(".")) for key, value in node.items() if key != "_target_"}
    if "_target_" not in node:
        return values
    target = locate(str(node["_target_"]), name)
    kind = target if isinstance(target, type) else getattr(target, "__self__", None)  # of a preset: its class
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        check(kind, values, name)
    return target(**values)


def locate(path: str, name: str) -> Any:
    """The class or function at a dotted path such as "film.model.FilmConfig.small"."""
    names = path.split(".")
    for count in range(len(names) - 1, 0, -1):
        module = ".".join(names[:count])
        try:
            return functools.reduce(getattr, names[count:], importlib.import_module(module))
        except ModuleNotFoundError as error:
            if error.name is None or not (module + ".").startswith(error.name + "."):
                raise  # an import of an existing module failed
        except AttributeError as error:
            raise ValueError(f"{name}._target_ is {path!r}: {error}") from error
    if names[0] == "recipes":
        raise ValueError(f"{name}._target_ is {path!r}: recipes/ is not installed; run from a clone of the repository")
    raise ValueError(f"{name}._target_ is {path!r}: there is no such module")


def check(kind: type, values: dict[str, Any], name: str) -> None:
    """Raises ValueError unless `values` suit the fields of the dataclass `kind`."""
    hints = typing.get_type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind) if field.init]
    for key, value in values.items():
        path = f"{name}.{key}".lstrip(".")
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            choice = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(known)}"
            raise ValueError(f"{path} is not a field of {kind.__name__}: {choice}")
        hint = hints[key]
        bool_for_number = isinstance(value, bool) and hint in (int, float)  # in Python, True is 1
        if bool_for_number or not is_bearable(value, hint, conf=NUMBERS):
            wanted = hint.__name__ if isinstance(hint, type) else re.sub(r"typing\.|collections\.abc\.", "", str(hint))
            raise ValueError(f"{path} is {value!r}: it must be {wanted}")
