"""Write the PyTorch files that the tests read. Needs torch; nothing else in this project does.

    python tests/data/film/make_torch_files.py        # writes beside itself

| file | what it is |
| --- | --- |
| dajes_tiny.pth | state dict of a tiny FILM, named as in the port dajes/frame-interpolation-pytorch |
| dajes_tiny_torchscript.pt | the same modules through torch.jit.script, as the port's releases are |
| torch_tensors.pth | every dtype, strided, expanded, shared, empty tensors, under "state_dict" |
| torch_legacy.pth | the same in the container that torch.save wrote before version 1.6 |

The modules carry names, shapes and values only; they compute nothing. Values follow the fixtures' recipe: a
normal draw seeded by the CRC-32 of the TensorFlow name, kernels times sqrt(2 / fan_in), biases times 0.05.
`tests/film/recipe.py` draws the same numbers (`narrow`). Written with torch 2.13.0.
"""

import io
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import nn

FOLDER = Path(__file__).parent
FILTERS, SUB_LEVELS, SPECIALIZED, FUSION_LEVELS = 2, 3, 2, 3
FLOW_CONVS, FLOW_FILTERS = (2, 2, 2), (2, 4, 4)  # of each specialised level, finest first, then the shared one


def values(tf_name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The recipe's weights of one TensorFlow variable; kernels are HWIO."""
    draw = np.random.RandomState(zlib.crc32(tf_name.encode())).standard_normal(shape)
    scale = np.sqrt(2 / np.prod(shape[:-1])) if tf_name.endswith("kernel") else 0.05
    return (draw * scale).astype(np.float32)


def conv(tf_name: str, inputs: int, outputs: int, size: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, size)
    kernel = values(f"{tf_name}/kernel", (size, size, inputs, outputs))
    layer.weight.data = torch.from_numpy(np.ascontiguousarray(kernel.transpose(3, 2, 0, 1)))
    layer.bias.data = torch.from_numpy(values(f"{tf_name}/bias", (outputs,)))
    return layer


def conv_relu(*args) -> nn.Sequential:
    return nn.Sequential(conv(*args), nn.LeakyReLU(0.2))


def feature_channels(level: int) -> int:
    """A level concatenates one stage from each of the levels above it, up to the depth of the extractor."""
    return sum(FILTERS << stage for stage in range(min(level + 1, SUB_LEVELS)))


class Idle(nn.Module):
    """`torch.jit.script` wants a forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class SubTreeExtractor(Idle):
    def __init__(self):
        super().__init__()
        stages, inputs = [], 3
        for stage in range(SUB_LEVELS):
            width = FILTERS << stage
            first, second = (f"feat_net/sub_extractor/cfeat_conv_{2 * stage + i}" for i in range(2))
            stages.append(nn.Sequential(conv_relu(first, inputs, width, 3), conv_relu(second, width, width, 3)))
            inputs = width
        self.convs = nn.ModuleList(stages)


class FeatureExtractor(Idle):
    def __init__(self):
        super().__init__()
        self.extract_sublevels = SubTreeExtractor()
        self.sub_levels = SUB_LEVELS


class FlowPredictor(Idle):
    def __init__(self, name: str, level: int):
        super().__init__()
        width, inputs, layers = FLOW_FILTERS[level], 2 * feature_channels(level), []
        shapes = [(width, 3)] * FLOW_CONVS[level] + [(width // 2, 1), (2, 1)]
        for j, (outputs, size) in enumerate(shapes):
            layers.append(conv_relu(f"predict_flow/{name}/conv_{j}", inputs, outputs, size))
            inputs = outputs
        self._convs = nn.ModuleList(layers)


class PyramidFlowEstimator(Idle):
    def __init__(self):
        super().__init__()
        self._predictor = FlowPredictor("flow_predictor_shared", SPECIALIZED)
        coarse_first = reversed(range(SPECIALIZED))
        self._predictors = nn.ModuleList(FlowPredictor(f"flow_predictor_{i}", i) for i in coarse_first)
        self.flow_filters = list(FLOW_FILTERS)  # a list attribute, which TorchScript stores in its own way


class Fusion(Idle):
    def __init__(self):
        super().__init__()
        aligned = [2 * (3 + feature_channels(i)) + 4 for i in range(FUSION_LEVELS)]
        below, levels = aligned[-1], []
        for level in reversed(range(FUSION_LEVELS - 1)):
            width = FILTERS << level
            shapes = [(below, 2), (aligned[level] + width, 3), (width, 3)]
            names = [f"fusion/{keras_name(3 * level + j)}" for j in range(3)]
            layers = [conv_relu(name, inputs, width, size) for name, (inputs, size) in zip(names, shapes, strict=True)]
            levels.append(nn.ModuleList(layers))
            below = width
        self.output_conv = conv(f"fusion/{keras_name(3 * (FUSION_LEVELS - 1))}", below, 3, 1)
        self.convs = nn.ModuleList(levels)


def keras_name(index: int) -> str:
    return f"conv2d_{index}" if index else "conv2d"


class Interpolator(Idle):
    def __init__(self):
        super().__init__()
        self.extract = FeatureExtractor()
        self.predict_flow = PyramidFlowEstimator()
        self.fuse = Fusion()


def odd_tensors() -> dict[str, torch.Tensor | nn.Parameter]:
    """What a reader gets wrong: tests/common/test_torch_file.py holds the expected numbers."""
    shared = torch.arange(24, dtype=torch.float32)
    names = ["float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"]
    return {
        **{f"dtype.{name}": torch.tensor([0, 1, 3], dtype=getattr(torch, name)) for name in names},
        "shared.whole": shared,
        "shared.offset": shared[5:11],
        "strided.transposed": shared.reshape(4, 6).T,
        "strided.step": shared[1::3],
        "strided.expanded": torch.tensor([[7.0], [8.0]]).expand(2, 3),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "parameter": nn.Parameter(torch.full((2, 2), 4.0)),
    }


def save_script(model: nn.Module, path: Path) -> None:
    """torch.jit.save, less its *.debug_pkl entries: they tell where torch lay on the machine that saved."""
    whole = io.BytesIO()
    torch.jit.save(torch.jit.script(model), whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
        for entry in source.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                name = entry.filename.replace("archive/", f"{path.stem}/", 1)
                target.writestr(zipfile.ZipInfo(name), source.read(entry))
    loaded = torch.jit.load(path).state_dict()  # PyTorch itself must still take it
    assert all(torch.equal(loaded[key], value) for key, value in model.state_dict().items())


def main() -> None:
    model = Interpolator().eval()
    torch.save(model.state_dict(), FOLDER / "dajes_tiny.pth")
    save_script(model, FOLDER / "dajes_tiny_torchscript.pt")
    checkpoint = {"epoch": 3, "state_dict": odd_tensors(), "optimizer": {"lr": 0.1, "m": torch.ones(2)}}
    torch.save(checkpoint, FOLDER / "torch_tensors.pth")
    torch.save(checkpoint, FOLDER / "torch_legacy.pth", _use_new_zipfile_serialization=False)


if __name__ == "__main__":
    main()
