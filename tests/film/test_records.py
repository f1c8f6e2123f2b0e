"""Records: the reference's TFRecords, and `film prepare`'s ArrayRecord shards, read without TensorFlow."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import tensorflow_datasets as tfds
from recipe import DATA
from refusal import refused
from tiny_triplets import damage, write_all, write_vimeo

from common.io.tfrecord import BROKEN, Span, masked_crc, parse_example, read_record, scan
from film.data import prepare as module
from film.data.datasets import Vimeo90K
from film.data.prepare import LAYOUTS, Prepare
from film.data.record_sources import TfdsTriplets, TFRecordTriplets

SHARDS = [DATA / f"tiny_triplets.tfrecord-{shard:05d}-of-00002" for shard in range(2)]


@pytest.fixture
def copies(tmp_path) -> list[Path]:
    return [Path(shutil.copy(shard, tmp_path)) for shard in SHARDS]


@pytest.fixture
def vimeo(tmp_path) -> Vimeo90K:
    return Vimeo90K(write_vimeo(tmp_path / "vimeo", 5, 4, 6))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def prepare(source, folder: Path, split: str = "train", **options) -> int:
    return module.prepare(source, Prepare("", str(folder), split=split, quiet=True, **options))


def read_all(folder: Path, **options) -> list[tuple[bytes, bytes, bytes]]:
    source = TfdsTriplets(str(folder), **options)
    return [source.encoded(i).pictures for i in range(len(source))]


@pytest.mark.parametrize("files", ["tiny_triplets.tfrecord@2", "tiny_triplets.tfrecord-*"])
def test_decoded_triplets_equal_the_reference_reader(files):
    """The fixture holds the integers: what the reference's reader returns, times 255, at every third row and column."""
    source = TFRecordTriplets(str(DATA / files))
    assert len(source) == 4 and len(TFRecordTriplets(str(SHARDS[1]))) == 2
    with np.load(DATA / "tiny_triplets_decoded.npz") as decoded:
        for i in range(4):
            expected = np.concatenate([decoded[f"{key}_{i}"] for key in ("x0", "y", "x1")])
            np.testing.assert_array_equal(source.frames(i).images[:, ::3, ::3], expected)


def test_a_flipped_bit_is_found_unless_checks_are_off(copies):
    span = list(scan(copies[0]))[1]
    data = bytearray(copies[0].read_bytes())
    data[span.start + span.length - 3] ^= 1  # in a number at the record's end: still a message
    copies[0].write_bytes(data)
    TFRecordTriplets(str(copies[0])).frames(0)
    refused(ValueError, lambda: TFRecordTriplets(str(copies[0])).frames(1), match=f"byte {span.start}")
    assert read_record(span, check=False) != read_record(list(scan(SHARDS[0]))[1])
    data[2] ^= 1  # a damaged length ends the file
    copies[0].write_bytes(data)
    assert list(scan(copies[0])) == [Span(copies[0], 0, BROKEN)]


@pytest.mark.parametrize("cut", [5, 200, -1])
def test_a_file_cut_short_keeps_the_records_before(copies, cut):
    start = list(scan(copies[0]))[1].start - 12
    copies[0].write_bytes(copies[0].read_bytes()[: start + cut if cut > 0 else cut])
    source = TFRecordTriplets(str(copies[0].with_name("tiny_triplets.tfrecord@2")))
    assert [span.length == BROKEN for span in source.spans] == [False, True, False, False]
    source.frames(0)
    source.frames(2)
    refused(ValueError, source.frames, 1, match=str(copies[0].name))


def test_only_wanted_features_are_parsed_and_other_records_refused(tmp_path):
    def frame(data: bytes) -> bytes:
        length = struct.pack("<Q", len(data))
        return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))

    record = read_record(next(scan(SHARDS[0])))
    found = parse_example(record, ["frame_1/format", "path", "nosuch"])
    assert found["frame_1/format"] == b"png" and set(found) == {"frame_1/format", "path"}
    (tmp_path / "other").write_bytes(frame(b"\xff" * 20) + frame(b"") + frame(record[:-1]))
    source = TFRecordTriplets(str(tmp_path / "other"))
    for index in range(3):
        refused(ValueError, source.frames, index, match="frame_0/encoded" if index == 1 else "other at byte")
    (tmp_path / "empty").write_bytes(b"")
    for files, value in {
        "empty": "empty",
        "other@2": "other-00000-of-00002",
        "nosuch-*": "nosuch",
        ".": "glob",
    }.items():
        refused((FileNotFoundError, ValueError), len, TFRecordTriplets(str(tmp_path / files)), match=value)


