"""Images survive the way to disk and back; bad files are errors of one line."""

import os
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import cv2
import numpy as np
import pillow_heif
import pytest
from color_profiles import ADOBE, GREY, P3, SRGB, SRGB_CURVE, matrix_profile
from PIL import Image
from refusal import refused

from common.io import images, srgb
from common.io.images import find_images, image_size, read_image, to_uint8, write_image

RGB = np.random.default_rng(0).integers(0, 256, (24, 36, 3), dtype=np.uint8)
Y, X = np.mgrid[0:24, 0:36].astype(np.float32)
SMOOTH = np.stack([X / 35, Y / 23, (X + Y) / 58], axis=-1)  # lossy formats keep it well
LOSSLESS = {"a.webp": {"lossless": True}, "a.avif": {"quality": 100, "subsampling": "4:4:4"}}
FORMATS = ["a.jpg", "slow.jpg", "cmyk.jpg", "a.png", "a.bmp", "a.webp", "a.tif", "deep.png", "a.avif", "a.heic"]


def save(path, pixels=RGB, **options):
    """The format of the suffix: "deep" has 16 bits of grey, "cmyk" those colours, "slow" progressive scans."""
    picture = Image.fromarray(pixels)
    if "deep" in path.name:
        picture = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    elif "cmyk" in path.name:
        picture = picture.convert("CMYK")
    if path.suffix == ".heic":
        pillow_heif.register_heif_opener()
        picture.info |= options  # as an option of `save`, EXIF does not turn the picture
        picture.save(path, quality=-1)
    else:
        picture.save(path, progressive="slow" in path.name, **options)
    return path


def test_conversions_round_to_nearest_and_clip():
    values = np.array([-1, 0, 0.4 / 255, 0.6 / 255, 0.5, 1, 7], np.float32)
    assert to_uint8(values).tolist() == [0, 0, 0, 1, 128, 255, 255]
    every = np.arange(256, dtype=np.uint8)
    assert images.from_uint8(every).dtype == np.float32
    assert np.array_equal(to_uint8(images.from_uint8(every)), every)


def test_lossless_formats_are_exact(tmp_path):
    for suffix in (".png", ".bmp", ".tif", ".tiff", ".PNG"):
        path = save(tmp_path / f"a{suffix}")
        for source in (str(path), images.read_encoded(path)):
            image = read_image(source)
            assert image.dtype == np.float32 and image.flags.c_contiguous
            assert np.array_equal(to_uint8(image), RGB)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff"])
