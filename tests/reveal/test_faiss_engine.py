"""FAISS finds what the exact search finds; approximate kinds nearly so. Needs the extra `faiss`."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from refusal import refused

pytest.importorskip("faiss")

import faiss
from memories import build
from memories import drawn as drawn_items
from memories import rows as drawn

from common.training.mesh import make_mesh
from reveal.memory import ExactEngine, FaissEngine, Memory, Rows
from reveal.memory.engines import faiss_engine
from reveal.memory.engines.engine import engine_of, optional
from reveal.memory.engines.faiss_engine import FEWEST, FaissConfig
from reveal.memory.folder import INDEXES, check_ours, discard, replace


def searched(items, queries, k, kind="flat", config=None, **options):
    """Results of the exact search and of FAISS."""
    for engine in (ExactEngine(make_mesh(1)), FaissEngine(kind, config)):
        engine.update(Rows.of(*items), 3, version=2)
        yield engine.search(queries, k, **options)


@pytest.mark.parametrize(("count", "sources", "gated"), [(300, None, False), (300, [0, 2], True), (30, [1], False)])
def test_flat_is_exact(count, sources, gated):
    gate = np.log(np.random.default_rng(1).dirichlet([1, 1, 1], 5)) if gated else None
    exact, faiss = searched(drawn(count, 16), drawn(5, 16, seed=1)[2], 50, sources=sources, log_gate=gate)
    np.testing.assert_array_equal(faiss.ids, exact.ids)
    np.testing.assert_allclose(faiss.scores, exact.scores, atol=1e-6)  # also -inf where there are too few
    np.testing.assert_array_equal(faiss.sources, exact.sources)
    assert faiss.version == exact.version == 2 and faiss.present.all() == (count == 300)


@pytest.mark.parametrize(("kind", "probes"), [("ivfpq", 8), ("ivfpq", 32), ("hnsw", 8)])  # there are 16 lists
def test_approximate_kinds_find_nearly_all(kind, probes, monkeypatch):
    monkeypatch.setitem(FEWEST, kind, 500)
    items = drawn(2400, 16, centres=50)
    exact, faiss = searched(items, items[2][:20], 10, kind, FaissConfig(probes=probes))
    recall = np.mean([len(np.intersect1d(*pair)) / 10 for pair in zip(exact.ids, faiss.ids, strict=True)])
    assert recall > 0.9
    np.testing.assert_allclose(faiss.scores[:, 0], 1, atol=1e-5)  # of the keys themselves, not of their codes


@pytest.fixture
def built(monkeypatch):
    """The kinds of the indexes that were begun; sources of 20 items are enough for all kinds."""
    kinds, original = [], FaissEngine._empty
    monkeypatch.setattr(
        FaissEngine, "_empty", lambda self, kind, *given: kinds.append(kind) or original(self, kind, *given)
    )
    monkeypatch.setitem(FEWEST, "hnsw", 20)
    monkeypatch.setitem(FEWEST, "ivfpq", 20)
    return kinds


@pytest.mark.parametrize(("kind", "least"), [("flat", 1.0), ("ivfpq", 0.95), ("hnsw", 0.99)])
def test_changes_are_appended(built, monkeypatch, kind, least):
    monkeypatch.setattr(faiss_engine, "PER_LIST", 100)
    rng, everything = np.random.default_rng(2), np.arange(4000)
    _, source, keys = drawn(4000, 16, centres=50)
    there, versions, queries = everything < 2400, np.zeros(4000, np.int32), drawn(20, 16, seed=3, centres=50)[2]
    engine, exact = FaissEngine(kind), ExactEngine(make_mesh(1))
    for version in range(1, 8):
        rows = Rows.of(everything[there], source[there], keys[there], versions[there])
        for one in (engine, exact):
            one.update(rows, 3, version)
        wanted, found = (one.search(queries, 10, log_gate=np.zeros((20, 3))) for one in (exact, engine))
        shared = [len(np.intersect1d(*pair)) / 10 for pair in zip(wanted.ids, found.ids, strict=True)]
        assert np.mean(shared) >= least
        np.testing.assert_allclose(found.scores, np.einsum("bd,bkd->bk", queries, keys[found.ids]), atol=1e-5)
        found = engine.search(queries[:2], len(rows), sources=[0, 2])
        live = set(everything[there & (source != 1)].tolist())
        assert all(len(ids := row[row >= 0]) == len(live) and set(ids.tolist()) == live for row in found.ids)
        edited, gone = np.split(rng.choice(everything[there], 60, replace=False), 2)
        keys[edited], versions[edited], there[gone] = drawn(30, 16, seed=version, centres=9)[2], version + 1, False
        source[edited] = rng.integers(0, 3, 30)  # an edit may move an item
        there[2400 + 50 * version :][:50] = True
    assert built == [kind] * 3


def test_an_index_is_built_anew(built, monkeypatch):
    _, _, keys = drawn(2000, 8)
    monkeypatch.setattr(faiss_engine, "PER_LIST", 30)
    for kind, counts, kinds in (
        ("flat", [100, 81, 79, 70], ["flat", "flat"]),  # a fifth of 100 is 20, of 79 it is more than 9
        ("hnsw", [19, 20, 40, 32], ["flat", "hnsw"]),
        ("hnsw", [40, 31, 10], ["hnsw", "hnsw", "flat"]),
        ("ivfpq", [480, 960, 961], ["ivfpq", "ivfpq"]),  # 16 lists of 30, twice
    ):
        built.clear()
        engine = FaissEngine(kind)
        for version, count in enumerate(counts):
            engine.update(Rows.of(np.arange(count), np.zeros(count, np.uint8), keys[:count]), 1, version)
            assert engine.search(keys[:1], count).present.sum() == count
        assert built == kinds


@pytest.mark.parametrize("kind", ["hnsw", "ivfpq"])
def test_as_many_are_found_where_all_about_the_query_is_gone(built, kind):
    ids, source, keys = np.arange(1000), np.zeros(1000, np.uint8), drawn(1000, 8, centres=60)[2]
    engine = FaissEngine(kind, FaissConfig(breadth=16, probes=1, refine=1))
    engine.update(Rows.of(ids, source, keys), 1, 1)
    far = np.argsort(-(keys @ keys[0]))[150:]
    engine.update(Rows.of(ids[far], source[far], keys[far]), 1, 2)
    found = engine.search(keys[[0]], 10).ids[0].tolist()
    assert found == far[:10].tolist() and built == [kind]


def test_only_sources_that_changed_are_appended_to():
    ids, source, keys = drawn(60, 16)
    engine = FaissEngine()
    engine.update(Rows.of(ids, source, keys), 3, 1)
    before = {number: part.index.ntotal for number, part in engine._parts.items()}
    gone = np.flatnonzero(source == 1)[0]
    kept = np.arange(60) != gone
    engine.update(Rows.of(ids[kept], source[kept], keys[kept]), 3, 2)
    assert before == {number: part.index.ntotal for number, part in engine._parts.items()}
    assert ids[gone] not in engine.search(keys[[gone]], 59).ids
    versions = np.where(ids[kept] == ids[kept][source[kept] == 2][0], 3, 0)
    engine.update(Rows.of(ids[kept], source[kept], -keys[kept], versions), 3, 3)
    assert before | {2: before[2] + 1} == {number: part.index.ntotal for number, part in engine._parts.items()}


def found_in(folder, kind="hnsw", **settings):
    """What a program finds that begins now: ids for every item's own key, in all sources."""
    memory = Memory(folder, FaissEngine(kind, FaissConfig(**settings), folder / INDEXES))
    keys = memory.keys(memory.rows().ids)
    own = memory.search(keys, 3).ids
    np.testing.assert_array_equal(own, Memory(folder, ExactEngine(make_mesh(1))).search(keys, 3).ids)
    return memory


