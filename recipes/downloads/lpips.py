"""Fetches shift-tolerant LPIPS on AlexNet (2,470,848 parameters, 10 MB) or VGG-16 (59 MB), for perceptual distances.

A. Ghildyal, F. Liu: "Shift-tolerant Perceptual Similarity Metric" (ECCV 2022, arXiv:2207.13686), BSD 2-Clause.

    python -m recipes.downloads.lpips                     # data/lpips_alex.safetensors
    python -m recipes.downloads.lpips --network vgg       # data/lpips_vgg.safetensors
"""

from pathlib import Path
from typing import Literal

from common import terminal
from common.perceptual.lpips import KIND, load_lpips, save_lpips
from recipes.downloads.archives import Package
from recipes.downloads.weights import PublishedWeights

WHEEL = "a412bf901a97c942b37af57c7c63b6e5d1aebfe8d1dfc17853d4b2f878630645"
LPIPS = {
    network: PublishedWeights(
        Package("wheel", "stlpips-pytorch", "0.0.2", "BSD-2-Clause", WHEEL),
        f"stlpips_pytorch/weights/vST0.0/{network}_shift_tolerant.pth",
        sha256,
        f"lpips_{network}.safetensors",
        KIND,
        "Shift-tolerant LPIPS weights: Copyright (c) 2022, Abhijay Ghildyal, Feng Liu, BSD 2-Clause License.",
        licence="stlpips_pytorch-0.0.2.dist-info/licenses/LICENSE",
        convert=lambda source, target, metadata: save_lpips(target, *load_lpips(source), metadata),
    )
    for network, sha256 in (
        ("alex", "b356b382f96010f77d085ee8343ecd9fd322d0a56e8de2b2d0549fafcad8b9ee"),
        ("vgg", "44597da68f49c1837c100ff52299050f274d102eb102e5837178c79be6f0e250"),
    )
}


def main(folder: Path = Path("data"), network: Literal["alex", "vgg"] = "alex") -> None:
    """Download shift-tolerant LPIPS (BSD 2-Clause) to FOLDER/lpips_NETWORK.safetensors, unless it is there."""
    weights = LPIPS[network]
    terminal.say(f"{weights.fetch(folder)}\n{weights.notice}")


if __name__ == "__main__":
    terminal.program(main)
