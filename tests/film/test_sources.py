"""Sources and the stream: mixed, resumable, sharded, and not stopped by a broken record."""

import json
import logging
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from tiny_triplets import damage, picture, write, write_vimeo

from film.data.datasets import FolderTriplets, Vimeo90K
from film.data.record_sources import CutTriplets, TfdsTriplets, TFRecordTriplets
from film.data.reference_augment import ReferenceAugment
from film.data.stream import PATIENCE, Readable
from film.data.triplet import decode
from film.data.triplet_batches import MixtureConfig

with warnings.catch_warnings():  # beartype on OmegaConf's DictConfig, a subclass of typing.MutableMapping
    warnings.simplefilter("ignore")
    from omegaconf import OmegaConf

    from common.training.config import instantiate

ROOT = Path(__file__).parents[2]
SHARDS = ROOT / "tests" / "data" / "film" / "tiny_triplets.tfrecord@2"
PLAIN = ReferenceAugment(quarter_turns=False, mirror=False, angle=0.0, swap=False)


@pytest.fixture(scope="module")
def vimeo(tmp_path_factory) -> Vimeo90K:
    return Vimeo90K(write_vimeo(tmp_path_factory.mktemp("vimeo"), 10))


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> FolderTriplets:
    return FolderTriplets(write_vimeo(tmp_path_factory.mktemp("other"), 5))


@pytest.fixture(scope="module")
def cut(tmp_path_factory) -> Path:
    """What film.data.cutting writes: three patches."""
    folder, images = tmp_path_factory.mktemp("cut"), [[picture(3 * i + k, 16, 16) for k in range(3)] for i in range(3)]
    np.save(folder / "images.npy", np.array(images))
    np.save(folder / "flows.npy", np.zeros((3, 2, 4, 4, 2), np.float16))
    np.save(folder / "valid.npy", np.ones((3, 2, 4, 4), np.uint8))
    (folder / "index.json").write_text(json.dumps({"triplets": [{"motion": 1.0}] * 3}))
    return folder


def config(*sources, **changes) -> MixtureConfig:
    return MixtureConfig(sources, **(dict(batch_size=4, crop=8, buffer=2) | changes))


def ids(stream, batches: int) -> list[int]:
    return [int(number) for _ in range(batches) for number in next(stream)["id"]]


def equal(one, two) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(one[key], two[key]) for key in one)


def test_batch_shapes_types_and_ids(vimeo):
    settings = config(vimeo, augment=PLAIN, crop=12)
    batch = next(settings.batches(0))
    shapes = {name: (array.shape, array.dtype) for name, array in batch.items()}
    frame = ((4, 12, 12, 3), "f4")
    assert shapes == dict(x0=frame, y=frame, x1=frame, time=((4, 1), "f4"), id=((4,), "i8"))
    for i, number in enumerate(batch["id"]):
        assert settings.names([number]) == [vimeo.name(int(number))]
        truth = vimeo[int(number)]
        columns = [x for x in range(5) if np.allclose(batch["y"][i], truth.y[:, x : x + 12], atol=1e-6)]
        assert len(columns) == 1  # a crop of that very record, as high as the picture
        np.testing.assert_allclose(batch["x1"][i], truth.x1[:, columns[0] : columns[0] + 12], atol=1e-6)


def test_an_epoch_has_every_record_once_and_the_next_another_order(vimeo):
    stream = config(vimeo, batch_size=5).batches(0)
    first, second = ids(stream, 2), ids(stream, 2)
    assert sorted(first) == sorted(second) == list(range(10)) and first != second


def test_weights_hold_in_every_batch_and_sources_keep_their_epochs(vimeo, other):
    stream = config(other, vimeo, weights=(1, 3), batch_size=8).batches(0)
    drawn = [ids(stream, 1) for _ in range(10)]
    assert all(sum(number < 5 for number in batch) == 2 for batch in drawn)
    from_other = [number for batch in drawn for number in batch if number < 5]
    from_vimeo = [number - 5 for batch in drawn for number in batch if number >= 5]
    assert all(sorted(from_other[k : k + 5]) == list(range(5)) for k in range(0, 20, 5))
    assert all(sorted(from_vimeo[k : k + 10]) == list(range(10)) for k in range(0, 60, 10))


