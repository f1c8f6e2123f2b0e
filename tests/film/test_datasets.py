from pathlib import Path

import numpy as np
import pytest
from tiny_triplets import damage, picture, write, write_vimeo

from film.data.datasets import (
    UCF101,
    FolderDataset,
    FolderTriplets,
    KnownTriplets,
    Middlebury,
    Quarters,
    SnuFilm,
    Vimeo90K,
    Xiph,
    XTest,
    resample_linear,
)
from film.data.triplet import Triplet, decode, encode

DATA = Path(__file__).parents[1] / "data" / "film"


def check(layout: FolderDataset, index: int, name: str, numbers: tuple[int, int, int]) -> None:
    """Triplet `index` is called `name` and holds these pictures, for evaluation and for training."""
    expected = np.stack([picture(number) for number in numbers])
    triplet = layout[index]
    assert isinstance(triplet, Triplet) and triplet.name == layout.name(index) == name and triplet.time == 0.5
    for image, truth in zip((triplet.x0, triplet.y, triplet.x1), expected, strict=True):
        assert image.dtype == np.float32
        np.testing.assert_allclose(image, truth / 255, atol=1e-6)
    np.testing.assert_array_equal(layout.frames(index).images, expected)


def test_vimeo_reads_the_list_in_its_order(tmp_path):
    write_vimeo(tmp_path, 3)
    (tmp_path / "tri_testlist.txt").write_text("00001/0003\n\n00001/0001\n")
    train, test = Vimeo90K(tmp_path), Vimeo90K(tmp_path, split="test")
    assert len(train) == 3 and len(list(test)) == 2
    check(train, 1, "00001/0002", (21, 22, 23))
    check(test, 0, "00001/0003", (31, 32, 33))


def test_plain_folders_of_any_depth_in_natural_order(tmp_path):
    for k, name in enumerate(("clip10/1", "clip9/1", "clip9/deep/er")):
        for part in (1, 2, 3):
            write(tmp_path / name / f"im{part}.png", picture(10 * k + part))
    layout = FolderTriplets(tmp_path)
    assert [triplet.name for triplet in layout] == ["clip9/1", "clip9/deep/er", "clip10/1"]
    check(layout, 0, "clip9/1", (11, 12, 13))


def test_a_truth_that_is_partly_known(tmp_path):
    for part in (1, 2, 3):
        write(tmp_path / "1" / f"im{part}.png", picture(part))
    known = np.zeros((12, 16, 3), np.uint8)
    known[3:, 5:] = 255
    write(tmp_path / "1" / "known.png", known)
    (triplet,) = KnownTriplets(tmp_path)
    np.testing.assert_allclose(triplet.y[3:, 5:], picture(2)[3:, 5:] / 255, atol=1e-6)
    assert np.isnan(triplet.y).sum() == known.size - (known > 0).sum() and np.isfinite(triplet.x0).all()
    (tmp_path / "1" / "known.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"known\.png does not exist"):
        KnownTriplets(tmp_path)[0]


def test_quarters_are_two_triplets_of_a_folder(tmp_path):
    for folder, tens in (("10", 10), ("9", 20)):
        for part in (0, 1, 3, 4):
            write(tmp_path / folder / f"frame_{part}.png", picture(tens + part))
    layout = Quarters(tmp_path)
    assert [layout.name(i) for i in range(4)] == ["9/1", "9/3", "10/1", "10/3"]
    assert [layout[i].time for i in range(4)] == [0.25, 0.75] * 2
    np.testing.assert_array_equal(layout.frames(3).images, np.stack([picture(number) for number in (10, 13, 14)]))


def test_ucf101(tmp_path):
    for k in (1, 11, 2):
        for number, part in enumerate(("frame_00", "frame_01_gt", "frame_02", "frame_01_ours")):
            write(tmp_path / str(k) / f"{part}.png", picture(10 * k + number))
    layout = UCF101(tmp_path)
    assert [triplet.name for triplet in layout] == ["1", "2", "11"]
    check(layout, 2, "11", (110, 111, 112))


def test_middlebury_has_the_scenes_with_a_truth(tmp_path):
    for k, scene in enumerate(("Beanbags", "Urban2")):
        write(tmp_path / "other-data" / scene / "frame10.png", picture(10 * k))
        write(tmp_path / "other-data" / scene / "frame11.png", picture(10 * k + 2))
    write(tmp_path / "other-gt-interp" / "Urban2" / "frame10i11.png", picture(11))
    assert len(Middlebury(tmp_path)) == 1
    check(Middlebury(tmp_path), 0, "Urban2", (10, 11, 12))


@pytest.mark.parametrize("beginning", ["data/SNU-FILM/test", "test", "./test"])
@pytest.mark.parametrize("place", [".", "eval_modes"])
def test_snu_film_finds_the_frames_however_the_list_begins(tmp_path, beginning, place):
    for number in (1, 3, 5):
        write(tmp_path / "test/GOPRO_test/GOPR0384_11_00" / f"{number:06d}.png", picture(number))
    line = " ".join(f"{beginning}/GOPRO_test/GOPR0384_11_00/{number:06d}.png" for number in (1, 3, 5))
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "test-medium.txt").write_text(line + "\n")
    check(SnuFilm(tmp_path, "medium"), 0, "test/GOPRO_test/GOPR0384_11_00/000003", (1, 3, 5))


