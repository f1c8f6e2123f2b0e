"""The autoencoder against the PyTorch library's outputs; training one: it reconstructs images, its export loads."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import assert_near, fixture, network, random
from refusal import refused
from tiny_base import train

from common.io.images import contact_sheet
from common.training.objectives import L1
from common.training.task import Context
from plugins.diffusion import load_vae
from plugins.diffusion.networks.vae import AutoencoderKL, Posterior, VAEConfig
from plugins.diffusion.training.autoencoder_task import AutoencoderTask
from plugins.diffusion.training.losses import Kl

PARITY = 1e-4


def test_encode_sample_decode():
    io, vae = fixture("vae_io"), network("vae")
    graphdef, state = nnx.split(vae)
    posterior = jax.jit(lambda s, image: nnx.merge(graphdef, s).encode(image))(state, io["image"])
    for name in ("mean", "logvar", "std"):
        assert_near(getattr(posterior, name), io[name], atol=PARITY)
    np.testing.assert_allclose(posterior.kl(), io["kl"], rtol=1e-5)
    sample = posterior.mean + posterior.std * io["noise"]
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


def test_shift_and_scale_are_undone():
    config = VAEConfig(block_out_channels=(8, 8), norm_num_groups=4, scaling_factor=0.5, shift_factor=0.25)
    vae, z = nnx.eval_shape(lambda: AutoencoderKL(config, rngs=nnx.Rngs(0))), jnp.full((1, 1, 1, 4), 2.25)
    np.testing.assert_allclose(vae.to_latents(z), 1.0)
    np.testing.assert_allclose(vae.from_latents(vae.to_latents(z)), z)


def test_shapes_that_do_not_fit():
    vae = network("vae")
    for shape in ((1, 64, 60, 3), (1, 64, 64, 1)):
        refused(ValueError, vae.encode, jnp.zeros(shape), match=re.escape(str(shape)))


TASK = AutoencoderTask(
    VAEConfig(block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4),
    {"l1": L1("output.image", "batch.image"), "kl": Kl(weight=1e-3)},
)


@pytest.fixture(scope="module")
def batch():
    """Eight flat colours, which latents can hold."""
    colours = np.random.default_rng(0).random((8, 1, 1, 3), np.float32)
    return {"image": jnp.asarray(np.broadcast_to(colours, (8, 8, 8, 3)))}


@pytest.fixture(scope="module")
def params():
    """Random ones: nothing is compiled."""
    return {"vae": nnx.to_pure_dict(nnx.state(random(AutoencoderKL, TASK.vae)))}


@pytest.mark.slow
def test_images_are_reconstructed(batch):
    _, rows = train(TASK, batch, steps=300)
    assert set(rows[0]) == {"l1", "kl", "psnr", "latent_std"}
    assert rows[-1]["l1"] < 0.2 * rows[0]["l1"] and rows[-1]["psnr"] > 24


def test_the_kl_term_is_the_mean_per_latent(params, batch):
    output = jax.jit(TASK.forward)(params, batch["image"], jax.random.key(0))
    mean, logvar = (np.asarray(part, np.float64) for part in (output.posterior.mean, output.posterior.logvar))
    expected = 0.5 * np.mean(mean**2 + np.exp(logvar) - 1 - logvar)
    _, metrics = jax.jit(TASK.loss)(params, batch, Context(jnp.int32(0), jax.random.key(0), {}))
    assert float(metrics["kl"]) == pytest.approx(expected, rel=1e-4)


def test_image_summaries_compile_once(params, batch, monkeypatch):
    traced, forward = [], AutoencoderTask.forward
    monkeypatch.setattr(AutoencoderTask, "forward", lambda *arguments: traced.append(1) or forward(*arguments))
    task = dataclasses.replace(TASK)
    for _ in range(2):
        task.pictures(params, batch)
    assert len(traced) == 1


def test_the_export_loads_and_the_image_summary_shows_pairs(params, batch, tmp_path):
    folder = TASK.export(tmp_path / "weights.safetensors", params, {"steps": 200})
    assert folder == tmp_path / "weights" and '"steps": 200' in (folder / "training.json").read_text()
    vae = load_vae(folder)
    expected = jax.jit(TASK.forward, static_argnums=2)(params, batch["image"], None)
    found = jax.jit(lambda image: vae.decode(vae.encode(image).mean))(2 * batch["image"] - 1)
    np.testing.assert_allclose((found + 1) / 2, expected.image, atol=1e-4)
    sheet = TASK.pictures(params, batch)["reconstructions"]
    blank = contact_sheet([np.ones((8, 8, 3), np.float32)] * 16, columns=8)
    assert sheet.shape == blank.shape and np.abs(sheet - blank).mean() > 0.1
