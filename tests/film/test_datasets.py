"""Folder layouts of the datasets: order, files and times of their triplets, protocols, and refusals."""

import cv2
import numpy as np
import pytest
from recipe import DATA
from refusal import refused
from tiny_triplets import damage, picture, write, write_all, write_vimeo

from film.data import datasets
from film.data.datasets import UCF101, FolderTriplets, Middlebury, Quarters, SnuFilm, Vimeo90K, Xiph, XTest
from film.data.procedural import MovingShapes
from film.data.triplet import decode

SNU = "GOPRO_test/GOPR0384_11_00/00000"
CLIPS = {"Boxing": 0, "Tango": 100}
SCENES = {"Type1/TEST1": 0, "Type2/TEST2": 100}
MIDDLEBURY = {f"other-data/{s}/frame1{k}.png": t + 2 * k for s, t in (("Beanbags", 0), ("Urban2", 10)) for k in (0, 1)}


def files(names: dict[str, int], pattern: str, parts) -> dict[str, int]:
    return {f"{name}/{pattern.format(k)}": tens + k for name, tens in names.items() for k in parts}


def snu(place: str, prefix: str):
    lines = (f"{place}/test-medium.txt", " ".join(f"{prefix}/{SNU}{k}.png" for k in (1, 3, 5)) + "\n")
    expected = [(f"test/{SNU}3", (1, 3, 5), 0.5)]
    return {f"test/{SNU}{k}.png": k for k in (1, 3, 5)}, lines, lambda root: SnuFilm(root, "medium"), expected


def xiph(pattern: str):
    """Even frames are truths, and no triplet crosses clips."""
    names = {pattern.format(clip, k): tens + k for clip, tens in CLIPS.items() for k in range(1, 7)}
    truths = [(name.removesuffix(".png"), n) for name, n in names.items() if n % 100 in (2, 4)]
    return names, None, lambda root: Xiph(root, scale=1, length=6), [(m, (n - 1, n, n + 1), 0.5) for m, n in truths]


