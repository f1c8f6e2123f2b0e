"""Initialisation of FILM as a plain method that works a little, not as noise.

With random weights, L1 teaches FILM to blend long before it learns to move: nothing in the flow predictors answers to
motion yet, so their gradients point nowhere for tens of thousands of steps. The paper waits them out (3 M steps). Here
three identities are written into some channels of the random initialisation; the others stay random, but for the search
(`correlation_radius`), which starts at zero, and everything is trained from there.

1. `init_encoder`: the encoder's first three channels copy the image (it is not negative, so leaky ReLUs keep it).
2. `init_flow`: with d = b - a and the mean gradient g, leaky ReLUs form |g + d| - |g - d| =
   2 sign(g d) min(|g|, |d|). A pattern that moves by v has d = -g v, so this is -2 |g| sign(v) min(1, |v|): a flow
   estimate of the right sign, averaged over a neighbourhood, as Lucas and Kanade do without their division.
   Warping and residuals, coarse to fine, make it an iterative method.
3. `init_decoder`: the decoder passes on the mean of the two warped frames; with `blend` it does so by construction.
   The loss then has a gradient that moves the flow from the first step on.
"""

from __future__ import annotations

import numpy as np

from film.convolution import LEAK, Conv
from film.flow import FlowEstimator, FlowPredictor
from film.fusion import COLORS, Fusion
from film.model import Film
from film.pyramid import FeatureExtractor

GAIN = 8.0  # pixels of flow per unit of |gradient|; found by trial
NOISE = 0.01  # scale of the random rest of the last flow convolution
REST = 0.02  # scale of the random rest of the output convolution
UNITS = 8  # per looked-at mixture of channels: 2 directions x (g + d, g - d) x both signs
LUMA = (0.299, 0.587, 0.114)
DERIVATIVE = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8  # Sobel, per pixel


def initialize(model: Film) -> Film:
    """Writes the three identities into a freshly made network, in place, and returns it."""
    init_encoder(model.extractor)
    init_flow(model.flow, model.config.filters)
    if model.config.blend:
        model.fusion.output.kernel[...] *= REST  # the mean of the warped frames, by construction
    else:
        init_decoder(model.fusion, (0, COLORS + model.config.filters))
    return model


def init_encoder(extractor: FeatureExtractor) -> None:
    """Channels 0, 1, 2 of stage 0 are the image; an encoder that starts with fewer channels stays random."""
    if extractor.convs[0].kernel.shape[3] < COLORS:
        return
    for conv in list(extractor.convs)[:2]:
        _rewrite(conv, {(color, color): _centre(1.0) for color in range(COLORS)})


def init_flow(flow: FlowEstimator, filters: int) -> None:
    """All predictors estimate motion from derivatives; see the module."""
    for level, predictor in enumerate(flow.predictors):
        _init_predictor(predictor, filters, np.random.default_rng(level))


def init_decoder(fusion: Fusion, images_at: tuple[int, int]) -> None:
    """Output = mean of the two warped images plus a little of everything else."""
    first, second = list(fusion.convs)[1:3]
    copied = range(2 * COLORS)
    if fusion.output.kernel.shape[2] < len(copied):
        return  # too narrow to carry two images
    sources = [images_at[c // COLORS] + c % COLORS for c in copied]
    _rewrite(first, {(source, c): _centre(1.0) for c, source in zip(copied, sources, strict=True)})
    _rewrite(second, {(c, c): _centre(1.0) for c in copied})
    kernel = REST * fusion.output.kernel[...]
    fusion.output.kernel[...] = kernel.at[0, 0, : 2 * COLORS].set(0.5 * np.tile(np.eye(COLORS), (2, 1)))


def _init_predictor(predictor: FlowPredictor, filters: int, rng: np.random.Generator) -> None:
    first, *middle, last = list(predictor.convs)
    width, features = first.kernel.shape[3], first.kernel.shape[2] // 2
    if width < UNITS or last.kernel.shape[2] < 4 or filters < COLORS:
        return  # too narrow, or there is no copy of the image to look at
    count = width // UNITS
    mixtures = rng.standard_normal((count, filters)) / np.sqrt(filters)
    mixtures[0] = [*LUMA, *np.zeros(filters - COLORS)]
    taps, signs = {}, np.zeros((2, width))
    for unit in range(count * UNITS):
        mixture, (axis, difference, sign) = unit // UNITS, _bits(unit % UNITS)
        gradient = 0.5 * (DERIVATIVE.T if axis else DERIVATIVE)
        change = (-1) ** difference * _centre(1.0)
        for channel, weight in enumerate(mixtures[mixture]):
            taps[channel, unit] = (-1) ** sign * weight * (gradient - change)
            taps[features + channel, unit] = (-1) ** sign * weight * (gradient + change)
        signs[axis, unit] = -((-1) ** difference) / count
    _rewrite(first, taps)
    if predictor.radius:
        predictor.matched.kernel[...] *= 0
    # Signed numbers travel through leaky ReLUs as the pair (v, -v): leaky(v) - leaky(-v) = (1 + LEAK) v.
    pairs = {
        (unit, 2 * axis + s): (-1) ** s * signs[axis, unit] * _mean(middle[0])
        for unit in range(width)
        for axis in (0, 1)
        for s in (0, 1)
    }
    _rewrite(middle[0], pairs)
    carry = {
        (2 * axis + i, 2 * axis + o): (-1) ** (i + o) / (1 + LEAK) for axis in (0, 1) for i in (0, 1) for o in (0, 1)
    }
    for conv in middle[1:]:
        _rewrite(conv, {place: weight * _mean(conv) for place, weight in carry.items()})
    kernel = (NOISE * last.kernel[...]).at[0, 0, :4].set(0)
    for axis in (0, 1):
        for i in (0, 1):
            kernel = kernel.at[0, 0, 2 * axis + i, axis].set((-1) ** i * GAIN / (1 + LEAK))
    last.kernel[...] = kernel


def _rewrite(conv: Conv, taps: dict[tuple[int, int], np.ndarray]) -> None:
    """Output channels named in `taps` get exactly these (input, output) kernels and nothing else."""
    shape = conv.kernel.shape
    values, kept = np.zeros(shape, np.float32), np.ones(shape[3], np.float32)
    for (source, output), tap in taps.items():
        values[:, :, source, output] = tap
        kept[output] = 0
    conv.kernel[...] = conv.kernel[...] * kept + values


def _mean(conv: Conv) -> np.ndarray:
    """The tap that averages over `conv`'s window."""
    size = conv.kernel.shape[0]
    return np.full((size, size), 1 / size**2)


def _centre(value: float) -> np.ndarray:
    tap = np.zeros((3, 3))
    tap[1, 1] = value
    return tap


def _bits(number: int) -> tuple[int, int, int]:
    return number >> 2 & 1, number >> 1 & 1, number & 1
