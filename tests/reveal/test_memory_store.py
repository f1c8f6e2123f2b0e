"""A memory on the disk: what goes in comes out, changes are whole or not at all, damage is named."""

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import memories
import ml_dtypes
import numpy as np
import pytest
from memories import LAYOUT, build, drawn
from refusal import refused

from common.training.mesh import make_mesh
from reveal.memory import Builder, ExactEngine, FaissEngine, Item, Layout, Memory, MilvusEngine, fingerprint
from reveal.memory.engines import exact
from reveal.memory.folder import ENCODER, Busy, Lock, replace
from reveal.memory.manifest import read_manifest
from reveal.memory.memory import ROUNDS
from reveal.memory.shards import Shard

KG = Item("kg", {"a": 1})


@pytest.fixture
def folder(tmp_path) -> Path:
    build(tmp_path / "memory", 25)
    return tmp_path / "memory"


def numbered(*ids: int) -> list[Item]:
    return [dataclasses.replace(KG, id=number) for number in ids]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != ".lock")


def die(folder: Path, what: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run([sys.executable, memories.__file__, str(folder), what], env=environment, timeout=120)
    assert run.returncode == 9


def test_what_goes_in_comes_out(folder):
    memory, (items, keys, values) = Memory(folder), drawn(25)
    assert len(memory) == 25 and memory.version == 1 and len(memory.manifest.shards) == 3
    assert memory.sources == {"kg": 9, "wit": 8, "vqa": 8}
    assert memory.items([]) == [] and memory.keys([]).shape == (0, 8) and memory.values([]).shape == (0, 3, 4)
    asked = [24, 0, 13, 14, 14]
    for number, item in zip(asked, memory.items(asked), strict=True):
        assert (item.id, item.source, item.fields) == (number, items[number].source, items[number].fields)
        np.testing.assert_array_equal(item.picture, items[number].picture)
    np.testing.assert_array_equal(memory.keys(asked), keys[asked])
    found = memory.values(asked)
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found, values[asked].astype(ml_dtypes.bfloat16))
    memory.verify()


def test_the_files_are_plain_and_opening_reads_none_of_them(folder, monkeypatch):
    shard = folder / "v00001-00000"
    assert np.load(shard / "keys.npy", allow_pickle=False).shape == (10, 8)
    assert np.load(shard / "values.npy", mmap_mode="r", allow_pickle=False).shape == (10, 3, 4)
    assert np.load(shard / "offsets.npy", allow_pickle=False)[-1] == (shard / "payload.bin").stat().st_size
    assert json.loads((folder / "manifest.json").read_text())["layout"]["encoder"] == "encoder-1"
    monkeypatch.setattr(Shard, "_read", None)
    assert Memory.load(folder).sources["wit"] == 8


def test_an_interrupted_build_resumes_and_ends_the_same(tmp_path):
    build(tmp_path / "whole", 50)
    die(tmp_path / "memory", "build")
    assert not (tmp_path / "memory/manifest.json").exists()
    refused(FileNotFoundError, Memory, tmp_path / "memory")
    first = (tmp_path / "memory/v00001-00001/keys.npy").stat()
    build(tmp_path / "memory", 50, batch=4)
    assert (tmp_path / "memory/v00001-00001/keys.npy").stat().st_mtime_ns == first.st_mtime_ns
    whole, again = (read_manifest(tmp_path / name) for name in ("whole", "memory"))
    assert whole.hash() == again.hash() and files(tmp_path / "whole") == files(tmp_path / "memory")
    Memory(tmp_path / "memory").verify()


def test_a_refused_batch_leaves_the_builder_as_it_was(tmp_path):
    items, keys, values = drawn(12)
    spoiled = np.where(np.arange(12)[:, None] == 11, np.nan, keys)
    with Builder(tmp_path, LAYOUT, 10) as builder:
        for batch, value in (
            ((items, spoiled, values), "item 11"),
            ((items, keys, values.transpose(0, 2, 1)), r"\[12, 4, 3\]"),
            ((numbered(4, 3), keys[:2], values[:2]), "id 3"),
            ((numbered(10**20), keys[:1], values[:1]), str(10**20)),
            (([Item("web", {"a": 1})], keys[:1], values[:1]), "'web'"),
            ((items, keys[:11], values), "12 items"),
            (([Item("kg")], keys[:1], values[:1]), "'kg'"),
            (([Item("kg", {"a": {1}})], keys[:1], values[:1]), "'kg'"),
        ):
            refused(ValueError, builder.add, *batch, match=value)
        builder.add([], keys[:0], values[:0])
        builder.add(items, keys, values)
    assert len(Memory(tmp_path)) == 12