def mapped(memory, source):
    assert isinstance(memory.engine, FaissEngine)
    return memory.engine._parts[source].mapped


@pytest.mark.parametrize("kind", ["hnsw", "ivfpq"])
def test_a_later_program_finds_the_saved_index(built, tmp_path, kind):
    folder = tmp_path / "memory"
    build(folder, 150, shard=40)
    found_in(folder, kind, probes=16, refine=50)
    files = {path: path.read_bytes() for path in (folder / INDEXES).iterdir()}
    assert {path.name for path in files} == {f"{kind}-{number}.index" for number in range(3)} and built == [kind] * 3
    before = Memory(folder).manifest.hash()
    memory = found_in(folder, kind, probes=16, refine=50)
    assert [mapped(memory, number) for number in range(3)] == [True] * 3
    items, keys, values = drawn_items(3, seed=1, first=500)
    memory.edit([dataclasses.replace(items[0], id=3)], keys[:1], values[:1])  # all of source 0
    memory.delete([6])
    (added,) = memory.add(items[:1], keys[:1] + keys[1:2], values[:1])
    assert memory.search(keys[:1], 1).ids.item() == 3 and memory.search(keys[:1] + keys[1:2], 1).ids.item() == added
    memory = found_in(folder, kind, probes=16, refine=50)
    assert built == [kind] * 3 and files == {path: path.read_bytes() for path in files}  # 2 of 50 differ
    memory.add(items[:1], keys[2:], values[:1])
    found_in(folder, kind, probes=16, refine=50)
    assert built == [kind] * 3
    assert [path for path in sorted(files) if path.read_bytes() != files[path]] == [min(files)]
    memory = found_in(folder, kind, probes=16, refine=50)
    assert mapped(memory, 0) and memory.manifest.hash() != before
    memory.verify()
    memory.save(tmp_path / "copy")
    assert not (tmp_path / "copy" / INDEXES).exists()
    memory.compact()
    assert not list((folder / INDEXES).iterdir())
    assert memory.search(keys[:1], 1).ids.item() == 3 and built == [kind] * 3  # in this program the keys are the same
    found_in(folder, kind, probes=16, refine=50)
    assert built == [kind] * 3
    discard(folder)
    assert not folder.exists()


