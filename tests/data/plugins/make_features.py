"""Features of a plugin inside the PyTorch library's UNets: `features.safetensors`, `features_io.npz`.

    pip install -e ".[bench,dev]" && python tests/data/plugins/make_features.py      # writes beside itself

A MediaPipe plugin with random weights looks at a random picture, `save_features` writes what it adds, and diffusers
takes that file in the two ways of docs/portable.md: by the T2I-Adapter hook, in a UNet with the levels of Stable
Diffusion, and by PyTorch's hooks, in the same and in one whose first level has no transformers
(`tests/plugins/portable.py`).
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[2]), str(HERE.parents[1] / "plugins")]
os.environ["HF_HUB_OFFLINE"] = "1"

from portable import Case, features_case  # noqa: E402

from plugins.control.export import save_features  # noqa: E402
from plugins.diffusion.io.components import save_component  # noqa: E402

Way = Callable[[UNet2DConditionModel, list[torch.Tensor]], None]


def features(path: Path) -> list[torch.Tensor]:
    stored = load_file(path)
    return [stored[f"feature_{level}"] for level in range(len(stored))]


def by_the_adapters_hook(unet: UNet2DConditionModel, added: list[torch.Tensor]) -> None:
    plain = unet.forward
    unet.forward = lambda *args, **more: plain(*args, **more, down_intrablock_additional_residuals=list(added))


def by_pytorchs_hooks(unet: UNet2DConditionModel, added: list[torch.Tensor]) -> None:
    for block, feature in zip(unet.down_blocks, added, strict=True):
        last = (getattr(block, "attentions", None) or block.resnets)[-1]

        def add(module, inputs, out, feature=feature):
            return (out[0] + feature, *out[1:]) if isinstance(out, tuple) else out + feature

        last.register_forward_hook(add)


@torch.no_grad()
def called(folder: Path, way: Way, added: list[torch.Tensor], case: Case) -> np.ndarray:
    unet = UNet2DConditionModel.from_pretrained(folder)
    way(unet, added)
    x, t, context = map(torch.from_numpy, (case.x.transpose(0, 3, 1, 2), case.t, case.context))
    return unet(x.contiguous(), t, context).sample.permute(0, 2, 3, 1).numpy()


def main(scratch: Path) -> None:
    arrays = {}
    for name, ways in (("usual", [by_the_adapters_hook, by_pytorchs_hooks]), ("other", [by_pytorchs_hooks])):
        case = features_case(name)
        save_component(scratch / name, case.unet)
        path = HERE / "features.safetensors" if name == "usual" else scratch / "features.safetensors"
        save_features(path, case.plugin, case.picture, case.strength, overwrite=True)
        outputs = [called(scratch / name, way, features(path), case) for way in ways]
        print(f"{name}: the ways differ by {np.ptp(outputs, axis=0).max()}")
        arrays[name] = outputs[0]
    np.savez_compressed(HERE / "features_io.npz", **arrays)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
