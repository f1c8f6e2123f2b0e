"""Moving photographs: exact flow, repeatability, outlines, textures, the album and batches."""

import itertools
import json

import cv2
import numpy as np
import pytest
from refusal import refused
from streams import check_stream
from tiny_triplets import write_cut

from film.data.triplet_batches import TripletConfig
from recipes.film_small.motions import STEEPEST, Motion, Pose, Waves, draw_pose, draw_waves
from recipes.film_small.moving_photograph_batches import MixedConfig, SyntheticConfig
from recipes.film_small.moving_photographs import MovingPhotographs, main
from recipes.film_small.outlines import KINDS, outline
from recipes.film_small.photograph_cache import CACHED, Album
from recipes.film_small.scenes import Layer, Scene, grid, straightened
from recipes.film_small.textures import CONTRAST, SHORTEST, repeated

SIZE = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Five photographs of 160 x 120 pixels: waves of all directions, no finer than 12 pixels."""
    folder, rng = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for number in range(5):
        coarse = rng.integers(0, 256, (10, 13, 3), np.uint8)
        cv2.imwrite(str(folder / f"{number}.png"), cv2.resize(coarse, (160, 120), interpolation=cv2.INTER_CUBIC))
    return folder


def source(folder, **changes) -> MovingPhotographs:
    fields = dict(size=SIZE, motion=(0.25, 24.0), blurred=0.0, accelerated=0.0)
    return MovingPhotographs(str(folder), **(fields | changes))


def moving() -> Motion:
    """Everything at once, bent in space."""
    waves = Waves(np.array([[2.0, 1.0], [-1.0, 2.0]]), np.array([[0.05, 0.02], [-0.03, 0.06]]), np.array([0.3, 2.0]))
    camera = Pose((32.0, 32.0), (9.0, -4.0), 0.1, 0.1, 0.0, (1e-3, -5e-4))
    return Motion((camera, Pose((20.0, 30.0), (-30.0, 7.0), 0.4, -0.3, 0.2)), waves)


def warp_errors(scene: Scene, time: float) -> list[np.ndarray]:
    """How far the outer frames, warped by the exact flow, are from the frame at `time`: the valid values, 0 to 255."""
    views, errors = [scene.view(moment) for moment in (0.0, time, 1.0)], []
    for end in (0, 1):
        flow, valid = scene.flow(time, float(end), views[1], views[2 * end], stride=1)
        places = straightened(grid((scene.size, scene.size)) + flow).astype(np.float32)
        warped = cv2.remap(views[2 * end].image, places, None, cv2.INTER_CUBIC)
        padded = np.pad(valid, 3)[1:-1, 1:-1].astype(np.uint8)
        valid = cv2.erode(padded, np.ones((5, 5)))[2:-2, 2:-2] > 0  # the support of the cubic kernel
        errors.append(np.abs(warped - views[1].image)[valid])
    return errors


@pytest.mark.parametrize(("time", "changes", "scenes"), [
    (0.5, {}, 6), (0.1875, {}, 4), (0.5, dict(blurred=1.0, accelerated=1.0), 4)
])  # fmt: skip
def test_outer_frames_warped_by_the_exact_flow_are_the_frame_in_between(folder, time, changes, scenes):
    seen = 0
    for index in range(scenes):
        for errors in warp_errors(source(folder, **changes).scene(index), time):
            assert errors.mean() < (1.2 if changes else 1.0) and (changes or np.percentile(errors, 99) < 6.0)
            seen += len(errors)
    assert changes or seen > 0.5 * scenes * 2 * SIZE**2  # most pixels are valid


def test_tracing_inverts_placing_and_flows_compose():
    points, motion = grid((16, 16), 4), moving()
    np.testing.assert_allclose(motion.place(points, 0.5), points, atol=1e-9)
    for time in (0.0, 0.3, 1.0):
        np.testing.assert_allclose(motion.trace(motion.place(points, time), time), points, atol=1e-3)
        to_0 = motion.flow(points, time, 0.0)
        on = motion.flow(points + to_0, 0.0, 1.0)
        np.testing.assert_allclose(to_0 + on, motion.flow(points, time, 1.0), atol=2e-3)


def test_a_shift_is_linear_in_time_without_bend():
    points, shift = grid((4, 4)), (Pose(shift=(16.0, -8.0)),)
    for time in (0.25, 0.5, 0.8):
        flow = Motion(shift).flow(points, time, 0.0)
        np.testing.assert_allclose(flow, np.broadcast_to([-16 * time, 8 * time], (4, 4, 2)))
    for time, progress in ((0.5, 0.45), (1.0, 1.0)):
        flow = Motion(shift, bend=0.2).flow(points, 0.0, time)
        np.testing.assert_allclose(flow[0, 0], [16 * progress, -8 * progress])


def plain(value: int, motion: Motion, corner: float = -32.0, side: int = 256, alpha: bool = False) -> Layer:
    texture = np.full((side, side, 4 if alpha else 3), value, np.uint8)
    if alpha:
        texture[..., 3] = 0
        texture[4:-4, 4:-4, 3] = 255
    return Layer(texture, (corner, corner), (2.0, 2.0), motion)


def test_validity_at_a_known_occlusion():
    """A square of 20 pixels, at 24 to 44 for t = 1/2, moves 16 px to the right over a background that stands still."""
    square = plain(200, Motion((Pose(shift=(16.0, 0.0)),)), 21.5, 48, alpha=True)
    scene = Scene(64, (plain(50, Motion()), square))
    first, middle, last = (scene.view(time) for time in (0.0, 0.5, 1.0))
    assert (middle.image[24:43, 24:43] == 200).all() and (middle.image[:, :20] == 50).all()
    for end, view, hidden, free in ((0, first, slice(16, 23), slice(46, 56)), (1, last, slice(45, 51), slice(8, 22))):
        flow, valid = scene.flow(0.5, float(end), middle, view, stride=1)
        assert not valid[26:40, hidden].any() and valid[26:40, free].all()
        assert valid[26:40, 26:40].all() and (flow[26:40, 26:40] == [16 * (end - 0.5), 0]).all()
        assert (flow[:20] == 0).all() and valid[:20].all()
    cells, valid = scene.flow(0.5, 1.0, middle, last)
    assert cells.shape == (16, 16, 2) and valid[7:10, 7:10].all() and not valid[7:10, 12].any()


def test_flow_out_of_the_picture_is_not_valid():
    scene = Scene(64, (plain(50, Motion((Pose(shift=(20.0, 0.0)),))),))
    views = [scene.view(time) for time in (0.0, 0.5, 1.0)]
    for end, valid in ((1, [True] * 54 + [False] * 10), (0, [False] * 10 + [True] * 54)):
        assert scene.flow(0.5, float(end), views[1], views[2 * end], stride=1)[1].all(axis=0).tolist() == valid


def test_motion_covers_its_range_and_budgets_bound_it(folder):
    motions = [float(source(folder, motion=(0.25, 32.0)).example(index)["motion"]) for index in range(20)]
    assert min(motions) < 1 and 10 < max(motions) < 32 * 1.1 and 3 < sum(motion < 2 for motion in motions) < 17
    rng, points, radius = np.random.default_rng(0), grid((9, 9), 8) - 4, 32 * np.sqrt(2)
    for _ in range(50):
        motion = Motion((draw_pose(rng, (32.0, 32.0), radius, 20.0, tilts=True),))
        assert np.linalg.norm(motion.place(points, 1.0) - motion.place(points, 0.0), axis=-1).max() < 20 * 1.15
        waves = draw_waves(rng, radius, 50.0)
        slopes = np.linalg.norm(waves.heights, axis=1) * np.linalg.norm(waves.waves, axis=1)
        assert slopes.sum() <= STEEPEST + 1e-6


def test_examples_depend_on_seed_and_index_and_scenes_not_on_the_time(folder):
    one, two = (source(folder, noise=1.0, light=0.5, time="any") for _ in range(2))
    one.example(5)
    a, b, other = one.example(7), two.example(7), one.example(8)
    assert all(np.asarray(a[name]).tobytes() == np.asarray(b[name]).tobytes() for name in a)
    assert not np.array_equal(a["images"], other["images"])
    assert not np.array_equal(a["images"], source(folder, seed=1).example(7)["images"])
    half, some = source(folder).example(3), source(folder, time="any").example(3)
    assert half["time"] == 0.5 and 0 < some["time"] < 1
    np.testing.assert_array_equal(half["images"][[0, 2]], some["images"][[0, 2]])
    assert {two.moment(index) for index in range(200)} == {k / 16 for k in range(1, 16)}


def test_arrays_of_an_example(folder):
    example, frames = source(folder).example(0), source(folder).frames(0)
    kinds = {name: (np.asarray(value).dtype.name, *np.shape(value)) for name, value in example.items()}
    arrays = dict(images=("uint8", 3, 64, 64, 3), flows=("float16", 2, 16, 16, 2), valid=("uint8", 2, 16, 16))
    assert kinds == arrays | dict(time=("float32",), motion=("float32",), id=("int64",))
    np.testing.assert_array_equal(frames.images, example["images"])
    assert frames.time == 0.5 and "scene 0" in frames.name and len(source(folder).encoded(0).pictures) == 3


def test_repeated_patterns_change_textures_and_not_motion(folder):
    never, always = (source(folder, layers=(3, 3), repeated=share).example(3) for share in (1e-9, 1.0))
    assert not np.array_equal(never["images"], always["images"])
    np.testing.assert_array_equal(never["flows"], always["flows"])


def noise(side=240):
    return np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)


def autocorrelation(picture):
    """At shifts of up to 100 pixels down and to both sides, 1 without a shift."""
    grey = picture.mean(axis=-1) - picture.mean()
    power = np.abs(np.fft.fft2(grey, (400, 400))) ** 2
    seen = np.abs(np.fft.fft2(np.ones_like(grey), (400, 400))) ** 2
    shifts = np.fft.ifft2(power).real / np.maximum(np.fft.ifft2(seen).real, 1)
    return np.roll(shifts, 100, axis=1)[:101, :201] / shifts[0, 0]


def test_a_pattern_repeats_has_contrast_and_needs_space():
    texture, near = noise(), int(SHORTEST) // 2
    assert autocorrelation(texture)[3:].max() < 0.1
    pattern, again = (repeated(np.random.default_rng(1), texture, 1.0) for _ in range(2))
    assert pattern.shape == texture.shape and pattern.dtype == np.uint8
    np.testing.assert_array_equal(pattern, again)
    far = autocorrelation(pattern)
    far[:near, 100 - near : 100 + near + 1] = 0
    assert far.max() > 0.4
    faint = (127 + texture // 64).astype(np.uint8)
    assert faint.std() < 2 and repeated(np.random.default_rng(0), faint, 1.0).std() > 2 * faint.std()
    assert repeated(np.random.default_rng(0), noise(), 1.0).std() < 2 * CONTRAST[1]
    small = noise(8)
    assert repeated(np.random.default_rng(0), small, 1.0) is small


def test_no_black_borders(folder, tmp_path):
    """However far the background moves; and the sheet of examples."""
    far = source(folder, motion=(60.0, 64.0), layers=(0, 0))
    for index in range(8):
        assert (far.example(index)["images"].max(axis=-1) < 3).mean() < 0.01
    main(far, tmp_path / "sheet.png", rows=2)
    assert cv2.imread(str(tmp_path / "sheet.png")).shape[0] > 2 * SIZE


def test_outlines_keep_a_margin():
    for kind, seed in itertools.product(KINDS, range(20)):
        mask = outline(np.random.default_rng(seed), 96, kind)
        border = np.concatenate([mask[0], mask[-1], mask[:, 0], mask[:, -1]])
        assert 0.002 < (mask > 127).mean() < 0.9 and not border.any()


def test_an_album_has_subsets_and_splits(folder, tmp_path):
    for number in range(CACHED + 1):
        (tmp_path / f"{number}.png").touch()
    album = Album(tmp_path)
    one, same, other = (album.subset(0, scene) for scene in (0, 1, 1000))
    assert one == same != other and len(set(one)) == len(one) < len(album) and max(one + other) <= CACHED
    assert Album(folder).subset(0, 1000) == [0, 1, 2, 3, 4]
    entries = [dict(file=f"{number}.png", split="test" if number == 1 else "train") for number in range(3)]
    (tmp_path / "index.json").write_text(json.dumps(dict(licence="CC0", photographs=entries)))
    assert [path.name for path in Album(tmp_path, "train").paths] == ["0.png", "2.png"]
    assert [path.name for path in Album(tmp_path, "test").paths] == ["1.png"]
    refused(ValueError, Album, tmp_path, "val", match="val")
    (tmp_path / "index.json").write_text('{"photographs": 3}')
    refused(ValueError, Album, tmp_path, match=r"index\.json")
    refused(FileNotFoundError, Album, tmp_path / "none", match="none")


def config(folder, **changes) -> SyntheticConfig:
    return SyntheticConfig(source(folder), **(dict(batch_size=4, crop=SIZE, buffer=2) | changes))


def test_batches_resume_and_are_shared_by_processes(folder):
    batch = next(config(folder).batches(3))
    picture, flow, valid = (4, 64, 64, 3), (4, 16, 16, 2), (4, 16, 16)
    shapes = dict(x0=picture, y=picture, x1=picture, flow0=flow, flow1=flow, valid0=valid, valid1=valid)
    assert {name: value.shape for name, value in batch.items()} == shapes | dict(time=(4, 1), id=(4,))
    assert batch["id"].tolist() == [0, 1, 2, 3] and batch["y"].min() >= 0 and batch["y"].max() <= 1
    assert "scene 2" in config(folder).names(batch["id"])[2]
    check_stream(lambda **changes: config(folder, **changes), 2)


def film_patches(folder) -> TripletConfig:
    """Their flows are 9.25 everywhere."""
    images, cells = np.full((6, 3, SIZE, SIZE, 3), 90, np.uint8), (6, 2, SIZE // 4, SIZE // 4)
    write_cut(folder, images, np.full((*cells, 2), 9.25, np.float16), np.ones(cells, np.uint8), 9.0)
    return TripletConfig(str(folder), crop=SIZE, batch_size=1, scales=(1.0,))


def test_a_mixture_has_its_shares_and_names(folder, tmp_path):
    mixed = MixedConfig([film_patches(tmp_path), config(folder)], (3, 1), batch_size=4)
    stream = mixed.batches(0, 0, 1)
    for _ in range(3):
        batch = next(stream)
        films = (np.abs(batch["flow0"]) == 9.25).all(axis=(1, 2, 3))
        assert films.sum() == 3
        assert ["patch" in name for name in mixed.names(batch["id"])] == films.tolist()


def test_parts_that_differ_are_refused(folder, tmp_path):
    film = film_patches(tmp_path)
    with pytest.raises(ValueError, match=r"y: float32 \[32, 32, 3\]; y: float32 \[64, 64, 3\]"):
        MixedConfig([film, config(folder, crop=32)]).batches(0)
    wrong = (([film, film], (1,), 4, "2"), ([3], (), 4, "int"), ([], (), 4, "parts"), ([film], (), 0, "is 0"))
    for parts, weights, batch_size, value in wrong:
        refused(ValueError, MixedConfig, parts, weights, batch_size=batch_size, match=value)