def test_an_index_of_other_keys_is_not_used(built, tmp_path):
    """Ids, sources and versions are the same."""
    for seed in (1, 2):
        build(tmp_path / str(seed), 90, seed)
    found_in(tmp_path / "1")
    shutil.copytree(tmp_path / "1" / INDEXES, tmp_path / "2" / INDEXES)
    found_in(tmp_path / "2")
    found_in(tmp_path / "1")
    assert len(built) == 6
    build(tmp_path / "3", 90, seed=3)
    memory = Memory(tmp_path / "1", FaissEngine("hnsw", folder=tmp_path / "1" / INDEXES))
    keys = drawn_items(90, seed=3)[1]
    assert memory.search(drawn_items(90, seed=1)[1], 1).ids.ravel().tolist() == list(range(90)) and len(built) == 6
    replace(tmp_path / "1", tmp_path / "3")
    memory.reopen()
    assert memory.search(keys, 1).ids.ravel().tolist() == list(range(90)) and len(built) == 9
    found_in(tmp_path / "1")
    assert len(built) == 9


@pytest.mark.parametrize("engine", [FaissEngine(), ExactEngine(make_mesh(1))], ids=["faiss", "exact"])
def test_a_memory_that_was_emptied_and_is_replaced(tmp_path, engine):
    """Of no item is left by which another memory can be told from this one."""
    for seed in (1, 2):
        build(tmp_path / str(seed), 30, seed)
    memory = Memory(tmp_path / "1", engine)
    memory.search(drawn_items(30, seed=1)[1], 1)
    memory.delete(list(range(30)))
    memory.compact()
    replace(tmp_path / "1", tmp_path / "2")
    assert memory.reopen()
    assert memory.search(drawn_items(30, seed=2)[1], 1).ids.ravel().tolist() == list(range(30))