@pytest.mark.parametrize("folders", [True, False])
def test_xiph_takes_even_frames_as_truth_and_never_crosses_clips(tmp_path, folders):
    for clip in ("Boxing", "Tango"):
        for number in range(1, 7):
            name = f"{clip}/{number:03d}.png" if folders else f"{clip}-{number:03d}.png"
            write(tmp_path / name, picture(number + (100 if clip == "Tango" else 0)))
    layout = Xiph(tmp_path, scale=1, length=6)
    names = [layout.name(i).replace("-", "/") for i in range(len(layout))]
    assert names == ["Boxing/002", "Boxing/004", "Tango/002", "Tango/004"]
    check(layout, 2, layout.name(2), (101, 102, 103))


def test_xiph_resampling_equals_the_reference():
    with np.load(DATA / "xiph_resample.npz") as fixture:
        image, half = fixture["image"], fixture["half"]
    light = (image / 255.0) ** 2.2
    exact = 255 * light.reshape(half.shape[0], 2, half.shape[1], 2, 3).mean((1, 3)) ** (1 / 2.2)
    tie = np.abs(exact % 1 - 0.5) < 1e-4  # there a processor's last bit says which way float32 rounds; 84.499998 is one
    assert tie.sum() <= 3
    ours = resample_linear(image, 2)
    np.testing.assert_array_equal(ours[~tie], half[~tie])
    np.testing.assert_allclose(ours[tie], exact[tie], atol=0.51)
    board = np.tile(np.eye(2, dtype=np.uint8)[..., None] * 255, (2, 3, 3))
    assert (resample_linear(board, 2) == 186).all()  # half the light is 0.5^(1/2.2) = 0.73 of the value, not half of it


def test_xiph_crops_then_shrinks(tmp_path):
    for number in range(1, 4):
        write(tmp_path / f"{number}.png", picture(number, 16, 24))
    crop = picture(2, 16, 24)[4:-4, 6:-6]
    np.testing.assert_allclose(Xiph(tmp_path, scale=1, centre_crop=2, length=3)[0].y, crop / 255, atol=1e-6)
    both = Xiph(tmp_path, scale=2, centre_crop=2, length=3)
    np.testing.assert_array_equal(both.frames(0).images[1], resample_linear(crop, 2))
    np.testing.assert_array_equal(decode(both.encoded(0).pictures[1], ""), resample_linear(crop, 2))


