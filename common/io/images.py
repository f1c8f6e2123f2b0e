"""Image files <-> arrays.

An image is an array ``h w 3``: RGB, float32, in [0, 1], sRGB values (not linear light).

Reading converts an embedded colour profile (`common.io.srgb`), grey, palette and CMYK, applies the EXIF orientation
(HEIC and AVIF: their own rotation), and composites alpha over white in sRGB values. All bits are kept: 16-bit PNG and
TIFF go through OpenCV, HEIC of 10 or 12 bits through pillow-heif, because Pillow cuts colour to 8 bits; AVIF is read
with 8. A damaged file raises an error of one line, and never gives a half-grey image.

A file of a kilobyte may claim any size. So what it may claim goes by its own: PLAIN_PIXELS, or up to MAX_PIXELS with a
byte for each PIXELS_PER_BYTE (photographs have 1 to 20 pixels a byte). Decoding takes 19 to 35 bytes a pixel at its
peak (docs/reliability.md). All threads together decode PIXELS_AT_ONCE; a larger image waits until it is alone.
"""

import contextlib
import io
import math
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import cv2
import numpy as np
from jaxtyping import Float, Shaped, UInt8
from natsort import natsorted
from PIL import ExifTags, Image, ImageDraw, ImageFile, ImageFont

from common.io.files import atomic_output, require_file
from common.io.srgb import deep_to_srgb, to_srgb

READABLE = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".hif", ".avif")
WRITABLE = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF"}
DEEP = (".png", ".tif", ".tiff")  # written with 16 bits too
MAX_PIXELS = 400_000_000  # as float32 RGB this is 4.8 GB already
PLAIN_PIXELS, PIXELS_PER_BYTE = 28_000_000, 40
PIXELS_AT_ONCE = 2 * PLAIN_PIXELS

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "AVIF")
_HDR_CURVES = {16: "PQ", 18: "HLG"}  # transfer characteristics of ITU-T H.273
_SAVING: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 95, "subsampling": 0},  # full colour resolution: thin red lines survive
    "WEBP": {"quality": 95},
    "TIFF": {"compression": "tiff_adobe_deflate"},
}
_LONGEST = {"WEBP": 16383, "JPEG": 65500}  # sides
_OPENING = threading.RLock()
_DECODING, _pixels_now = threading.Condition(), [0]


def read_image(source: str | Path | bytes, name: str = "the image") -> Float[np.ndarray, "h w 3"]:
    """Decodes an image file, given as its path or as bytes that errors call `name`; of a TIFF the first page, of HEIC
    the primary image. Raises ValueError for a file that is damaged, an animation, of an unknown kind, or larger than
    MAX_PIXELS."""
    with (
        _opened(source, name) as (file, picture),
        decoding(count := math.prod(picture.size)),
        _no_limit() if count > PIXELS_AT_ONCE else contextlib.nullcontext(),
    ):
        # Pillow opens 16-bit colour in mode RGB; the raw mode that it decodes, RGB;16B, tells (of a BMP: 16 for all).
        deep = picture.format in ("PNG", "TIFF") and ";16" in str(picture.tile)
        if deep or (picture.format == "HEIF" and picture.info["bit_depth"] > 8):
            pixels = _decode_deep(file, picture)
            if icc := picture.info.get("icc_profile"):
                pixels = np.concatenate([deep_to_srgb(pixels[..., :3], icc), pixels[..., 3:]], axis=-1)
        else:
            picture.load()  # all of it: a truncated file is found here
            pixels = from_uint8(np.asarray(to_srgb(picture)))
        if pixels.shape[-1] == 4:
            alpha = pixels[..., 3:]
            pixels = pixels[..., :3]
            pixels *= alpha  # in place: a copy is 12 bytes a pixel
            pixels += 1 - alpha
        # decoded: a TIFF is upright now, and a PNG may hold the tag after its pixels
        return np.ascontiguousarray(_upright(pixels, _orientation(picture)))


def read_encoded(path: str | Path) -> bytes:
    """The bytes of an image file, for `read_image` and `image_size`: it is read once. Raises as `read_image`."""
    path = _regular_file(path)
    with _one_line_errors(str(path)):
        return path.read_bytes()


def most_pixels(size: int) -> int:
    """Pixels that a file of `size` bytes may have."""
    return min(MAX_PIXELS, max(PLAIN_PIXELS, PIXELS_PER_BYTE * size))


