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

KINDS = {"JPEG": "jpg", "JPEG turned by EXIF": "jpg", "PNG": "png", "PNG with alpha": "png", "PNG of 16 bits": "png"}
KINDS |= {"TIFF": "tif", "TIFF of 16 bits": "tif", "WebP": "webp", "AVIF": "avif", "HEIC": "heic"}  # suffixes


def write(path: Path, kind: str, width: int, height: int) -> None:
    """A smooth picture with grain, so that files have the size of photographs."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
    pixels = smooth // 8 * 8 + rng.integers(0, 8, (height, width, 1), np.uint8)
    if "alpha" in kind:
        Image.fromarray(np.dstack([pixels, pixels[..., 0]])).save(path)
    elif "EXIF" in kind:
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(pixels).save(path, quality=95, exif=exif)
    elif kind in ("AVIF", "HEIC"):
        pillow_heif.register_heif_opener()
        Image.fromarray(pixels).save(path, quality=80)
    else:
        write_image(path, from_uint8(pixels), bits=16 if "16 bits" in kind else 8)


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
        for kind, suffix in KINDS.items():
            paths = [Path(folder) / f"{name}.{suffix}" for name in ("small", "large")]
            for path, scale in zip(paths, (20, 1), strict=True):
                path.unlink(missing_ok=True)
                write(path, kind, width // scale, height // scale)
            grown = MEGABYTE * in_process(growth, *paths)
            print(f"| {kind} | {grown / (width * height):.0f} |", flush=True)


if __name__ == "__main__":
    terminal.program(main)
