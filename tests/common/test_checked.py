"""A field's type says which values it takes (`common.checked`)."""

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np
import pytest
from refusal import refused

from common.checked import Checked, NotNegative, Positive, Refused, Share, hints_of, real, whole


@dataclass(frozen=True)
class Reader(Checked):
    crop: Annotated[int, whole(16)] = 64
    shares: Sequence[Share] = ()
    order: Literal["file", "random", None] = "file"
    strength: Annotated[float | int, real(above=0, below=2)] = 1.0
    threads: Positive | None = None
    on: bool = True
    repeat: Mapping[str, NotNegative] | None = None
    pairs: Sequence[Sequence[Any]] = ()

    def rules(self):
        yield self.crop % 4 == 0, "crop is a multiple of 4"
        yield len(self.shares) < 4, "shares are 3 at most"


@pytest.mark.parametrize(("fields", "message"), [
    (dict(crop=8), "crop is 8: give a whole number at least 16"),
    (dict(crop=16.0), "crop is 16.0: give a whole number"),
    (dict(crop=True), "crop is True: give a whole number"),
    (dict(crop=18, shares=[0] * 4), "crop is 18, shares is (0, 0, 0, 0): crop is a multiple of 4; shares are 3"),
    (dict(shares=[0, 1.5]), "shares is (0, 1.5): give for each a number at least 0 and at most 1"),
    (dict(shares="01"), "shares is '01': give a list"),
    (dict(shares=0.5), "shares is 0.5: give a list"),
    (dict(shares={0.5}), "shares is {0.5}: give a list"),
    (dict(order="name"), "order is 'name': give file or random or null"),
    (dict(strength=float("nan")), "strength is nan: give a number above 0 and below 2"),
    (dict(strength=2), "strength is 2: give a number above 0 and below 2"),
    (dict(threads=0), "threads is 0: give a whole number at least 1 or null"),
    (dict(on="true"), "on is 'true': give true or false"),
    (dict(repeat={"a": 1, "b": -1}), "repeat is {'a': 1, 'b': -1}: give for each a whole number at least 0"),
])  # fmt: skip
def test_a_wrong_value_is_named_with_what_to_give(fields, message):
    assert refused(Refused, Reader, **fields).startswith(message)


def test_values_of_all_kinds_and_lists_become_tuples():
    made = Reader(np.int64(20), [0, np.float32(0.5)], None, 1, 2, False, {"a": 0}, [["a", 1]])
    assert made.pairs == (("a", 1),) and made.shares == (0, 0.5)
    assert hash(Reader(pairs=[["a", 1]])) == hash(Reader(pairs=(("a", 1),)))
    for shares in (np.array([0, 0.5]), iter([0, 0.5])):
        assert Reader(shares=shares).shares == (0, 0.5) and hash(Reader(shares=(0, 0.5)))


def test_what_a_user_derives_keeps_its_lists_and_its_own_arguments():
    @dataclass(frozen=True)
    class Mine(Reader):
        seen: Annotated[list[int] | None, "filled later"] = None
        scale: InitVar[int] = 1

    made = Mine(seen=[1])
    assert made.seen == [1] and made.crop == 64
    assert "crop is 8" in refused(Refused, Mine, 8, scale=3)


def test_a_type_that_only_a_type_checker_knows_is_named():
    @dataclass(frozen=True)
    class Mine:
        price: "Decimal | None" = None  # type: ignore

    text = refused(TypeError, hints_of, Mine)
    assert "Mine" in text and "Decimal" in text


def kinds(base):
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)


@pytest.mark.parametrize("module", ["film.data.datasets", "plugins.data", "reveal.training.joint"])
def test_a_subclass_that_declares_a_field_again_keeps_its_rule(module):
    __import__(module)
    for kind in filter(is_dataclass, kinds(Checked)):
        hints = get_type_hints(kind, include_extras=True)
        for base in filter(is_dataclass, kind.__mro__[1:]):
            found = get_type_hints(base, include_extras=True)
            rules = {field.name for field in fields(base) if hasattr(found[field.name], "__metadata__")}
            assert {name for name in rules if not hasattr(hints[name], "__metadata__")} == set(), kind