@contextlib.contextmanager
def decoding(pixels: int) -> Iterator[None]:
    """Waits until all threads together would decode no more than PIXELS_AT_ONCE; one image is always let in."""
    with _DECODING:
        _DECODING.wait_for(lambda: not _pixels_now[0] or _pixels_now[0] + pixels <= PIXELS_AT_ONCE)
        _pixels_now[0] += pixels
    try:
        yield
    finally:
        with _DECODING:
            _pixels_now[0] -= pixels
            _DECODING.notify_all()


def image_size(source: str | Path | bytes, name: str = "the image") -> tuple[int, int]:
    """(width, height) of `read_image`, from the header alone. Raises as `read_image`."""
    with _opened(source, name) as (_, picture):
        width, height = picture.size
        return (height, width) if _orientation(picture) >= 5 else (width, height)


def write_image(path: str | Path, image: Float[np.ndarray, "..."], overwrite: bool = False, bits: int = 8) -> None:
    """Writes `image` ``h w 3`` in [0, 1] with 8 or (PNG, TIFF) 16 bits, clipped and rounded to nearest, in the format
    of the suffix, atomically; JPEG and WebP with quality 95, the others without loss."""
    path = Path(path)
    check_writable(path, bits)
    if image.ndim != 3 or image.shape[-1] != 3 or image.size == 0:
        raise ValueError(f"cannot write {path}: shape {image.shape} is not (height, width, 3)")
    if np.isnan(image).any():
        raise ValueError(f"cannot write {path}: {int(np.isnan(image).sum())} of its values are NaN")
    kind, (height, width) = WRITABLE[path.suffix.lower()], image.shape[:2]
    if max(height, width) > (limit := _LONGEST.get(kind, 2**31 - 1)):
        raise ValueError(f"cannot write {path}: {width}x{height} is past the {limit} of {kind}; use .png")
    with atomic_output(path, overwrite) as temporary:
        if bits == 16:  # by OpenCV: Pillow has no 16-bit colour
            values = np.rint(np.clip(image, 0, 1) * np.float32(65535)).astype(np.uint16)
            done, content = cv2.imencode(f".{kind.lower()}", values[..., ::-1])  # OpenCV has blue first
            assert done
            temporary.write_bytes(content.tobytes())
        else:
            Image.fromarray(to_uint8(image)).save(temporary, kind, **_SAVING.get(kind, {}))


def check_writable(path: str | Path, bits: int = 8) -> None:
    """Raises ValueError unless the suffix of `path` is a format to write with `bits` a channel."""
    suffix = Path(path).suffix.lower()
    if suffix not in WRITABLE:
        raise ValueError(f"cannot write {path}: suffix {suffix!r} is not one of {' '.join(WRITABLE)}")
    if bits != 8 and (bits != 16 or suffix not in DEEP):
        raise ValueError(f"cannot write {path} with {bits} bits: give 8, or 16 with one of {' '.join(DEEP)}")


def check_image(name: str, image: Any) -> None:
    """Raises ValueError unless `image` is `h w 3`, of floats in [0, 1]."""
    shape, array = np.shape(image), np.asarray(image)
    if len(shape) != 3 or shape[-1] != 3 or 0 in shape:
        ways = {4: "leave alpha out, image[..., :3]", 1: "repeat grey, np.repeat(image, 3, -1)"}
        way = ways.get(shape[-1] if len(shape) == 3 else 0, "give one image, as read_image does")
        raise ValueError(f"{name} has shape {shape}, not (height, width, 3): {way}")
    if not np.issubdtype(array.dtype, np.floating):
        most = np.iinfo(array.dtype).max if np.issubdtype(array.dtype, np.integer) else "its white"
        raise ValueError(f"{name} is {array.dtype}: images are floats in [0, 1]; divide by {most}")
    low, high = float(array.min()), float(array.max())  # NaN if any is
    if not 0 <= low <= high <= 1:
        way = "replace NaN" if low != low else "divide by 255" if 1 < high <= 255 and low >= 0 else "clip it"
        raise ValueError(f"{name} has values from {low:g} to {high:g}: images are in [0, 1]; {way}")


