"""Batches for training: mixed, resumable, sharded, with a curriculum, and not stopped by a broken record."""

import logging

import numpy as np
import pytest
from omegaconf import OmegaConf
from recipe import DATA
from refusal import refused
from streams import check_stream, equal
from tiny_triplets import damage, picture, write_all, write_cut, write_vimeo

from common.training.batches import PATIENCE
from common.training.config import instantiate
from film.data.augment import ReferenceAugment
from film.data.datasets import FolderTriplets, Vimeo90K, XTest
from film.data.record_sources import CutTriplets, TFRecordTriplets
from film.data.triplet import decode
from film.data.triplet_batches import MixtureConfig, TripletConfig

CONFIGS = DATA.parents[2] / "configs" / "data"
PLAIN = ReferenceAugment(quarter_turns=False, mirror=False, angle=0.0, swap=False)
SIZE, MOTION = 96, float(np.hypot(10, 8))


@pytest.fixture(scope="module")
def vimeo(tmp_path_factory) -> Vimeo90K:
    return Vimeo90K(write_vimeo(tmp_path_factory.mktemp("vimeo"), 10))


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> FolderTriplets:
    return FolderTriplets(write_vimeo(tmp_path_factory.mktemp("other"), 5))


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """Ten patches with constant flow; the middle frame of number i is filled with the grey 20 i."""
    images = np.stack([[picture(3 * i + k, SIZE, SIZE) for k in range(3)] for i in range(10)])
    images[:, 1] = 20 * np.arange(10)[:, None, None, None]
    flows = np.broadcast_to(np.array([(6, -3), (-4, 5)], np.float16)[:, None, None], (10, 2, 24, 24, 2))
    return write_cut(tmp_path_factory.mktemp("cut"), images, flows, np.ones((10, 2, 24, 24), np.uint8), MOTION)


def mixture(*sources, **changes) -> MixtureConfig:
    return MixtureConfig(sources, **(dict(batch_size=4, crop=8, buffer=2) | changes))


def patches(folder, **changes) -> TripletConfig:
    fields = dict(batch_size=5, crop=32, scales=(1.0, 0.5), colour=False, buffer=4)
    return TripletConfig(str(folder), **(fields | changes))


def ids(stream, batches: int) -> list[int]:
    return [int(number) for _ in range(batches) for number in next(stream)["id"]]


def kinds_of(batch) -> dict:
    return {name: (array.shape, array.dtype.str[1:]) for name, array in batch.items()}


def test_batches_of_a_mixture(vimeo):
    settings = mixture(vimeo, augment=PLAIN, crop=12)
    batch, frame = next(settings.batches(0)), ((4, 12, 12, 3), "f4")
    assert kinds_of(batch) == dict(x0=frame, y=frame, x1=frame, time=((4, 1), "f4"), id=((4,), "i8"))
    for i, number in enumerate(batch["id"]):
        assert settings.names([number]) == [vimeo.name(int(number))]
        truth = vimeo[int(number)]
        columns = [x for x in range(5) if np.allclose(batch["y"][i], truth.y[:, x : x + 12], atol=1e-6)]
        assert len(columns) == 1  # a crop of that very record, as high as the image
        np.testing.assert_allclose(batch["x1"][i], truth.x1[:, columns[0] : columns[0] + 12], atol=1e-6)


def test_batches_of_patches(cut):
    settings, frame, flow, valid = patches(cut), ((5, 32, 32, 3), "f4"), ((5, 8, 8, 2), "f4"), ((5, 8, 8), "f4")
    batch = next(settings.batches(0))
    kinds = dict(x0=frame, y=frame, x1=frame, time=((5, 1), "f4"), id=((5,), "i8"))
    assert kinds_of(batch) == kinds | dict(flow0=flow, flow1=flow, valid0=valid, valid1=valid)
    assert [round(float(y.mean()) * 255 / 20) for y in batch["y"]] == batch["id"].tolist()
    assert (batch["time"] == 0.5).all() and settings.names([3]) == [f"{cut} patch 3"]
    assert all(batch[name].min() >= 0 and batch[name].max() <= 1 for name in ("x0", "y", "x1", "valid0"))


@pytest.mark.parametrize("kind", [mixture, patches])
def test_epochs_differ_and_a_stream_keeps_its_promises(vimeo, cut, kind):
    ten = vimeo if kind is mixture else cut
    stream = kind(ten, batch_size=5).batches(0)
    first, second = ids(stream, 2), ids(stream, 2)
    assert sorted(first) == sorted(second) == list(range(10)) and first != second
    check_stream(lambda **changes: kind(ten, batch_size=4, **changes), 6)


def test_weights_hold_in_every_batch_and_sources_keep_their_epochs(vimeo, other):
    stream = mixture(other, vimeo, weights=(1, 3), batch_size=8).batches(0)
    drawn = [ids(stream, 1) for _ in range(10)]
    assert all(sum(number < 5 for number in batch) == 2 for batch in drawn)
    from_other = [number for batch in drawn for number in batch if number < 5]
    from_vimeo = [number - 5 for batch in drawn for number in batch if number >= 5]
    assert all(sorted(from_other[k : k + 5]) == list(range(5)) for k in range(0, 20, 5))
    assert all(sorted(from_vimeo[k : k + 10]) == list(range(10)) for k in range(0, 60, 10))


