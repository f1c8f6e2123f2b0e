import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from tiny_triplets import damage, write_vimeo

from film.data import prepare as module
from film.data.datasets import Vimeo90K, XTest
from film.data.prepare import LAYOUTS, Prepare, builder, prepare, run
from film.data.record_sources import TfdsTriplets

DATA = Path(__file__).parents[1] / "data" / "film"


@pytest.fixture
def vimeo(tmp_path) -> Vimeo90K:
    return Vimeo90K(write_vimeo(tmp_path / "vimeo", 5, 4, 6))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_prepared_triplets_are_the_same_files(vimeo, tmp_path, capsys):
    run(Prepare(vimeo.folder.as_posix(), str(tmp_path / "out"), layout="vimeo90k", shard=2, quiet=True))
    assert "5 triplets" in capsys.readouterr().out
    source = TfdsTriplets(str(tmp_path / "out"))
    assert len(source) == 5 and len(list((tmp_path / "out").glob("*-of-00003"))) == 3
    for i in range(5):
        assert source.encoded(i).pictures == vimeo.encoded(i).pictures and source.encoded(i).time == 0.5
        np.testing.assert_array_equal(source.frames(i).images, vimeo.frames(i).images)


def test_tfds_users_read_it_by_their_own_means(vimeo, tmp_path):
    prepare(vimeo, tmp_path / "out", progress=False)
    assert builder(tmp_path / "out").info.splits["train"].num_examples == 5
    record = builder(tmp_path / "out").as_data_source(split="train")[3]
    np.testing.assert_array_equal(record["frame_1"], vimeo.frames(3).images[1])
    assert record["path"] == b"00001/0004"
    assert len(TfdsTriplets(str(tmp_path / "out"), split="train[:40%]")) == 2
    prepare(vimeo, tmp_path / "sets" / "triplets" / "1.2.0", progress=False)
    named = TfdsTriplets("triplets:1.2.0", data_dir=str(tmp_path / "sets"))
    assert named.encoded(4).pictures == vimeo.encoded(4).pictures


def test_times_are_kept(tmp_path):
    write_vimeo(tmp_path, 1, 4, 6)
    frame = (tmp_path / "sequences/00001/0001/im1.png").read_bytes()
    clip = tmp_path / "clips" / "Type1" / "TEST01"
    clip.mkdir(parents=True)
    for number in (0, 8, 16, 24, 32):
        (clip / f"{number:04d}.png").write_bytes(frame)
    prepare(XTest(tmp_path / "clips", multiple=4), tmp_path / "out", split="test", progress=False)
    source = TfdsTriplets(str(tmp_path / "out"), split="test")
    assert [source.frames(i).time for i in range(3)] == [0.25, 0.5, 0.75]


def test_tensorflow_is_not_needed(tmp_path):
    script = (
        "import sys\n"
        "from film.data.prepare import Prepare, run\n"
        "from film.data.record_sources import TfdsTriplets\n"
        f"run(Prepare({str(DATA / 'tiny_triplets.tfrecord@2')!r}, {str(tmp_path / 'out')!r}, 'tfrecord', quiet=True))\n"
        f"print(TfdsTriplets({str(tmp_path / 'out')!r}).frames(3).images.shape, 'tensorflow' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "(3, 32, 48, 3) False"


def test_an_interrupted_run_goes_on_and_ends_the_same(vimeo, tmp_path, monkeypatch):
    prepare(vimeo, tmp_path / "straight", shard=2, progress=False)
    asked = []

    def interrupted(source, index, strict):
        asked.append(index)
        if index == 3:
            raise KeyboardInterrupt
        return readable(source, index, strict)

    readable = module._readable
    with monkeypatch.context() as patch:
        patch.setattr(module, "_readable", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(vimeo, tmp_path / "out", shard=2, progress=False)
    assert sorted(contents(tmp_path / "out")) == ["prepare.json", "triplets-train.array_record-00000-of-00003"]
    with pytest.raises(FileNotFoundError, match="give `film prepare` again"):
        len(TfdsTriplets(str(tmp_path / "out")))
    first = (tmp_path / "out/triplets-train.array_record-00000-of-00003").stat().st_mtime_ns
    assert prepare(vimeo, tmp_path / "out", shard=2, progress=False) == 5
    assert (tmp_path / "out/triplets-train.array_record-00000-of-00003").stat().st_mtime_ns == first
    assert contents(tmp_path / "out").keys() == contents(tmp_path / "straight").keys()
    one, two = (TfdsTriplets(str(tmp_path / name)) for name in ("out", "straight"))
    assert all(one.encoded(i).pictures == two.encoded(i).pictures for i in range(5)) and len(one) == len(two)


def test_nothing_that_is_there_is_overwritten_unasked(vimeo, tmp_path):
    out = tmp_path / "out"
    prepare(vimeo, out, progress=False)
    before = contents(out)
    with pytest.raises(FileExistsError, match="is finished"):
        prepare(vimeo, out, progress=False)
    with pytest.raises(FileExistsError, match="something else"):
        prepare(vimeo, out, progress=False, recipe={"source": "another"})
    assert contents(out) == before
    assert prepare(vimeo, out, shard=3, progress=False, overwrite=True) == 5
    assert len(TfdsTriplets(str(out))) == 5
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="did not write"):
            prepare(vimeo, foreign, progress=False, overwrite=overwrite)
    assert contents(foreign) == {"letter.txt": b"mine"}


def test_unreadable_triplets_are_left_out_or_stop(vimeo, tmp_path, caplog, capsys):
    for k in (2, 3, 4):
        damage(vimeo.root / f"sequences/00001/000{k}/im2.png")
    with pytest.raises(ValueError, match=r"00001/0002.*damaged"):
        prepare(vimeo, tmp_path / "strict", strict=True, progress=False)
    run(Prepare(str(vimeo.folder), str(tmp_path / "out"), layout="vimeo90k", shard=1, quiet=True))
    assert "2 triplets; 3 could not be read" in capsys.readouterr().out
    assert sum("left out triplet" in record.message for record in caplog.records) == 3
    source = TfdsTriplets(str(tmp_path / "out"))  # its middle shards are empty
    assert [source.encoded(i).pictures for i in range(2)] == [vimeo.encoded(i).pictures for i in (0, 4)]


def test_a_source_of_nothing_but_damage_is_an_error(vimeo, tmp_path):
    for path in vimeo.root.rglob("im1.png"):
        damage(path)
    with pytest.raises(ValueError, match="none of the 5"):
        prepare(vimeo, tmp_path / "out", progress=False)


def test_the_command_offers_every_layout(tmp_path):
    assert get_args(module.Layout) == tuple(LAYOUTS)
    for name, make in LAYOUTS.items():  # each opens its folder late, so that a wrong path is its own, clear error
        split = {"snu-film": "hard", "vimeo90k": "test"}.get(name, "train")
        with pytest.raises(FileNotFoundError):
            len(make(str(tmp_path / "nowhere"), split))


def test_a_missing_feature_names_those_there_are(vimeo, tmp_path):
    prepare(vimeo, tmp_path / "out", progress=False)
    assert json.loads((tmp_path / "out/prepare.json").read_text())["triplets"] == 5
    with pytest.raises(ValueError, match=r"no feature 'left'.*frame_0"):
        len(TfdsTriplets(str(tmp_path / "out"), keys=("left", "frame_1", "frame_2")))
    with pytest.raises(ValueError, match="at least 1"):
        prepare(vimeo, tmp_path / "other", shard=0)
