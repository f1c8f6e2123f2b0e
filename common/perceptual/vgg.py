"""VGG-16 and VGG-19 as frozen feature extractors: their features agree for images that look alike, even where pixels
differ. The perceptual and the style loss (`common/losses.py`) compare them.

    network = load_vgg("data/vgg16.safetensors")                     # common/perceptual/vgg_weights.py
    network.features(images, ("conv1_2", "conv5_2"))                  # {name: activation}

**Architecture** (Simonyan & Zisserman 2014, configurations D and E, without the classifier). Five blocks of 3x3
convolutions (`CONVOLUTIONS`, `WIDTHS`), each zero-padded to keep the size and followed by ReLU; 2x2 pooling between the
blocks halves it. A layer's name, such as conv3_2, stands for its activation *after* ReLU. Pooling rounds an odd side
up, and its last window then holds only the pixels inside (as in FILM's reference; torchvision and Keras round down).

**Pooling** is the average, as in FILM's reference (`losses/vgg19_loss.py`; Gatys et al. 2016 recommend it for smoother
gradients), although the weights were trained with the maximum; `pooling="max"` gives that.

**Input** is RGB in [0, 1], of which the network takes `255 * RGB - mean` with ImageNet's mean. It computes in the dtype
of its parameters, as after `network.astype("bfloat16")`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from common.nn.layers import convolution

Params = dict[str, dict[str, Any]]  # {"conv1_1": {"kernel": 3 3 3 64 (HWIO), "bias": 64}, ...}
Pooling = Literal["average", "max"]

CONVOLUTIONS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}  # depth (classifier included) -> per block
WIDTHS = (64, 128, 256, 512, 512)
MEAN = (123.68, 116.779, 103.939)  # RGB of ImageNet in [0, 255], as FILM's reference and Keras subtract it


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Vgg:
    """A pytree: an argument of a jitted function, so that its 59 or 80 MB are not compiled into the program."""

    params: Params  # from conv1_1 on, as deep as needed
    mean: tuple[float, float, float] = field(default=MEAN, metadata={"static": True})  # subtracted from 255 * RGB
    pooling: Pooling = field(default="average", metadata={"static": True})

    @property
    def depth(self) -> int:
        """16 or 19, by the names; parameters that end before block 3 does could be both, and count as 16."""
        names = tuple(sorted(self.params))
        for depth in CONVOLUTIONS:
            if names and names == layer_names(depth)[: len(names)]:
                return depth
        raise ValueError(f"no VGG: its convolutions are {', '.join(names) or 'none'}; expected conv1_1, conv1_2, ...")

    def astype(self, dtype: Any) -> Vgg:
        return replace(self, params=jax.tree.map(lambda x: jnp.asarray(x, dtype), self.params))

    def features(self, images: Float[Array, "b h w 3"], layers: Sequence[str]) -> dict[str, Float[Array, "b _ _ _"]]:
        """Activations of `layers` after ReLU, {name: b h' w' c} in the given order and the dtype of the parameters;
        deeper layers are not computed. `images` are RGB in [0, 1], not clipped."""
        if self.pooling not in get_args(Pooling):
            raise ValueError(f"pooling is {self.pooling!r}; choose one of {', '.join(get_args(Pooling))}")
        names = layer_names(self.depth)[: len(self.params)]
        unknown = [layer for layer in layers if layer not in names]
        if unknown or not layers:
            raise ValueError(f"no layer {', '.join(unknown) or 'given'}; choose from {', '.join(names)}")
        x = 255 * images.astype(jnp.float32) - jnp.asarray(self.mean, jnp.float32)
        found = {}
        for name in names[: 1 + max(names.index(layer) for layer in layers)]:
            if name.endswith("_1") and name != "conv1_1":
                x = _pool(x, self.pooling)
            kernel, bias = (jnp.asarray(self.params[name][leaf]) for leaf in ("kernel", "bias"))
            x = jax.nn.relu(convolution(x.astype(kernel.dtype), kernel) + bias)
            if name in layers:
                found[name] = x
        return {name: found[name] for name in layers}


def layer_names(depth: int) -> tuple[str, ...]:
    """("conv1_1", "conv1_2", "conv2_1", ...) from the image on."""
    if depth not in CONVOLUTIONS:
        raise ValueError(f"VGG-{depth} is not known; choose one of {', '.join(map(str, CONVOLUTIONS))}")
    return tuple(f"conv{b}_{i}" for b, n in enumerate(CONVOLUTIONS[depth], 1) for i in range(1, n + 1))


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def param_shapes(depth: int) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    """The parameters of one depth, without values."""
    shapes, inputs = {}, 3
    for name in layer_names(depth):
        width = WIDTHS[int(name[4]) - 1]
        shapes[name] = {"kernel": f32(3, 3, inputs, width), "bias": f32(width)}
        inputs = width
    return shapes


def random_vgg(depth: int, pooling: Pooling = "average") -> Vgg:
    """An untrained network (He-normal kernels): its features tell textures apart, not objects."""
    rng = np.random.default_rng(0)
    params: Params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), param_shapes(depth))
    for leaves in params.values():
        kernel = leaves["kernel"]
        kernel += np.sqrt(2 / np.prod(kernel.shape[:-1])) * rng.standard_normal(kernel.shape, np.float32)
    return Vgg(params, pooling=pooling)


def _pool(x: Float[Array, "b h w c"], pooling: Pooling) -> Float[Array, "b h2 w2 c"]:
    """Halves the size, rounding up; as in TensorFlow's "SAME", a window over the border takes only the pixels inside:
    repeating the last row of an odd height changes neither its mean nor its maximum."""
    b, h, w, c = x.shape
    x = jnp.pad(x, ((0, 0), (0, h % 2), (0, w % 2), (0, 0)), mode="edge")
    windows = x.reshape(b, -(-h // 2), 2, -(-w // 2), 2, c)
    return (jnp.mean if pooling == "average" else jnp.max)(windows, axis=(2, 4))
