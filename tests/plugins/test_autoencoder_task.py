"""Training an autoencoder: it reconstructs images, and its export is a folder that loads."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import random
from tiny_base import train

from common.io.images import contact_sheet
from common.training.objectives import L1
from common.training.task import Context
from plugins.diffusion import load_vae
from plugins.diffusion.networks.vae import AutoencoderKL, VAEConfig
from plugins.diffusion.training.autoencoder_task import AutoencoderTask
from plugins.diffusion.training.losses import Kl

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
    found = jax.jit(lambda image: vae.decode(vae.encode(image).mode))(2 * batch["image"] - 1)
    np.testing.assert_allclose((found + 1) / 2, expected.image, atol=1e-4)
    sheet = TASK.pictures(params, batch)["reconstructions"]
    blank = contact_sheet([np.ones((8, 8, 3), np.float32)] * 16, columns=8)
    assert sheet.shape == blank.shape and np.abs(sheet - blank).mean() > 0.1
