import json

import cv2
import numpy as np
import pytest

from film.data.augment import augment, tint
from film.data.teacher_flow import warp
from film.data.triplet_batches import TripletConfig, TripletPatches, choose_scale, motion_limit

SIZE, CROP, COUNT = 96, 32, 10
FLOW0, FLOW1 = (6.0, -3.0), (-4.0, 5.0)  # unequal on purpose: no wrong turn, flip or swap gives the same
MOTION = float(np.hypot(10, 8))


def picture(dx: float, dy: float) -> np.ndarray:
    """A smooth pattern moved by (dx, dy): value(x, y) = pattern(x - dx, y - dy); uint8 [SIZE SIZE 3]."""
    x, y = np.meshgrid(np.arange(SIZE) - dx, np.arange(SIZE) - dy)
    waves = [np.sin(x / 5 + c) + np.cos(y / 7 - 2 * c) + np.sin((x + 2 * y) / 11) for c in range(3)]
    return (np.stack(waves, axis=-1) * 35 + 128).astype(np.uint8)


def example() -> dict[str, np.ndarray]:
    """Constant flows, and masks that can be read off the middle picture (its red channel, by cell)."""
    images = np.stack([picture(*FLOW0), picture(0, 0), picture(*FLOW1)])
    flows = np.broadcast_to(np.array([FLOW0, FLOW1], np.float16)[:, None, None], (2, SIZE // 4, SIZE // 4, 2))
    red = red_cells(images[1]) > 128
    return dict(images=images, flows=flows, valid=np.stack([red, ~red]).astype(np.uint8))


def red_cells(image: np.ndarray) -> np.ndarray:
    side = len(image) // 4
    return image[..., 0].reshape(side, 4, side, 4).mean(axis=(1, 3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ten triplets; number i has the middle frame filled with the grey 20 * i."""
    folder = tmp_path_factory.mktemp("triplets")
    items = [example() for _ in range(COUNT)]
    for i, item in enumerate(items):
        item["images"][1] = 20 * i
    for name in ("images", "flows", "valid"):
        np.save(folder / f"{name}.npy", np.stack([item[name] for item in items]))
    (folder / "index.json").write_text(json.dumps(dict(triplets=[dict(motion=MOTION)] * COUNT)))
    return folder


def config(folder, **changes) -> TripletConfig:
    fields = dict(batch_size=5, crop=CROP, scales=(1.0, 0.5), colour=False, buffer=4)
    return TripletConfig(str(folder), **(fields | changes))


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.34])
def test_flow_still_leads_to_the_neighbours_after_any_augmentation(scale):
    """Warping x0 and x1 by their flows must give y: this fails if vectors do not turn with the picture."""
    seen = set()
    for seed in range(40):
        out = augment(example(), np.random.default_rng(seed), CROP, scale, colour=False)
        seen.add(tuple(np.sign(out["flows"][0, 0, 0])))
        for side in (0, 1):
            flow = cv2.resize(out["flows"][side], (CROP, CROP), interpolation=cv2.INTER_NEAREST)
            error = np.abs(warp(out["images"][2 * side], flow) - out["images"][1])[8:-8, 8:-8].mean()
            wrong = np.abs(warp(out["images"][2 * side], -flow) - out["images"][1])[8:-8, 8:-8].mean()
            assert error < 0.02 and wrong > 3 * error + 0.02
    assert len(seen) == 4  # all quadrants occurred, so the turns were in fact exercised


def test_flow_length_shrinks_with_the_picture():
    for scale, ratio in (
        (1.0, 1.0),
        (0.5, 0.5),
        (0.34, 32 / 96),
    ):  # 32 / 0.34 is rounded to whole cells: 96 px
        flow = augment(example(), np.random.default_rng(0), CROP, scale, backwards=False)["flows"][0]
        np.testing.assert_allclose(np.linalg.norm(flow, axis=-1), ratio * np.hypot(*FLOW0), rtol=1e-3)


def test_masks_follow_the_picture_and_swap_with_time():
    swapped = 0
    for seed in range(40):
        out = augment(example(), np.random.default_rng(seed), CROP, 1.0, colour=False)
        red = (red_cells(out["images"][1] * 255) > 128).astype(np.float32)
        length = np.linalg.norm(out["flows"][0, 0, 0])
        backwards = bool(np.isclose(length, np.hypot(*FLOW1), rtol=1e-3))
        np.testing.assert_array_equal(out["valid"], np.stack([1 - red, red] if backwards else [red, 1 - red]))
        swapped += backwards
    assert 10 < swapped < 30


def test_a_shrunken_cell_is_valid_only_if_all_under_it_are():
    item = example()
    item["valid"] = np.ones_like(item["valid"])
    item["valid"][:, 5, 6] = 0
    off = dict(turn=False, mirror=False, backwards=False)
    valid = augment(item, np.random.default_rng(0), CROP, 1 / 3, **off)["valid"]
    assert (valid == 0).sum() == 2 and not valid[:, 5 // 3, 6 // 3].any()


def test_without_augmentation_a_crop_is_a_piece_of_the_patch():
    item = example()
    out = augment(item, np.random.default_rng(3), SIZE, 1.0, turn=False, mirror=False, backwards=False, colour=False)
    np.testing.assert_allclose(out["images"] * 255, item["images"], atol=1e-4)
    np.testing.assert_array_equal(out["flows"], item["flows"])
    np.testing.assert_array_equal(out["valid"], item["valid"])


def test_tint_is_one_for_all_frames_and_stays_in_range():
    same = np.stack([picture(0, 0)] * 3)
    results = [tint(same, np.random.default_rng(seed)) for seed in range(60)]
    assert all(r.dtype == np.float32 and r.min() >= 0 and r.max() <= 1 for r in results)
    assert all((r[0] == r[1]).all() and (r[0] == r[2]).all() for r in results)
    shifts = [abs(r.mean() - same.mean() / 255) for r in results]
    assert 0.01 < max(shifts) < 0.15
    order = [np.corrcoef(r[0, ..., 0].ravel(), same[0, ..., 0].ravel())[0, 1] > 0.99 for r in results]
    assert 1 <= order.count(False) <= 15  # the channels change places now and then


def test_batch_shapes_types_and_ranges(folder):
    batch = next(config(folder).batches(0))
    shapes = {name: (array.shape, array.dtype) for name, array in batch.items()}
    picture, flow, mask = ((5, 32, 32, 3), "f4"), ((5, 8, 8, 2), "f4"), ((5, 8, 8), "f4")
    assert shapes == dict(
        x0=picture,
        y=picture,
        x1=picture,
        time=((5, 1), "f4"),
        flow0=flow,
        flow1=flow,
        valid0=mask,
        valid1=mask,
        id=((5,), "i8"),
    )
    assert identities(batch) == batch["id"].tolist()
    assert (batch["time"] == 0.5).all()
    assert all(batch[name].min() >= 0 and batch[name].max() <= 1 for name in ("x0", "y", "x1", "valid0"))


def identities(batch) -> list[int]:
    return [round(float(y.mean()) * 255 / 20) for y in batch["y"]]


def test_an_epoch_has_every_triplet_once_and_the_next_another_order(folder):
    stream = config(folder).batches(0)
    first, second = (identities(next(stream)) + identities(next(stream)) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert first != second


def test_same_seed_same_batches(folder):
    one, two, other = (config(folder, colour=True).batches(seed) for seed in (1, 1, 2))
    for _ in range(3):
        a, b, c = next(one), next(two), next(other)
        assert all((a[name] == b[name]).all() for name in a)
        assert not (a["x0"] == c["x0"]).all()


def test_resumed_stream_gives_the_identical_next_batches(folder):
    settings = config(folder, colour=True, threads=2, max_motion=((0, 4.0), (4, 40.0)))
    stream = settings.batches(3)
    for _ in range(3):
        next(stream)
    state = json.loads(json.dumps(stream.get_state()))
    expected = [next(stream) for _ in range(3)]
    resumed = settings.batches(3)
    resumed.set_state(state)
    for batch in expected:
        again = next(resumed)
        assert all((batch[name] == again[name]).all() for name in batch)
    assert not (expected[0]["x0"] == next(settings.batches(3))["x0"]).all()


def test_curriculum_caps_motion_by_step(folder):
    """Half scale until step 3, where the cap passes the patches' motion of 12.8 px; then both scales."""
    stream = config(folder, max_motion=((2, 7.0), (4, 20.0))).batches(0)
    motions = []
    for _ in range(8):
        batch = next(stream)
        motions.append(np.linalg.norm(batch["flow1"] - batch["flow0"], axis=-1)[:, 0, 0])
    np.testing.assert_allclose(np.concatenate(motions[:3]), MOTION / 2, rtol=1e-2)
    later = np.concatenate(motions[3:])
    assert later.max() == pytest.approx(MOTION, rel=1e-2) and later.min() == pytest.approx(MOTION / 2, rel=1e-2)


def test_scale_choice_and_limit():
    rng = np.random.default_rng(0)
    assert {choose_scale((1.0, 0.5, 0.25), 20.0, 10.0, rng) for _ in range(50)} == {0.5, 0.25}
    assert choose_scale((1.0, 0.5, 0.25), 100.0, 10.0, rng) == 0.25
    assert [motion_limit(((10, 4.0), (20, 8.0)), step) for step in (0, 10, 15, 99)] == [4.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"crop": 30}, "multiple of 4"),
        ({"scales": (1.0, 0.2)}, "least for 96 px"),
        ({"scales": (1.5,)}, "above 0 and at most 1"),
        ({"scales": ()}, "one or more"),
        ({"batch_size": 11}, "exceeds the 10"),
        ({"batch_size": 0}, "need >= 1"),
        ({"max_motion": ((5, 1.0), (5, 2.0))}, "rising"),
    ],
)
def test_impossible_settings_name_the_reason(folder, changes, words):
    with pytest.raises(ValueError, match=words):
        config(folder, **changes).batches(0)


def test_folder_without_triplets(tmp_path):
    with pytest.raises(FileNotFoundError, match="test_folder_without_triplets"):
        TripletPatches(tmp_path)


def test_arrays_of_different_length_are_refused(folder, tmp_path):
    for name in ("images", "flows", "valid"):
        np.save(tmp_path / f"{name}.npy", np.load(folder / f"{name}.npy")[: 9 if name == "flows" else 10])
    (tmp_path / "index.json").write_bytes((folder / "index.json").read_bytes())
    with pytest.raises(ValueError, match="differ in length"):
        TripletPatches(tmp_path)