def test_x_test_has_seven_times_per_clip(tmp_path):
    for clip in ("Type1/TEST01_003", "Type2/TEST10_172"):
        for number in range(33):
            write(tmp_path / clip / f"{number:04d}.png", picture(number + (100 if "Type2" in clip else 0), 4, 6))
    layout = XTest(tmp_path)
    assert [layout[i].time for i in range(7)] == [k / 8 for k in range(1, 8)] and len(layout) == 14
    name, images, time = layout.frames(8)
    assert (name, time) == ("Type2/TEST10_172/0008", 0.25)
    np.testing.assert_array_equal(images, np.stack([picture(100 + number, 4, 6) for number in (0, 8, 32)]))
    half = XTest(tmp_path, scale=2, multiple=2)
    assert len(half) == 2
    blocks = picture(16, 4, 6).reshape(2, 2, 3, 2, 3).mean(axis=(1, 3))
    assert np.abs(half.frames(0).images[1] - blocks).max() <= 0.5


def test_a_missing_picture_is_one_clear_error(tmp_path):
    write_vimeo(tmp_path, 2)
    (tmp_path / "sequences/00001/0002/im3.png").unlink()
    layout = Vimeo90K(tmp_path)
    check(layout, 0, "00001/0001", (11, 12, 13))
    for read in (layout.frames, layout.__getitem__):
        with pytest.raises(FileNotFoundError, match=r"0002/im3\.png does not exist"):
            read(1)


def test_damage_and_unequal_sizes_are_refused(tmp_path):
    write_vimeo(tmp_path, 2)
    damage(tmp_path / "sequences/00001/0001/im1.png")
    write(tmp_path / "sequences/00001/0002/im2.png", picture(0, 12, 18))
    with pytest.raises(ValueError, match=r"00001/0001.* damaged or cut short"):
        Vimeo90K(tmp_path).frames(0)
    with pytest.raises(ValueError, match="16x12, 18x12, 16x12 pixels"):
        Vimeo90K(tmp_path).frames(1)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (FolderTriplets, "no triplets of this data set"),
        (Quarters, "no triplets of this data set"),
        (Vimeo90K, r"tri_trainlist\.txt does not exist"),
        (UCF101, "frame_01_gt"),
        (Middlebury, "other-gt-interp"),
        (SnuFilm, r"test-hard\.txt does not exist"),
        (Xiph, "no pictures"),
        (XTest, "0000.png"),
    ],
)
def test_a_folder_of_another_kind_says_what_was_expected(tmp_path, layout, words):
    made = layout(tmp_path)  # touches nothing: configs are built on machines without the data
    with pytest.raises(FileNotFoundError, match=words):
        len(made)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: Vimeo90K(folder, split="val"), "train, test"),
        (lambda folder: SnuFilm(folder, difficulty="mild"), "easy, medium"),
        (lambda folder: Xiph(folder, scale=0), "at least 1"),
        (lambda folder: Xiph(folder, length=2), "no multiple of 2"),
        (lambda folder: XTest(folder, multiple=5), "divide 32"),
    ],
)
def test_impossible_options_name_the_way_out(tmp_path, make, words):
    write(tmp_path / "1.png", picture(0))
    with pytest.raises(ValueError, match=words):
        len(make(tmp_path))


def test_a_list_line_without_three_paths_is_refused(tmp_path):
    (tmp_path / "test-hard.txt").write_text("a.png b.png\n")
    with pytest.raises(ValueError, match="three paths"):
        len(SnuFilm(tmp_path))


def test_a_png_survives_encoding_and_a_jpeg_is_read(tmp_path):
    np.testing.assert_array_equal(decode(encode(picture(3)), ""), picture(3))
    flat = np.full((16, 16, 3), (200, 100, 50), np.uint8)
    write(tmp_path / "flat.jpg", flat)
    assert np.abs(decode((tmp_path / "flat.jpg").read_bytes(), "").astype(int) - flat).max() <= 3  # RGB, not BGR
    with pytest.raises(ValueError, match="0 bytes"):
        decode(b"", "nothing")
