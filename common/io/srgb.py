"""Colour: the transfer curve of sRGB, and embedded ICC profiles -> sRGB.

Phones store Display P3, cameras may store Adobe RGB, printers' files store CMYK. Images here are sRGB, so a profile
that a file embeds is applied once, when it is read:

    8 bits      by LittleCMS (`PIL.ImageCms`), every kind of profile; relative colorimetric with black point
                compensation, which is what browsers and Photoshop do
    more bits   a profile of curves and a matrix (every RGB working space; ICC.1:2022, annex F.3) is two formulas:
                linear = curve(value), XYZ = matrix @ linear. One of lookup tables is refused.

A profile that moves no colour of a grid by more than one 255th counts as sRGB and leaves every bit as it is. So does
one that is damaged, or made for other colours than the image has. Colours outside of sRGB are clipped.
"""

import functools
import io
import struct

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageCms

GRID = 17  # values per channel of the probe that tells sRGB
# XYZ of sRGB's red, green and blue (columns), adapted to D50, the white of ICC profiles
SRGB_TO_XYZ = np.array(
    [[0.4360747, 0.3850649, 0.1430804], [0.2225045, 0.7168786, 0.0606169], [0.0139322, 0.0971045, 0.7141733]]
)


def to_linear(image: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """sRGB values -> linear light (IEC 61966-2-1), both in [0, 1]; float32."""
    image = np.asarray(image, np.float32)
    curve = np.power((np.maximum(image, 0) + np.float32(0.055)) / np.float32(1.055), np.float32(2.4))
    return np.where(image <= 0.04045, image / np.float32(12.92), curve)


def from_linear(light: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Linear light -> sRGB values, the inverse of `to_linear`; float32."""
    light = np.asarray(light, np.float32)
    curve = np.float32(1.055) * np.power(np.maximum(light, 0), np.float32(1 / 2.4)) - np.float32(0.055)
    return np.where(light <= 0.0031308, light * np.float32(12.92), curve)


def to_srgb(picture: Image.Image) -> Image.Image:
    """A decoded picture of any mode as RGB, or RGBA if it has transparency, in sRGB with 8 bits."""
    mode = "RGBA" if picture.has_transparency_data else "RGB"
    icc = picture.info.get("icc_profile")
    base = picture.mode if picture.mode in ("L", "CMYK") else {"LA": "L", "1": "L"}.get(picture.mode, "RGB")
    transform = _transform(icc, base) if icc else None
    if transform is None and icc and base == "L":  # grey that was saved with the profile of an RGB original
        base, transform = "RGB", _transform(icc, "RGB")
    if transform is None:
        return picture.convert(mode)
    converted = ImageCms.applyTransform(picture.convert(base), transform)
    assert converted is not None  # only in place there is no result
    if mode == "RGBA":
        converted.putalpha(picture.convert("RGBA").getchannel("A"))
    return converted


def deep_to_srgb(image: Float[np.ndarray, "h w 3"], icc: bytes) -> Float[np.ndarray, "h w 3"]:
    """An RGB image in [0, 1] of up to 16 bits, or grey in all three channels, from its profile to sRGB. Raises
    ValueError for a profile without curves and a matrix."""
    if (_transform(icc, "RGB") or _transform(icc, "L")) is None:
        return image
    (count,) = struct.unpack_from(">I", icc, 128)  # the tags, by signature (ICC.1:2022, 7.3)
    entries = [struct.unpack_from(">4s2I", icc, 132 + 12 * index) for index in range(count)]
    tags = {name: icc[offset : offset + size] for name, offset, size in entries}
    names, matrix = (b"kTRC",) * 3, SRGB_TO_XYZ  # grey: three equal channels, of any primaries
    if b"kTRC" not in tags:
        names = (b"rTRC", b"gTRC", b"bTRC")
        columns = [tags.get(name, b"") for name in (b"rXYZ", b"gXYZ", b"bXYZ")]
        if not all(name in tags for name in names) or not all(columns):
            raise ValueError("its profile of lookup tables is applied to 8 bits only: convert it to sRGB or to 8 bits")
        matrix = np.stack([_fixed(column[8:20]) for column in columns], axis=1)
    grid = np.linspace(0, 1, 65536)
    index = np.rint(image * np.float32(65535)).astype(np.uint16)
    linear = np.empty(image.shape, np.float32)
    for channel, name in enumerate(names):
        linear[..., channel] = _curve(tags[name], grid).astype(np.float32)[index[..., channel]]
    to_rgb = np.linalg.solve(SRGB_TO_XYZ, matrix).astype(np.float32)
    return from_linear(np.clip(linear @ to_rgb.T, 0, 1))


@functools.lru_cache(maxsize=16)
def _transform(icc: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """From pixels of `mode` (L, RGB or CMYK) to sRGB; None if there is nothing to do: see the module."""
    if icc[16:20] != {"L": b"GRAY", "RGB": b"RGB ", "CMYK": b"CMYK"}[mode]:  # the profile's own colour space
        return None
    how = ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Flags.BLACKPOINTCOMPENSATION
    try:
        profiles = ImageCms.ImageCmsProfile(io.BytesIO(icc)), ImageCms.createProfile("sRGB")
        transform = ImageCms.buildTransform(*profiles, mode, "RGB", *how)
    except (ImageCms.PyCMSError, OSError):
        return None
    if mode == "CMYK":
        return transform
    values = np.linspace(0, 255, GRID if mode == "RGB" else 256).round().astype(np.uint8)
    probe = values[:, None]
    if mode == "RGB":
        probe = np.stack(np.meshgrid(values, values, values), axis=-1).reshape(GRID, -1, 3)
    before = Image.fromarray(probe)
    after = ImageCms.applyTransform(before, transform)
    moved = np.abs(np.asarray(after, int) - np.asarray(before.convert("RGB"), int)).max()
    return transform if moved > 1 else None


def _fixed(data: bytes) -> Float[np.ndarray, "n"]:
    """s15Fixed16Number: signed, 16 of its 32 bits after the point."""
    return np.frombuffer(data, ">i4") / 65536


def _curve(tag: bytes, x: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """A tone curve at `x` in [0, 1]: curveType (ICC.1:2022, 10.6) or parametricCurveType (10.18)."""
    if tag[:4] == b"curv":
        (count,) = struct.unpack_from(">I", tag, 8)
        values = np.frombuffer(tag, ">u2", count, 12)
        if count == 0:
            return x
        if count == 1:
            return x ** (values[0] / 256)
        return np.interp(x, np.linspace(0, 1, count), values / 65535)
    (kind,) = struct.unpack_from(">H", tag, 8)
    g, *others = _fixed(tag[12 : 12 + 4 * (1, 3, 4, 5, 7)[kind]])
    a, b, c, d, e, f = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # y = (a x + b)^g + e where x >= d, else c x + f
    if kind in (1, 2):
        a, b = others[:2]
        d = -b / a
        e = f = others[2] if kind == 2 else 0.0
    elif kind in (3, 4):
        a, b, c, d = others[:4]
        e, f = others[4:] or (0.0, 0.0)
    return np.where(x >= d, np.maximum(a * x + b, 0) ** g + e, c * x + f)
