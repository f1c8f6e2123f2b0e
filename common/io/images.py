"""Pictures on disk <-> arrays.

Everywhere in this project a picture is an array ``h w 3``: RGB, float32, in [0, 1], the values as stored in
the file (sRGB, not linear light; embedded colour profiles are not applied).

Reading undoes what files do to pictures: the EXIF orientation of cameras, grey, palette and CMYK storage, and
alpha, which is composited over white in stored values (a network cannot see through a pixel, and white is
what a page shows). 16-bit PNG and TIFF keep all 16 bits; they go through OpenCV because Pillow cuts 16-bit
colour to 8.

A file that is damaged, cut short, too large or no picture at all is one error line, never a half-grey
picture.
"""

import contextlib
import io
import math
import struct
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import Float, UInt8, UInt16
from natsort import natsorted
from PIL import Image, ImageDraw, ImageFile, ImageFont

from common.io.files import atomic_output, require_file

READABLE = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
WRITABLE = (".png", ".jpg", ".jpeg", ".webp")
MAX_PIXELS = 400_000_000  # as float32 RGB this is 4.8 GB already

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
SIDEWAYS = 5  # EXIF orientations from here on exchange width and height
_QUALITY = 95
_OPENING = threading.Lock()


def read_image(source: str | Path | bytes, name: str = "the image") -> Float[np.ndarray, "h w 3"]:
    """Decodes an image file, given as its path or as its bytes; of a TIFF with several pages the first one.

    `name` is what errors call bytes; a path is its own name.

    Raises: FileNotFoundError, IsADirectoryError; ValueError when the file is empty, damaged, an animation,
    of an unknown kind, or larger than MAX_PIXELS.
    """
    source, name = _require_image(source, name)
    with _one_line_errors(name), _open(source) as picture:
        _check_header(name, picture)
        deep = _is_16_bit(picture)
        picture.load()  # all of it: a truncated file is found here
        orientation = _orientation(picture)
        pixels = _from_uint16(_decode_16_bit(source)) if deep else _to_array(picture)
        return np.ascontiguousarray(_turn(_over_white(pixels), orientation))


def read_encoded(path: str | Path) -> bytes:
    """An image file as it is stored, for `read_image` and `image_size`, which then need not open it again.

    Raises: FileNotFoundError, IsADirectoryError, PermissionError; ValueError when it is empty or a pipe.
    """
    file, name = _require_image(path, "")
    with _one_line_errors(name):
        return Path(file).read_bytes()


def image_size(source: str | Path | bytes, name: str = "the image") -> tuple[int, int]:
    """(width, height) as `read_image` will return it, from the file's header alone. Raises as `read_image`."""
    source, name = _require_image(source, name)
    with _one_line_errors(name), _open(source) as picture:
        _check_header(name, picture)
        width, height = picture.size
        return (height, width) if _orientation(picture) >= SIDEWAYS else (width, height)


def verify_image(path: str | Path) -> None:
    """Decodes the picture at `path` to its last byte and keeps nothing: raises what `read_image` would raise.

    No shortcut tells a cut file from a whole one: the header of both is the same. But a JPEG need not be decoded to
    all its pixels: at an eighth of its size and in grey every coded byte is still read, while the transforms and the
    colours, half the time or more, fall away. Threads may call it side by side: decoders let go of Python's lock.
    """
    source, name = _require_image(path, "")
    with _one_line_errors(name), _open(source) as picture:
        _check_header(name, picture)
        deep = _is_16_bit(picture)
        picture.draft("L", (1, 1))  # an offer that only JPEG takes
        picture.load()
        if deep:
            _decode_16_bit(source)


def write_image(path: str | Path, image: Float[np.ndarray, "..."], overwrite: bool = False, bits: int = 8) -> None:
    """Write `image` ``h w 3`` in [0, 1] (clipped, rounded to nearest); the suffix decides the format.

    JPEG and WebP are written at quality 95. `bits`: 8, or 16 for PNG only. The file appears whole or not.
    Raises: ValueError (suffix, bits, shape, NaN), FileExistsError, other OSErrors.
    """
    path = Path(path)
    check_writable(path, bits)
    _check_image(path, image)
    with atomic_output(path, overwrite) as temporary:
        if bits == 16:
            temporary.write_bytes(cv2.imencode(".png", to_uint16(image)[..., ::-1])[1].tobytes())
        else:
            _save_8_bit(temporary, path, to_uint8(image))


def check_writable(path: str | Path, bits: int = 8) -> None:
    """ValueError unless the suffix of `path` is a format that can hold `bits` bits a channel."""
    suffix = Path(path).suffix.lower()
    if suffix not in WRITABLE:
        raise ValueError(f"cannot write {path}: suffix {suffix!r} is not one of {' '.join(WRITABLE)}")
    if bits not in (8, 16):
        raise ValueError(f"bits is {bits}; it must be 8 or 16")
    if bits == 16 and suffix != ".png":
        raise ValueError(f"cannot write {path}: {suffix} holds 8 bits a channel; use .png for 16")


