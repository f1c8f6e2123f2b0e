"""The autoencoder against the PyTorch library's outputs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import assert_near, fixture, network
from refusal import refused

from plugins.diffusion.networks.vae import AutoencoderKL, Posterior, VAEConfig

PARITY = 1e-4


def test_encode_sample_decode():
    io, vae = fixture("vae_io"), network("vae")
    graphdef, state = nnx.split(vae)
    posterior = jax.jit(lambda s, image: nnx.merge(graphdef, s).encode(image))(state, io["image"])
    for name in ("mean", "logvar", "std"):
        assert_near(getattr(posterior, name), io[name], atol=PARITY)
    np.testing.assert_allclose(posterior.kl(), io["kl"], rtol=1e-5)
    sample = posterior.sample(io["noise"])
    assert_near(sample, io["sample"], atol=PARITY)
    latents = vae.to_latents(sample)
    assert_near(latents, io["scaled_sample"], atol=PARITY)
    decoded = jax.jit(lambda s, z: nnx.merge(graphdef, s).decode(z))(state, vae.from_latents(latents))
    assert_near(decoded, io["decoded"], atol=PARITY)


def test_posterior():
    """Drawn with a key; the fixture holds all else."""
    posterior = Posterior(jnp.full((1, 50, 50, 4), 2.0), jnp.full((1, 50, 50, 4), jnp.log(0.25)))
    drawn = posterior.sample(jax.random.key(0))
    assert float(drawn.mean()) == pytest.approx(2, abs=0.02) and float(drawn.std()) == pytest.approx(0.5, abs=0.02)
    np.testing.assert_array_equal(posterior.mode, posterior.sample(jnp.zeros((1, 50, 50, 4))))
    refused(ValueError, posterior.sample, jnp.zeros((1, 50, 50, 1)), match=r"\(1, 50, 50, 1\)")


def test_shift_and_scale_are_undone():
    config = VAEConfig(block_out_channels=(8, 8), norm_num_groups=4, scaling_factor=0.5, shift_factor=0.25)
    vae, z = nnx.eval_shape(lambda: AutoencoderKL(config, rngs=nnx.Rngs(0))), jnp.full((1, 1, 1, 4), 2.25)
    np.testing.assert_allclose(vae.to_latents(z), 1.0)
    np.testing.assert_allclose(vae.from_latents(vae.to_latents(z)), z)


def test_shapes_that_do_not_fit():
    vae = network("vae")
    for method, shape in ((vae.encode, (1, 64, 60, 3)), (vae.encode, (1, 64, 64, 1)), (vae.decode, (1, 8, 8, 3))):
        refused(ValueError, method, jnp.zeros(shape), match=re.escape(str(shape)))
