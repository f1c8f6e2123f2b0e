"""Each wrong key or value in a config is one line that says where, what and how else."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence

import pytest
from omegaconf import OmegaConf

from common.training.config import instantiate

HERE = __name__


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
    """Test modules are imported by path: give this one a name that a config can say."""
    monkeypatch.setitem(sys.modules, "config_toys", sys.modules[HERE])


def build(**fields):
    node = {"_target_": "config_toys.Outer", "inner": {"_target_": "config_toys.Inner"}, **fields}
    return instantiate(OmegaConf.create(node), "outer")


def test_nested_nodes_become_objects_of_plain_values():
    made = build(parts={"a": {"_target_": "config_toys.Inner.large"}}, corners=[[0, 1], [2, 3.5]], rate=2)
    assert made == Outer(Inner(1), 2, None, [[0, 1], [2, 3.5]], {"a": Inner(100)})
    assert type(made.corners) is list and type(made.parts) is dict  # OmegaConf's own would leak into jit


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rate": "fast"}, "outer.rate is 'fast': it has to be float"),
        ({"rate": True}, "outer.rate is True"),
        ({"inner": {"_target_": "config_toys.Inner", "size": 1.5}}, "outer.inner.size is 1.5: it has to be int"),
        ({"inner": {"_target_": "config_toys.Inner", "sise": 1}}, "outer.inner.sise .* did you mean size"),
        ({"weight": 1}, "outer.weight is not a field of Outer: there are inner, rate"),
        ({"inner": {"size": 1}}, "outer.inner is {'size': 1}: it has to be Inner"),
        ({"corners": 5}, "outer.corners"),
        ({"on": "maybe"}, "outer.on"),
        ({"inner": {"_target_": "config_toys.Outsider"}}, "Outsider"),
        ({"inner": {"_target_": "no_such_module.Inner"}}, "no_such_module.Inner': there is no such module"),
    ],
)
def test_what_cannot_be_is_one_line(fields, said):
    with pytest.raises(ValueError, match=said) as error:
        build(**fields)
    assert "\n" not in str(error.value)


def test_a_target_of_recipes_needs_a_clone(monkeypatch):
    node = {"_target_": "recipes.no_such_world.Data"}
    with pytest.raises(ValueError, match="no_such_world"):
        instantiate(node, "data")
    monkeypatch.setitem(sys.modules, "recipes", None)  # as where the wheel is installed
    with pytest.raises(ValueError, match=r"no_such_world.*clone") as error:
        instantiate(node, "data")
    assert "\n" not in str(error.value)


def test_nothing_to_build_stays_what_it_is():
    assert instantiate(None) is None
    assert instantiate(OmegaConf.create({"a": [1, {"b": 2}]})) == {"a": [1, {"b": 2}]}