def test_written_images_are_read(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    for image in (0 * SMOOTH, SMOOTH):
        write_image(path, image, overwrite=image is SMOOTH)
    error = np.abs(read_image(path) - SMOOTH)
    assert error.max() <= (0.5001 / 255 if suffix in images.DEEP else 12 / 255)
    assert error.mean() < 2 / 255


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_16_bit_files_of_other_programs(tmp_path, suffix, channels):
    pixels = np.random.default_rng(2).integers(0, 65536, (8, 6, channels), dtype=np.uint16)
    assert cv2.imwrite(str(tmp_path / f"a{suffix}"), pixels)
    expected = pixels / 65535
    if channels == 1:
        expected = expected.repeat(3, axis=-1)
        Image.fromarray(pixels[..., 0]).save(tmp_path / f"pillow{suffix}")
        assert np.abs(read_image(tmp_path / f"pillow{suffix}") - expected).max() < 1e-6
    if channels == 4:
        expected = expected[..., :3] * expected[..., 3:] + 1 - expected[..., 3:]
    image = read_image(tmp_path / f"a{suffix}")
    assert np.abs(image - expected[..., ::-1]).max() < 1e-6  # OpenCV wrote blue first


@pytest.mark.parametrize("suffix", [".png", ".tif", ".tiff"])
def test_16_bits_are_written_and_read(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    write_image(path, np.array([[[-1, 0, 0.5], [0.1234567, 1, 7]]], np.float32), bits=16)
    values = read_image(path) * 65535
    np.testing.assert_allclose(values, [[[0, 0, 32768], [8091, 65535, 65535]]], atol=0.01)
    for name, bits in (("a.jpg", 16), ("b.png", 12)):
        assert name in refused(ValueError, write_image, tmp_path / name, SMOOTH, bits=bits)


@pytest.mark.parametrize("suffix", [".heic", ".avif"])
def test_photos_of_phones(tmp_path, suffix):
    """The container's own rotation is applied, once, whatever the EXIF tag beside it says."""
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save(tmp_path / f"a{suffix}", to_uint8(SMOOTH), exif=exif.tobytes())
    image = read_image(path)
    assert image_size(path) == (24, 36) == image.shape[1::-1]
    assert np.abs(image - np.rot90(SMOOTH, -1)).mean() < 4 / 255
    bands = Image.fromarray(to_uint8(SMOOTH))
    bands.putalpha(128)
    if suffix == ".avif":
        bands.save(tmp_path / "b.avif")
    else:
        pillow_heif.from_pillow(bands).save(tmp_path / "b.heic")
    assert np.abs(read_image(tmp_path / f"b{suffix}") - (SMOOTH + 1) / 2).mean() < 4 / 255


def test_10_bit_heic_keeps_its_bits(tmp_path):
    ramp = np.linspace(0, 65535, 1024).astype(np.uint16).reshape(1, 1024, 1).repeat(3, axis=2).repeat(16, axis=0)
    encoded = {"chroma": 444, "matrix_coefficients": 0, "quality": -1}
    pillow_heif.encode("RGB;16", (1024, 16), ramp.tobytes(), tmp_path / "a.heic", **encoded)
    image = read_image(tmp_path / "a.heic")
    np.testing.assert_allclose(image[0, :, 0], np.arange(1024) / 1023, atol=0.6 / 1023)
    assert image.max() == 1


def test_high_dynamic_range_is_refused(tmp_path):
    pillow_heif.encode("RGB", (36, 24), RGB.tobytes(), tmp_path / "a.heic", transfer_characteristics=16)
    assert "PQ" in refused(ValueError, read_image, tmp_path / "a.heic")


@pytest.mark.parametrize("profile", [P3, ADOBE])
def test_profiles_become_srgb(tmp_path, profile):
    """Green of a wide gamut is clipped, white and grey are kept; 8 and 16 bits, with alpha or without, agree."""
    wide = np.full((8, 8, 3), [0, 255, 0], np.uint8)
    wide[:, 4:] = 200
    wide[4:] = [180, 120, 100]
    outcomes = []
    for name, pixels in {"a.png": wide, "a.tif": wide, "a.avif": wide, "a.webp": wide}.items():
        save(tmp_path / name, pixels, icc_profile=profile, **LOSSLESS.get(name, {}))
        outcomes.append(read_image(tmp_path / name))
    opaque = Image.fromarray(wide)
    opaque.putalpha(255)
    opaque.save(tmp_path / "b.png", icc_profile=profile)
    outcomes.append(read_image(tmp_path / "b.png"))
    outcomes.append(srgb.deep_to_srgb(wide.astype(np.float32) / 255, profile))
    for image in outcomes:
        assert image[0, 0, 1] > 0.98 and image[0, 0, [0, 2]].max() < 0.02
        assert np.ptp(image[0, 7]) < (4 if image is outcomes[2] else 1.01) / 255  # AVIF is lossy
        assert image[7, 0, 0] > 183 / 255  # a wide gamut's muted red is a stronger one of sRGB
        assert np.abs(image - outcomes[0]).max() < (7 if image is outcomes[2] else 1.01) / 255


def test_profiles_that_change_nothing(tmp_path):
    """sRGB under any name, damaged ones, those for other colours: bits stay."""
    for number, profile in enumerate([SRGB, matrix_profile(SRGB_CURVE), P3[:200], b"junk", GREY]):
        path = save(tmp_path / f"{number}.png", icc_profile=profile)
        assert np.array_equal(to_uint8(read_image(path)), RGB)
        shallow = images.from_uint8(RGB)
        assert np.array_equal(srgb.deep_to_srgb(shallow, profile), shallow) or profile is GREY


def test_deep_and_grey_profiles(tmp_path):
    ramp = np.linspace(0, 65535, 512).astype(np.uint16).reshape(2, 256)
    Image.fromarray(ramp).save(tmp_path / "deep.png", icc_profile=GREY)
    expected = srgb.from_linear((ramp / 65535) ** (461 / 256))  # as the profile rounds 1.8
    image = read_image(tmp_path / "deep.png")
    np.testing.assert_allclose(image, expected[..., None].repeat(3, axis=-1), atol=1e-4)
    Image.fromarray((ramp >> 8).astype(np.uint8)).save(tmp_path / "grey.png", icc_profile=GREY)
    assert np.abs(read_image(tmp_path / "grey.png") - image).max() < 3 / 255
    tables = P3.replace(b"rXYZ", b"zzzz")
    with mock.patch.object(srgb, "_transform", return_value=object()):  # as for lookup tables
        assert "8 bits" in refused(ValueError, srgb.deep_to_srgb, SMOOTH, tables)


def test_transfer_curve():
    x = np.linspace(0, 1, 1001, dtype=np.float32)
    np.testing.assert_allclose(srgb.from_linear(srgb.to_linear(x)), x, atol=1e-6)
    assert abs(srgb.to_linear(np.float32([0.5]))[0] - 0.2140411) < 1e-6


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK"])
def test_other_modes_become_rgb(tmp_path, mode):
    picture = Image.fromarray(RGB).convert(mode)
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    if mode == "CMYK":  # lossy: flat
        picture = Image.new("RGB", (16, 16), (200, 40, 90)).convert("CMYK")
    picture.save(path, quality=100)
    error = to_uint8(read_image(path)).astype(int) - np.asarray(picture.convert("RGB"))
    assert np.abs(error).max() <= (3 if mode == "CMYK" else 0)


def test_alpha_is_composited_over_white(tmp_path):
    rgba = np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 0, 51]]], np.uint8)
    Image.fromarray(rgba).save(tmp_path / "rgba.png")
    Image.fromarray(rgba[..., [0, 3]]).save(tmp_path / "la.png")
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "palette.png", transparency=0)
    for name, expected in {
        "rgba.png": [[[1, 0, 0], [1, 1, 1], [0.8, 0.8, 0.8]]],
        "la.png": [[[1, 1, 1], [1, 1, 1], [0.8, 0.8, 0.8]]],
        "palette.png": [[[1, 1, 1], [0, 0, 1]]],
    }.items():
        np.testing.assert_allclose(read_image(tmp_path / name), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["a.tif", "a.jpg", "deep.png"])