def to_uint8(image: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """[0, 1] -> 0..255, clipped, rounded to nearest."""
    return np.rint(np.clip(image, 0, 1) * np.float32(255)).astype(np.uint8)


def from_uint8(image: UInt8[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """0..255 -> float32 in [0, 1]; `to_uint8` brings back the same bytes."""
    return np.divide(image, np.float32(255), dtype=np.float32)


def find_images(path_or_glob: str | Path) -> list[Path]:
    """The images of a folder or of a glob pattern, in natural order (9 before 10): files with a READABLE suffix, not
    hidden ones. Raises FileNotFoundError when there are none."""
    path = Path(path_or_glob)
    if path.is_dir():
        candidates = path.iterdir()
    elif path.is_file():  # a name like scan[1].png is not a pattern
        candidates = iter([path])
    else:
        candidates = Path(path.anchor or ".").glob(str(path.relative_to(path.anchor)))
    found = [p for p in candidates if p.suffix.lower() in READABLE and p.name[0] != "." and p.is_file()]
    if not found:
        place = f"folder {path}" if path.is_dir() else f"{path_or_glob!s} (no such folder, no match as a pattern)"
        raise FileNotFoundError(f"no pictures found in {place}; known suffixes: {' '.join(READABLE)}")
    return natsorted(found, key=str)


def check_same_size(sizes: Sequence[tuple[int, int]], names: Sequence[str | Path]) -> None:
    """Raises ValueError with the first image and the first one of another (width, height)."""
    for size, name in zip(sizes, names, strict=True):
        if size != sizes[0]:
            first, other = (f"{width}x{height}" for width, height in (sizes[0], size))
            raise ValueError(f"{names[0]} is {first}, {name} is {other}; resize or crop them to one size")


def place(image: Float[np.ndarray, "_ _ 3"], size: tuple[int, int], fit: str | None) -> Float[np.ndarray, "h w 3"]:
    """The image in a frame of (width, height) `size`: scaled to cover it (crop), to fit inside (pad), or to fill it."""
    height, width = image.shape[:2]
    if (width, height) == size:
        return image
    scales = size[0] / width, size[1] / height
    if fit in ("crop", "pad"):
        scales = (max(scales) if fit == "crop" else min(scales),) * 2
    scaled = max(1, round(width * scales[0])), max(1, round(height * scales[1]))
    if scaled != (width, height):
        # areas average when pixels are lost; a kernel that overshoots is clipped when they are made
        method = cv2.INTER_AREA if max(scales) <= 1 else cv2.INTER_CUBIC
        image = np.clip(cv2.resize(image, scaled, interpolation=method), 0, 1)
    left, top = (max(0, (have - want) // 2) for have, want in zip(scaled, size, strict=True))
    image = image[top : top + size[1], left : left + size[0]]
    missing = size[0] - image.shape[1], size[1] - image.shape[0]
    if not any(missing):
        return image
    (x, y) = (pixels // 2 for pixels in missing)
    return np.pad(image, ((y, missing[1] - y), (x, missing[0] - x), (0, 0)))


def shrink(image: Shaped[np.ndarray, "h w 3"], longest: int) -> Shaped[np.ndarray, "h2 w2 3"]:
    """The image, in its type, with its longer side averaged down to `longest` pixels; smaller images stay."""
    height, width = image.shape[:2]
    scale = longest / max(height, width)
    if scale >= 1:
        return image
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def contact_sheet(
    images: Sequence[Float[np.ndarray, "_ _ 3"]],
    columns: int | None = None,
    labels: Sequence[str] | None = None,
    gap: int = 4,
    font_size: int = 10,
) -> Float[np.ndarray, "h w 3"]:
    """A montage on white, row by row, `gap` pixels apart, each label under its image, in letters of `font_size` pixels;
    a cell is as large as the largest image. `columns`: by default a near-square grid."""
    columns = min(columns or math.ceil(math.sqrt(len(images))), len(images))
    cell_h, cell_w = (max(image.shape[axis] for image in images) for axis in (0, 1))
    font = ImageFont.load_default(font_size)
    top, bottom = font.getbbox("Ag|")[1::2]
    strip = 0 if labels is None else math.ceil(bottom - top) + 6
    rows = math.ceil(len(images) / columns)
    height, width = rows * (cell_h + strip + gap) + gap, columns * (cell_w + gap) + gap
    sheet = np.ones((height, width, 3), np.float32)
    for index, (image, text) in enumerate(zip(images, labels or [""] * len(images), strict=True)):
        row, column = divmod(index, columns)
        top, left = gap + row * (cell_h + strip + gap), gap + column * (cell_w + gap)
        sheet[top : top + image.shape[0], left : left + image.shape[1]] = image
        if strip:
            label = Image.new("RGB", (cell_w, strip), "white")
            ImageDraw.Draw(label).text((2, strip // 2), text, fill="black", font=font, anchor="lm")
            sheet[top + cell_h : top + cell_h + strip, left : left + cell_w] = from_uint8(np.asarray(label))
    return sheet


@contextlib.contextmanager
def _opened(source: str | Path | bytes, name: str) -> Iterator[tuple[BinaryIO, ImageFile.ImageFile]]:
    """The source as a file, and its image with the header read and checked. Errors inside become one line."""
    if not isinstance(source, bytes):
        source = _regular_file(source)
        name = str(source)
    with _one_line_errors(name), io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        size = len(source) if isinstance(source, bytes) else os.fstat(file.fileno()).st_size
        formats: list[str] = [*_FORMATS]
        if file.read(8)[4:] == b"ftyp":  # ISO media: HEIC or AVIF
            import pillow_heif  # brings its decoder with it: 40 ms that other files need not pay

            pillow_heif.register_heif_opener()
            formats += ["HEIF"]
        file.seek(0)
        with _no_limit():
            picture = Image.open(file, formats=formats)
        with picture:
            width, height = picture.size
            if width * height > (most := most_pixels(size)):
                limit = f"the limit is {most / 1e6:,.0f} megapixels for such a file: resize it, or save it again"
                raise _Refused(f"{name} is {width}x{height} in {size:,} bytes; {limit}")
            if picture.format in ("PNG", "WEBP", "AVIF") and getattr(picture, "is_animated", False):
                raise _Refused(f"{name} is an animation; save one of its frames, or convert it to a video")
            if picture.mode in ("I", "F"):
                raise _Refused(f"{name} holds 32-bit values of unknown range; save it with 8 or 16 bits a channel")
            curve = (picture.info.get("nclx_profile") or {}).get("transfer_characteristics")
            if curve in _HDR_CURVES:
                raise _Refused(f"{name} holds high dynamic range ({_HDR_CURVES[curve]}); export it as a standard image")
            yield file, picture


@contextlib.contextmanager
def _one_line_errors(name: str) -> Iterator[None]:
    """Decoders raise many classes with many texts; here one ValueError names the file and the way out."""
    try:
        yield
    except PermissionError:
        raise
    except Image.UnidentifiedImageError as error:
        raise ValueError(f"{name} is no image of a known kind; convert it to {' '.join(READABLE)}") from error
    except _Refused as error:
        raise ValueError(str(error)) from None
    except MemoryError as error:
        raise ValueError(f"{name} needs more memory than there is; resize it first") from error
    except Exception as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise ValueError(f"{name} is damaged or cut short ({reason}); copy or export it again") from error


class _Refused(Exception):
    """An image that could be decoded but that this module does not take."""


def _regular_file(path: str | Path) -> Path:
    path = require_file(path)
    if not path.is_file():
        raise ValueError(f"{path} is a pipe or a device, which cannot be read twice; save it to a file first")
    return path


@contextlib.contextmanager
def _no_limit() -> Iterator[None]:
    """Pillow's own limit of pixels is global, and acts while headers and large TIFFs are read: it is lifted then. Of
    garbled EXIF it warns, which is common and harmless."""
    with _OPENING, warnings.catch_warnings():  # the lock, because all threads share both
        warnings.simplefilter("ignore")
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _orientation(picture: Image.Image) -> int:
    """The EXIF tag Orientation; 1, upright, if there is none."""
    with _no_limit():
        orientation = picture.getexif().get(ExifTags.Base.Orientation, 1)
    return orientation if isinstance(orientation, int) else 1


def _decode_deep(file: BinaryIO, picture: ImageFile.ImageFile) -> Float[np.ndarray, "h w c"]:
    """RGB or RGBA in [0, 1] with all its bits; by OpenCV or, HEIC, by pillow-heif."""
    if picture.format == "HEIF":
        import pillow_heif

        file.seek(0)
        pixels = np.asarray(pillow_heif.open_heif(file, convert_hdr_to_8bit=False))
        bits = picture.info["bit_depth"]
        white, order = (2**bits - 1) << (16 - bits), [0, 1, 2, 3]  # libheif's are shifted to 16 bits, not scaled
    else:
        picture.load()  # Pillow finds every cut, OpenCV does not
        file.seek(0)
        pixels = cv2.imdecode(np.frombuffer(file.read(), np.uint8), cv2.IMREAD_UNCHANGED)
        white, order = 65535, [2, 1, 0, 3]  # OpenCV has blue first
    if pixels is None or pixels.dtype != np.uint16:
        raise ValueError("its 16-bit data cannot be decoded")
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, axis=-1)
    return pixels[..., order[: pixels.shape[-1]]].astype(np.float32) / white


def _upright(image: Float[np.ndarray, "h w 3"], orientation: int) -> Float[np.ndarray, "h2 w2 3"]:
    """Applies the EXIF tag Orientation (EXIF 2.32, table 6); an unknown value changes nothing. Both decoders turn TIFF
    upright, and remove the tag."""
    if orientation in (5, 6, 7, 8):
        image = image.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return image
