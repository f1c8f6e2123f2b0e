"""Each wrong key or value in a config is one line with its place, its value and the rule."""

import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence

import pytest
from omegaconf import OmegaConf
from refusal import refused

from common.training.config import PROJECT, instantiate, packages_of


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int = 1

    @classmethod
    def large(cls) -> "Inner":
        return cls(size=100)


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    rate: float = 0.1
    name: str | None = None
    corners: Sequence[Sequence[float]] = ()
    parts: Mapping[str, Inner] = dataclasses.field(default_factory=dict)
    on: bool = True


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Test modules are imported by path: give this one a name for configs."""
    monkeypatch.setitem(sys.modules, "config_toys", sys.modules[__name__])


def build(**fields):
    node = {"_target_": "config_toys.Outer", "inner": {"_target_": "config_toys.Inner"}, **fields}
    return instantiate(OmegaConf.create(node), "outer")


def test_nested_nodes_become_objects_of_plain_values():
    made = build(parts={"a": {"_target_": "config_toys.Inner.large"}}, corners=[[0, 1], [2, 3.5]], rate=2)
    assert made == Outer(Inner(1), 2, None, [[0, 1], [2, 3.5]], {"a": Inner(100)})
    assert type(made.corners) is list and type(made.parts) is dict  # OmegaConf's own would leak into jit
    assert instantiate(None) is None
    assert instantiate(OmegaConf.create({"a": [1, {"b": 2}]})) == {"a": [1, {"b": 2}]}


@pytest.mark.parametrize(("fields", "value"), [
    ({"rate": "fast"}, r"outer\.rate is 'fast'.* number"),
    ({"rate": True}, r"outer\.rate is True.* number"),
    ({"inner": {"_target_": "config_toys.Inner", "size": 1.5}}, r"outer\.inner\.size is 1\.5.* whole"),
    ({"inner": {"_target_": "config_toys.Inner", "sise": 1}}, r"outer\.inner\.sise .* size"),
    ({"weight": 1}, r"outer\.weight .*Outer.* inner, rate"),
    ({"inner": {"size": 1}}, r"outer\.inner is {'size': 1}.* Inner"),
    ({"corners": 5}, "outer.corners"),
    ({"corners": [[0, 1]] * 20 + [[0, "x"]] + [[0, 1]] * 20}, r"outer\.corners .*'x'"),  # every item is checked
    ({"on": "maybe"}, "outer.on"),
    ({"inner": {"_target_": "config_toys.Outsider"}}, "Outsider"),
    ({"inner": {"_target_": "no_such_module.Inner"}}, r"no_such_module\.Inner"),
    ({"inner": {"_target_": "recipes.no_such_world.Data"}}, "no_such_world"),
])  # fmt: skip
def test_invalid_fields_are_one_line(fields, value):
    assert re.search(value, refused(ValueError, build, **fields))


def shout(text: str) -> str:
    return text.upper()


def outer() -> Outer:
    return Outer(Inner(7))


def test_only_classes_and_makers_of_dataclasses_are_called():
    for target in ("os.system", "config_toys.shout", "config_toys.dataclasses.field", "config_toys.sys"):
        assert repr(target) in refused(ValueError, instantiate, {"_target_": target, "command": "exit"}, "task")
    assert instantiate({"_target_": "config_toys.outer"}) == Outer(Inner(7))


def test_a_config_from_a_file_names_packages_that_are_admitted(monkeypatch):
    """Nothing of another package is imported, and a module of one of them gives no way to those that it imports."""
    node = {"a": [{"_target_": "config_toys.Inner"}, {"_target_": "film.model.FilmConfig.small"}]}
    assert packages_of(OmegaConf.create(node)) == PROJECT | {"config_toys"}
    assert instantiate(node, packages=PROJECT | {"config_toys", "tests"})["a"][0] == Inner()
    monkeypatch.setitem(sys.modules, "os", None)  # importing it would fail with another error
    for target in ("config_toys.Inner", "os.system", "common.training.config.OmegaConf"):
        assert target in refused(ValueError, instantiate, {"_target_": target}, "task", PROJECT)


def test_a_target_of_recipes_needs_a_clone(monkeypatch):
    monkeypatch.setitem(sys.modules, "recipes", None)  # as where the wheel is installed
    assert "clone" in refused(ValueError, instantiate, {"_target_": "recipes.no_such_world.Data"}, "data")
