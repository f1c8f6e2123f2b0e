"""A memory that another takes the place of, and changes that fail: nothing is lost, nothing is left."""

import dataclasses
import threading
from pathlib import Path

import pytest
from memories import LAYOUT, build, drawn

from reveal.memory import Builder, Store
from reveal.memory.folder import replace


@pytest.fixture
def folder(tmp_path) -> Path:
    build(tmp_path / "memory", 25)
    return tmp_path / "memory"


def test_a_memory_that_was_replaced_is_not_written_over(folder):
    """By a program that knows the old one, whose version has the same number."""
    before, (items, keys, values) = Store(folder), drawn(7, seed=3)
    with Builder(folder.parent / "new", LAYOUT) as builder:
        builder.add(items, keys, values)
    replace(folder, folder.parent / "new")
    with pytest.raises(ValueError, match="is another memory by now: load it again"):
        before.delete([1])
    Store(folder).verify()
    assert len(Store(folder)) == 7 and [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_memory_is_replaced_when_nobody_changes_it(folder, monkeypatch):
    items, keys, values = drawn(7, seed=3)
    with Builder(folder.parent / "new", LAYOUT) as builder:
        builder.add(items, keys, values)
    store, swap = Store(folder), threading.Thread(target=replace, args=(folder, folder.parent / "new"))
    with store.changing() as change:
        swap.start()
        change.delete([1])
        swap.join(0.2)
        assert swap.is_alive() and len(Store(folder)) > 7
    swap.join()
    assert len(Store(folder)) == 7

    with Builder(folder.parent / "newer", LAYOUT) as builder:
        builder.add(items[:3], keys[:3], values[:3])
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda self, to: self.missing() if self.name == "newer" else rename(self, to))
    with pytest.raises(AttributeError):
        replace(folder, folder.parent / "newer")
    assert len(Store(folder)) == 7 and not list(folder.parent.glob(".replaced-*"))


def test_a_change_that_fails_leaves_no_files(folder):
    def broken(items):
        raise OSError("no space")

    before = tree_of(folder)
    for change in (lambda: Store(folder).refresh(broken, "other"), lambda: with_a_shard_written(Store(folder))):
        with pytest.raises(OSError, match="no space"):
            change()
        assert tree_of(folder) == before


def with_a_shard_written(store: Store) -> None:
    items, keys, values = drawn(3, seed=4)
    with store.changing() as change:
        change.begin_at(1000)
        assert change.add([dataclasses.replace(item, id=None) for item in items], keys, values) == [1000, 1001, 1002]
        raise OSError("no space")


def tree_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != ".lock")
