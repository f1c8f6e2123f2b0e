"""Memory that decoding takes, in bytes a pixel of each kind of picture: `python -m benchmarks.decoding` (Linux).

Each row is a process of its own, which decodes a small picture of the kind first; the number is what the peak of the
process grows by with the large one, by `common.io.images.read_image`, as float32. Its limits follow from them.
"""

import tempfile
from pathlib import Path

import numpy as np
import pillow_heif
from PIL import Image

from benchmarks.measuring import MEGABYTE, forget_peak, in_process, memory
from common import terminal
from common.io.images import from_uint8, read_image, write_image

KINDS = {  # suffix, bits, what is special
    "JPEG": ("jpg", 8, ""),
    "JPEG turned by EXIF": ("jpg", 8, "turned"),
    "PNG": ("png", 8, ""),
    "PNG with alpha": ("png", 8, "alpha"),
    "PNG of 16 bits": ("png", 16, ""),
    "TIFF": ("tif", 8, ""),
    "TIFF of 16 bits": ("tif", 16, ""),
    "WebP": ("webp", 8, ""),
    "AVIF": ("avif", 8, ""),
    "HEIC": ("heic", 8, ""),
}


def write(path: Path, kind: str, width: int, height: int) -> None:
    """A smooth picture with grain, so that files have the size of photographs."""
    _, bits, special = KINDS[kind]
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    pixels = np.asarray(coarse) // 8 * 8 + rng.integers(0, 8, (height, width, 1), np.uint8)
    if special == "alpha":
        Image.fromarray(np.dstack([pixels, pixels[..., 0]])).save(path)
    elif special == "turned":
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(pixels).save(path, quality=95, exif=exif)
    elif path.suffix in (".avif", ".heic"):
        pillow_heif.register_heif_opener()
        Image.fromarray(pixels).save(path, quality=80)
    else:
        write_image(path, from_uint8(pixels), bits=bits)


def growth(small: Path, large: Path) -> float:
    """Megabytes by which the peak of this process grows."""
    read_image(small)
    before = forget_peak()  # a process inherits the peak of the one that started it
    read_image(large)
    return memory("VmHWM") - before


def main(size: str = "4000x3000") -> None:
    """Print the table; `size` is WIDTHxHEIGHT."""
    width, height = map(int, size.split("x"))
    print("| picture | bytes a pixel |\n| --- | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for kind, (suffix, *_) in KINDS.items():
            paths = [Path(folder) / f"{name}.{suffix}" for name in ("small", "large")]
            for path, scale in zip(paths, (20, 1), strict=True):
                path.unlink(missing_ok=True)
                write(path, kind, width // scale, height // scale)
            grown = MEGABYTE * in_process(growth, *paths)
            print(f"| {kind} | {grown / (width * height):.0f} |", flush=True)


if __name__ == "__main__":
    terminal.program(main)
