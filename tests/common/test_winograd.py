"""Winograd's convolution against XLA's, and FILM's choice between the two."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from common.nn import winograd
from common.nn.winograd import winograd_conv
from film.ops.convolution import conv2d


def plain(x, kernel):
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def drawn(shape, inputs=7, outputs=5):
    rng = np.random.default_rng(0)
    kernel = jnp.asarray(rng.normal(size=(3, 3, inputs, outputs)) / np.sqrt(9 * inputs), jnp.float32)
    return jnp.asarray(rng.normal(size=(*shape, inputs)), jnp.float32), kernel


@pytest.mark.parametrize("tiles", [1, 4, 256])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 3), (2, 9, 8), (3, 6, 11)], ids=str)
def test_is_the_convolution(shape, tiles, monkeypatch):
    monkeypatch.setattr(winograd, "TILES", tiles)
    x, kernel = drawn(shape)
    np.testing.assert_allclose(winograd_conv(x, kernel), plain(x, kernel), atol=2e-6)


def test_rounds_as_the_convolution_of_many_channels():
    x, kernel = drawn((1, 16, 16), inputs=2048, outputs=8)
    padded = np.pad(np.float64(x[0]), ((1, 1), (1, 1), (0, 0)))
    taps = [padded[i : i + 16, j : j + 16] @ np.float64(kernel[i, j]) for i in range(3) for j in range(3)]
    exact = np.sum(taps, axis=0)
    ours, theirs = (float(abs(np.float64(f(x, kernel)[0]) - exact).max()) for f in (winograd_conv, plain))
    assert ours < 4 * theirs + 1e-6


def test_film_takes_it_for_wide_kernels_and_its_gradient_is_right(monkeypatch):
    monkeypatch.setattr(winograd, "PRODUCTS", 0)
    x, kernel = drawn((1, 20, 16), inputs=winograd.CHANNELS, outputs=winograd.CHANNELS)
    text = jax.jit(lambda x, k: jax.grad(lambda x: (conv2d(x, k) ** 2).sum())(x)).lower(x, kernel).as_text()
    assert "stablehlo.convolution" not in text
    losses = [lambda x, k, f=f: (f(x, k) ** 2).sum() for f in (conv2d, plain)]
    ours, theirs = (jax.grad(loss, argnums=(0, 1))(x, kernel) for loss in losses)
    for mine, reference in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, reference, atol=1e-5 * float(abs(reference).max()))
