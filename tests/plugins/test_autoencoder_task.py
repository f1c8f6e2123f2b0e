"""Training an autoencoder: pictures come out again, and what it exports is a folder that loads."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from common.io.images import contact_sheet
from common.training.objectives import L1
from common.training.task import Context
from plugins.diffusion import load_vae
from plugins.diffusion.networks.vae_config import VAEConfig
from plugins.diffusion.training.autoencoder_task import AutoencoderTask
from plugins.diffusion.training.losses import Kl

TASK = AutoencoderTask(
    VAEConfig(block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4),
    {"l1": L1("output.image", "batch.image"), "kl": Kl(weight=1e-3)},
)


@pytest.fixture(scope="module")
def batch():
    """Eight flat colours: what latents can say."""
    colours = np.random.default_rng(0).random((8, 1, 1, 3), np.float32)
    return {"image": jnp.asarray(np.broadcast_to(colours, (8, 8, 8, 3)))}


@pytest.fixture(scope="module")
def trained(batch):
    optimiser = optax.adam(3e-3)

    @jax.jit
    def step(params, state, number):
        context = Context(number, jax.random.fold_in(jax.random.key(2), number), {})
        (_, metrics), grads = jax.value_and_grad(TASK.loss, has_aux=True)(params, batch, context)
        updates, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, updates), state, metrics

    params = jax.jit(TASK.init)(jax.random.key(1))
    state, rows = optimiser.init(params), []
    for number in range(200):
        params, state, metrics = step(params, state, jnp.int32(number))
        rows.append({name: float(value) for name, value in metrics.items()})
    return params, rows


@pytest.mark.slow
def test_pictures_come_out_again(trained):
    rows = trained[1]
    assert set(rows[0]) == {"l1", "kl", "psnr", "latent_std"}
    assert rows[-1]["l1"] < 0.25 * rows[0]["l1"] and rows[-1]["psnr"] > 20


@pytest.mark.slow
def test_the_kl_term_is_the_mean_per_latent(trained, batch):
    output = TASK.forward(trained[0], batch["image"], jax.random.key(0))
    mean, logvar = (np.asarray(part, np.float64) for part in (output.posterior.mean, output.posterior.logvar))
    expected = 0.5 * np.mean(mean**2 + np.exp(logvar) - 1 - logvar)
    _, metrics = TASK.loss(trained[0], batch, Context(jnp.int32(0), jax.random.key(0), {}))
    assert float(metrics["kl"]) == pytest.approx(expected, rel=1e-4)


def test_the_export_loads(trained, batch, tmp_path):
    folder = TASK.export(tmp_path / "weights.safetensors", trained[0], {"steps": 200})
    assert folder == tmp_path / "weights" and '"steps": 200' in (folder / "training.json").read_text()
    vae = load_vae(folder)
    expected = TASK.forward(trained[0], batch["image"], None)
    found = vae.decode(vae.encode(2 * jnp.asarray(batch["image"]) - 1).mode)
    np.testing.assert_allclose((found + 1) / 2, expected.image, atol=1e-4)


def test_the_picture_shows_pairs(trained, batch):
    sheet = TASK.pictures(trained[0], batch)["reconstructions"]
    blank = contact_sheet([np.ones((8, 8, 3), np.float32)] * 16, columns=8)
    assert sheet.shape == blank.shape and np.abs(sheet - blank).mean() > 0.1
