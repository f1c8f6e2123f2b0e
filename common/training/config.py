"""From plain YAML to typed objects: every key and value is checked against the dataclass that it is for.

`hydra.utils.instantiate` checks no types: `trainer.steps=abc` would fail much later, somewhere else. Here a wrong value
is one line with its place, its value and the type.

A `_target_` runs code, so it names a class, a classmethod of one (a preset) or a function that is annotated to return a
dataclass. The config that a command composes is its user's own and may name any package. The `config.yaml` of a run
folder is data: from it only classes of this project are made, and of packages that the user names.
"""

import dataclasses
import difflib
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Collection
from typing import Any

from omegaconf import OmegaConf

from common.checked import Refused, hints_of, stated_types, wanted
from common.nn.json_config import suits

PROJECT = frozenset({"common", "film", "plugins", "recipes", "reveal"})  # the packages of this project
# In a wheel (.ci/wheel_backend.py) the modules of `common` and `plugins` begin with "film_plugins_reveal.". Configs and
# headers of weights leave that out, so that files of a wheel and of a clone are the same.
HOME = __name__.removesuffix("common.training.config")


def instantiate(node: Any, name: str = "", packages: Collection[str] | None = None) -> Any:
    """The checked object of a `_target_`, given plain lists and dicts (OmegaConf's own would leak into jit).

    Nested nodes with a `_target_` become objects first. `name` is the path of the node in the config. `packages` are
    those that a `_target_` may name; None: any. Raises ValueError for an unknown key, a value of another type, and a
    `_target_` of another package or kind; no module of another package is imported."""
    node = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    if isinstance(node, list):
        return [instantiate(value, f"{name}[{i}]", packages) for i, value in enumerate(node)]
    if not isinstance(node, dict):
        return node
    below = {key: value for key, value in node.items() if key != "_target_"}
    values = {key: instantiate(value, f"{name}.{key}".lstrip("."), packages) for key, value in below.items()}
    if "_target_" not in node:
        return values
    target, kind = locate(str(node["_target_"]), name, packages)
    if dataclasses.is_dataclass(kind):
        check(kind, values, name)
    try:
        return target(**values)
    except Refused as error:
        raise ValueError(f"{name}.{error}".lstrip(".")) from error


def packages_of(node: Any) -> frozenset[str]:
    """The packages that the `_target_`s of a config name, and those of this project."""
    node = OmegaConf.to_container(node) if OmegaConf.is_config(node) else node
    if isinstance(node, list):
        return PROJECT.union(*map(packages_of, node))
    if not isinstance(node, dict):
        return PROJECT
    own = {str(node["_target_"]).split(".")[0]} if "_target_" in node else set()
    return PROJECT.union(own, *map(packages_of, node.values()))


def locate(path: str, name: str, packages: Collection[str] | None = None) -> tuple[Callable[..., Any], type | None]:
    """What a dotted path such as "film.model.FilmConfig.small" names, and the class whose fields its arguments are:
    None for a function. Raises as `instantiate`."""
    refused = f"{name}._target_ is {path!r}: "
    if packages is not None and path.split(".")[0] not in packages:
        raise ValueError(f"{refused}a config that is read from a file names only {', '.join(sorted(packages))}")
    target = _resolve(path, name)
    kind = target if isinstance(target, type) else getattr(target, "__self__", None)  # of a preset: its class
    kind = kind if isinstance(kind, type) else None
    made = kind or (inspect.isfunction(target) and stated_types(target).get("return"))
    if not isinstance(made, type) or not (kind or dataclasses.is_dataclass(made)):
        raise ValueError(f"{refused}give a class, a classmethod, or a function that is annotated to return a dataclass")
    package = name_of(kind or target).split(".")[0]
    if packages is not None and package not in packages:  # imported by a module
        raise ValueError(f"{refused}{target.__qualname__} is of the package {package}")
    return target, kind


def name_of(target: Callable[..., Any]) -> str:
    """The `_target_` of a class or function."""
    return f"{target.__module__.removeprefix(HOME)}.{target.__qualname__}"


def _resolve(path: str, name: str) -> Any:
    names = (HOME + path if path.startswith(("common.", "plugins.")) else path).split(".")
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
    hints = hints_of(kind)
    for key, value in values.items():
        path = f"{name}.{key}".lstrip(".")
        if key not in hints:
            close = difflib.get_close_matches(key, hints, 1)
            choice = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(hints)}"
            raise ValueError(f"{path} is not a field of {kind.__name__}: {choice}")
        hint = hints[key]
        text = wanted(value, hint)
        if not text and not suits(value, hint):
            text = hint.__name__ if isinstance(hint, type) else re.sub(r"typing\.|collections\.abc\.", "", str(hint))
        if text:
            raise ValueError(f"{path} is {value!r}: give {text}")
