"""Training a base model: the loss is the paper's, and a base trained on two captions draws their colours."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import random
from refusal import refused
from tiny_base import train

from common.io.images import contact_sheet
from common.nn.text_encoder import TextConfig, TextEncoder
from common.training.task import Context
from plugins.diffusion import load
from plugins.diffusion.io.components import save_component
from plugins.diffusion.networks.unet import UNet, UNetConfig
from plugins.diffusion.networks.vae import AutoencoderKL, VAEConfig
from plugins.diffusion.samplers import by_name, starting_noise
from plugins.diffusion.samplers.schedules import Schedule
from plugins.diffusion.steering import COND, Conditioning, steered
from plugins.diffusion.training.denoising_task import DenoisingTask, SampleSheet, latents_of, spread_timesteps
from plugins.diffusion.training.losses import ErrorBetween, min_snr_weight, per_example, snr
from recipes.captioned_pictures.train_tokenizer import train_bpe, write_tokenizer

UNET = UNetConfig(
    sample_size=8, in_channels=3, out_channels=3, block_out_channels=(16,), layers_per_block=1, norm_num_groups=4,
    down_block_types=("CrossAttnDownBlock2D",), up_block_types=("CrossAttnUpBlock2D",),
    cross_attention_dim=16, attention_head_dim=2,
)  # fmt: skip
TEXT = TextConfig(4, 16, 32, 1, 2, max_position_embeddings=3, eos_token_id=3)
VAE = VAEConfig(latent_channels=3, block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4, scaling_factor=0.5)
TASK = DenoisingTask(UNET, Schedule(prediction_type="v_prediction"), TEXT)
RED, BLUE = [0, 1, 3], [0, 2, 3]
COLOURS = np.float32([[0.9, 0.1, 0.1], [0.1, 0.1, 0.9]])


def batch_of(count: int) -> dict[str, np.ndarray]:
    """Red and blue images with their captions, in turn."""
    which = np.arange(count) % 2
    image = np.broadcast_to(COLOURS[which][:, None, None], (count, 8, 8, 3)).copy()
    return {"image": image, "tokens": np.int32([RED, BLUE])[which]}


def context(step: int = 0, **frozen) -> Context:
    return Context(jnp.int32(step), jax.random.fold_in(jax.random.key(0), step), frozen)


@pytest.fixture(scope="module")
def params():
    """Random ones: nothing is compiled."""
    networks = {"unet": random(UNet, UNET), "text_encoder": random(TextEncoder, TEXT)}
    return {name: nnx.to_pure_dict(nnx.state(network)) for name, network in networks.items()}


@pytest.mark.long
def test_a_base_learns_its_captions():
    params, rows = train(TASK, batch_of(4), steps=150)
    losses = [row["denoising"] for row in rows]
    assert np.mean(losses[-20:]) < 0.2 * np.mean(losses[:5])

    @jax.jit
    def draw(params, tokens):
        states = TASK.states(params, {"tokens": tokens})
        branches = {COND: Conditioning(states)}
        model = steered(nnx.merge(TASK.graphs["unet"], params["unet"]), jnp.float32, branches, jnp.float32(1))
        x = starting_noise(jax.random.key(3), (2, 8, 8, 3))
        return (by_name("ddim")(model, x, TASK.schedule, steps=10) + 1) / 2

    drawn = np.asarray(draw(params, jnp.int32([RED, BLUE]))).mean((1, 2))
    assert np.abs(drawn - COLOURS).max() < 0.1


@pytest.fixture(scope="module")
def measured(params):
    """Forward pass, loss with metrics, and text states of four examples, by one compiled function."""
    task = dataclasses.replace(TASK, metrics={"low": ErrorBetween(0, 500), "high": ErrorBetween(500, 1000)})
    return jax.jit(lambda *args: (task.forward(*args), task.loss(*args), task.states(*args[:2])))(
        params, batch_of(4), context()
    )


def test_the_loss_is_the_weighted_error_and_metrics_split_it_by_timestep(measured):
    output, (loss, metrics), _ = measured
    np.testing.assert_allclose(output.weight, min_snr_weight(snr(TASK.schedule, output.t), "v_prediction"), rtol=1e-6)
    errors, low = np.asarray(per_example(output.prediction, output.target)), np.asarray(output.t) < 500
    assert float(loss) == pytest.approx(np.mean(np.asarray(output.weight) * errors), rel=1e-4)
    assert float(metrics["low"]) == pytest.approx(errors[low].mean(), rel=1e-4)
    assert float(metrics["high"]) == pytest.approx(errors[~low].mean(), rel=1e-4)
    assert set(metrics) == {"denoising", "low", "high"}
    np.testing.assert_array_equal(dataclasses.replace(TASK, min_snr=0.0).weights(output.t), 1)


def test_images_and_their_cached_latents_are_the_same_example(tmp_path):
    vae, batch = AutoencoderKL(VAE, rngs=nnx.Rngs(0)), batch_of(2)
    save_component(tmp_path / "vae", vae)
    task = dataclasses.replace(TASK, vae=str(tmp_path))
    posterior = vae.encode(2 * jnp.asarray(batch["image"]) - 1)
    cached = {"tokens": batch["tokens"], "latents_mean": posterior.mean, "latents_std": posterior.std}
    key = jax.random.key(5)
    one, other = (latents_of(task.autoencoder, b, task.frozen(), key) for b in (batch, cached))
    assert one.shape == (2, 4, 4, 3)
    np.testing.assert_allclose(one, other, atol=1e-5)
    np.testing.assert_allclose(one / 0.5, posterior.sample(key), atol=1e-5)
    refused(ValueError, latents_of, None, cached, {}, key, match=r"task\.vae")


def test_batches_may_hold_states(params, measured):
    _, (expected, _), states = measured
    task = dataclasses.replace(TASK, text=None)
    assert set(task.graphs) == {"unet"}
    batch = {"image": batch_of(4)["image"], "states": np.asarray(states)}
    loss = jax.jit(task.loss)({"unet": params["unet"]}, batch, context())[0]
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    refused(ValueError, task.states, params, {}, match=r"task\.text")


def test_a_step_in_bfloat16_is_near_one_in_float32(params, measured):
    half = dataclasses.replace(TASK, dtype="bfloat16")
    loss, expected = float(jax.jit(half.loss)(params, batch_of(4), context())[0]), float(measured[1][0])
    assert loss == pytest.approx(expected, rel=0.05) and loss != expected


def test_timesteps_are_spread_over_the_batch():
    t = np.asarray(spread_timesteps(jax.random.key(0), 10, 1000))
    assert sorted(t // 100) == list(range(10)) and list(t) != sorted(t)
    many = np.concatenate([spread_timesteps(jax.random.key(i), 4, 8) for i in range(500)])
    assert np.bincount(many, minlength=8) == pytest.approx(np.full(8, 250), rel=0.2)


def test_cubic_timesteps_are_mostly_noisy():
    """1 - u^3 has mean 3/4, and half its mass above 1 - 1/8."""
    t = np.asarray(spread_timesteps(jax.random.key(0), 4000, 1000, "cubic"))
    assert t.min() >= 0 and t.max() == 999
    assert abs(t.mean() / 1000 - 0.75) < 0.01 and abs((t > 875).mean() - 0.5) < 0.01


def test_training_starts_from_a_base(tmp_path):
    unet = UNet(UNET, rngs=nnx.Rngs(9))
    save_component(tmp_path / "unet", unet)
    task = DenoisingTask(UNET, start_from=str(tmp_path))
    begun = task.start()
    assert begun is not None
    np.testing.assert_array_equal(begun["unet"]["conv_in"]["kernel"], unet.conv_in.kernel[...])
    assert dataclasses.replace(task, unet=dataclasses.replace(UNET, sample_size=12)).start() is not None
    other = dataclasses.replace(task, unet=dataclasses.replace(UNET, layers_per_block=2))
    with pytest.raises(ValueError, match="start_from"):
        other.start()


def test_an_exported_base_makes_the_image_summary(tmp_path):
    write_tokenizer(tmp_path / "tokenizer", *train_bpe(["red", "blue"], 520))
    text = dataclasses.replace(TEXT, vocab_size=520, max_position_embeddings=8, eos_token_id=519)
    samples = SampleSheet(("red", "blue"), seeds=1, steps=2)
    whole = dataclasses.replace(TASK, text=text, tokenizer=str(tmp_path / "tokenizer"), samples=samples)
    params = whole.init(jax.random.key(1))
    sheet = whole.pictures(params, {})["samples"]
    folder = whole.export(tmp_path / "weights.safetensors", params, {"steps": 3})
    assert json.loads((folder / "training.json").read_text())["steps"] == 3
    images = load(folder)(["red", "blue"], seeds=0, steps=2, guidance=whole.samples.guidance)
    np.testing.assert_allclose(contact_sheet(list(images), columns=2, labels=["red", "blue"]), sheet, atol=1e-4)
    whole.export(tmp_path / "weights.safetensors", params, {"steps": 4})  # replaces it
    assert json.loads((folder / "training.json").read_text())["steps"] == 4


def test_text_states_of_another_width_are_refused():
    with pytest.raises(ValueError, match="hidden_size 8"):
        dataclasses.replace(TASK, text=dataclasses.replace(TEXT, hidden_size=8))