def test_prepared_triplets_are_the_same_files(vimeo, tmp_path, capsys):
    Prepare(str(vimeo.folder), str(tmp_path / "out"), layout="vimeo90k", shard=2, quiet=True).run()
    assert "5 triplets" in capsys.readouterr().out and len(list((tmp_path / "out").glob("*-of-00003"))) == 3
    stored = [vimeo.encoded(i).pictures for i in range(5)]
    assert read_all(tmp_path / "out") == stored
    record = tfds.builder_from_directory(tmp_path / "out").as_data_source(split="train")[3]
    np.testing.assert_array_equal(record["frame_1"], vimeo.frames(3).images[1])
    assert record["path"] == b"00001/0004" and len(read_all(tmp_path / "out", split="train[:40%]")) == 2
    prepare(vimeo, tmp_path / "sets" / "triplets" / "1.2.0")
    assert TfdsTriplets("triplets:1.2.0", data_dir=str(tmp_path / "sets")).encoded(4).pictures == stored[4]
    info = tmp_path / "out" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))  # tfds' own default
    refused(ValueError, read_all, tmp_path / "out", match=r"out .*array_record")


def test_times_are_kept_and_tensorflow_is_not_needed(tmp_path):
    write_all(tmp_path / "clips", {f"a/{k:04d}.png": k for k in (0, 8, 16, 24, 32)}, 4, 6)
    script = f"""if True:
        import sys
        from film.data.datasets import XTest
        from film.data.prepare import Prepare, prepare
        from film.data.record_sources import TfdsTriplets
        prepare(XTest("{tmp_path}/clips", multiple=4), Prepare("", "{tmp_path}/out", split="test", quiet=True))
        source = TfdsTriplets("{tmp_path}/out", split="test")
        print([source.frames(i).time for i in range(3)], "tensorflow" in sys.modules)
    """
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[0.25, 0.5, 0.75] False"


def test_an_interrupted_run_goes_on_and_ends_the_same(vimeo, tmp_path, monkeypatch):
    prepare(vimeo, tmp_path / "straight", shard=2)
    read = module._read

    def interrupted(source, index, strict):
        if index == 3:
            raise KeyboardInterrupt
        return read(source, index, strict)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "_read", interrupted)
        prepare(vimeo, tmp_path / "out", shard=2)
    first = tmp_path / "out" / "triplets-train.array_record-00000-of-00003"
    assert sorted(contents(tmp_path / "out")) == ["prepare.json", first.name]
    refused(FileNotFoundError, read_all, tmp_path / "out", match=str(tmp_path / "out"))
    written = first.stat().st_mtime_ns
    assert prepare(vimeo, tmp_path / "out", shard=2) == 5
    assert first.stat().st_mtime_ns == written
    assert contents(tmp_path / "out").keys() == contents(tmp_path / "straight").keys()
    assert read_all(tmp_path / "out") == read_all(tmp_path / "straight")


def test_nothing_is_overwritten_unless_told_to(vimeo, tmp_path):
    out, foreign = tmp_path / "out", tmp_path / "foreign"
    prepare(vimeo, out)
    foreign.mkdir()
    (foreign / "letter.txt").write_text("mine")
    before = contents(out)
    for folder, options in ((out, {}), (out, {"layout": "cut"}), (foreign, {"overwrite": True})):
        refused(FileExistsError, prepare, vimeo, folder, **options, match=str(folder))
    assert contents(out) == before and contents(foreign) == {"letter.txt": b"mine"}
    assert prepare(vimeo, out, shard=3, overwrite=True) == len(read_all(out)) == 5


def test_unreadable_triplets_are_left_out_or_stop(vimeo, tmp_path, caplog, capsys):
    for k in (2, 3, 4):
        damage(vimeo.root / f"sequences/00001/000{k}/im2.png")
    refused(ValueError, prepare, vimeo, tmp_path / "strict", strict=True, match="00001/0002")
    Prepare(str(vimeo.folder), str(tmp_path / "out"), layout="vimeo90k", shard=1, quiet=True).run()
    assert "2 triplets; 3 " in capsys.readouterr().out and len(caplog.records) == 3
    assert read_all(tmp_path / "out") == [vimeo.encoded(i).pictures for i in (0, 4)]  # its middle shards are empty
    for path in vimeo.root.rglob("im1.png"):
        damage(path)
    refused(ValueError, prepare, vimeo, tmp_path / "nothing", match="5 triplets")
    write_vimeo(tmp_path / "vimeo", 5, 4, 6)
    assert prepare(vimeo, tmp_path / "nothing") == 5  # the same command, once the images are whole


def test_the_command_offers_every_layout(tmp_path):
    assert get_args(module.Layout) == tuple(LAYOUTS)
    for name, make in LAYOUTS.items():  # each opens its folder late, so that a wrong path is its own, clear error
        with pytest.raises(FileNotFoundError):
            len(make(str(tmp_path / "nowhere"), {"snu-film": "hard", "vimeo90k": "test"}.get(name, "train")))


def test_options_that_do_not_fit_are_refused(vimeo, tmp_path):
    prepare(vimeo, tmp_path / "out")
    assert json.loads((tmp_path / "out/prepare.json").read_text())["triplets"] == 5
    refused(ValueError, read_all, tmp_path / "out", keys=("left", "frame_1", "frame_2"), match=r"'left'.*frame_0")
    refused(ValueError, prepare, vimeo, tmp_path / "other", shard=0, match="shard 0")
    refused(ValueError, prepare, vimeo, tmp_path / "other", split="a/b", match="a/b")