LAYOUTS = {  # files and their pictures; list file; dataset; its triplets: name, pictures of x0, y, x1, and time
    "vimeo": (
        files({f"sequences/00001/000{k}": 10 * k for k in (1, 2, 3)}, "im{}.png", (1, 2, 3)),
        ("tri_testlist.txt", "00001/0003\n\n00001/0001\n"),
        lambda root: Vimeo90K(root, split="test"),
        [("00001/0003", (31, 32, 33), 0.5), ("00001/0001", (11, 12, 13), 0.5)],
    ),
    "folders": (
        files({"clip10/1": 0, "clip9/1": 10, "clip9/deep/er": 20}, "im{}.png", (1, 2, 3)),
        None,
        FolderTriplets,
        [("clip9/1", (11, 12, 13), 0.5), ("clip9/deep/er", (21, 22, 23), 0.5), ("clip10/1", (1, 2, 3), 0.5)],
    ),
    "quarters": (
        files({"10": 10, "9": 20}, "frame_{}.png", (0, 1, 3, 4)),
        None,
        Quarters,
        [(f"{n}/{k}", (t, t + k, t + 4), k / 4) for n, t in (("9", 20), ("10", 10)) for k in (1, 3)],
    ),
    "ucf101": (
        {f"{k}/frame_0{name}.png": 10 * k + i for k in (1, 11, 2) for i, name in enumerate(("0", "1_gt", "2", "1_x"))},
        None,
        UCF101,
        [(str(k), (10 * k, 10 * k + 1, 10 * k + 2), 0.5) for k in (1, 2, 11)],
    ),
    "middlebury": (  # only scenes with a truth
        MIDDLEBURY | {"other-gt-interp/Urban2/frame10i11.png": 11},
        None,
        Middlebury,
        [("Urban2", (10, 11, 12), 0.5)],
    ),
    "snu": snu(".", "data/SNU-FILM/test"),
    "snu eval_modes": snu("eval_modes", "test"),
    "xiph folders": xiph("{}/{:03d}.png"),
    "xiph": xiph("{}-{:03d}.png"),
    "x-test": (
        files(SCENES, "{:04d}.png", range(0, 33, 8)),
        None,
        lambda root: XTest(root, multiple=4),
        [(f"{c}/{8 * k:04d}", (t, t + 8 * k, t + 32), k / 4) for c, t in SCENES.items() for k in (1, 2, 3)],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_triplets_of_a_layout(tmp_path, layout):
    """The same images for evaluation, for training and as stored."""
    pictures, lines, make, expected = LAYOUTS[layout]
    write_all(tmp_path, pictures)
    if lines:
        (tmp_path / lines[0]).parent.mkdir(exist_ok=True)
        (tmp_path / lines[0]).write_text(lines[1])
    dataset = make(tmp_path)
    assert len(dataset) == len(expected)
    for index, (name, numbers, time) in enumerate(expected):
        images = np.stack([picture(number) for number in numbers])
        triplet, frames, encoded = dataset[index], dataset.frames(index), dataset.encoded(index)
        assert triplet.name == frames.name == encoded.name == dataset.name(index) == name
        assert triplet.time == frames.time == encoded.time == time
        assert triplet.x0.dtype == np.float32
        np.testing.assert_allclose(np.stack(triplet[1:4]), images / 255, atol=1e-6)
        np.testing.assert_array_equal(frames.images, images)
        np.testing.assert_array_equal(np.stack([decode(data, name) for data in encoded.pictures]), images)


def test_xiph_resampling_equals_the_reference():
    with np.load(DATA / "xiph_resample.npz") as fixture:
        image, half = fixture["image"], fixture["half"]
    light = (image / 255.0) ** 2.2
    exact = 255 * light.reshape(half.shape[0], 2, half.shape[1], 2, 3).mean((1, 3)) ** (1 / 2.2)
    tie = np.abs(exact % 1 - 0.5) < 1e-4  # there a processor's last bit decides how float32 rounds; 84.499998 is one
    assert tie.sum() <= 3
    ours = datasets.resample_linear(image, 2)
    np.testing.assert_array_equal(ours[~tie], half[~tie])
    np.testing.assert_allclose(ours[tie], exact[tie], atol=0.51)
    board = np.tile(np.eye(2, dtype=np.uint8)[..., None] * 255, (2, 3, 3))
    assert (datasets.resample_linear(board, 2) == 186).all()  # half the light is 0.5^(1/2.2) = 0.73 of the value


def test_protocols_crop_and_shrink(tmp_path):
    write_all(tmp_path / "xiph", {f"{k}.png": k for k in (1, 2, 3)}, 16, 24)
    crop = picture(2, 16, 24)[4:-4, 6:-6]
    np.testing.assert_allclose(Xiph(tmp_path / "xiph", scale=1, centre_crop=2, length=3)[0].y, crop / 255, atol=1e-6)
    both = Xiph(tmp_path / "xiph", scale=2, centre_crop=2, length=3)
    np.testing.assert_array_equal(both.frames(0).images[1], datasets.resample_linear(crop, 2))
    np.testing.assert_array_equal(decode(both.encoded(0).pictures[1], ""), datasets.resample_linear(crop, 2))
    write_all(tmp_path / "x", {f"a/{k:04d}.png": k for k in (0, 16, 32)}, 4, 6)
    blocks = picture(16, 4, 6).reshape(2, 2, 3, 2, 3).mean(axis=(1, 3))
    assert np.abs(XTest(tmp_path / "x", scale=2, multiple=2).frames(0).images[1] - blocks).max() <= 0.5


def test_missing_damaged_and_unequal_images_are_refused(tmp_path):
    dataset = Vimeo90K(write_vimeo(tmp_path, 3))
    (tmp_path / "sequences/00001/0001/im3.png").unlink()
    damage(tmp_path / "sequences/00001/0002/im1.png")
    write(tmp_path / "sequences/00001/0003/im2.png", picture(0, 12, 18))
    for read in (dataset.frames, dataset.__getitem__):
        refused(FileNotFoundError, read, 0, match=r"0001/im3\.png")
    refused(ValueError, dataset.frames, 1, match="00001/0002")
    refused(ValueError, dataset.frames, 2, match="16x12, 18x12, 16x12")


@pytest.mark.parametrize("layout", [FolderTriplets, Quarters, Vimeo90K, UCF101, Middlebury, SnuFilm, Xiph, XTest])
def test_a_folder_with_another_layout_is_refused_when_it_is_read(tmp_path, layout):
    made = layout(tmp_path)  # reads nothing: configs are built on machines without the data
    refused(FileNotFoundError, len, made, match=str(tmp_path))


@pytest.mark.parametrize(("make", "value"), [
    (lambda folder: decode(b"", "nothing"), "nothing"),
    (lambda folder: decode(b"text", "nothing"), "nothing"),
    (lambda folder: SnuFilm(folder), "2 paths"),
    (lambda folder: Xiph(folder, length=3), "1 frames"),
    (lambda folder: XTest(folder, multiple=5), "multiple is 5"),
])  # fmt: skip
def test_impossible_options_and_lists_are_refused(tmp_path, make, value):
    write(tmp_path / "1.png", picture(0))
    (tmp_path / "test-hard.txt").write_text("a.png b.png\n")
    refused(ValueError, lambda: len(make(tmp_path)), match=value)


def test_drawn_scenes_are_always_the_same_with_an_exact_middle():
    scenes = MovingShapes(size=32, seed=3)
    images = scenes.frames(5).images
    np.testing.assert_array_equal(images, MovingShapes(size=32, seed=3).frames(5).images)
    for other in (scenes.frames(6), MovingShapes(size=32, seed=4).frames(5)):
        assert not np.array_equal(images, other.images)
    np.testing.assert_array_equal([decode(data, "x") for data in scenes.encoded(5).pictures], images)
    x0, y, x1 = MovingShapes(motion=0.0, size=32).frames(0).images
    assert np.array_equal(x0, y) and np.array_equal(y, x1)
    window = cv2.createHanningWindow((64, 64), cv2.CV_64F)
    for i in range(4):  # the background alone moves straight: the middle has half of the shift
        x0, y, x1 = MovingShapes(shapes=0, motion=10.0, size=64).frames(i).images.mean(axis=-1)
        half, whole = (np.array(cv2.phaseCorrelate(x0, x, window)[0]) for x in (y, x1))
        np.testing.assert_allclose(half, whole / 2, atol=0.3)
