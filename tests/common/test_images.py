"""Pictures survive the way to disk and back; bad files are one line."""

import os
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from common.io import images
from common.io.images import (
    check_same_size,
    contact_sheet,
    find_images,
    from_uint8,
    image_size,
    read_image,
    shrink,
    to_uint8,
    to_uint16,
    verify_image,
    write_image,
)


@pytest.fixture
def bytes_rgb():
    return np.random.default_rng(0).integers(0, 256, (24, 36, 3), dtype=np.uint8)


@pytest.fixture
def smooth():
    """A picture that lossy formats keep well: h 24, w 36."""
    y, x = np.mgrid[0:24, 0:36].astype(np.float32)
    return np.stack([x / 35, y / 23, (x + y) / 58], axis=-1)


def one_line(error, *words):
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert str(word) in text, text


# ---- numbers


def test_conversions_round_to_nearest_and_clip():
    values = np.array([-1, 0, 0.4 / 255, 0.6 / 255, 0.5, 1, 7], np.float32)
    assert to_uint8(values).tolist() == [0, 0, 0, 1, 128, 255, 255]
    assert to_uint16(np.array([-1, 0.6 / 65535, 1, 2], np.float32)).tolist() == [0, 1, 65535, 65535]
    every = np.arange(256, dtype=np.uint8)
    assert from_uint8(every).dtype == np.float32
    assert np.array_equal(to_uint8(from_uint8(every)), every)
    deep = np.arange(65536)
    assert np.array_equal(to_uint16((deep / 65535).astype(np.float32)), deep)


# ---- reading


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".tiff", ".PNG"])
def test_lossless_formats_are_exact(tmp_path, bytes_rgb, suffix):
    path = tmp_path / f"a{suffix}"
    Image.fromarray(bytes_rgb).save(path)
    image = read_image(str(path))
    assert image.dtype == np.float32
    assert image.flags.c_contiguous
    assert np.array_equal(to_uint8(image), bytes_rgb)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".jpeg", ".webp"])
def test_what_is_written_is_read(tmp_path, smooth, suffix):
    path = tmp_path / f"a{suffix}"
    write_image(path, smooth)
    error = np.abs(read_image(path) - smooth)
    assert error.max() <= (0.5001 / 255 if suffix == ".png" else 12 / 255)
    assert error.mean() < 2 / 255


def test_16_bits_survive_the_way_to_png_and_back(tmp_path):
    image = np.random.default_rng(1).random((9, 7, 3), dtype=np.float32)
    write_image(tmp_path / "a.png", image, bits=16)
    assert np.abs(read_image(tmp_path / "a.png") - image).max() <= 0.5001 / 65535
    assert cv2.imread(str(tmp_path / "a.png"), cv2.IMREAD_UNCHANGED).dtype == np.uint16


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_16_bit_files_of_other_programs(tmp_path, suffix, channels):
    pixels = np.random.default_rng(2).integers(0, 65536, (8, 6, channels), dtype=np.uint16)
    assert cv2.imwrite(str(tmp_path / f"a{suffix}"), pixels)
    expected = pixels / 65535
    if channels == 1:
        expected = expected.repeat(3, axis=-1)
    if channels == 4:
        expected = expected[..., :3] * expected[..., 3:] + 1 - expected[..., 3:]
    image = read_image(tmp_path / f"a{suffix}")
    assert np.abs(image - expected[..., ::-1]).max() < 1e-6  # OpenCV wrote blue first


def test_16_bit_grey_of_pillow(tmp_path):
    pixels = np.random.default_rng(2).integers(0, 65536, (8, 6), dtype=np.uint16)
    for name in ("a.png", "a.tif"):
        Image.fromarray(pixels).save(tmp_path / name)
        assert np.array_equal(to_uint16(read_image(tmp_path / name)), np.stack([pixels] * 3, -1))


@pytest.mark.parametrize("mode", ["1", "L", "P", "YCbCr"])
def test_grey_and_palette_become_rgb(tmp_path, bytes_rgb, mode):
    picture = Image.fromarray(bytes_rgb).convert(mode)
    path = tmp_path / ("a.tif" if mode == "YCbCr" else "a.png")
    picture.save(path)
    assert np.array_equal(to_uint8(read_image(path)), np.asarray(picture.convert("RGB")))


