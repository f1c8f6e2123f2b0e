"""The memory's benchmarks at the size of a test: their rules, and that they tell right from wrong."""

import dataclasses
import shutil

import numpy as np
import pytest
from refusal import refused

from benchmarks import memory_build, memory_search
from common import runtime
from reveal.memory import Memory

SMALL = memory_search.Options(items=700, queries=4, k=5, width=16, repeats=1, milvus_items=300, late_items=60)


@pytest.fixture
def plain_memory(monkeypatch):
    """The allocator of the tests' process stays as it is."""
    monkeypatch.setattr(runtime, "keep_freed_memory", lambda: None)


def test_the_best_and_recall(monkeypatch):
    monkeypatch.setattr(memory_search, "CHUNK", 64)
    rng = np.random.default_rng(0)
    keys, queries = rng.standard_normal((200, 8), np.float32), rng.standard_normal((3, 8), np.float32)
    wanted = memory_search.best(keys, queries, 5)
    np.testing.assert_array_equal(np.sort(wanted), np.sort(np.argsort(-(queries @ keys.T), axis=1)[:, :5]))
    assert memory_search.recall(wanted[:, ::-1], wanted) == 1
    assert memory_search.recall(np.where(wanted == wanted[1, 2], -1, wanted), wanted) < 1
    assert memory_search.recall(wanted[[1, 2, 0]] + 1000, wanted) == 0


@pytest.mark.parametrize("data", ["random", "clustered"])
def test_keys_are_of_unit_length_and_read_in_pieces(data, tmp_path):
    queries = memory_search.draw(tmp_path / "keys", dataclasses.replace(SMALL, data=data))
    keys = memory_search.read(tmp_path / "keys", 16, 0, 700)
    np.testing.assert_allclose(np.linalg.norm(np.concatenate([keys, queries]), axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(memory_search.read(tmp_path / "keys", 16, 100, 103), keys[100:103])


@pytest.mark.parametrize("place", [*range(3), *range(-4, 0)])
def test_ours_and_numpy_are_exact(place, tmp_path, plain_memory, monkeypatch):
    monkeypatch.setattr(memory_search, "_searcher", None)
    queries, case = memory_search.draw(tmp_path / memory_search.KEYS, SMALL), memory_search.cases(SMALL)[place]
    found, row = memory_search.prepare(case, queries, SMALL.k, tmp_path)
    width = 16 * case.vectors
    keys = memory_search.read(tmp_path / memory_search.KEYS, width, 0, case.items)
    assert memory_search.recall(found, memory_search.best(keys, case.queries(queries), 5)) == 1
    assert (
        case.items * width * 4 <= row["key MB"] * 2**20 <= (case.items + 68) * width * 4
        and min(row["build s"], memory_search.again()) > 0
    )
    assert ("planned MB" in row) == ("NumPy" not in case.name)


@pytest.mark.long
def test_the_table_of_processes_of_their_own(monkeypatch, capsys):
    monkeypatch.setattr(memory_search, "cases", lambda options, cases=memory_search.cases: cases(options)[:3:2])
    memory_search.main(SMALL)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found = [dict(zip(memory_search.COLUMNS, row, strict=True)) for row in cells[2:]]
    assert [(row[""], row["recall"]) for row in found] == [("in a program", "1.0000"), ("NumPy", "1.0000")]
    rows = [{"": name, "items": items} for name, items in (("in a program", 7), ("NumPy", 7), ("in a program", 3))]
    compared = memory_search.compared(rows, [[0.1, 0.1, 9], [0.3, 0.2, 0.1], [0.05]])  # with ours of as many keys
    assert [(row["ms"], row["to ours"]) for row in compared] == [(100, 1), (200, 2), (50, 1)]


@pytest.mark.parametrize("wrong", [{"k": 301}, {"queries": 0}, {"milvus_items": -1}, {"late_items": -1}])
def test_options_that_cannot_be_measured(wrong):
    refused(ValueError, lambda: dataclasses.replace(SMALL, **wrong), match=next(iter(wrong)))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a memory of 700 items in shards of 200, and the costs of the build."""
    folder = tmp_path_factory.mktemp("build") / "memory"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_build, "BATCH", 128)
        yield folder, memory_build.build(folder, 700, 200)


def test_a_memory_is_built_opened_searched_and_changed(built, plain_memory, tmp_path):
    folder, row = built
    assert row["items"] == 700 and row["items/s"] > 0
    assert row["early MB"] <= row["peak MB"] + 1  # the kernel counts some pages late
    assert len(list(folder.glob("v00001-*"))) == 4 and memory_build.opened(folder)["items"] == 700
    folder = shutil.copytree(folder, tmp_path / "memory")
    row, ids, changes = memory_build.searched("exact", folder, 700, 5, 1)
    assert ids.shape == (64, 5) and row["ms"] > 0
    assert [change["change"] for change in changes] == ["edit", "add", "delete"] and len(Memory.load(folder)) == 700


def test_engines_are_compared_with_the_exact_one(monkeypatch, capsys):
    """Each with as many items as it may have; in this process."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(memory_build, "BATCH", 128)
    monkeypatch.setattr(memory_build, "MOST", {"faiss:hnsw": 200})
    monkeypatch.setattr(memory_build, "in_process", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(runtime, "keep_freed_memory", lambda: None)
    options = memory_build.Options(items=300, processes=1, k=5, repeats=1, engines=("faiss:flat", "faiss:hnsw"))
    memory_build.main(options)
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    found = [dict(zip(memory_build.SEARCH, row, strict=True)) for row in cells if len(row) == len(memory_build.SEARCH)]
    searched = [(row["engine"], row["items"], row["recall"], row["index MB"] != "") for row in found[2:]]
    assert searched == [
        (name, items, "1.0000", name != "exact")
        for items, names in (("300", ("exact", "faiss:flat")), ("200", ("exact", *memory_build.SAVED["faiss:hnsw"])))
        for name in names
    ]
    changes = [row for row in cells if len(row) == len(memory_build.CHANGE) and row[2] in ("edit", "add", "delete")]
    assert len(changes) == 1 + 2 + 2 * 3


def test_an_item_that_is_another_is_noticed(built):
    stored = Memory.load(built[0])
    known, queries, values = memory_build.drawn_again(np.array([0, 333, 699]), 700)
    found, others = stored.search(queries, 2), stored.search(np.roll(queries, 1, axis=0), 2)
    memory_build.check(stored, known, values, found)
    changed = [known[0], dataclasses.replace(known[1], fields={"text": "of another"}), known[2]]
    wrong_value = np.where(np.arange(3)[:, None, None] == 1, 1, values)
    cases = (known, values, others, 0), (changed, values, found, 333), (known, wrong_value, found, 333)
    for items, read, result, first in cases:
        refused(ValueError, memory_build.check, stored, items, read, result, match=f"{first} first")


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    refused(ValueError, lambda: memory_build.main(memory_build.Options(folder=tmp_path)), match=str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
