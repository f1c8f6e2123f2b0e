"""Initialisation that estimates motion from the first step on.

With random weights, L1 teaches FILM to blend long before it teaches motion. The paper trains through it (3 M steps), as
its recipes do here (`glorot`). Else three identities are written into some channels of the random initialisation, and
everything is trained from there.

1. `init_encoder`: the encoder's first three channels copy the image (it is not negative, so leaky ReLUs keep it).
2. `init_predictor`: with d = b - a and the mean gradient g, leaky ReLUs form |g + d| - |g - d| =
   2 sign(g d) min(|g|, |d|). A pattern that moves by v has d = -g v, so this is -2 |g| sign(v) min(1, |v|): a flow
   estimate of the right sign, averaged over a neighbourhood, like Lucas and Kanade's without the division. The
   correlation's kernel starts at zero.
3. `init_decoder`: the decoder outputs the mean of the two warped frames; with `blend` it does so by construction.
"""

import jax
import numpy as np
from flax import nnx
from jaxtyping import PRNGKeyArray

from common.nn.init import Keys
from film.flow import FlowPredictor
from film.fusion import COLORS, Fusion
from film.model import Film
from film.ops.convolution import LEAK, Conv
from film.pyramid import FeatureExtractor

GAIN = 8.0  # pixels of flow per unit of |gradient|; found by trial
NOISE = 0.01  # scale of the random rest of the last flow convolution
REST = 0.02  # scale of the random rest of the output convolution
UNITS = 8  # per mixture of channels: 2 directions x (g + d, g - d) x both signs
LUMA = (0.299, 0.587, 0.114)
DERIVATIVE = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8  # Sobel, per pixel
CENTRE = np.pad([[1.0]], 1)  # the 3x3 tap that copies a pixel


def glorot(model: Film, key: PRNGKeyArray) -> Film:
    """Draws all kernels anew as the reference does, by Keras' default: uniform, of the variance 2 / (fan in + fan out)
    (Glorot and Bengio, AISTATS 2010). Kernels of zeros stay."""
    draw, keys = jax.nn.initializers.glorot_uniform(), Keys(key)
    for _, conv in nnx.iter_modules(model):
        if isinstance(conv, Conv):
            conv.kernel[...] = draw(keys.params(), conv.kernel.shape) * conv.kernel[...].any()
    return model


def initialize(model: Film) -> Film:
    """Writes the three identities into a freshly made network, in place, and returns it."""
    filters = model.config.filters
    init_encoder(model.extractor)
    for level, predictor in enumerate(model.flow.predictors):
        init_predictor(predictor, filters, np.random.default_rng(level))
    if model.config.blend:
        model.fusion.output.kernel[...] *= REST
    else:
        init_decoder(model.fusion, images_at=(0, COLORS + filters))
    return model


def init_encoder(extractor: FeatureExtractor) -> None:
    """Channels 0, 1, 2 of stage 0 are the image; an encoder that starts with fewer channels stays random."""
    if extractor.convs[0].kernel.shape[3] >= COLORS:
        for conv in list(extractor.convs)[:2]:
            _rewrite(conv, {(color, color): CENTRE for color in range(COLORS)})


def init_predictor(predictor: FlowPredictor, filters: int, rng: np.random.Generator) -> None:
    """Motion from derivatives (see the module); too narrow a predictor, or one that sees no image, stays random."""
    first, *middle, last = list(predictor.convs)
    width, features = first.kernel.shape[3], first.kernel.shape[2] // 2
    if width < UNITS or last.kernel.shape[2] < 4 or filters < COLORS:
        return
    count = width // UNITS
    mixtures = rng.standard_normal((count, filters)) / np.sqrt(filters)
    mixtures[0] = [*LUMA, *np.zeros(filters - COLORS)]
    taps, signs = {}, np.zeros((2, width))
    for unit in range(count * UNITS):
        axis, difference, sign = unit >> 2 & 1, unit >> 1 & 1, unit & 1
        gradient = 0.5 * (DERIVATIVE.T if axis else DERIVATIVE)
        change = (-1) ** difference * CENTRE
        for channel, weight in enumerate(mixtures[unit // UNITS]):
            taps[channel, unit] = (-1) ** sign * weight * (gradient - change)
            taps[features + channel, unit] = (-1) ** sign * weight * (gradient + change)
        signs[axis, unit] = -((-1) ** difference) / count
    _rewrite(first, taps)
    if predictor.radius:
        predictor.matched.kernel[...] *= 0
    # Signed numbers pass leaky ReLUs as the pair (v, -v): leaky(v) - leaky(-v) = (1 + LEAK) v. Channel 2 axis + i holds
    # (-1)^i times the flow along `axis`.
    pairs = [(axis, i) for axis in (0, 1) for i in (0, 1)]
    mean, units = _mean(middle[0]), [(unit, axis, i) for unit in range(width) for axis, i in pairs]
    _rewrite(middle[0], {(unit, 2 * axis + i): (-1) ** i * signs[axis, unit] * mean for unit, axis, i in units})
    for conv in middle[1:]:
        weights = {(2 * axis + i, 2 * axis + o): (-1) ** (i + o) / (1 + LEAK) for axis, i in pairs for o in (0, 1)}
        _rewrite(conv, {channels: weight * _mean(conv) for channels, weight in weights.items()})
    kernel = (NOISE * last.kernel[...]).at[0, 0, :4].set(0)
    for axis, i in pairs:
        kernel = kernel.at[0, 0, 2 * axis + i, axis].set((-1) ** i * GAIN / (1 + LEAK))
    last.kernel[...] = kernel


def init_decoder(fusion: Fusion, images_at: tuple[int, int]) -> None:
    """Output = mean of the two warped images, whose channels begin at `images_at`, plus a little of everything else."""
    first, second = list(fusion.convs)[1:3]
    copied = range(2 * COLORS)
    if fusion.output.kernel.shape[2] < len(copied):
        return  # too narrow to carry two images
    _rewrite(first, {(images_at[c // COLORS] + c % COLORS, c): CENTRE for c in copied})
    _rewrite(second, {(c, c): CENTRE for c in copied})
    kernel = REST * fusion.output.kernel[...]
    fusion.output.kernel[...] = kernel.at[0, 0, : 2 * COLORS].set(0.5 * np.tile(np.eye(COLORS), (2, 1)))


def _rewrite(conv: Conv, taps: dict[tuple[int, int], np.ndarray]) -> None:
    """Sets the kernels of these (input, output) channels; their output channels get no other input."""
    shape = conv.kernel.shape
    values, kept = np.zeros(shape, np.float32), np.ones(shape[3], np.float32)
    for (source, output), tap in taps.items():
        values[:, :, source, output] = tap
        kept[output] = 0
    conv.kernel[...] = conv.kernel[...] * kept + values


def _mean(conv: Conv) -> np.ndarray:
    size = conv.kernel.shape[0]
    return np.full((size, size), 1 / size**2)