def test_cmyk_jpeg(tmp_path):
    colour = Image.new("RGB", (16, 16), (200, 40, 90))
    colour.convert("CMYK").save(tmp_path / "a.jpg", quality=100)
    assert np.abs(to_uint8(read_image(tmp_path / "a.jpg")).astype(int) - (200, 40, 90)).max() <= 3


def test_alpha_is_composited_over_white(tmp_path):
    rgba = np.zeros((2, 2, 4), np.uint8)
    rgba[0, 0] = (255, 0, 0, 255)
    rgba[0, 1] = (255, 0, 0, 0)
    rgba[1, 0] = (0, 0, 0, 51)
    Image.fromarray(rgba).save(tmp_path / "rgba.png")
    image = read_image(tmp_path / "rgba.png")
    np.testing.assert_allclose(image[0, 0], [1, 0, 0])
    np.testing.assert_allclose(image[0, 1], [1, 1, 1])
    np.testing.assert_allclose(image[1, 0], [0.8, 0.8, 0.8], atol=1e-6)
    Image.fromarray(rgba[..., [0, 3]]).save(tmp_path / "la.png")
    np.testing.assert_allclose(read_image(tmp_path / "la.png")[1, 0], [0.8, 0.8, 0.8], atol=1e-6)


def test_palette_with_transparency(tmp_path):
    picture = Image.new("P", (2, 1))
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.putpixel((1, 0), 1)
    picture.save(tmp_path / "a.png", transparency=0)
    assert read_image(tmp_path / "a.png").tolist() == [[[1, 1, 1], [0, 0, 1]]]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.jpg", "a.webp", "deep.png", "deep.tif"])
def test_exif_orientation(tmp_path, bytes_rgb, orientation, name):
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = Image.fromarray(bytes_rgb)
    if name.startswith("deep"):
        picture = Image.fromarray(bytes_rgb[..., 0].astype(np.uint16) * 257)
    picture.save(tmp_path / name, exif=exif)
    picture.save(tmp_path / f"as_stored_{name}")
    stored = Image.fromarray(to_uint8(read_image(tmp_path / f"as_stored_{name}")))
    turns = [None, "FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM"]  # as the EXIF standard draws them
    turns += ["TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90"]
    turn = turns[orientation - 1]
    upright = stored.transpose(Image.Transpose[turn]) if turn else stored
    assert np.array_equal(to_uint8(read_image(tmp_path / name)), np.asarray(upright))


# ---- refusals


def test_missing_folder_empty_and_text(tmp_path):
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("not a picture at all\n" * 9)
    for name, kind in {
        "none.png": FileNotFoundError,
        ".": IsADirectoryError,
        "empty.png": ValueError,
        "text.png": ValueError,
    }.items():
        with pytest.raises(kind) as error:
            read_image(tmp_path / name)
        one_line(error, tmp_path / name)


@pytest.mark.parametrize("name", ["a.jpg", "slow.jpg", "cmyk.jpg", "a.png", "a.bmp", "a.webp", "a.tif", "deep.png"])
def test_verification_finds_what_reading_finds(tmp_path, bytes_rgb, name):
    """At every length that a file may have been cut to."""
    path = tmp_path / name
    if name == "deep.png":
        cv2.imwrite(str(path), bytes_rgb.astype(np.uint16) * 257)
    else:
        Image.fromarray(bytes_rgb).convert("CMYK" if "cmyk" in name else "RGB").save(path, progressive="slow" in name)
    verify_image(path)
    whole = path.read_bytes()
    for length in (*range(0, len(whole) - 20, 97), *range(len(whole) - 20, len(whole))):
        path.write_bytes(whole[:length])
        assert outcome(verify_image, path) == outcome(read_image, path), length


def outcome(function, path):
    try:
        function(path)
    except ValueError as error:
        return str(error)
    return None


def test_verification_refuses_what_reading_refuses(tmp_path):
    (tmp_path / "text.png").write_text("not a picture at all\n" * 9)
    Image.new("L", (3, 3)).convert("F").save(tmp_path / "f.tif")
    for name in ("none.png", ".", "text.png", "f.tif"):
        errors = []
        for function in (read_image, verify_image):
            with pytest.raises((OSError, ValueError)) as error:
                function(tmp_path / name)
            errors.append((type(error.value), str(error.value)))
        assert errors[0] == errors[1]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for function in (read_image, image_size, verify_image):
        with pytest.raises(ValueError) as error:
            function(tmp_path / "pipe.png")
        one_line(error, "pipe.png", "save it")