@pytest.mark.parametrize("meanwhile", ["saved", "removed"])
def test_two_programs_at_once(built, monkeypatch, tmp_path, caplog, meanwhile):
    """While one writes its second index, the other saves its own, or makes all of them outdated."""
    build(tmp_path / "memory", 90)
    write_index, begun = faiss.write_index, []

    def interrupted(*given):
        begun.append(1)
        write_index(*given)
        if len(begun) == 2:
            found_in(tmp_path / "memory", links=8) if meanwhile == "saved" else Memory(tmp_path / "memory").compact()

    monkeypatch.setattr(faiss, "write_index", interrupted)
    keys = drawn_items(90)[1]
    memory = Memory(tmp_path / "memory", FaissEngine("hnsw", folder=tmp_path / "memory" / INDEXES))
    assert memory.search(keys, 1).ids.ravel().tolist() == list(range(90))
    assert len(caplog.records) == {"saved": 2, "removed": 1}[meanwhile]  # of sources 0 and 2, of other settings
    found_in(tmp_path / "memory")
    before = len(built)
    found_in(tmp_path / "memory")
    assert len(built) == before and not list((tmp_path / "memory" / INDEXES).glob(".*"))


def test_an_index_that_is_replaced_while_it_is_read(built, monkeypatch, tmp_path):
    """Its rows would be looked up in those of the other file."""
    for seed in (1, 2):
        build(tmp_path / str(seed), 90, seed)
        found_in(tmp_path / str(seed))
    mine, others = (tmp_path / str(seed) / INDEXES / "hnsw-0.index" for seed in (1, 2))
    checksum = faiss_engine._checksum
    monkeypatch.setattr(
        faiss_engine, "_checksum", lambda *given: (others.exists() and others.replace(mine), checksum(*given))[1]
    )
    found_in(tmp_path / "1")
    assert len(built) == 7