def test_a_build_holds_one_batch_in_ram(tmp_path):
    item, keys, values = Item("kg", {"text": "x" * 100}), np.ones((64, 64)), np.ones((64, 16, 64), np.float32)
    with Builder(tmp_path, Layout("e", ("kg",), 64, (16, 64))) as builder:
        builder.add([item] * 64, keys, values)
        tracemalloc.start()
        for _ in range(40):  # 10 MB
            builder.add([item] * 64, keys, values)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1.5e6
    assert (tmp_path / "v00001-00000/values.npy").stat().st_size > 10e6


def test_changes_are_versions(folder):
    memory, (items, keys, values) = Memory(folder), drawn(4, seed=1, first=100)
    opened = memory.shards
    assert memory.add(items, keys, values) == [25, 26, 27, 28] and memory.version == 2
    assert memory.shards[:3] == opened  # nothing that stays is opened again
    memory.delete([3, 26])
    changed = [Item("vqa", {"text": "new"}, id=7), Item("kg", {"text": "newer"}, id=0)]
    memory.edit(changed, keys[:2], values[:2])
    for opened in (memory, Memory(folder)):
        assert opened.version == 4 and len(opened) == 27
        assert [item.fields["text"] for item in opened.items([0, 7, 28])] == ["newer", "new", "fact 103 · ü"]
        np.testing.assert_array_equal(opened.keys([7, 0, 25]), keys[[0, 1, 0]])
        rows = opened.rows()
        np.testing.assert_array_equal(rows.ids, np.setdiff1d(np.arange(29), [3, 26]))
        for start, stop in ((5, 20), (0, 2), (2, 5), (8, 9), (9, 9), (10, 17)):  # of several shards, or of one
            np.testing.assert_array_equal(rows.keys(start, stop), opened.keys(rows.ids[start:stop]))
        assert rows.versions[[0, 1, 6, -1]].tolist() == [4, 1, 4, 2]
        assert opened.sources == dict(zip(LAYOUT.sources, np.bincount(rows.source).tolist(), strict=True))
        refused(ValueError, opened.items, [3], match="3 first")
        opened.verify()


def test_changes_that_do_not_fit_change_nothing(folder):
    memory, (items, *pair), huge = Memory(folder), drawn(2), 99999999999999999999
    for change, value in (
        (lambda: memory.add(numbered(24, 99), *pair), "24 first"),
        (lambda: memory.edit(numbered(24, 99), *pair), "99 first"),
        (lambda: memory.edit(items, *pair), "no id"),
        (lambda: memory.add(numbered(24, -1), *pair), "-1"),
        (lambda: memory.edit(numbered(24, 24), *pair), "24"),
        (lambda: memory.delete([3, 25]), "25 first"),
        (lambda: memory.delete([huge]), str(huge)),
        (lambda: memory.items([huge]), str(huge)),
    ):
        refused(ValueError, change, match=value)
    assert Memory(folder).manifest == memory.manifest and memory.version == 1
    memory.delete([])
    assert memory.version == 1


def test_ids_of_deleted_items_are_not_given_again(folder):
    memory, (items, keys, values) = Memory(folder), drawn(1)
    memory.delete([24])
    assert memory.add(items, keys, values) == [25]
    assert memory.add(numbered(1000), keys, values) == [1000]
    assert memory.add(items, keys, values) == [1001]
    assert memory.add(numbered(24), keys, values) == [24]  # unless it is asked for
    memory.add(numbered(2**62 - 1), keys, values)
    refused(ValueError, memory.add, items, keys, values, match=str(2**62 - 1))


@pytest.mark.parametrize("what", ["add", "delete"])
def test_a_change_that_dies_leaves_the_version_before(folder, what):
    before = read_manifest(folder)
    die(folder, what)
    memory = Memory(folder)
    assert memory.manifest == before and len(memory) == 25
    memory.verify()
    memory.delete([4])
    assert memory.add(*drawn(3, seed=2)) == [25, 26, 27]
    assert len(Memory(folder)) == 27 and Memory(folder).items([3])