def test_garbled_exif_harms_nothing(tmp_path, smooth):
    """Warnings are errors here."""
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 9) + entry + b"garbage"
    Image.fromarray(to_uint8(smooth)).save(tmp_path / "a.jpg", exif=exif)
    verify_image(tmp_path / "a.jpg")
    assert image_size(tmp_path / "a.jpg") == read_image(tmp_path / "a.jpg").shape[1::-1]


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.bmp", "a.webp", "deep.png"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_truncated_pictures_are_errors(tmp_path, bytes_rgb, name, part):
    path = tmp_path / name
    if name == "deep.png":
        cv2.imwrite(str(path), bytes_rgb.astype(np.uint16) * 257)
    else:
        Image.fromarray(bytes_rgb).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(ValueError) as error:
        read_image(path)
    one_line(error, path, "again" if "damaged" in str(error.value) else "convert")


def test_a_flipped_byte_in_a_png_is_an_error(tmp_path, bytes_rgb):
    path = tmp_path / "a.png"
    Image.fromarray(bytes_rgb).save(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with pytest.raises(ValueError) as error:
        read_image(path)
    one_line(error, path, "damaged")


def test_large_pictures_pass_up_to_the_limit(tmp_path, monkeypatch):
    Image.new("1", (12_000, 8_000)).save(tmp_path / "big.png")  # past Pillow's own warning at 89 megapixels
    guard = Image.MAX_IMAGE_PIXELS
    monkeypatch.setattr(images, "MAX_PIXELS", 95_000_000)
    with pytest.raises(ValueError) as error:
        read_image(tmp_path / "big.png")
    one_line(error, "12000x8000", "95 megapixels", "resize")
    monkeypatch.setattr(images, "MAX_PIXELS", 400_000_000)
    with images._open(tmp_path / "big.png") as picture:  # no warning, which would be an error here
        images._check_header("big.png", picture)
    assert guard == Image.MAX_IMAGE_PIXELS


def test_a_header_that_lies_about_its_size_is_one_line(tmp_path):
    header = struct.pack(">II5B", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    (tmp_path / "bomb.png").write_bytes(data + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT")))
    with pytest.raises(ValueError) as error:
        read_image(tmp_path / "bomb.png")
    one_line(error, "60000x60000", "megapixels")


def test_animations_and_unbounded_values_are_refused(tmp_path, bytes_rgb):
    first, second = Image.fromarray(bytes_rgb), Image.fromarray(255 - bytes_rgb)
    for name in ("a.png", "a.webp"):
        first.save(tmp_path / name, save_all=True, append_images=[second])
        with pytest.raises(ValueError) as error:
            read_image(tmp_path / name)
        one_line(error, "animation")
    Image.fromarray(bytes_rgb[..., 0].astype(np.float32)).save(tmp_path / "f.tif")
    with pytest.raises(ValueError) as error:
        read_image(tmp_path / "f.tif")
    one_line(error, "32-bit")


# ---- writing


@pytest.mark.parametrize(
    ("name", "image", "bits", "word"),
    [
        ("a.gif", np.zeros((2, 2, 3)), 8, ".webp"),
        ("a", np.zeros((2, 2, 3)), 8, ".png"),
        ("a.jpg", np.zeros((2, 2, 3)), 16, "use .png"),
        ("a.png", np.zeros((2, 2, 3)), 12, "8 or 16"),
        ("a.png", np.zeros((2, 2)), 8, "(2, 2)"),
        ("a.png", np.zeros((2, 2, 4)), 8, "(2, 2, 4)"),
        ("a.png", np.zeros((0, 2, 3)), 8, "(0, 2, 3)"),
        ("a.png", np.full((2, 2, 3), np.nan), 8, "12 of its values"),
        ("a.webp", np.zeros((1, 16384, 3)), 8, "16384x1"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(tmp_path, name, image, bits, word):
    with pytest.raises(ValueError) as error:
        write_image(tmp_path / "new" / name, image.astype(np.float32), bits=bits)
    one_line(error, word)
    assert list(tmp_path.iterdir()) == []


def test_overwrite(tmp_path, smooth):
    write_image(tmp_path / "a.png", smooth)
    with pytest.raises(FileExistsError):
        write_image(tmp_path / "a.png", 1 - smooth)
    assert np.abs(read_image(tmp_path / "a.png") - smooth).max() < 0.01
    write_image(tmp_path / "a.png", 1 - smooth, overwrite=True)
    assert np.abs(read_image(tmp_path / "a.png") - (1 - smooth)).max() < 0.01
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


# ---- sets of pictures


def test_find_images_sorts_naturally_and_skips_what_is_no_picture(tmp_path):
    for name in ("f10.png", "f9.JPG", "f1.webp", ".hidden.png", "note.txt", "scan[1].tif"):
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    names = ["f1.webp", "f9.JPG", "f10.png", "scan[1].tif"]
    assert [p.name for p in find_images(tmp_path)] == names
    assert [p.name for p in find_images(str(tmp_path / "f*"))] == names[:3]
    assert [p.name for p in find_images(tmp_path / "scan[1].tif")] == names[3:]


def test_find_images_glob_is_relative_to_here(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").touch()
    monkeypatch.chdir(tmp_path)
    assert [str(p) for p in find_images("a/*.png")] == ["a/x.png"]


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(36, "File name too long")])
def test_a_folder_that_cannot_be_read_is_one_line(tmp_path, monkeypatch, error):
    def refuse(path):
        raise error

    monkeypatch.setattr("pathlib.Path.iterdir", refuse)
    with pytest.raises(type(error)) as raised:
        find_images(tmp_path)
    one_line(raised, tmp_path, error.strerror, "permissions")


def test_shrink_averages_and_leaves_small_pictures_alone():
    image = np.random.default_rng(0).random((8, 12, 3)).astype(np.float32)
    assert shrink(image, 12) is image
    np.testing.assert_allclose(shrink(image, 6), image.reshape(4, 2, 6, 2, 3).mean((1, 3)), atol=1e-6)
    assert shrink(np.zeros((1, 300, 3), np.float32), 30).shape == (1, 30, 3)


def test_find_images_finds_none(tmp_path):
    for where in (tmp_path, tmp_path / "*.png", tmp_path / "no" / "such"):
        with pytest.raises(FileNotFoundError) as error:
            find_images(where)
        one_line(error, where, ".png .jpg")


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_image_size_is_that_of_the_picture_as_read(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (7, 4)).save(tmp_path / "a.jpg", exif=exif)
    assert image_size(tmp_path / "a.jpg") == read_image(tmp_path / "a.jpg").shape[1::-1]


def test_check_same_size():
    wide, tall = (5, 2), (2, 5)
    check_same_size([wide, wide], ["a", "b"])
    check_same_size([], [])
    with pytest.raises(ValueError) as error:
        check_same_size([wide, wide, tall], ["a.png", "b.png", "c.png"])
    one_line(error, "a.png is 5x2", "c.png is 2x5", "crop")


def test_contact_sheet_places_pictures():
    colours = np.eye(3, dtype=np.float32)
    pictures = [np.broadcast_to(c, (10, 20, 3)).copy() for c in colours]
    sheet = contact_sheet(pictures, columns=2, gap=4)
    assert sheet.shape == (2 * 14 + 4, 2 * 24 + 4, 3)
    for index, (top, left) in enumerate([(4, 4), (4, 28), (18, 4)]):
        assert (sheet[top : top + 10, left : left + 20] == colours[index]).all()
    assert (sheet[18:28, 28:48] == 1).all()  # the empty cell
    assert contact_sheet(pictures, columns=9).shape[1] == 3 * 24 + 4


def test_contact_sheet_labels_are_visible_and_differ():
    picture = np.full((10, 40, 3), 0.5, np.float32)
    plain = contact_sheet([picture, picture], columns=2)
    sheet = contact_sheet([picture, picture], columns=2, labels=["t=0.25", "t=0.75"])
    strip = sheet[14:-4]
    assert sheet.shape[0] > plain.shape[0]
    assert strip.min() < 0.3
    assert not np.array_equal(strip[:, 4:44], strip[:, 48:88])


def test_contact_sheet_refuses():
    picture = np.zeros((4, 4, 3), np.float32)
    for arguments in (
        {"images": []},
        {"images": [picture], "labels": ["a", "b"]},
        {"images": [picture], "gap": -1},
    ):
        with pytest.raises(ValueError) as error:
            contact_sheet(**arguments)
        one_line(error)
