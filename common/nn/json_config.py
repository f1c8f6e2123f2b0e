"""Architectures from the `config.json` beside a network's weights in a diffusers folder, and back.

Supported options are the fields of a frozen dataclass; other known options have a list of values that leave the network
unchanged, and any other value is refused by name. Other keys (paths, version numbers, dropout) are ignored.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from beartype import BeartypeConf
from beartype.door import is_bearable

from common.checked import Checked, check_fields, hints_of, whole

NUMBERS = BeartypeConf(is_pep484_tower=True)  # 1 is accepted for a float
Layers = Annotated[int, whole(1, 1000)]  # of a stack; a file may claim a million, which would be made one by one


class JsonConfig(Checked):
    """Base class of such a dataclass."""

    architecture: ClassVar[str]  # the `_class_name` in a file
    fixed: ClassVar[Mapping[str, Sequence]] = {}  # supported values of options that are no fields

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> Any:
        """From a `config.json`; a missing key has the field's default. Raises ValueError for another architecture, an
        unsupported value or one of another type."""
        found = mapping.get("_class_name", cls.architecture)
        if found != cls.architecture:
            raise ValueError(f"_class_name is {found!r}; only {cls.architecture!r} is read here")
        for key, supported in cls.fixed.items():
            check_supported(key, mapping.get(key, supported[0]), supported)
        hints = hints_of(cls)
        values = {name: mapping[name] for name in hints if name in mapping}
        check_fields(cls, values)
        for name, value in values.items():
            plain = list(value) if isinstance(value, tuple) else value
            if not suits(plain, hints[name]):
                raise ValueError(f"{name} is {value!r}; supported is {hints[name]}")
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """As a `config.json`: every field, and every other option with its first supported value."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        lists = {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}
        return {"_class_name": self.architecture, **{key: values[0] for key, values in self.fixed.items()}, **lists}


def suits(value: Any, hint: Any) -> bool:
    """Whether a value of a JSON or YAML file is of the type `hint`, with every item of its lists and mappings: beartype
    looks at one item of each."""

    def ones(value: Any) -> Iterator[Any]:  # the value with a single item in each list and mapping
        if isinstance(value, list) and value:
            yield from ([one] for item in value for one in ones(item))
        elif isinstance(value, dict) and value:
            yield from ({key: one} for key, item in value.items() for one in ones(item))
        else:
            yield value

    return is_bearable(value, hint, conf=NUMBERS) and all(is_bearable(one, hint, conf=NUMBERS) for one in ones(value))


def check_supported(option: str, value: Any, supported: Sequence) -> None:
    if value not in supported:
        choices = " or ".join(map(repr, supported))
        raise ValueError(f"{option} is {value!r}: there is no such network here; supported is {choices}")
