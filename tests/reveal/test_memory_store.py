"""A memory on the disk: what goes in comes out, changes are whole or not at all, damage is named."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import memories
import ml_dtypes
import numpy as np
import pytest
from memories import LAYOUT, build, drawn

from reveal.memory import Builder, Item, Layout, Memory, Store, fingerprint
from reveal.memory.manifest import read_manifest
from reveal.memory.shards import Shard


@pytest.fixture
def folder(tmp_path) -> Path:
    build(tmp_path / "memory", 25)
    return tmp_path / "memory"


def die(folder: Path, what: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run([sys.executable, memories.__file__, str(folder), what], env=environment, timeout=120)
    assert run.returncode == 9


def test_what_goes_in_comes_out(folder):
    store, (items, keys, values) = Store(folder), drawn(25)
    assert len(store) == 25 and store.manifest.version == 1 and len(store.manifest.shards) == 3
    assert store.manifest.counts == {"kg": 9, "wit": 8, "vqa": 8}
    assert store.items([]) == [] and store.keys([]).shape == (0, 8) and store.values([]).shape == (0, 3, 4)
    asked = [24, 0, 13, 14, 14]
    for number, item in zip(asked, store.items(asked), strict=True):
        assert (item.id, item.source, item.fields) == (number, items[number].source, items[number].fields)
        np.testing.assert_array_equal(item.picture, items[number].picture)
    np.testing.assert_array_equal(store.keys(asked), keys[asked])
    found = store.values(asked)
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found, values[asked].astype(ml_dtypes.bfloat16))
    store.verify()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_numbers_keep_their_type(tmp_path, dtype):
    layout = Layout("e", ("kg",), 2, (1, 1), dtype, dtype)
    with Builder(tmp_path, layout) as builder:
        builder.add([Item("kg", {"a": 1})], np.array([[0.1, 3e-5]]), np.array([[[1 / 3]]]))
    store = Store(tmp_path)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    assert store.keys([0]).dtype == store.values([0]).dtype == kind
    np.testing.assert_array_equal(store.keys([0]), np.array([[0.1, 3e-5]]).astype(kind))


def test_the_files_are_plain_and_nothing_is_pickled(folder):
    shard = folder / "v00001-00000"
    assert np.load(shard / "keys.npy", allow_pickle=False).shape == (10, 8)
    assert np.load(shard / "values.npy", mmap_mode="r", allow_pickle=False).shape == (10, 3, 4)
    assert np.load(shard / "offsets.npy", allow_pickle=False)[-1] == (shard / "payload.bin").stat().st_size
    assert json.loads((folder / "manifest.json").read_text())["layout"]["encoder"] == "encoder-1"


def test_opening_reads_headers_only(folder, monkeypatch):
    for array in ("live", "payloads", "find"):
        monkeypatch.setattr(Shard, array, None)
    opened = Memory.load(folder)
    assert len(opened) == 25 and opened.sources["wit"] == 8


def test_an_interrupted_build_goes_on_and_ends_the_same(tmp_path):
    build(tmp_path / "whole", 50)
    die(tmp_path / "memory", "build")
    assert not (tmp_path / "memory/manifest.json").exists()
    with pytest.raises(FileNotFoundError, match="holds no memory"):
        Store(tmp_path / "memory")
    first = (tmp_path / "memory/v00001-00001/keys.npy").stat()
    build(tmp_path / "memory", 50, batch=4)
    assert (tmp_path / "memory/v00001-00001/keys.npy").stat().st_mtime_ns == first.st_mtime_ns
    whole, again = (read_manifest(tmp_path / name) for name in ("whole", "memory"))
    assert whole.hash() == again.hash()
    assert {path.name for path in (tmp_path / "whole").iterdir()} == {p.name for p in (tmp_path / "memory").iterdir()}
    Store(tmp_path / "memory").verify()


def test_an_error_in_a_build_leaves_its_whole_shards(tmp_path):
    items, keys, values = drawn(25)
    with pytest.raises(KeyboardInterrupt), Builder(tmp_path, LAYOUT, 10) as builder:
        builder.add(items, keys, values)
        raise KeyboardInterrupt
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build.json", "v00001-00000", "v00001-00001"]
    with pytest.raises(FileExistsError, match="another layout"):
        Builder(tmp_path, LAYOUT, 11)
    assert Builder(tmp_path, LAYOUT, 10).count == 20


def test_a_refused_batch_leaves_the_builder_as_it_was(tmp_path):
    items, keys, values = drawn(12)
    spoiled = keys.copy()
    spoiled[11, 0] = np.nan
    with Builder(tmp_path, LAYOUT, 10) as builder:
        with pytest.raises(ValueError, match="keys of item 11 are not finite as float32"):
            builder.add(items, spoiled, values)
        with pytest.raises(ValueError, match=r"values are \[12, 4, 3\], this memory's are \[12, 3, 4\]"):
            builder.add(items, keys, values.transpose(0, 2, 1))
        with pytest.raises(ValueError, match="id 3 comes after 4"):
            builder.add([Item("kg", {"a": 1}, id=number) for number in (4, 3)], keys[:2], values[:2])
        with pytest.raises(ValueError, match="source 'web' is not in this memory; it has kg, wit, vqa"):
            builder.add([Item("web", {"a": 1})], keys[:1], values[:1])
        with pytest.raises(ValueError, match="12 items, 11 keys"):
            builder.add(items, keys[:11], values)
        with pytest.raises(ValueError, match="neither fields nor a picture"):
            builder.add([Item("kg")], keys[:1], values[:1])
        with pytest.raises(ValueError, match="are no JSON"):
            builder.add([Item("kg", {"a": object()})], keys[:1], values[:1])
        builder.add(items, keys, values)
    assert len(Store(tmp_path)) == 12


def test_a_build_holds_one_batch_in_ram(tmp_path):
    layout = Layout("e", ("kg",), 64, (16, 64))
    item, keys, values = (
        Item("kg", {"text": "x" * 100}),
        np.ones((64, 64), np.float32),
        np.ones((64, 16, 64), np.float32),
    )
    with Builder(tmp_path, layout) as builder:
        builder.add([item] * 64, keys, values)
        tracemalloc.start()
        for _ in range(40):  # 10 MB
            builder.add([item] * 64, keys, values)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1.5e6
    assert (tmp_path / "v00001-00000/values.npy").stat().st_size > 10e6


def test_changes_are_versions(folder):
    store = Store(folder)
    items, keys, values = drawn(4, seed=1, first=100)
    assert store.add(items, keys, values) == [25, 26, 27, 28] and store.manifest.version == 2
    store.delete([3, 26])
    changed = [Item("vqa", {"text": "new"}, id=7), Item("kg", {"text": "newer"}, id=0)]
    store.edit(changed, keys[:2], values[:2])
    for opened in (store, Store(folder)):
        assert opened.manifest.version == 4 and len(opened) == 27
        assert [item.fields["text"] for item in opened.items([0, 7, 28])] == ["newer", "new", "fact 103 · ü"]
        np.testing.assert_array_equal(opened.keys([7, 0, 25]), keys[[0, 1, 0]])
        rows = opened.rows()
        np.testing.assert_array_equal(rows.ids, np.setdiff1d(np.arange(29), [3, 26]))
        np.testing.assert_array_equal(rows.keys(5, 20), opened.keys(rows.ids[5:20]))
        assert rows.versions[[0, 1, 6, -1]].tolist() == [4, 1, 4, 2]
        assert opened.manifest.counts == dict(zip(LAYOUT.sources, np.bincount(rows.source).tolist(), strict=True))
        with pytest.raises(ValueError, match=r"1 ids are not in .*memory, 3 first"):
            opened.items([3])
        opened.verify()


def test_changes_that_do_not_fit_change_nothing(folder):
    store = Store(folder)
    items, keys, values = drawn(2)
    given = [Item("kg", {"a": 1}, id=number) for number in (24, 99)]
    with pytest.raises(ValueError, match=r"1 ids are in .* already, 24 first; edit those"):
        store.add(given, keys, values)
    with pytest.raises(ValueError, match=r"1 ids are not in .*, 99 first"):
        store.edit(given, keys, values)
    with pytest.raises(ValueError, match="an item to edit has no id"):
        store.edit(items, keys, values)
    with pytest.raises(ValueError, match="id -1 is below 0"):
        store.add([Item("kg", {"a": 1}, id=-1)], keys[:1], values[:1])
    with pytest.raises(ValueError, match="twice in one change"):
        store.edit(given[:1] * 2, keys, values)
    with pytest.raises(ValueError, match="1 ids are not in"):
        store.delete([3, 25])
    assert Store(folder).manifest == store.manifest and store.manifest.version == 1
    store.delete([])
    assert store.manifest.version == 1


def test_ids_of_deleted_items_are_not_given_again(folder):
    store = Store(folder)
    store.delete([24])
    items, keys, values = drawn(1)
    assert store.add(items, keys, values) == [25]
    assert store.add([Item("kg", {"a": 1}, id=1000)], keys, values) == [1000]
    assert store.add(items, keys, values) == [1001]
    assert store.add([Item("kg", {"a": 1}, id=24)], keys, values) == [24]  # unless somebody asks


@pytest.mark.parametrize("what", ["add", "delete"])
def test_a_change_that_dies_leaves_the_version_before(folder, what):
    before = read_manifest(folder)
    die(folder, what)
    store = Store(folder)
    assert store.manifest == before and len(store) == 25
    store.verify()
    items, keys, values = drawn(3, seed=2)
    store.delete([4])
    assert store.add(items, keys, values) == [25, 26, 27]
    assert len(Store(folder)) == 27 and Store(folder).items([3])


def test_a_change_in_parts_is_one_version_or_none(folder):
    store, (items, keys, values) = Store(folder), drawn(4, seed=2)
    before = sorted(folder.rglob("*"))
    for wrong, message in (
        ([Item("kg", {"a": 1}, id=26)], "id 26 is there twice in one change"),
        ([Item("kg", {"a": 1}, id=3)], "3 first; edit those"),
        ([Item("kg", {"a": 1}, id=2**62)], r"id 4611686018427387904 is no item's: ids are 0 to 2\^62 - 1"),
    ):
        with pytest.raises(ValueError, match=message), store.changing() as change:
            assert change.add(items, keys, values) == [25, 26, 27, 28]
            change.add(wrong, keys[:1], values[:1])
        assert store.manifest.version == 1 and [p for p in sorted(folder.rglob("*")) if p.name != ".lock"] == before
    with store.changing() as change:
        change.add(items, keys, values)
        change.edit([Item("kg", {"text": "new"}, id=7)], keys[:1], values[:1])
        change.delete([3])
        assert change.add(items[:1], keys[:1], values[:1]) == [29]
    for opened in (store, Store(folder)):
        assert opened.manifest.version == 2 and len(opened) == 29 and opened.items([7])[0].fields == {"text": "new"}
        opened.verify()


def test_ids_that_no_item_can_have(folder):
    store = Store(folder)
    for asked in (store.items, store.delete):
        with pytest.raises(ValueError, match="id 99999999999999999999 is no item's: ids are 0 to"):
            asked([99999999999999999999])
    items, keys, values = drawn(1)
    store.add([Item("kg", {"a": 1}, id=2**62 - 1)], keys, values)
    with pytest.raises(ValueError, match="no id is left behind 4611686018427387903"):
        store.add(items, keys, values)
    with pytest.raises(ValueError, match="is no item's"), Builder(folder.parent / "new", LAYOUT) as builder:
        builder.add([Item("kg", {"a": 1}, id=10**20)], keys, values)


def test_one_program_builds_in_a_folder(tmp_path):
    items, keys, values = drawn(25)
    first = Builder(tmp_path, LAYOUT, 10)
    first.add(items[:15], keys[:15], values[:15])
    with pytest.raises(ValueError, match=r"another program is building .*; try again when it is done"):
        Builder(tmp_path, LAYOUT, 10)
    with pytest.raises(ValueError, match="another program is building"):
        Builder(tmp_path, LAYOUT, 11)  # also before it says that another is to be discarded
    first.add(items[15:], keys[15:], values[15:])
    first.finish()
    assert len(Store(tmp_path)) == 25 and not (tmp_path / ".lock").exists()


def test_two_programs_do_not_change_what_the_other_has_not_seen(folder):
    one, other = Store(folder), Store(folder)
    one.delete([1])
    with pytest.raises(ValueError, match="is at version 2 by now, not 1: load it again"):
        other.delete([2])
    with one._change(), pytest.raises(ValueError, match="another program is changing"):
        Store(folder).delete([2])


def test_compacting_keeps_what_lives_and_removes_the_rest(folder):
    store = Store(folder)
    _, keys, values = drawn(2, seed=1)
    store.edit([Item("kg", {"text": "new"}, id=12)], keys[:1], values[:1])
    store.delete(list(range(5, 12)))
    ids, before = store.rows().ids, store.rows()
    kept = store.keys(ids), store.values(ids), [item.fields for item in store.items(ids)]
    store.save(folder.parent / "copy")
    store.compact()
    assert [path.name for path in sorted(folder.glob("v*"))] == ["v00004-00000"]
    for opened, version in ((store, 4), (Store(folder), 4), (Store(folder.parent / "copy"), 3)):
        assert opened.manifest.version == version and opened.manifest.shards[0].rows == 18
        np.testing.assert_array_equal(opened.rows().ids, ids)
        np.testing.assert_array_equal(opened.rows().versions, before.versions)
        for ours, theirs in zip((opened.keys(ids), opened.values(ids)), kept, strict=False):
            np.testing.assert_array_equal(ours, theirs)
        assert [item.fields for item in opened.items(ids)] == kept[2]
        opened.verify()
    with pytest.raises(FileExistsError):
        store.save(folder.parent / "copy")


def test_damage_is_named(folder):
    def broken(name: str, message: str, change) -> None:
        path = folder / "v00001-00001" / name
        before = path.read_bytes()
        change(path, before)
        with pytest.raises((ValueError, FileNotFoundError), match=f"v00001-00001.{name}.*{message}"):
            Store(folder).verify()
        path.write_bytes(before)

    broken("keys.npy", "has .* bytes, the manifest says", lambda path, data: path.write_bytes(data[:-1]))
    broken("payload.bin", "is missing", lambda path, _: path.unlink())
    broken("ids.npy", "is damaged|holds", lambda path, data: path.write_bytes(b"x" * len(data)))
    broken("values.npy", "has changed since", lambda path, data: path.write_bytes(data[:-1] + b"\0"))
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match="expected the manifest of a memory"):
        Store(folder)
    manifest.write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(ValueError, match="format 2 is newer"):
        Store(folder)


def test_another_encoder_is_refused_unless_asked(folder):
    Memory.load(folder, encoder="encoder-1")
    with pytest.raises(ValueError, match="was made by encoder encoder-1, this one is encoder-2"):
        Memory.load(folder, encoder="encoder-2")
    memory = Memory.load(folder)
    _, keys, values = drawn(25, seed=5)
    memory.refresh(lambda items: tuple(x[[item.id for item in items]] for x in (keys, values)), "encoder-2")
    assert Memory.load(folder, encoder="encoder-2").version == 2
    np.testing.assert_array_equal(memory.store.keys([3, 20]), keys[[3, 20]])


def test_a_fingerprint_names_the_numbers():
    params = {"b": {"kernel": np.ones(2)}, "a": np.zeros(3)}
    assert fingerprint(params) == fingerprint(dict(reversed(params.items())))
    assert fingerprint(params) != fingerprint({**params, "a": np.full(3, 1e-9)})


def test_folders_that_are_no_place_for_a_memory(folder, tmp_path):
    with pytest.raises(FileExistsError, match="holds a memory already"):
        Builder(folder, LAYOUT)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/letter.txt").touch()
    with pytest.raises(FileExistsError, match="files that are no memory"):
        Builder(tmp_path / "other", LAYOUT)
    for change, message in (
        (dict(sources=()), "name 1 to 255"),
        (dict(key_dim=0), "positive sizes"),
        (dict(key_dtype="int8"), "dtype int8"),
    ):
        with pytest.raises(ValueError, match=message):
            Layout(**(dict(encoder="e", sources=("a",), key_dim=2, value_shape=(1, 2)) | change))


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
    assert memory.values(found.ids).shape == (1, 9, 3, 4)
    np.testing.assert_array_equal(memory.values(found.ids)[0, 0], values[0].astype(ml_dtypes.bfloat16))
    assert not memory.values(found.ids)[0, 4:].any()
    gated = memory.search(np.eye(8)[[2]], 1, log_gate=np.array([[0.0, -2.0, 0.0]]))
    assert gated.ids[0, 0] == 0
