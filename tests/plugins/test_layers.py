"""What the outputs of whole networks do not show of their layers: precision, odd sizes, the sinusoid's options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plugins.diffusion.networks.layers import GroupNorm, upsample_nearest
from plugins.diffusion.networks.unet import sinusoid


def test_norms_keep_float32_statistics():
    """Around 100 bfloat16 has steps of 0.5: the deviation of 1 is seen, but only if sums are not rounded."""
    x = (100 + jax.random.normal(jax.random.key(0), (1, 64, 64, 4))).astype(jnp.bfloat16)
    out = GroupNorm(1, 4, 1e-5)(x)
    assert out.dtype == jnp.bfloat16
    assert abs(float(out.astype(jnp.float32).mean())) < 0.01
    assert float(out.astype(jnp.float32).std()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("size", [(6, 8), (5, 8), (6, 7), (5, 7)])
def test_upsampling_is_the_nearest_of_pytorch(size):
    """Pixel i reads floor(i * n_in / n_out), also where the size was odd."""
    x = jnp.arange(24.0).reshape(1, 3, 4, 2)
    rows, columns = (np.arange(m) * n // m for n, m in zip((3, 4), size, strict=True))
    np.testing.assert_array_equal(upsample_nearest(x, size), np.asarray(x)[:, rows][:, :, columns])


def test_sinusoid():
    """At time 0 all cosines are 1 and all sines 0; the first frequency is 1, and `shift` 1 makes the last 1 / 10000."""
    np.testing.assert_array_equal(sinusoid(jnp.array([0]), 6)[0], [1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(sinusoid(jnp.array([0]), 6, cosine_first=False)[0], [0, 0, 0, 1, 1, 1])
    waves = np.asarray(sinusoid(jnp.array([2.5]), 6, shift=1)[0])
    frequencies = 10_000.0 ** (-np.arange(3) / 2)
    np.testing.assert_allclose(waves, [*np.cos(2.5 * frequencies), *np.sin(2.5 * frequencies)], rtol=1e-5)