DAMAGE = {
    "a bit of a key": lambda data: data[:-2000] + bytes([data[-2000] ^ 1]) + data[-1999:],
    "a bit of an id": lambda data: data[:-200] + bytes([data[-200] ^ 1]) + data[-199:],
    "cut": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "longer": lambda data: data + b"\n",
    "foreign": lambda data: b"notes of mine\n" * 500,
    "another format": lambda data: data.replace(b"\nFormat 1", b"\nFormat 0"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_is_built_anew(built, tmp_path, caplog, damage):
    folder = tmp_path / "memory"
    build(folder, 90)
    found_in(folder)
    path = folder / INDEXES / "hnsw-1.index"
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[damage](whole))
    assert path.read_bytes() != whole and not caplog.records
    found_in(folder)
    assert len(built) == 4 and [record.args[0] for record in caplog.records] == [path]
    found_in(folder)
    assert len(built) == 4 and len(caplog.records) == 1


@pytest.mark.parametrize("name", ["faiss", "faiss:hnsw"])
def test_the_command_saves_in_the_memorys_folder(built, tmp_path, name):
    build(tmp_path / "memory", 90)
    memory = Memory(tmp_path / "memory", engine_of(name, tmp_path / "memory"))
    assert memory.search(memory.keys([7]), 1).ids.item() == 7
    saved = sorted(path.relative_to(tmp_path) for path in (tmp_path / "memory" / INDEXES).glob("*"))
    assert saved == [Path("memory", "faiss", f"hnsw-{number}.index") for number in range(3) if name == "faiss:hnsw"]


def test_a_folder_that_cannot_be_written(built, tmp_path, caplog):
    folder = tmp_path / "memory"
    build(folder, 90)
    (folder / INDEXES).write_text("in the way")
    memory = found_in(folder)
    assert len(built) == len(caplog.records) == 3 and (folder / INDEXES).read_text() == "in the way"
    memory.delete([4])
    assert memory.search(memory.keys([7]), 1).ids.item() == 7 and len(caplog.records) == 3
    for place in ("/proc/nowhere", tmp_path / "missing" / "faiss"):
        engine = FaissEngine("hnsw", folder=place)
        assert Memory(folder, engine).search(memory.keys([7]), 1).ids.item() == 7
    assert not (tmp_path / "missing").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit of a file's size")
def test_a_disk_that_is_full(built, tmp_path, caplog, capfd):
    import resource

    folder = tmp_path / "memory"
    build(folder, 90)
    found_in(folder)
    path = folder / INDEXES / "hnsw-1.index"
    size, (_, hard) = path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    for less in (1, size):  # of the last line, and FAISS' own
        shutil.rmtree(folder / INDEXES)
        caplog.clear()
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - less, hard))
        try:
            found_in(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert len(caplog.records) == 3 and not list((folder / INDEXES).iterdir())
    assert not capfd.readouterr().err


def test_a_program_that_dies_while_it_saves(built, tmp_path):
    folder = tmp_path / "memory"
    build(folder, 90)
    program = f"""
import os
import faiss
from reveal.memory import FaissEngine, Memory
from reveal.memory.engines import faiss_engine
faiss_engine.FEWEST["hnsw"], saved = 20, []
write_index = faiss.write_index  # between FAISS' part of the second file and the rest
faiss.write_index = lambda *given: (write_index(*given), saved and os._exit(9), saved.append(1))
memory = Memory({str(folder)!r}, FaissEngine("hnsw", folder={str(folder / INDEXES)!r}))
memory.search(memory.keys([0]), 1)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 9
    names = sorted(path.name for path in (folder / INDEXES).iterdir())
    assert len(names) == 2 and names[0].startswith(".partial-") and names[1] == "hnsw-0.index"
    check_ours(folder)
    found_in(folder)
    assert len(built) == 2
    assert {path.name for path in (folder / INDEXES).iterdir()} == {f"hnsw-{number}.index" for number in range(3)}
    (folder / INDEXES / "mine.txt").write_text("kept")
    refused(FileExistsError, check_ours, folder, match="mine.txt")
    Memory(folder).compact()
    assert [path.name for path in (folder / INDEXES).iterdir()] == ["mine.txt"]


def test_a_change_that_cannot_be_read_leaves_the_index_whole(built):
    ids, source, keys = np.arange(100), np.zeros(100, np.uint8), drawn(100, 8)[2]
    engine, rows = FaissEngine("hnsw"), Rows.of(ids, source, keys)
    engine.update(Rows.of(ids[:90], source[:90], keys[:90]), 1, 1)
    refused(OSError, engine.update, dataclasses.replace(rows, keys=lambda start, stop: Path("gone").stat()), 1, 2)
    refused(ValueError, engine.search, keys, 1, match="update")
    engine.update(rows, 1, 2)
    assert engine.search(keys, 1).ids.ravel().tolist() == ids.tolist() and built == ["hnsw"]
    rows = Rows.of(ids, source, np.roll(keys, 1, axis=0), ids // 95)
    index = engine._parts[0].index

    def add_and_stop(keys, add=index.add):
        add(keys)
        raise KeyboardInterrupt

    index.add = add_and_stop
    with pytest.raises(KeyboardInterrupt):
        engine.update(rows, 1, 3)
    engine.update(rows, 1, 3)
    assert engine.search(keys, 1).ids.ravel().tolist() == [*ids[1:], 0] and len(built) == 2


def test_an_unknown_kind_and_a_missing_package():
    refused(ValueError, FaissEngine, "lsh", match="'lsh'")
    refused(ImportError, optional, "no_such_package", "milvus", match=r"\[milvus\]")
