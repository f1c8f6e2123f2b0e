"""Configs that check themselves: the type of a field says which values it takes.

    @dataclass(frozen=True)
    class Reader(Checked):
        crop: Annotated[int, whole(16)] = 64
        shares: Sequence[Share] = ()  # each from 0 to 1
        order: Literal["file", "random"] = "file"

        def rules(self):
            yield self.crop % 4 == 0, "crop is a multiple of 4"

    Reader(crop=8)    crop is 8: give a whole number at least 16
    Reader(crop=18)   crop is 18: crop is a multiple of 4

Numbers and true or false are checked to be that; other types are not checked here. Lists become tuples, which can be
hashed, but in fields of the type `list`. `common.training.config` adds the place: "train_data.crop is 8: ...".
"""

import dataclasses
import functools
import re
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin


class Refused(ValueError):
    """A value that breaks a rule of its class; the text begins with the field's name."""


class Checked:
    """Base of a frozen dataclass. Raises `Refused`."""

    def rules(self) -> Iterable[tuple[bool, str]]:
        """Relations of fields: whether one holds, and its sentence. Fields it names are shown with their values. All
        rules are evaluated, also after one that is broken."""
        return ()

    def __post_init__(self, *_: Any) -> None:  # a subclass may have an `InitVar`
        hints = hints_of(type(self))
        for name, hint in hints.items():
            object.__setattr__(self, name, _frozen(getattr(self, name), _kinds(hint)))
        check_fields(type(self), {name: getattr(self, name) for name in hints})
        if broken := "; ".join(rule for holds, rule in self.rules() if not holds):
            named = [f"{name} is {getattr(self, name)!r}" for name in hints if re.search(rf"\b{name}\b", broken)]
            raise Refused(f"{', '.join(named)}: {broken}")


@dataclasses.dataclass(frozen=True)
class Rule:
    """The values that a type takes, as in `Annotated[str, Rule(str.islower, "a word in lower case")]`."""

    holds: Callable[[Any], bool]
    text: str  # what to give


def one_of(names: Collection[str]) -> Rule:
    """For names that a table knows; for others there is `Literal`."""
    return Rule(tuple(names).__contains__, " or ".join(names))


Number = float | int
BIG = sys.float_info.max  # so that NaN, infinity and 10**400 are refused


def real(
    least: Number = -BIG, most: Number = BIG, above: Number = -BIG, below: Number = BIG, kind: type = Real
) -> Rule:
    noun = "whole number" if kind is Integral else "number" if min(most, below) < BIG else "finite number"
    bounds = {"at least": least, "above": above, "at most": most, "below": below}
    text = " and".join(f" {word} {bound}" for word, bound in bounds.items() if abs(bound) < BIG)

    def holds(x: Any) -> bool:
        return isinstance(x, kind) and type(x) is not bool and bool(least <= x <= most and above < x < below)  # type: ignore

    return Rule(holds, f"a {noun}{text}")


def whole(least: Number = -BIG, most: Number = BIG) -> Rule:
    return real(least, most, kind=Integral)


Positive = Annotated[int, whole(1)]
NotNegative = Annotated[int, whole(0)]
Share = Annotated[Number, real(0, 1)]
Above0 = Annotated[Number, real(above=0)]
AtLeast0 = Annotated[Number, real(0)]
PositiveShare = Annotated[Number, real(above=0, most=1)]
Dtype = Literal["float32", "bfloat16"]  # of a computation
T = TypeVar("T")
OneOrMore = Annotated[Sequence[T], Rule(bool, "at least one")]
Named = Annotated[Mapping[str, T], Rule(bool, "at least one, by name")]

PLAIN = {
    NoneType: Rule(lambda x: x is None, "null"),
    bool: Rule(lambda x: isinstance(x, bool), "true or false"),
    int: whole(),
    float: real(),
}


def wanted(value: Any, hint: Any) -> str | None:
    """What to give instead of `value` for a field of the type `hint`; None: it is fine, or not checked here."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        base = wanted(value, hint.__origin__)
        if base and get_origin(hint.__origin__) in (Sequence, Mapping):
            return base
        rules = (rule for rule in hint.__metadata__ if isinstance(rule, Rule))
        return next((rule.text for rule in rules if base or not rule.holds(value)), base)
    if origin is Literal:
        return None if value in arguments else " or ".join("null" if one is None else str(one) for one in arguments)
    if origin in (Union, UnionType):
        texts = [wanted(value, one) for one in arguments]
        return None if None in texts else " or ".join(dict.fromkeys(text for text in texts if text))
    if origin is Mapping:
        return wanted([*value.values()], Sequence[arguments[1]]) if isinstance(value, Mapping) else None
    if origin is Sequence:
        if isinstance(value, str) or not isinstance(value, Sequence):
            return "a list"
        return next((f"for each {text}" for one in value if (text := wanted(one, arguments[0]))), None)
    rule = PLAIN.get(hint)
    return rule.text if rule and not rule.holds(value) else None


def check_fields(kind: type, values: Mapping[str, Any]) -> None:
    """Raises `Refused` for a value that its field of a dataclass does not take."""
    for name, value in values.items():
        if text := wanted(value, hints_of(kind)[name]):
            raise Refused(f"{name} is {value!r}: give {text}")


def stated_types(owner: Any) -> dict[str, Any]:
    """The types that a class or function states. Raises TypeError for one that only a type checker knows."""
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except (NameError, AttributeError) as error:
        where = f"{owner.__module__}.{owner.__qualname__}"
        raise TypeError(f"a type in {where}: {error}; import it where the program runs too") from error


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """The types of the fields that a dataclass is made of. Raises as `stated_types`."""
    hints = stated_types(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def _kinds(hint: Any) -> set[Any]:
    """The plain types in a hint, through `Annotated` and unions."""
    if get_origin(hint) is Annotated:
        return _kinds(hint.__origin__)
    if get_origin(hint) in (Union, UnionType):
        return set().union(*map(_kinds, get_args(hint)))
    return {get_origin(hint) or hint}


def _frozen(value: Any, kinds: Collection[Any] = ()) -> Any:
    """Lists, and for a field of a `Sequence` arrays and iterators too, as tuples; numpy's numbers as Python's."""
    if hasattr(value, "tolist") and (isinstance(value, Real) or Sequence in kinds):
        return _frozen(value.tolist(), kinds)  # type: ignore
    many = type(value) in (list, tuple) or (Sequence in kinds and isinstance(value, Iterator))
    return tuple(map(_frozen, value)) if many and list not in kinds else value  # type: ignore


def is_expression(value: Any) -> bool:
    """Whether this is a regular expression."""
    try:
        return bool(re.compile(value))
    except (re.error, TypeError):
        return False
