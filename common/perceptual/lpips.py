"""LPIPS: perceptual distance of two images in the features of a network.

Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric" (CVPR 2018, section 3), and its
variant by Ghildyal and Liu, "Shift-tolerant Perceptual Similarity Metric" (ECCV 2022). Stages:

1. Scale: RGB in [0, 1] -> [-1, 1], minus SHIFT, over SCALE (ImageNet's mean and standard deviation).
2. A backbone gives five feature maps, each after its ReLU.
3. The feature vector of each pixel is divided by its length; the vectors of the two images are subtracted and squared.
4. A head weighs the channels (weights >= 0, fitted to human judgements) and sums them; the mean over pixels is taken.
5. The sum of the five means is 0 for equal images; typical distances of good in-betweens are 0.01 to 0.3.

| backbone | pooling | weights |
| --- | --- | --- |
| st-alex, st-vgg | maximum, blur, then every second pixel | `python -m recipes.downloads.lpips`, 10 or 59 MB |
| alex, vgg | plain maximum | a user's files: the heads of the package `lpips` and torchvision's backbone |

Distances of different backbones cannot be compared: name the backbone beside the number. They equal those of the
packages `lpips` 0.1.4 and `stlpips-pytorch` 0.0.2. Memory: about 1 kB per pixel. `load_lpips` reads the weights:

| file | backbone | recognised by |
| --- | --- | --- |
| .safetensors of `python -m recipes.downloads.lpips` | in its header | its suffix |
| alex_shift_tolerant.pth, vgg_shift_tolerant.pth (`stlpips-pytorch`) | st-alex, st-vgg | tensors `....filt` |
| `torch.save(lpips.LPIPS(...).state_dict(), ...)` | alex, vgg | tensors `net.slice...` |
| lpips/weights/v0.1/alex.pth, vgg.pth: heads; torchvision's alexnet or vgg16 .pth beside it | alex, vgg | neither |
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from common.evaluation.metrics import Metric, Picture
from common.io.torch_file import read_torch
from common.nn.layers import convolution
from common.perceptual.vgg import f32
from common.weights.model_file import load_weights, save_weights
from common.weights.porting import OIHW_TO_HWIO, Entry, Table, port, unflatten_like
from common.weights.remote import is_address, local

SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
SMALLEST = 32  # pixels; below it the last feature map would be empty
EPSILON = 1e-10
KIND = "lpips"
FIXED = {"scaling_layer.shift": SHIFT, "scaling_layer.scale": SCALE}
BLUR = np.outer((1, 2, 1), (1, 2, 1)) / 16

Maps = list[Float[Array, "b _ _ _"]]  # five
Params = Mapping[str, Mapping[str, Any]]  # {"stage1_conv1": {"kernel": HWIO, "bias": O}, ..., "head1": {"kernel"}}


@dataclass(frozen=True)
class Conv:
    """A convolution and its ReLU; `blur` halves the size in between."""

    width: int
    size: int = 3
    stride: int = 1
    padding: int = 1
    blur: bool = False


@dataclass(frozen=True)
class Stage:
    """One feature map: maximum over `pool` pixels (0: none), a blur that halves, convolutions."""

    convs: tuple[Conv, ...]
    pool: int = 0
    pool_stride: int = 1
    blur: bool = False


def alex(tolerant: bool) -> tuple[Stage, ...]:
    """AlexNet's five convolutions (torchvision's widths)."""
    pool: dict[str, Any] = dict(pool=3, blur=True) if tolerant else dict(pool=3, pool_stride=2)
    first = Conv(64, 11, 1, 2, blur=True) if tolerant else Conv(64, 11, 4, 2)
    second, third = Stage((Conv(192, 5, padding=2),), **pool), Stage((Conv(384),), **pool)
    return Stage((first,)), second, third, Stage((Conv(256),)), Stage((Conv(256),))


def vgg(tolerant: bool) -> tuple[Stage, ...]:
    """VGG-16's thirteen."""
    pool: dict[str, Any] = dict(pool=2, blur=True) if tolerant else dict(pool=2, pool_stride=2)
    depths = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
    return tuple(Stage((Conv(width),) * count, **(pool if i else {})) for i, (width, count) in enumerate(depths))