def test_a_change_in_parts_is_one_version_or_none(folder):
    memory, (items, keys, values) = Memory(folder), drawn(4, seed=2)
    before = files(folder)
    for number in (26, 3, 2**62):  # there twice; there already; no id
        with pytest.raises(ValueError, match=str(number)), memory.changing() as change:
            change.reserve(1000 if number == 3 else 0)
            assert change.add(items, keys, values) == list(range(1000, 1004) if number == 3 else range(25, 29))
            change.add(numbered(number), keys[:1], values[:1])
        assert memory.version == 1 and files(folder) == before
    for first in ("edit", "delete"):
        with pytest.raises(ValueError, match="id 7 "), memory.changing() as change:
            if first == "delete":
                change.delete([7])
            change.edit([Item("kg", {"text": "new"}, id=7)], keys[:1], values[:1])
            if first == "edit":
                change.delete([7])
        assert memory.version == 1 and files(folder) == before
    with memory.changing() as change:
        change.add(items, keys, values)
        change.edit([Item("kg", {"text": "new"}, id=7)], keys[:1], values[:1])
        change.delete([3])
        assert change.add(items[:1], keys[:1], values[:1]) == [29]
    for opened in (memory, Memory(folder)):
        assert opened.version == 2 and len(opened) == 29 and opened.items([7])[0].fields == {"text": "new"}
        opened.verify()


def test_one_program_builds_in_a_folder(tmp_path):
    items, keys, values = drawn(25)
    first = Builder(tmp_path, LAYOUT, 10)
    first.add(items[:15], keys[:15], values[:15])
    for shard in (10, 11):  # also before it refuses another recipe
        refused(Busy, Builder, tmp_path, LAYOUT, shard)
    first.add(items[15:], keys[15:], values[15:])
    first.finish()
    assert len(Memory(tmp_path)) == 25 and not (tmp_path / ".lock").exists()


