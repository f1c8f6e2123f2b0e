"""Architectures from the `config.json` that lies beside a network's weights in a folder of diffusers, and back.

Such a file lists some forty options of one class that stands for many networks. Ours knows the options of the networks
it has, as the fields of a frozen dataclass; for the other options it knows the values that change nothing. Any other
value is refused by name, so that no network runs with a part missing. Keys that no table knows (paths, version
numbers, dropout) do not change the function and are ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

Config = TypeVar("Config")


def read(cls: type[Config], mapping: Mapping[str, Any], architecture: str, fixed: Mapping[str, Sequence]) -> Config:
    """The `cls` that `mapping` describes; a missing key has the field's default.

    Args:
      cls: a dataclass; its field names are keys.
      mapping: a `config.json`.
      architecture: what `_class_name` must be, where there is one.
      fixed: {option: the values of it that mean a network we have}.

    Raises:
      ValueError: another architecture, or an option that we have not; names key, value and what is supported.
    """
    found = mapping.get("_class_name", architecture)
    if found != architecture:
        raise ValueError(f"_class_name is {found!r}; only {architecture!r} is read here")
    for key, supported in fixed.items():
        if key in mapping and mapping[key] not in supported:
            choices = " or ".join(map(repr, supported))
            raise ValueError(f"{key} is {mapping[key]!r}: there is no such network here; supported is {choices}")
    dataclass: Any = cls
    fields = [field for field in dataclasses.fields(dataclass) if field.name in mapping]
    for field in fields:
        if field.type in (int, "int") and not positive(mapping[field.name], several=False):
            raise ValueError(f"{field.name} is {mapping[field.name]!r}; supported is a positive whole number")
    return cls(**{field.name: mapping[field.name] for field in fields})


def write(config: Any, architecture: str, fixed: Mapping[str, Sequence]) -> dict[str, Any]:
    """The inverse of `read`: every field, and every option in its first supported value."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    lists = {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}
    return {"_class_name": architecture, **{key: values[0] for key, values in fixed.items()}, **lists}


def check(config: Any, rules: Sequence[tuple[bool, str]]) -> None:
    """Raises one ValueError that lists every rule that does not hold."""
    broken = [rule for holds, rule in rules if not holds]
    if broken:
        raise ValueError(f"{config} breaks: {'; '.join(broken)}")


def positive(value: Any, several: bool = True) -> bool:
    """Whether `value` is a whole number above 0, or where there may be `several` a non-empty tuple of them."""
    if several and isinstance(value, tuple):
        return bool(value) and all(positive(v, several=False) for v in value)
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def freeze_lists(config: Any) -> None:
    """Lists of a frozen dataclass become tuples, which can be hashed; JSON and YAML know only lists."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, list | tuple):
            object.__setattr__(config, field.name, tuple(value))