BACKBONES = {"st-alex": alex(True), "st-vgg": vgg(True), "alex": alex(False), "vgg": vgg(False)}


def convolutions(stages: tuple[Stage, ...]) -> Iterator[tuple[str, Conv, int, str]]:
    """(our name, convolution, input channels, PyTorch's name below `net.`), in the order of computation.

    PyTorch numbers all members of a `Sequential`: poolings, blurs and ReLUs too."""
    inputs, place = 3, 0
    for i, stage in enumerate(stages, 1):
        place += bool(stage.pool) + stage.blur
        for j, conv in enumerate(stage.convs, 1):
            yield f"stage{i}_conv{j}", conv, inputs, f"slice{i}.{place}"
            inputs = conv.width
            place += 2 + conv.blur


def shapes(backbone: str) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    """The parameters of a backbone and its heads, without values."""
    found: dict[str, dict[str, jax.ShapeDtypeStruct]] = {}
    for name, conv, inputs, _ in convolutions(BACKBONES[backbone]):
        found[name] = {"kernel": f32(conv.size, conv.size, inputs, conv.width), "bias": f32(conv.width)}
    for i, stage in enumerate(BACKBONES[backbone], 1):
        found[f"head{i}"] = {"kernel": f32(1, 1, stage.convs[-1].width, 1)}
    return found


@partial(jax.jit, static_argnums=0)
def distance(backbone: str, params: Params, images: Float[Array, "b h w 3"], others: Maps) -> Float[Array, " b"]:
    """Distance of images, RGB in [0, 1], to the `unit_features` of others; compiled once per size."""
    total = jnp.zeros(images.shape[0])
    for i, (a, b) in enumerate(zip(unit_features(backbone, params, images), others, strict=True), 1):
        weights = params[f"head{i}"]["kernel"][0, 0, :, 0]
        total += jnp.mean(jnp.square(a - b) @ weights, axis=(1, 2))
    return total


@partial(jax.jit, static_argnums=0)
def unit_features(backbone: str, params: Params, images: Float[Array, "b h w 3"]) -> Maps:
    """The backbone's five feature maps, the vector of each pixel divided by its length."""
    x = (2 * images - 1 - jnp.array(SHIFT)) / jnp.array(SCALE)
    maps = []
    for i, stage in enumerate(BACKBONES[backbone], 1):
        if stage.pool:
            window, steps = (1, stage.pool, stage.pool, 1), (1, stage.pool_stride, stage.pool_stride, 1)
            x = lax.reduce_window(x, np.array(-np.inf, x.dtype), lax.max, window, steps, "VALID")
        if stage.blur:
            x = blur_and_halve(x)
        for j, conv in enumerate(stage.convs, 1):
            leaves, border = params[f"stage{i}_conv{j}"], [(conv.padding, conv.padding)] * 2
            x = convolution(x, leaves["kernel"], conv.stride, border) + leaves["bias"]
            x = jax.nn.relu(blur_and_halve(x) if conv.blur else x)
        maps.append(x / (jnp.sqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True)) + EPSILON))
    return maps