def test_exif_orientation(tmp_path, name):
    stored = Image.fromarray(to_uint8(read_image(save(tmp_path / f"stored_{name}"))))
    turns = [None, "FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM"]  # as the EXIF standard draws them
    turns += ["TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90"]
    for orientation, turn in enumerate(turns, 1):
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = save(tmp_path / name, exif=exif)
        upright = stored.transpose(Image.Transpose[turn]) if turn else stored
        assert np.array_equal(to_uint8(read_image(path)), np.asarray(upright))
        assert name == "a.tif" or image_size(path) == upright.size


@pytest.mark.parametrize("name", FORMATS)
def test_truncated_images_are_errors(tmp_path, name):
    """A sample of all lengths that a file may be cut to."""
    path = save(tmp_path / name)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 20, 397):
        path.write_bytes(whole[:length])
        assert name in refused(ValueError, read_image, path)


def test_unreadable_files_are_refused(tmp_path):
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("not a picture at all\n" * 9)
    damaged = bytearray(save(tmp_path / "flipped.png").read_bytes())
    damaged[len(damaged) // 2] ^= 255
    (tmp_path / "flipped.png").write_bytes(damaged)
    header = b"IHDR" + struct.pack(">II5B", 60_000, 60_000, 8, 2, 0, 0, 0)  # its size is a lie
    chunks = [struct.pack(">I", len(x) - 4) + x + struct.pack(">I", zlib.crc32(x)) for x in (header, b"IDAT")]
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    for name in ("animated.png", "animated.webp", "animated.avif"):
        Image.fromarray(RGB).save(tmp_path / name, save_all=True, append_images=[Image.fromarray(255 - RGB)])
    Image.fromarray(RGB[..., 0].astype(np.float32)).save(tmp_path / "unbounded.tif")
    os.mkfifo(tmp_path / "pipe.png")  # must not be waited for
    values = {"bomb.png": "60000x60000", "unbounded.tif": "32-bit", ".": str(tmp_path)}
    values |= {f"animated.{suffix}": "animation" for suffix in ("png", "webp", "avif")}
    kinds = {"none.png": FileNotFoundError, ".": IsADirectoryError}
    for name in (*values, "none.png", "empty.png", "text.png", "flipped.png", "pipe.png"):
        assert values.get(name, name) in refused(kinds.get(name, ValueError), read_image, tmp_path / name)


def test_what_a_file_may_claim_goes_by_its_size(tmp_path, monkeypatch):
    jpeg = bytearray(save(tmp_path / "a.jpg").read_bytes())
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">HH", 19_990, 20_000)
    (tmp_path / "claims.jpg").write_bytes(jpeg)
    Image.new("1", (19_990, 20_000)).save(tmp_path / "solid.png")
    for name in ("claims.jpg", "solid.png"):
        message = refused(ValueError, read_image, tmp_path / name)
        assert name in message and ("20000x19990" in message or "19990x20000" in message)
        assert message == refused(ValueError, image_size, tmp_path / name)
    path, limit = tmp_path / "scan.tif", Image.MAX_IMAGE_PIXELS
    Image.new("1", (19_000, 10_000)).save(path)  # past the 89 and 179 megapixels of Pillow's own warning and error
    assert image_size(path) == (19_000, 10_000)
    monkeypatch.setattr(images, "MAX_PIXELS", 95_000_000)
    assert "95 megapixels" in refused(ValueError, read_image, path)
    assert limit == Image.MAX_IMAGE_PIXELS


