"""Changed bytes are named before they are searched, shown or copied; what is committed is on the disk."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import mistake
from memories import drawn
from refusal import refused
from safetensors.numpy import save_file

import film.cli
import plugins.cli.main
import reveal.cli.main
from common.io import files
from common.io.files import atomic_folder, atomic_output
from common.training.checkpoint import Checkpoints
from common.weights.model_file import save_weights
from reveal.memory import Builder, Layout, Memory
from reveal.memory.manifest import write_manifest
from reveal.memory.shards import BLOCK

LAYOUT = Layout("encoder-1", ("kg", "wit", "vqa"), key_dim=256, value_shape=(8, 256))  # 80 rows: 2 and 11 blocks
ROWS, LAST = 80, 79


@pytest.fixture
def folder(tmp_path) -> Path:
    items, _, _ = drawn(ROWS)
    items = [dataclasses.replace(item, fields={"text": f"{number}" * 2000}) for number, item in enumerate(items)]
    rng = np.random.default_rng(0)
    keys = rng.standard_normal((ROWS, 256), np.float32)
    with Builder(tmp_path / "memory", LAYOUT) as builder:
        builder.add(items, keys / np.linalg.norm(keys, axis=1, keepdims=True), rng.random((ROWS, 8, 256), np.float32))
    return tmp_path / "memory"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def without_checksums(folder: Path) -> None:
    """As a memory of before 2026-11-24."""
    manifest = Memory(folder).manifest
    (shard,) = manifest.shards
    files = {name: entry for name, entry in shard.files.items() if name != "checksums.npy"}
    write_manifest(folder, dataclasses.replace(manifest, shards=(dataclasses.replace(shard, files=files),)))
    fields = json.loads((folder / "manifest.json").read_text())
    fields.pop("checksum")
    (folder / "manifest.json").write_text(json.dumps(fields))
    (folder / shard.name / "checksums.npy").unlink()


READS = {
    "keys.npy": lambda memory: memory.search(np.ones((1, 256), np.float32), 3),
    "values.npy": lambda memory: memory.values([LAST]),
    "payload.bin": lambda memory: memory.items([LAST]),
    "ids.npy": lambda memory: memory.items([LAST]),
    "source.npy": lambda memory: memory.items([LAST]),
    "offsets.npy": lambda memory: memory.items([LAST]),
    "version.npy": lambda memory: memory.rows(),
    "checksums.npy": lambda memory: memory.values([LAST]),
}


@pytest.mark.parametrize("name", READS)
def test_changed_bytes_of_a_memory_are_named_and_not_copied(folder, name):
    shard = folder / "v00001-00000"
    assert (shard / "values.npy").stat().st_size > 10 * BLOCK and (shard / "checksums.npy").exists()
    whole = Memory(folder)
    assert len(READS[name](whole))
    flip(shard / name, -1)
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    memory = Memory(folder)
    if name in ("values.npy", "payload.bin"):  # the first item is in another block
        assert memory.items([0])[0].id == 0 and memory.values([0]).shape == (1, 8, 256)
    for call in (lambda: READS[name](memory), memory.compact, lambda: memory.save(folder.parent / "copy")):
        assert name in refused(ValueError, call)
    assert {path: path.read_bytes() for path in folder.rglob("*.*") if path.name != ".lock"} == before
    with pytest.raises(ValueError, match=name):
        memory.verify()


@pytest.mark.parametrize("name", ["keys.npy", "values.npy", "payload.bin"])
def test_a_memory_without_checksums_of_blocks_is_verified_before_it_is_copied(folder, name):
    without_checksums(folder)
    memory = Memory(folder)
    memory.verify()
    flip(folder / "v00001-00000" / name, -1)
    assert name in refused(ValueError, memory.compact)
    (folder / "v00001-00000" / name).write_bytes(b"")  # cut while the memory is open
    assert name in refused(ValueError, READS[name], memory)


def test_merging_copies_no_damage(folder):
    memory, added = Memory(folder), drawn(1)[0]
    key, value = np.eye(1, 256, dtype=np.float32), np.zeros((1, 8, 256), np.float32)
    for _ in range(15):
        memory.add(added, key, value)
    flip(folder / "v00002-00000" / "payload.bin", -1)
    assert "payload.bin" in refused(ValueError, Memory(folder).add, added, key, value)
    memory = Memory(folder)
    assert memory.version == 16 and len(memory) == ROWS + 15
    memory.delete([ROWS])  # the damaged item, after which the rest is merged
    memory.add(added, key, value)
    assert len(Memory(folder)) == ROWS + 15


def weights(folder: Path) -> Path:
    return save_weights(folder / "w.safetensors", {"a": np.arange(99, dtype=np.float32)}, kind="film", config={})


def foreign(folder: Path, value: float = 1.0) -> Path:
    save_file({"a": np.full(99, value, np.float32)}, folder / "x.safetensors")
    return folder / "x.safetensors"


def test_commands_verify(folder, tmp_path, capsys):
    own, other = weights(tmp_path), foreign(tmp_path)
    for program, name in ((film, own), (plugins, own), (plugins, other), (plugins, tmp_path), (reveal, folder)):
        run = film.cli.main if program is film else program.cli.main.main
        run(["verify", str(name)])
        assert str(name) in capsys.readouterr().out
    flip(own, -2)
    flip(folder / "v00001-00000" / "values.npy", -1)
    foreign(tmp_path, np.nan)
    for program, name in ((film, own), (plugins, own), (plugins, other), (plugins, tmp_path), (reveal, folder)):
        run = film.cli.main if program is film else program.cli.main.main
        assert str(name) in mistake(capsys, run, ["verify", str(name)], lines=None)


def frames(folder: Path) -> None:
    with atomic_folder(folder / "a" / "frames", durable=True) as part:
        (part / "frame_1.png").write_bytes(b"1")


def checkpoint(folder: Path) -> None:
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, {"a": np.ones(3)}, {"p": 1})
    checkpoints.wait()
    checkpoints.close()


def changed_memory(folder: Path) -> None:
    items, keys, values = drawn(3)
    layout = Layout("e", ("kg", "wit", "vqa"), 8, (3, 4))
    with Builder(folder / "m", layout) as builder:
        builder.add(items, keys, values)
    memory = Memory(folder / "m")
    memory.add(items, keys, values)
    memory.delete([1])
    memory.compact()


@pytest.mark.parametrize("commit", [weights, frames, checkpoint, changed_memory])
def test_what_is_committed_is_on_the_disk_before_its_name_and_then_the_name(tmp_path, monkeypatch, commit):
    synced: dict[int, int] = {}  # inode -> time of its last change when it was synced
    waiting: set[Path] = set()  # folders with a name that is not on the disk
    renamed: list[str] = []

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced[status.st_ino] = status.st_mtime_ns
        waiting.discard(Path(f"/proc/self/fd/{descriptor}").readlink())

    def checked(rename):
        def replace(source, target, *arguments):
            source = Path(source)
            if "orbax-checkpoint-tmp" in str(target):  # a part of a checkpoint that is not there yet
                return rename(source, target, *arguments)
            for path in [source, *source.rglob("*")]:
                status = path.stat()
                if path.name not in ("commit_success.txt", "_CHECKPOINT_METADATA"):  # orbax's, just before the rename
                    assert status.st_ino in synced, path
                    assert path.is_dir() or synced[status.st_ino] == status.st_mtime_ns, path
            renamed.append(Path(target).name)
            waiting.add(Path(target).parent)
            return rename(source, target, *arguments)

        return replace

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, checked(getattr(os, name)))
    commit(tmp_path)
    assert renamed and not waiting


def other_programs(memory: Path, seconds: float) -> subprocess.Popen:
    """A program that holds the lock of a memory; returns when it does."""
    lines = ["import sys, time", "from pathlib import Path", "from reveal.memory.folder import Lock"]
    lines += ["lock = Lock(Path(sys.argv[1]), 'changing')", "print('held', flush=True)", f"time.sleep({seconds})"]
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", "\n".join(lines), str(memory)]
    program = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": root}, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None and program.stdout.readline() == "held\n"
    return program


def test_a_second_writer_waits_or_is_told_who_writes(folder):
    opened, late = Memory(folder), Memory(folder, wait=30)
    with other_programs(folder, 0.5) as program:
        message = refused(ValueError, opened.delete, [0])
        assert f"process {program.pid} on" in message and str(folder) in message
        assert f"process {program.pid} on" in refused(ValueError, Memory(folder, wait=0.1).delete, [0])
        late.delete([1])
    opened.delete([]) if opened.reopen() else pytest.fail("the other change is not there")
    late.delete([2])
    Memory(folder, wait=1).delete([3])
    late.delete([4])  # on top of a change that came after it was opened
    assert Memory(folder).version == 5 and len(Memory(folder)) == ROWS - 4
    assert [path.name for path in folder.glob("*/deleted-*")] == ["deleted-5.npy"]


def test_what_a_killed_program_left_is_removed(folder):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    (folder / "v00001-00000" / "deleted-2.npy").write_bytes(b"half")
    (folder / "v00002-00000").mkdir()
    with pytest.raises(KeyError), Memory(folder).changing() as change:
        change.delete([3])
        change.finish()
        raise KeyError
    assert not list(folder.glob("*/deleted-*")) and not (folder / "v00002-00000").exists()
    output = folder.parent / "out"
    output.mkdir()
    with atomic_output(output / "a.txt") as temporary:
        running = temporary.name
    names = {running.replace(f"-{os.getpid()}-", f"-{ended.pid}-"), running, ".partial-0-1-12345678.txt"}
    for name in names:
        (output / name).touch()
    files._CLEANED.clear()
    with atomic_output(output / "b.txt"):
        pass
    stopped = running.replace(f"-{os.getpid()}-", f"-{ended.pid}-")
    assert names - {path.name for path in output.iterdir()} == {stopped}
    for place, name in ((folder.parent / "begun", stopped), (folder.parent / "used", running)):
        place.mkdir()
        (place / name).touch()
    assert len(Memory.create(folder.parent / "begun", Memory(folder).layout)) == 0  # the build before was killed
    refused(FileExistsError, lambda: Memory.create(folder.parent / "used", Memory(folder).layout), match="used")
    assert (folder.parent / "used" / running).is_file()


def test_a_full_disk_is_named(folder, tmp_path):
    """In a program of its own: the limit is for life."""
    lines = ["import resource, signal, sys", "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)", "import numpy as np"]
    lines += ["from pathlib import Path", "from common.weights.model_file import save_weights"]
    lines += ["from common.io.images import write_image", "from reveal.memory import Item, Memory"]
    lines += ["memory, out = Memory(sys.argv[1]), Path(sys.argv[2])"]
    lines += ["resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))"]
    calls = {
        "w.safetensors": "save_weights(out / 'w.safetensors', {'a': np.ones(9)}, kind='k', config={})",
        "a.png": "write_image(out / 'a.png', np.zeros((99, 99, 3), np.float32))",
        "deleted-2.npy": "memory.delete([1])",
        "v00002-00000": "memory.add(memory.items([1])[:0] or [Item('kg', {'a': 1})], memory.keys([1]),"
        " memory.values([1]))",
    }
    for call in calls.values():
        lines += ["try:", f"    {call}", "except OSError as error:", "    print(error)"]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", "\n".join(lines), str(folder), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    for name, line in zip(calls, done.stdout.splitlines(), strict=True):
        assert name in line
    Memory(folder).verify()
    assert Memory(folder).version == 1 and not list(tmp_path.glob("*.safetensors"))