def blur_and_halve(x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c"]:
    """[1 2 1]/4 along both sides, every second result, over a border of 2 reflected pixels: n -> (n + 1) // 2 + 1."""
    x = jnp.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    for axis in (1, 2):
        last = x.shape[axis] - 2  # where the last window may begin, exclusive
        before, here, after = (lax.slice_in_dim(x, k, k + last, 2, axis) for k in range(3))
        x = 0.25 * (before + after) + 0.5 * here
    return x


@dataclass(frozen=True)
class Lpips(Metric):
    """Perceptual distance as a metric; the weights are read at first use. The features of the last target are kept
    (AlexNet: about 180 bytes per pixel), which halves the cost of further predictions for it."""

    weights: str = "data/lpips_alex.safetensors"  # or another file of the table of the module, or its address
    backbone: str | None = None  # torchvision's .pth file, when `weights` holds heads only (the package `lpips`)
    higher_is_better: ClassVar[bool] = False

    @cached_property
    def network(self) -> tuple[str, Params]:
        if not is_address(self.weights) and not Path(self.weights).exists():
            raise FileNotFoundError(f"{self.weights} does not exist: make it by `python -m recipes.downloads.lpips`")
        name, params = load_lpips(self.weights, self.backbone)
        return name, jax.tree.map(jnp.asarray, params)

    @cached_property
    def _last(self) -> dict[str, Any]:
        return {"target": None, "features": None}

    def prepare(self) -> None:
        self.network  # noqa: B018

    def __call__(self, prediction: Picture, target: Picture) -> float:
        if min(prediction.shape[:2]) < SMALLEST:
            raise ValueError(f"LPIPS needs sides of at least {SMALLEST} pixels, not {prediction.shape[1::-1]}")
        a, b = (np.clip(x, 0, 1).astype(np.float32)[None] for x in (prediction, target))
        if self._last["target"] is None or not np.array_equal(self._last["target"], b):
            self._last.update(target=b, features=unit_features(*self.network, b))
        return float(distance(*self.network, a, self._last["features"])[0])


def load_lpips(path: str | Path, backbone: str | Path | None = None) -> tuple[str, Params]:
    """(name of the backbone, parameters) of a file in the table above; `backbone` is torchvision's, for heads only."""
    path = local(path, pickles=True)
    if path.suffix == ".safetensors":
        params, header = load_weights(path, expect_kind=KIND)
        name = header.config.get("backbone")
        if name not in BACKBONES:
            raise ValueError(f"{path}: backbone {name!r} is unknown; choose one of {', '.join(BACKBONES)}")
        return name, unflatten_like(params, shapes(name))
    tensors = read_torch(path)
    if any(key.startswith("net.") for key in tensors):
        return from_torch(tensors)
    if backbone is None:
        raise ValueError(f"{path} holds heads only: give torchvision's AlexNet or VGG-16 file as `backbone`")
    return from_torch({**tensors, **read_torch(local(backbone, pickles=True))})


def save_lpips(path: str | Path, name: str, params: Params, metadata: Mapping[str, Any]) -> Path:
    """Writes what `load_lpips` reads, in float32."""
    return save_weights(path, params, kind=KIND, config={"backbone": name}, metadata=metadata)


def from_torch(tensors: Mapping[str, np.ndarray]) -> tuple[str, Params]:
    """(name, parameters) of a state dict. Raises ValueError with a list of all tensors that do not fit."""
    convs = (key for key in tensors if key.startswith(("net.slice", "features.")) and key.endswith(".weight"))
    last = max((int(key.split(".")[-2]) for key in convs), default=0)
    family = "vgg" if last > 14 else "alex"  # the last convolution: 10 or 13 in AlexNets, 28 or 32 in VGGs
    name = f"st-{family}" if any(key.endswith(".filt") for key in tensors) else family
    for key in filter(_is_constant, tensors):
        expected = np.reshape(FIXED[key], (1, -1, 1, 1)) if key in FIXED else BLUR
        if not np.allclose(tensors[key], expected, atol=1e-6):
            raise ValueError(f"{key} is not the constant of this distance's definition: another version's file?")
    lines, target = table(name, whole=any(key.startswith("net.") for key in tensors)), shapes(name)
    # Not weights: constants, torchvision's classifier, and the second name of the heads in `lpips`.
    others = ("classifier.", "lins.")
    ported = port(tensors, lines, target, ignore=lambda key: _is_constant(key) or key.startswith(others))
    return name, unflatten_like(ported, target)


def table(name: str, whole: bool = True) -> Table:
    """Our leaves -> their keys. `whole`: the state dict of the distance; else torchvision's backbone, and heads."""
    lines: dict[str, Entry] = {}
    for ours, *_, theirs in convolutions(BACKBONES[name]):
        source = f"net.{theirs}" if whole else f"features.{theirs.partition('.')[2]}"
        lines[f"{ours}.kernel"] = Entry(f"{source}.weight", OIHW_TO_HWIO)
        lines[f"{ours}.bias"] = Entry(f"{source}.bias")
    for i in range(len(BACKBONES[name])):
        lines[f"head{i + 1}.kernel"] = Entry(f"lin{i}.model.1.weight", OIHW_TO_HWIO)
    return lines


def _is_constant(key: str) -> bool:
    return key in FIXED or key.endswith(".filt")