def test_threads_share_a_budget_of_pixels(tmp_path, monkeypatch):
    path = save(tmp_path / "a.png")
    now, upright = [], images._upright

    def watched(*arguments):
        now.append(1)
        time.sleep(0.02)
        seen.append(len(now))
        now.pop()
        return upright(*arguments)

    monkeypatch.setattr(images, "_upright", watched)
    for budget, most in ((2 * SMOOTH.shape[0] * SMOOTH.shape[1], 2), (1, 1)):  # 1: each is larger
        monkeypatch.setattr(images, "PIXELS_AT_ONCE", budget)
        seen: list[int] = []
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(read_image, [path] * 6))
        assert max(seen) <= most


def test_garbled_exif_is_ignored(tmp_path):
    """Pillow's warnings would be errors here."""
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 9) + entry + b"garbage"
    path = save(tmp_path / "a.jpg", exif=exif)
    assert image_size(path) == read_image(path).shape[1::-1]


@pytest.mark.parametrize(("name", "image", "value"), [
    ("a.gif", SMOOTH, "'.gif'"),
    ("a", SMOOTH, "''"),
    ("a.png", SMOOTH[..., 0], "(24, 36)"),
    ("a.png", np.zeros((0, 2, 3), np.float32), "(0, 2, 3)"),
    ("a.png", np.full((2, 2, 3), np.nan, np.float32), "12"),
    ("a.webp", np.zeros((1, 16384, 3), np.float32), "16384x1"),
])  # fmt: skip
def test_invalid_writes_leave_nothing(tmp_path, name, image, value):
    assert value in refused(ValueError, write_image, tmp_path / "new" / name, image)
    assert list(tmp_path.iterdir()) == []


def test_find_images(tmp_path, monkeypatch):
    for name in ("f10.png", "f9.JPG", "f1.webp", ".hidden.png", "note.txt", "scan[1].tif"):
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    names = ["f1.webp", "f9.JPG", "f10.png", "scan[1].tif"]
    assert [p.name for p in find_images(tmp_path)] == names
    assert [p.name for p in find_images(str(tmp_path / "f*"))] == names[:3]
    assert [p.name for p in find_images(tmp_path / "scan[1].tif")] == names[3:]
    for place in (tmp_path / "folder.png", tmp_path / "*.gif", tmp_path / "no" / "such"):
        assert str(place) in refused(FileNotFoundError, find_images, place)
    monkeypatch.chdir(tmp_path)
    assert [str(p) for p in find_images("f1.*")] == ["f1.webp"]


def test_shrink_averages_and_leaves_small_images_alone():
    assert images.shrink(SMOOTH, 36) is SMOOTH
    np.testing.assert_allclose(images.shrink(SMOOTH, 18), SMOOTH.reshape(12, 2, 18, 2, 3).mean((1, 3)), atol=1e-6)
    assert images.shrink(np.zeros((1, 300, 3), np.float32), 30).shape == (1, 30, 3)


def test_check_same_size():
    message = refused(ValueError, images.check_same_size, [(5, 2), (5, 2), (2, 5)], ["a.png", "b.png", "c.png"])
    assert all(value in message for value in ("a.png", "5x2", "c.png", "2x5"))


def test_contact_sheet_places_images_and_labels():
    tiles = [np.broadcast_to(colour, (10, 40, 3)).copy() for colour in np.eye(3, dtype=np.float32)]
    sheet = images.contact_sheet(tiles, columns=2, gap=4)
    assert sheet.shape == (2 * 14 + 4, 2 * 44 + 4, 3)
    for tile, (top, left) in zip(tiles, [(4, 4), (4, 48), (18, 4)], strict=True):
        assert (sheet[top : top + 10, left : left + 40] == tile).all()
    assert (sheet[18:28, 48:88] == 1).all()  # the empty cell
    assert images.contact_sheet(tiles, columns=9).shape[1] == 3 * 44 + 4
    strip = images.contact_sheet(tiles[:2], columns=2, labels=["t=0.25", "t=0.75"])[14:-4]
    assert strip.min() < 0.3 and not np.array_equal(strip[:, 4:44], strip[:, 48:88])
    for arguments in ({"images": []}, {"images": tiles, "labels": ["a", "b"]}):
        refused(ValueError, images.contact_sheet, **arguments)