def test_a_change_is_of_the_version_on_the_disk(folder):
    """Another program has changed it, is changing it, or has put another memory of the same version in its place."""
    one, other = Memory(folder), Memory(folder)
    one.delete([1])
    refused(ValueError, other.delete, [2], match="version 2")
    with one.changing(), pytest.raises(Busy):
        Memory(folder).delete([2])
    build(folder.parent / "new", 7, seed=3)
    Memory(folder.parent / "new").delete([1])
    waiting = Memory(folder, wait=60)
    replace(folder, folder.parent / "new")
    refused(ValueError, one.delete, [2], match=str(folder))
    refused(ValueError, waiting.edit, numbered(2), *drawn(1)[1:], match=folder.name)
    Memory(folder).verify()
    assert len(Memory(folder)) == 6 and [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_an_edit_that_waited_does_not_undo_another_programs(folder):
    early, late, other = Memory(folder, wait=30), Memory(folder, wait=30), Memory(folder)
    _, keys, values = drawn(2, seed=1)
    other.edit([Item("kg", {"text": "new"}, id=7)], keys[:1], values[:1])
    other.compact()
    refused(ValueError, late.edit, numbered(8, 7), keys, values, match="item 7 ")
    assert Memory(folder).version == 3 and Memory(folder).items([7])[0].fields == {"text": "new"}
    early.edit(numbered(8), keys[:1], values[:1])
    assert [item.fields for item in Memory(folder).items([7, 8])] == [{"text": "new"}, {"a": 1}]


def test_a_memory_changes_on_a_file_system_without_locks(folder, monkeypatch):
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    build(folder.parent / "new", 7)
    Memory(folder).delete([1])
    assert len(Memory(folder)) == 24


def test_compacting_keeps_what_lives_and_removes_the_rest(folder):
    memory, (_, keys, values) = Memory(folder), drawn(2, seed=1)
    memory.edit([Item("kg", {"text": "new"}, id=12)], keys[:1], values[:1])
    memory.delete(list(range(5, 12)))
    before = memory.rows()
    ids = before.ids
    kept = memory.keys(ids), memory.values(ids), [item.fields for item in memory.items(ids)]
    (folder / ENCODER).write_text("{}")
    memory.save(folder.parent / "copy")
    assert (folder.parent / "copy" / ENCODER).read_text() == "{}"
    memory.compact()
    assert [path.name for path in sorted(folder.glob("v*"))] == ["v00004-00000"]
    for opened, version in ((memory, 4), (Memory(folder), 4), (Memory(folder.parent / "copy"), 3)):
        assert opened.version == version and opened.manifest.shards[0].rows == 18
        np.testing.assert_array_equal(opened.rows().ids, ids)
        np.testing.assert_array_equal(opened.rows().versions, before.versions)
        for ours, theirs in zip((opened.keys(ids), opened.values(ids)), kept, strict=False):
            np.testing.assert_array_equal(ours, theirs)
        assert [item.fields for item in opened.items(ids)] == kept[2]
        opened.verify()
    refused(FileExistsError, memory.save, folder.parent / "copy")


def test_damage_is_named(folder):
    """Of whole files; of single bytes: tests/faults/test_integrity.py."""
    shard = folder / "v00001-00001"
    for name, change in {
        "keys.npy": lambda data: data[:-1],
        "payload.bin": None,
        "ids.npy": lambda data: b"x" * len(data),
    }.items():
        before = (shard / name).read_bytes()
        (shard / name).write_bytes(change(before)) if change else (shard / name).unlink()
        with pytest.raises((ValueError, FileNotFoundError), match=f"v00001-00001.{name}"):
            Memory(folder).verify()
        (shard / name).write_bytes(before)
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    for broken in (text[: len(text) // 2], text.replace('"format": 1', '"format": 2'), text.replace('"wit"', '"wiu"')):
        manifest.write_text(broken)
        refused(ValueError, Memory, folder, match=r"manifest\.json")


def test_another_encoder_is_refused_unless_asked(folder):
    memory, (_, keys, values) = Memory.load(folder, encoder="encoder-1"), drawn(25, seed=5)
    refused(ValueError, Memory.load, folder, encoder="encoder-2", match="encoder-1, this one is encoder-2")
    before = files(folder)
    refused(TypeError, memory.refresh, lambda items: None, "encoder-2")
    assert files(folder) == before
    memory.refresh(lambda items: tuple(x[[item.id for item in items]] for x in (keys, values)), "encoder-2")
    assert Memory.load(folder, encoder="encoder-2").version == 2
    np.testing.assert_array_equal(memory.keys([3, 20]), keys[[3, 20]])


def test_a_fingerprint_is_of_the_numbers():
    params = {"b": {"kernel": np.ones(2)}, "a": np.zeros(3)}
    assert fingerprint(params) == fingerprint(dict(reversed(params.items())))
    assert fingerprint(params) != fingerprint({**params, "a": np.full(3, 1e-9)})


def test_folders_and_layouts_of_no_memory(folder, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/letter.txt").touch()
    for taken in (folder, tmp_path / "other"):
        refused(FileExistsError, Builder, taken, LAYOUT)
    for change, value in ({"sources": ()}, "255"), ({"key_dim": 0}, "key_dim is 0"), ({"key_dtype": "int8"}, "int8"):
        refused(ValueError, dataclasses.replace, LAYOUT, **change, match=value)
    refused(ValueError, Builder, tmp_path / "new", LAYOUT, 0, match="shard is 0")


def test_the_next_search_has_every_change(tmp_path):
    memory = Memory.create(tmp_path, LAYOUT)
    assert not memory.search(np.eye(8)[:1], 3).present.any()
    items, _, values = drawn(8)
    memory.add(items, np.eye(8), values)
    found = memory.search(np.eye(8)[[2, 5]], 1)
    assert found.ids.ravel().tolist() == [2, 5] and found.version == 2
    memory.delete([2])
    memory.edit([Item("wit", {"text": "moved"}, id=5)], np.eye(8)[[2]], values[:1])
    found = memory.search(np.eye(8)[[2]], 9, sources=["wit"])
    assert found.ids[0, :4].tolist() == [5, 1, 4, 7] and not found.present[0, 4:].any() and found.version == 4
    read = memory.values(found.ids)
    assert read.shape == (1, 9, 3, 4) and not read[0, 4:].any()
    np.testing.assert_array_equal(read[0, 0], values[0].astype(ml_dtypes.bfloat16))
    assert memory.search(np.eye(8)[[2]], 1, log_gate=np.array([[0.0, -2.0, 0.0]])).ids[0, 0] == 0


@pytest.mark.long
@pytest.mark.parametrize("kind", ["exact", "faiss", "milvus", "reuse"])
def test_an_engine_of_several_memories_searches_the_keys_of_each(tmp_path, kind):
    """Their ids and versions are the same."""
    for package in {"exact": (), "faiss": ("faiss",)}.get(kind, ("pymilvus", "milvus_lite")):
        pytest.importorskip(package)
    plain = {"exact": lambda: ExactEngine(make_mesh(1)), "faiss": FaissEngine}
    engine = plain[kind]() if kind in plain else MilvusEngine(str(tmp_path / "keys.db"), reuse=kind == "reuse")
    for seed in (1, 2):
        build(tmp_path / str(seed), 12, seed)
    opened = {seed: Memory(tmp_path / str(seed), engine) for seed in (1, 2)}
    for seed in (1, 2, 1):
        assert opened[seed].search(drawn(12, seed)[1], 1).ids.ravel().tolist() == list(range(12))
    opened[1].delete([4])
    found = opened[1].search(drawn(12, 1)[1][[4, 9]], 12, sources=["kg", "wit"])
    assert found.version == 2 and 4 not in found.ids and found.ids[1, 0] == 9 and found.present.sum() == 2 * 7


def test_a_memory_is_replaced_when_no_program_changes_it(folder, monkeypatch):
    build(folder.parent / "new", 7, seed=3)
    memory, swap = Memory(folder), threading.Thread(target=replace, args=(folder, folder.parent / "new"))
    with memory.changing() as change:
        swap.start()
        change.delete([1])
        swap.join(0.2)
        assert swap.is_alive() and len(Memory(folder)) > 7
    swap.join()
    assert len(Memory(folder)) == 7

    build(folder.parent / "newer", 3, seed=3)
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda self, to: self.missing() if self.name == "newer" else rename(self, to))
    refused(AttributeError, replace, folder, folder.parent / "newer")
    assert len(Memory(folder)) == 7 and not list(folder.parent.glob(".*"))


def test_a_lock_that_is_waited_for_is_that_of_the_new_folder(folder):
    build(folder.parent / "new", 7, seed=3)
    locks = []
    waiting = threading.Thread(target=lambda: locks.append(Lock(folder, "changing", wait=60)))
    held = Lock(folder, "changing")
    waiting.start()
    waiting.join(0.2)
    folder.rename(folder.parent / "old")
    (folder.parent / "new").rename(folder)
    shutil.rmtree(folder.parent / "old")
    held.close()
    waiting.join()
    refused(Busy, lambda: Memory(folder).delete([1]))
    locks[0].close()
    Memory(folder).delete([1])


def test_small_changes_are_merged(tmp_path):
    """100 single additions, edits and deletions among them: few shards, and the same items as in one change."""
    build(tmp_path / "m", 20, shard=100)
    memory = Memory(tmp_path / "m")
    items, keys, values = drawn(100, seed=1)
    for number in range(100):
        memory.add(items[number : number + 1], keys[number : number + 1], values[number : number + 1])
        if number % 50 == 49:
            memory.edit([Item("kg", {"text": f"edited {number}"}, id=20 + number)], keys[:1], values[:1])
            memory.delete([19 + number])
    opened = Memory(tmp_path / "m")
    assert len(opened.shards) <= 3 * 16 and len(list((tmp_path / "m").glob("v*"))) == len(opened.shards)
    opened.verify()
    ids = opened.rows().ids
    assert len(ids) == 118 and len(opened) == 118 and opened.version == 1 + 100 + 4
    for number in (0, 47, 99):
        there = opened.items([20 + number])[0]
        assert there.fields["text"] == (f"edited {number}" if number % 50 == 49 else items[number].fields["text"])
        if number % 50 != 49:
            np.testing.assert_array_equal(opened.keys([20 + number])[0], keys[number])
    refused(ValueError, opened.items, [19 + 49])


@pytest.mark.parametrize(("shard", "rewritten"), [(10, 0), (9, 16)])
def test_a_change_rewrites_few_shards_of_a_build(tmp_path, monkeypatch, shard, rewritten):
    monkeypatch.setattr("reveal.memory.memory.SHARD", 160)  # 16 shards of 10 rows
    build(tmp_path, 20 * shard, shard=shard)
    before = list(tmp_path.glob("v*"))
    Memory(tmp_path).delete([0])
    assert len(before) == 20 and sum(not path.exists() for path in before) == rewritten
    np.testing.assert_array_equal(Memory(tmp_path).rows().ids, np.arange(1, 20 * shard))


@pytest.mark.parametrize("change", ["compact", "merge"])
def test_programs_that_read_go_on(folder, change):
    reader, writer, (items, keys, values) = Memory(folder), Memory(folder), drawn(20, seed=1)
    for number in range(12):  # beside three shards of the build
        writer.add(items[number : number + 1], keys[number : number + 1], values[number : number + 1])
    reader, late, rows, verified = (Memory(folder) for _ in range(4))
    found = reader.search(keys[3:4], k=1)
    if change == "compact":
        writer.compact()
    else:
        writer.add(items[12:13], keys[12:13], values[12:13])
    assert not any((folder / shard.info.name).exists() for shard in reader.shards[-12:])
    assert reader.items(found.ids[0])[0].fields == items[3].fields and reader.version == writer.version
    assert late.search(keys[3:4], k=1).ids[0, 0] == found.ids[0, 0]
    assert not reader.reopen()
    assert len(rows.rows().ids) == len(writer)
    verified.verify()


def test_all_reads_are_of_one_version(folder):
    """Two changes come between them."""
    reader, writer, versions = Memory(folder), Memory(folder), []

    def read() -> np.ndarray:
        versions.append(reader.version)
        if len(versions) < 3:
            writer.compact()
        return reader.keys([3])

    np.testing.assert_array_equal(reader.of_one_version(read), drawn(25)[1][[3]])
    assert versions == [1, 2, 3]


def test_a_read_that_changes_always_overtake_ends(folder):
    reader, writer, ids = Memory(folder), Memory(folder), iter(range(25))
    refused(ValueError, reader.of_one_version, lambda: (writer.delete([next(ids)]), reader.reopen()), match=folder.name)
    assert next(ids) == ROUNDS


@pytest.mark.parametrize("encoder", ["encoder-1", "encoder-2"])
def test_a_memory_that_took_the_place_is_not_read_as_the_old_one(folder, encoder):
    """Its files have the same names and sizes, and it has the same version."""
    reader, everything = Memory(folder), list(range(25))
    before = reader.values(everything)
    reader.search(drawn(25)[1], k=1)
    build(folder.parent / "same", 25)
    replace(folder, folder.parent / "same")
    np.testing.assert_array_equal(reader.values(everything), before)
    assert not reader.reopen()

    items, keys, values = drawn(25, seed=3)
    with Builder(folder.parent / "new", dataclasses.replace(LAYOUT, encoder=encoder), 10) as builder:
        builder.add(items, keys, values)
    replace(folder, folder.parent / "new")
    if encoder == "encoder-2":
        refused(ValueError, reader.values, everything, match="encoder-2")
        return
    np.testing.assert_array_equal(reader.values(everything), values.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(reader.search(keys, k=1).ids[:, 0], everything)


def test_a_memory_opens_while_another_program_makes_the_next_version(folder, monkeypatch):
    """Between the manifest and the files that it names."""
    other, opened = Memory(folder), []

    def shard(*arguments: object) -> Shard:
        opened.append(arguments)
        if len(opened) == 1:
            other.compact()
        return Shard(*arguments)

    monkeypatch.setattr("reveal.memory.versions.Shard", shard)
    found = Memory(folder)
    assert found.version == other.version == 2 and len(found) == len(other)
    found.verify()


def test_a_small_change_of_another_program_is_put_in_place(folder, monkeypatch):
    reader, writer, keys = Memory(folder), Memory(folder), drawn(25)[1]
    assert reader.search(keys[7:8], k=1).ids[0, 0] == 7
    placed = []
    monkeypatch.setattr(exact, "place", lambda *given, place=exact.place: placed.append(0) or place(*given))
    writer.add(*drawn(1, seed=1))
    assert reader.reopen() and reader.search(drawn(1, seed=1)[1], k=1).ids[0, 0] == 25 and not placed


def test_what_a_memory_is_built_of_may_hold_paths(tmp_path):
    for path in (Path("a"), "a"):  # the second resumes
        Builder(tmp_path / "m", LAYOUT, of={"path": path})


def test_a_builds_first_mistake_leaves_the_folder_free(tmp_path):
    """Until a shard is whole there is nothing to resume, whether the build was refused or killed."""
    items, keys, values = drawn(5)
    with pytest.raises(ValueError), Builder(tmp_path / "m", LAYOUT, 10) as builder:
        builder.add(items, keys[:4], values)
    assert not (tmp_path / "m").exists()
    killed = Builder(tmp_path / "m", LAYOUT, 10)
    killed._lock.close()  # as when the program dies
    build(tmp_path / "m", 5, shard=11)
    assert len(Memory(tmp_path / "m")) == 5