def test_all_kinds_of_sources_mix_by_their_records_each_in_its_own_order(vimeo, cut):
    sources = (vimeo, CutTriplets(cut), TFRecordTriplets(str(DATA / "tiny_triplets.tfrecord@2")))
    settings = mixture(*sources, batch_size=24)
    assert set(ids(settings.batches(0), 2)) == set(range(24))
    assert settings.names([0, 9, 10, 23]) == [vimeo.name(0), vimeo.name(9), f"{cut} patch 0", sources[2].name(3)]
    drawn = ids(mixture(vimeo, vimeo, batch_size=20).batches(0), 1)
    first, second = ([n % 10 for n in drawn if n // 10 == source] for source in (0, 1))
    assert len(first) == len(second) == 10 and first != second
    np.testing.assert_array_equal(decode(sources[1].encoded(2).pictures[2], ""), picture(8, SIZE, SIZE))


def test_four_processes_share_the_batches_of_two_sources(vimeo, other):
    check_stream(lambda **changes: mixture(vimeo, other, **changes), processes=4)
    refused(ValueError, lambda: mixture(vimeo).batches(0, 0, 3), match="process 0 of 3")


def test_the_curriculum_caps_motion_by_step(cut):
    """Half scale until step 3, where the cap passes the patches' motion of 12.8 px; then both scales."""
    stream = patches(cut, max_motion=((2, 7.0), (4, 20.0))).batches(0)
    batches = [next(stream) for _ in range(8)]
    motions = np.concatenate([np.linalg.norm(b["flow1"] - b["flow0"], axis=-1)[:, 0, 0] for b in batches])
    np.testing.assert_allclose(motions[:15], MOTION / 2, rtol=1e-2)
    assert (motions[15:].min(), motions[15:].max()) == pytest.approx((MOTION / 2, MOTION), rel=1e-2)


@pytest.fixture
def broken(tmp_path) -> Vimeo90K:
    """Ten triplets, of which 2 and 3 are damaged, 5 lacks an image, 7 and 9 are too small."""
    write_vimeo(tmp_path, 10)
    place = tmp_path / "sequences" / "00001"
    damage(place / "0002/im2.png")
    damage(place / "0003/im1.png")
    (place / "0005/im3.png").unlink()
    write_all(place, {f"{k:04d}/im{i}.png": 0 for k in (7, 9) for i in (1, 2, 3)}, 6, 16)
    return Vimeo90K(tmp_path)


def test_unreadable_records_are_skipped_named_and_counted(broken, caplog):
    with caplog.at_level(logging.WARNING):
        stream = mixture(broken, batch_size=10, threads=2).batches(0)
        drawn = ids(stream, 10)
    assert set(drawn) == {0, 3, 5, 7, 9}  # ids are those of the records that came instead
    assert drawn.count(3) == pytest.approx(3 * drawn.count(0), abs=2)  # record 4 came for 2 and 3 as well
    messages = [record.message for record in caplog.records]
    assert len(messages) == 4 and all("00001/000" in message for message in messages)  # three by name, then a count
    resumed = mixture(broken, batch_size=10).batches(0)
    resumed.set_state(stream.get_state())
    assert equal(next(stream), next(resumed))


def test_what_cannot_be_read_at_all_stops_at_once(vimeo, broken):
    refused(ValueError, lambda: next(mixture(broken, batch_size=10, strict=True).batches(0)), match=r"record \d")
    refused(ValueError, lambda: mixture(vimeo, crop=13).batches(0), match=r"^10 .*13 .*16x12")

    class Endless(FolderTriplets):
        def __len__(self):
            return 10**6

        def frames(self, index):
            raise OSError("disk gone")

    refused(ValueError, lambda: mixture(Endless("nowhere")).batches(0), match=f"^{PATIENCE} .*disk gone")


def test_other_times_reach_the_batch(tmp_path):
    write_all(tmp_path, {f"a/{k:04d}.png": k for k in range(0, 33, 4)}, 8, 8)
    batch = next(mixture(XTest(tmp_path), augment=ReferenceAugment(swap=True), batch_size=7).batches(0))
    times = {int(number): float(time[0]) for number, time in zip(batch["id"], batch["time"], strict=True)}
    assert all(time in ((k + 1) / 8, 1 - (k + 1) / 8) for k, time in times.items()) and len(times) == 7
    assert len(set(times.values())) > 3


@pytest.mark.parametrize("name", ["vimeo90k", "vimeo90k_tfrecord", "vimeo90k_records", "video"])
def test_each_data_config_builds_without_data_and_names_every_field(name):
    own, base = (OmegaConf.load(CONFIGS / f"{n}.yaml") for n in (name, "vimeo90k"))
    own.pop("defaults", None)
    loaded = OmegaConf.merge(base, own)
    made = instantiate(loaded)
    assert isinstance(made, MixtureConfig) and (made.batch_size, made.crop) == (8, 256)  # the paper's
    assert made.augment == ReferenceAugment() and len(made.sources) == 1
    for node, part in ((loaded, made), (loaded.augment, made.augment), (loaded.sources[0], made.sources[0])):
        assert set(node) - {"_target_"} == set(part.__dataclass_fields__)
    with pytest.raises(FileNotFoundError):  # tests run without any of these; tfds knows no such name
        MixtureConfig(made.sources[:1] if name != "video" else [CutTriplets("nowhere")]).batches(0)


def test_settings_that_do_not_fit_the_patches_and_folders_that_are_no_cut_are_refused(cut, tmp_path):
    refused(ValueError, patches(cut, batch_size=11).batches, 0, match="batch_size")
    refused(ValueError, patches(cut, scales=(1.0, 0.2)).batches, 0, match="scale")
    refused(FileNotFoundError, lambda: len(CutTriplets(tmp_path)), match=str(tmp_path))
    arrays = {name: np.load(cut / f"{name}.npy") for name in ("images", "flows", "valid")}
    write_cut(tmp_path, **arrays | {"flows": arrays["flows"][:9]})
    refused(ValueError, lambda: len(CutTriplets(tmp_path)), match=str(tmp_path))