def to_uint8(image: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """[0, 1] -> 0..255, clipped, rounded to nearest."""
    return np.rint(np.clip(image, 0, 1) * np.float32(255)).astype(np.uint8)


def to_uint16(image: Float[np.ndarray, "*shape"]) -> UInt16[np.ndarray, "*shape"]:
    """[0, 1] -> 0..65535, clipped, rounded to nearest."""
    return np.rint(np.clip(image, 0, 1) * np.float32(65535)).astype(np.uint16)


def from_uint8(image: UInt8[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """0..255 -> float32 in [0, 1]; `to_uint8` brings back the same bytes."""
    return image.astype(np.float32) / 255


def find_images(path_or_glob: str | Path) -> list[Path]:
    """The pictures of a folder, or those that a glob pattern matches, in natural order (9 before 10).

    Files of all READABLE suffixes together, upper case too; hidden files and subfolders are left out.
    Raises: FileNotFoundError when there are none.
    """
    path = Path(path_or_glob)
    try:
        found = [p for p in _candidates(path) if p.suffix.lower() in READABLE and p.name[0] != "." and p.is_file()]
    except OSError as error:  # no permission, a name longer than the disk allows
        raise type(error)(f"cannot read {path}: {error.strerror}; check the name and its permissions") from error
    if not found:
        place = f"folder {path}" if path.is_dir() else f"{path_or_glob!s} (no such folder, no match as a pattern)"
        raise FileNotFoundError(f"no pictures found in {place}; known suffixes: {' '.join(READABLE)}")
    return natsorted(found, key=str)


def _candidates(path: Path) -> Iterator[Path]:
    if path.is_dir():
        return path.iterdir()
    if path.is_file():  # a name like scan[1].png is no pattern
        return iter([path])
    return Path(path.anchor or ".").glob(str(path.relative_to(path.anchor)))


def check_same_size(sizes: Sequence[tuple[int, int]], names: Sequence[str | Path]) -> None:
    """ValueError that names the first picture and the first one of another (width, height)."""
    for size, name in zip(sizes, names, strict=True):
        if size != sizes[0]:
            first, other = (f"{width}x{height}" for width, height in (sizes[0], size))
            raise ValueError(
                f"pictures differ in size: {names[0]} is {first}, {name} is {other}; resize or crop them to one size"
            )


def shrink(image: Float[np.ndarray, "h w 3"], longest: int) -> Float[np.ndarray, "h2 w2 3"]:
    """The picture with its longer side cut down to `longest` pixels by averaging areas; smaller ones stay."""
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
) -> Float[np.ndarray, "h w 3"]:
    """A montage on white, row by row, `gap` pixels apart, each label under its picture.

    Pictures may differ in size: a cell is as large as the largest. `columns`: by default a near-square grid.
    """
    if not images:
        raise ValueError("a contact sheet of no pictures; give at least one")
    if labels is not None and len(labels) != len(images):
        raise ValueError(f"{len(labels)} labels for {len(images)} pictures; give one label each")
    columns = min(columns or math.ceil(math.sqrt(len(images))), len(images))
    if columns < 1 or gap < 0:
        raise ValueError(f"columns is {columns} and gap {gap}; columns must be at least 1 and gap at least 0")
    cell_h, cell_w = (max(image.shape[axis] for image in images) for axis in (0, 1))
    strip = _label_height() if labels is not None else 0
    rows = math.ceil(len(images) / columns)
    height, width = rows * (cell_h + strip + gap) + gap, columns * (cell_w + gap) + gap
    sheet = np.ones((height, width, 3), np.float32)
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        top, left = gap + row * (cell_h + strip + gap), gap + column * (cell_w + gap)
        sheet[top : top + image.shape[0], left : left + image.shape[1]] = image
        if labels is not None:
            sheet[top + cell_h : top + cell_h + strip, left : left + cell_w] = _label(labels[index], strip, cell_w)
    return sheet


# ---- reading


@contextlib.contextmanager
def _one_line_errors(name: str) -> Iterator[None]:
    """Decoders fail in many classes and with many words; one ValueError names the file and the way out."""
    try:
        yield
    except PermissionError as error:
        raise PermissionError(f"cannot read {name}: permission denied; change its permissions") from error
    except Image.UnidentifiedImageError as error:
        known = " ".join(READABLE)
        raise ValueError(f"{name} is not a picture of a known kind ({known}); convert it to one") from error
    except _Refused as error:
        raise ValueError(str(error)) from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, cv2.error) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{name} is damaged or cut short ({reason}); copy or export it again") from error


def _require_image(source: str | Path | bytes, name: str) -> tuple[Path | bytes, str]:
    """The source, and what errors call it."""
    if isinstance(source, bytes):
        return source, name
    path = require_file(source)
    if not path.is_file():
        raise ValueError(f"{path} is a pipe or a device, which cannot be read twice; save it to a file first")
    return path, str(path)


class _Refused(Exception):
    """A picture that could be decoded but that this module does not take."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No warnings. EXIF that some program has garbled is common and harms nothing; it is no reason for noise."""
    with _OPENING, warnings.catch_warnings():  # the lock, because the list of filters is one for all threads
        warnings.simplefilter("ignore")
        yield


def _open(source: Path | bytes) -> ImageFile.ImageFile:
    # Pillow's own size guard warns, then raises, at limits that are global; ours is MAX_PIXELS. It acts while
    # the header is read, so it is lifted for that moment only. Other warnings are of garbled EXIF, see `_quiet`.
    with _quiet():
        guard, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS)
        finally:
            Image.MAX_IMAGE_PIXELS = guard