def test_without_weights_each_record_is_as_likely_as_another(vimeo, other):
    settings = config(vimeo, other, batch_size=6)
    assert sum(number >= 10 for number in ids(settings.batches(0), 5)) == 10
    assert settings.names([0, 9, 10, 14]) == [vimeo.name(0), vimeo.name(9), other.name(0), other.name(4)]


def test_equal_sources_are_not_drawn_alike(vimeo):
    drawn = ids(config(vimeo, vimeo, weights=(1, 1), batch_size=20).batches(0), 1)
    first, second = ([n % 10 for n in drawn if n // 10 == source] for source in (0, 1))
    assert len(first) == len(second) == 10 and first != second


def test_same_seed_same_batches_whatever_the_threads(vimeo, other):
    one, two = (config(vimeo, other, threads=n).batches(1) for n in (1, 3))
    third = config(vimeo, other).batches(2)
    for _ in range(4):
        a = next(one)
        assert equal(a, next(two)) and not equal(a, next(third))


def test_a_resumed_stream_gives_the_identical_next_batches(vimeo, other):
    stream = config(vimeo, other, weights=(2, 1)).batches(3)
    for _ in range(5):
        next(stream)
    state = json.loads(json.dumps(stream.get_state()))
    expected = [next(stream) for _ in range(4)]
    resumed = config(vimeo, other, weights=(2, 1)).batches(3)
    resumed.set_state(state)
    assert all(equal(batch, next(resumed)) for batch in expected)


@pytest.mark.parametrize("count", [2, 4])
def test_processes_share_the_batches_of_one(vimeo, other, count):
    alone = config(vimeo, other).batches(0, 0, 1)
    shares = [config(vimeo, other).batches(0, index, count) for index in range(count)]
    for _ in range(4):
        parts = [next(share) for share in shares]
        whole = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        assert equal(whole, next(alone))
    state = shares[1].get_state()
    expected = next(shares[1])
    shares[0].set_state(state)  # positions mean the same everywhere: any process may read the checkpoint of another
    assert equal(next(shares[0]), next(config_at(vimeo, other, 0, count, state))) and expected["id"].shape == (
        4 // count,
    )


def config_at(vimeo, other, index, count, state):
    stream = config(vimeo, other).batches(0, index, count)
    stream.set_state(state)
    return stream


def test_a_batch_that_cannot_be_shared_is_refused(vimeo):
    with pytest.raises(ValueError, match="process 0 of 3: give a multiple"):
        config(vimeo).batches(0, 0, 3)


@pytest.fixture
def broken(tmp_path) -> Vimeo90K:
    """Ten triplets, of which 2 and 3 are damaged, 5 lacks a picture, 7 and 9 are too small."""
    write_vimeo(tmp_path, 10)
    place = tmp_path / "sequences" / "00001"
    damage(place / "0002/im2.png")
    damage(place / "0003/im1.png")
    (place / "0005/im3.png").unlink()
    for k in (7, 9):
        for part in (1, 2, 3):
            write(place / f"{k:04d}/im{part}.png", picture(0, 6, 16))
    return Vimeo90K(tmp_path)


def test_unreadable_records_are_skipped_named_and_counted(broken, caplog):
    with caplog.at_level(logging.WARNING):
        drawn = ids(config(broken, batch_size=10, threads=2).batches(0), 20)
    assert set(drawn) == {0, 3, 5, 7, 9}  # ids are those of the records that came instead
    assert drawn.count(3) == pytest.approx(3 * drawn.count(0), abs=2)  # record 4 came for 2 and 3 as well
    messages = [record.message for record in caplog.records]
    assert len(messages) == 4 and all("0001/000" in message for message in messages)
    assert sum(message.startswith("skipped record") for message in messages) == 3
    assert "skipped 4 records so far" in messages[3]


def test_skipping_does_not_break_resuming(broken):
    stream = config(broken).batches(0)
    for _ in range(3):
        next(stream)
    resumed = config(broken).batches(0)
    resumed.set_state(stream.get_state())
    assert all(equal(next(stream), next(resumed)) for _ in range(5))


def test_strict_stops_at_the_first_and_tells_how_to_go_on(broken):
    stream = config(broken, batch_size=10, strict=True).batches(0)
    with pytest.raises(ValueError, match=r"record \d: .*strict=false skips such records"):
        next(stream)


def test_a_source_that_cannot_be_used_at_all_stops_at_once(vimeo):
    with pytest.raises(ValueError, match=r"10 records cannot be read.* crop of 13 does not fit into 16x12"):
        config(vimeo, crop=13).batches(0)

    class Endless(FolderTriplets):
        def __len__(self):
            return 10**6

        def frames(self, index):
            raise OSError("disk gone")

    with pytest.raises(ValueError, match=f"{PATIENCE} records cannot be read.*disk gone"):
        Readable(Endless("nowhere"))[0]


def test_frames_cut_from_a_film(cut):
    source = CutTriplets(cut)
    assert len(source) == 3
    np.testing.assert_array_equal(source.frames(1).images, [picture(3 + k, 16, 16) for k in range(3)])
    np.testing.assert_array_equal(decode(source.encoded(2).pictures[1], ""), picture(7, 16, 16))


def test_all_kinds_of_sources_mix(vimeo, cut):
    sources = (vimeo, CutTriplets(cut), TFRecordTriplets(str(SHARDS)))
    drawn = ids(config(*sources, batch_size=17).batches(0), 2)
    assert set(drawn) == set(range(17))


def test_other_times_reach_the_batch(tmp_path):
    from film.data.datasets import XTest

    for number in range(33):
        write(tmp_path / "Type1" / "TEST01" / f"{number:04d}.png", picture(number, 8, 8))
    batch = next(config(XTest(tmp_path), augment=ReferenceAugment(swap=True), batch_size=7).batches(0))
    times = {int(number): float(time[0]) for number, time in zip(batch["id"], batch["time"], strict=True)}
    assert all(time in ((k + 1) / 8, 1 - (k + 1) / 8) for k, time in times.items()) and len(times) == 7
    assert batch["time"].dtype == np.float32 and len(set(times.values())) > 3


@pytest.mark.parametrize("name", ["vimeo90k", "vimeo90k_tfrecord", "vimeo90k_records", "video"])
def test_each_data_config_builds_without_data_and_names_every_field(name):
    loaded = OmegaConf.load(ROOT / "configs" / "data" / f"{name}.yaml")
    made = instantiate(loaded)
    assert isinstance(made, MixtureConfig) and (made.batch_size, made.crop) == (8, 256)  # the paper's
    assert made.augment == ReferenceAugment() and len(made.sources) == 1
    for node, part in ((loaded, made), (loaded.augment, made.augment), (loaded.sources[0], made.sources[0])):
        assert set(node) - {"_target_"} == set(part.__dataclass_fields__)
    with pytest.raises(FileNotFoundError):  # tests run without any of these; tfds knows no such name
        MixtureConfig(made.sources[:1] if name != "video" else [CutTriplets("nowhere")]).batches(0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": (1.0, 2.0)}, "1 positive numbers"),
        ({"weights": (0.0,)}, "positive"),
        ({"crop": 0}, "crop 0"),
        ({"threads": 0}, "need >= 1"),
    ],
)
def test_impossible_settings_name_the_reason(vimeo, changes, words):
    with pytest.raises(ValueError, match=words):
        config(vimeo, **changes)


def test_no_source_is_refused():
    with pytest.raises(ValueError, match="at least one data set"):
        config()


def test_tfds_folders_that_are_not_ready_are_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape("no dataset_info.json")):
        len(TfdsTriplets(str(tmp_path)))
    with pytest.raises(ValueError, match="three features"):
        TfdsTriplets("x", keys=["a"])
