"""Files that are cut while they are open, clocks that jump, movies that claim much, disks that cannot be written, and
samples of `kills.py` and `endurance.py`."""

import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from memories import build
from refusal import refused
from tiny_triplets import write_cut

from common.io.arrays import check_whole, mapped
from common.io.tensor_files import TensorFiles
from common.io.video import write_clip
from common.io.video_reader import probe, read_video
from common.weights.model_file import load_weights, save_weights
from film.data.record_sources import CutTriplets
from reveal.memory import Memory

ROOT = Path(__file__).parents[2]
FRAME = np.linspace(0, 1, 24 * 32 * 3, dtype=np.float32).reshape(24, 32, 3)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


def test_files_that_are_cut_while_they_are_open(tmp_path):
    """Reading a map past its file's end would end the process with SIGBUS."""
    path = tmp_path / "w.safetensors"
    safetensors.numpy.save_file({name: np.ones((99, 999), np.float32) for name in "abcd"}, path)
    tensors = TensorFiles(path)
    assert tensors["a"].shape == (99, 999)
    cut(path)
    assert str(path) in refused(ValueError, lambda: [tensors[name].sum() for name in "bcd"])

    np.save(tmp_path / "a.npy", np.ones((999, 99)))
    array = mapped(tmp_path / "a.npy")
    check_whole(array)
    cut(tmp_path / "a.npy")
    assert "a.npy" in refused(ValueError, check_whole, array)

    images = np.zeros((10, 3, 96, 96, 3), np.uint8)
    folder = write_cut(tmp_path / "cut", images, np.zeros((10, 2, 24, 24, 2), np.float16), np.ones((10, 2, 24, 24)))
    source = CutTriplets(folder)
    assert source.frames(9) and source[9]
    cut(folder / "images.npy")
    for call in (source.frames, source.__getitem__):
        assert "images.npy" in refused(ValueError, call, 9)

    build(tmp_path / "m", 50)
    memory = Memory(tmp_path / "m")
    assert len(memory.values([1])) == 1
    for name in ("values.npy", "keys.npy", "payload.bin"):
        for path in (tmp_path / "m").glob(f"v*/{name}"):
            cut(path)
    for call in (memory.values, memory.items, memory.keys):
        refused(ValueError, call, [49])


@pytest.mark.parametrize("date", [0, 4 * 10**9])
def test_clocks_that_jump(tmp_path, date):
    """Nothing is decided by dates: files, and a lock, of 1970 or of 2096."""
    build(tmp_path / "m", 20)
    weights = save_weights(tmp_path / "w.safetensors", {"a": FRAME}, kind="k", config={})
    Memory(tmp_path / "m").delete([1])  # leaves a lock file
    for path in tmp_path.rglob("*"):
        os.utime(path, (date, date))
    memory = Memory(tmp_path / "m", wait=1)
    memory.delete([2])
    memory.compact()
    assert len(Memory(tmp_path / "m")) == 18
    assert load_weights(weights)[0]["a"].shape == FRAME.shape
    save_weights(weights, {"a": FRAME}, kind="k", config={}, overwrite=True)


def movie(folder: Path, **samples: int) -> Path:
    """Four frames; the tables of samples say other numbers."""
    path = folder / "a.mp4"
    write_clip(path, iter([FRAME] * 4), 4)
    data = bytearray(path.read_bytes())
    places = {"sizes": (b"stsz", 8), "times": (b"stts", 12), "chunks": (b"stsc", 16)}
    for name, number in samples.items():
        kind, skip = places[name]
        at = data.index(kind) + skip
        data[at : at + 4] = struct.pack(">I", number)
        if name == "sizes":
            data[at : at + 8] = struct.pack(">II", 1, number)  # a byte each, so that no table is needed
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "samples", [{"sizes": 10**9}, {"times": 10**9}, {"sizes": 50 * 10**6, "times": 50 * 10**6, "chunks": 50 * 10**6}]
)
def test_movies_of_more_samples_than_bytes(tmp_path, samples):
    path = movie(tmp_path, **samples)
    assert "samples" in refused(ValueError, probe, path)
    assert str(path) in refused(ValueError, lambda: next(read_video(path)))


def test_movies_of_large_frames(tmp_path):
    """A minute of one grey in 6000x5000 pixels takes a few kilobytes."""
    import av

    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=4)
        stream.width, stream.height, stream.pix_fmt = 6000, 5000, "yuv420p"
        frame = av.VideoFrame(6000, 5000, "yuv420p")
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    assert path.stat().st_size < 20_000
    assert "megapixels" in refused(ValueError, probe, path)
    assert "megapixels" in refused(ValueError, lambda: next(read_video(path)))
    whole = tmp_path / "b.mp4"
    write_clip(whole, iter([FRAME] * 4), 4)
    assert probe(whole).frames == 4 and len(list(read_video(whole))) == 4


WRITES = {
    "w.safetensors": "save_weights(out / 'w.safetensors', {'a': np.ones(9)}, kind='k', config={})",
    "a.png": "write_image(out / 'a.png', np.zeros((9, 9, 3), np.float32))",
    "a.mp4": "write_clip(out / 'a.mp4', iter([np.zeros((16, 16, 3), np.float32)] * 2), 4)",
    ".lock": "Memory(out / 'm').delete([1])",
}


def test_a_folder_that_cannot_be_written(tmp_path):
    """As another user if root runs the tests, who may write anywhere; all is imported before, by writing elsewhere."""
    lines = ["import os, shutil, sys", "from pathlib import Path", "import numpy as np"]
    lines += ["from common.io.images import write_image", "from common.io.video import write_clip"]
    lines += ["from common.weights.model_file import save_weights", "from reveal.memory import Memory"]
    lines += [
        "def write(out):",
        *(f"    try: {call}\n    except OSError as error: print(error)" for call in WRITES.values()),
    ]
    lines += ["write(Path(sys.argv[2]))", "if os.geteuid() == 0: os.setuid(65534)", "out = Path(sys.argv[1])"]
    lines += ["print(len(Memory(out / 'm').items([1])))", "write(out)"]
    build(tmp_path / "m", 5)
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:  # pytest's own folders are closed to others
        folder = Path(scratch)
        build(folder / "m", 5)
        before = {path for path in folder.rglob("*")}
        for path in [folder, *before]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        command = [sys.executable, "-c", "\n".join(lines), scratch, str(tmp_path)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        after = {path for path in folder.rglob("*")}
        for path in [folder, *before]:
            path.chmod(0o755)
    assert done.returncode == 0 and not done.stderr, done.stderr
    first, *errors = done.stdout.splitlines()
    assert first == "1" and after == before
    for name, line in zip(WRITES, errors, strict=True):
        assert name in line


def program(name: str, *words: str) -> list[list[str]]:
    """The cells of the table that a program of this folder prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(__file__).with_name(name)), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]


@pytest.mark.long
def test_kills():
    rows = program("kills.py", "--count", "2", "--only", "add", "compact", "build", "weights", "image")
    assert [row[3:] for row in rows] == [["0"] * 3] * 5
    ((_, stops, confirmed, *lost),) = program("kills.py", "--count", "2", "--writers", "3")
    assert stops == "2" and int(confirmed) and lost == ["0"] * 3


@pytest.mark.slow
def test_endurance():
    rows = program("endurance.py", "--share", "0.02", "--only", "steps", "pictures", "drawings")
    assert [row[5] for row in rows] == ["0"] * 3