def _check_header(name: str, picture: ImageFile.ImageFile) -> None:
    width, height = picture.size
    if width * height > MAX_PIXELS:
        limit = MAX_PIXELS // 1_000_000
        raise _Refused(f"{name} is {width}x{height}; the limit is {limit} megapixels: resize it first")
    if picture.format in ("PNG", "WEBP") and getattr(picture, "is_animated", False):
        raise _Refused(f"{name} is an animation; save one of its frames, or convert it to a video")
    if picture.mode in ("I", "F"):
        raise _Refused(f"{name} holds 32-bit values of unknown range; save it with 8 or 16 bits a channel")


def _orientation(picture: Image.Image) -> int:
    """The EXIF tag Orientation; 1, upright, if there is none."""
    with _quiet():
        orientation = picture.getexif().get(0x0112, 1)
    return orientation if isinstance(orientation, int) else 1


def _is_16_bit(picture: ImageFile.ImageFile) -> bool:
    # Pillow's mode does not tell (16-bit colour opens as RGB); the raw mode it decodes from does: RGB;16B.
    # Not for BMP, where BGR;16 means 16 bits for all three.
    return picture.format in ("PNG", "TIFF") and ";16" in str(picture.tile)


def _to_array(picture: Image.Image) -> Float[np.ndarray, "h w c"]:
    mode = "RGBA" if picture.has_transparency_data else "RGB"
    return from_uint8(np.asarray(picture.convert(mode)))


def _decode_16_bit(source: Path | bytes) -> UInt16[np.ndarray, "*shape"]:
    content = source if isinstance(source, bytes) else source.read_bytes()
    pixels = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.dtype != np.uint16:
        raise ValueError("its 16-bit data cannot be decoded")
    return pixels


def _from_uint16(pixels: UInt16[np.ndarray, "*shape"]) -> Float[np.ndarray, "h w c"]:
    """OpenCV's picture -> RGB or RGBA in [0, 1]."""
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, axis=-1)
    order = [2, 1, 0, 3][: pixels.shape[-1]]  # OpenCV keeps blue first
    return pixels[..., order].astype(np.float32) / 65535


def _over_white(pixels: Float[np.ndarray, "h w c"]) -> Float[np.ndarray, "h w 3"]:
    if pixels.shape[-1] == 3:
        return pixels
    alpha = pixels[..., 3:]
    return pixels[..., :3] * alpha + (1 - alpha)


def _turn(image: Float[np.ndarray, "h w 3"], orientation: int) -> Float[np.ndarray, "h2 w2 3"]:
    """Upright picture from the EXIF tag Orientation (EXIF 2.32, table 6); an unknown value changes nothing.

    TIFF arrives upright from both decoders, with the tag already gone.
    """
    if orientation in (5, 6, 7, 8):
        image = image.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return image


# ---- writing


def _check_image(path: Path, image: np.ndarray) -> None:
    if image.ndim != 3 or image.shape[-1] != 3 or image.size == 0:
        raise ValueError(f"cannot write {path}: shape {image.shape} is not (height, width, 3)")
    if np.isnan(image).any():
        raise ValueError(f"cannot write {path}: {int(np.isnan(image).sum())} of its values are NaN")


def _save_8_bit(temporary: Path, path: Path, pixels: UInt8[np.ndarray, "h w 3"]) -> None:
    kind = {".png": "PNG", ".webp": "WEBP"}.get(path.suffix.lower(), "JPEG")
    limit = {"WEBP": 16383, "JPEG": 65500}.get(kind, 2**31 - 1)
    height, width = pixels.shape[:2]
    if max(height, width) > limit:
        raise ValueError(f"cannot write {path}: {width}x{height} is past the {limit} of {kind}; use .png")
    options = {} if kind == "PNG" else {"quality": _QUALITY}
    if kind == "JPEG":
        options["subsampling"] = 0  # full colour resolution: thin red lines survive
    Image.fromarray(pixels).save(temporary, kind, **options)


def _label_height() -> int:
    top, bottom = ImageFont.load_default().getbbox("Ag|")[1::2]
    return math.ceil(bottom - top) + 6


def _label(text: str, height: int, width: int) -> Float[np.ndarray, "h w 3"]:
    strip = Image.new("RGB", (width, height), "white")
    ImageDraw.Draw(strip).text((2, height // 2), text, fill="black", font=ImageFont.load_default(), anchor="lm")
    return from_uint8(np.asarray(strip))
