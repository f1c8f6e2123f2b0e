"""What training a base model optimises: the loss is the paper's, and a base trained on two colours paints them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from common.io.images import contact_sheet
from common.training.task import Context
from plugins.diffusion import load
from plugins.diffusion.io.components import save_component
from plugins.diffusion.networks.text_encoder import TextConfig
from plugins.diffusion.networks.unet import UNet, UNetConfig
from plugins.diffusion.networks.vae import AutoencoderKL, VAEConfig
from plugins.diffusion.samplers import by_name, starting_noise
from plugins.diffusion.samplers.predictions import min_snr_weight, snr
from plugins.diffusion.samplers.schedules import Schedule
from plugins.diffusion.steering import steered
from plugins.diffusion.training.denoising_task import DenoisingTask, spread_timesteps
from plugins.diffusion.training.losses import ErrorBetween, per_example
from plugins.diffusion.training.summaries import SampleSheet
from recipes.captioned_pictures.train_tokenizer import train_bpe, write_tokenizer

UNET = UNetConfig(
    sample_size=8,
    in_channels=3,
    out_channels=3,
    block_out_channels=(16, 16),
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    layers_per_block=1,
    cross_attention_dim=16,
    attention_head_dim=2,
    norm_num_groups=4,
)
TEXT = TextConfig(4, 16, 32, 1, 2, max_position_embeddings=3, eos_token_id=3)
VAE = VAEConfig(latent_channels=3, block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4, scaling_factor=0.5)
TASK = DenoisingTask(UNET, Schedule(prediction_type="v_prediction"), TEXT)
RED, BLUE = [0, 1, 3], [0, 2, 3]
COLOURS = np.float32([[0.9, 0.1, 0.1], [0.1, 0.1, 0.9]])


def batch_of(count: int) -> dict[str, np.ndarray]:
    """Half red pictures called so, half blue ones."""
    which = np.arange(count) % 2
    image = np.broadcast_to(COLOURS[which][:, None, None], (count, 8, 8, 3)).copy()
    return {"image": image, "tokens": np.int32([RED, BLUE])[which]}


def context(step: int = 0, **frozen) -> Context:
    return Context(jnp.int32(step), jax.random.fold_in(jax.random.key(0), step), frozen)


@pytest.fixture(scope="module")
def params():
    return jax.jit(TASK.init)(jax.random.key(1))


@pytest.mark.slow
def test_a_base_learns_what_words_mean(params):
    batch, optimiser = batch_of(16), optax.adam(3e-3)

    @jax.jit
    def step(params, state, number):
        (loss, _), grads = jax.value_and_grad(TASK.loss, has_aux=True)(
            params, batch, Context(number, jax.random.fold_in(jax.random.key(2), number), {})
        )
        updates, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    state, losses = optimiser.init(params), []
    for number in range(150):
        params, state, loss = step(params, state, jnp.int32(number))
        losses.append(float(loss))
    assert np.mean(losses[-20:]) < 0.2 * np.mean(losses[:5])

    @jax.jit
    def paint(params, tokens):
        states = TASK.states(params, {"tokens": tokens})
        model = steered(nnx.merge(TASK.graphs["unet"], params["unet"]), jnp.float32, states, None, jnp.float32(1), 0.0)
        x = starting_noise(jax.random.key(3), (2, 8, 8, 3))
        return (by_name("ddim")(model, x, TASK.schedule, steps=10) + 1) / 2

    painted = np.asarray(paint(params, jnp.int32([RED, BLUE]))).mean((1, 2))
    assert np.abs(painted - COLOURS).max() < 0.1


def test_the_loss_is_the_weighted_error(params):
    batch = batch_of(4)
    seen = jax.jit(TASK.forward)(params, batch, context())
    ratio = snr(TASK.schedule, seen.t)
    np.testing.assert_allclose(seen.weight, min_snr_weight(ratio, "v_prediction", 5.0), rtol=1e-6)
    loss, metrics = TASK.loss(params, batch, context())
    expected = np.mean(np.asarray(seen.weight) * np.asarray(per_example(seen.prediction, seen.target)))
    assert float(loss) == pytest.approx(expected, rel=1e-4) and set(metrics) == {"denoising"}
    plain = dataclasses.replace(TASK, min_snr=0.0)
    assert float(plain.loss(params, batch, context())[0]) > float(loss)


def test_pictures_latents_and_their_cache_say_the_same(params, tmp_path):
    """A batch of pictures, and one of what the autoencoder said about them, give the same training example."""
    vae = AutoencoderKL(VAE, rngs=nnx.Rngs(0))
    save_component(tmp_path / "vae", vae)
    task = dataclasses.replace(TASK, vae=str(tmp_path))
    batch = batch_of(2)
    posterior = vae.encode(2 * jnp.asarray(batch["image"]) - 1)
    cached = {"tokens": batch["tokens"], "latents_mean": posterior.mean, "latents_std": posterior.std}
    seen = [task.latents(b, task.frozen(), jax.random.key(5)) for b in (batch, cached)]
    assert seen[0].shape == (2, 4, 4, 3)
    np.testing.assert_allclose(seen[0], seen[1], atol=1e-5)
    np.testing.assert_allclose(seen[0] / 0.5, posterior.sample(jax.random.key(5)), atol=1e-5)


def test_states_may_come_with_the_batch(params):
    encoded = TASK.states(params, batch_of(2))
    task = dataclasses.replace(TASK, text=None)
    assert set(task.graphs) == {"unet"}
    batch = {"image": batch_of(2)["image"], "states": np.asarray(encoded)}
    loss = task.loss({"unet": params["unet"]}, batch, context())[0]
    assert float(loss) == pytest.approx(float(TASK.loss(params, batch_of(2), context())[0]), rel=1e-5)


@pytest.mark.slow
def test_a_step_in_bfloat16_is_near_one_in_float32(params):
    half = dataclasses.replace(TASK, dtype="bfloat16")
    losses = [float(task.loss(params, batch_of(8), context())[0]) for task in (TASK, half)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05) and losses[0] != losses[1]


def test_timesteps_are_spread_over_the_batch():
    t = np.asarray(spread_timesteps(jax.random.key(0), 10, 1000))
    assert sorted(t // 100) == list(range(10)) and list(t) != sorted(t)
    many = np.concatenate([spread_timesteps(jax.random.key(i), 4, 8) for i in range(500)])
    assert np.bincount(many, minlength=8) == pytest.approx(np.full(8, 250), rel=0.2)


def test_errors_by_timestep(params):
    seen = TASK.forward(params, batch_of(4), context())
    errors = np.asarray(per_example(seen.prediction, seen.target))
    low = np.asarray(seen.t) < 500
    terms = {"low": ErrorBetween(0, 500), "high": ErrorBetween(500, 1000)}
    metrics = dataclasses.replace(TASK, metrics=terms).loss(params, batch_of(4), context())[1]
    assert float(metrics["low"]) == pytest.approx(errors[low].mean(), rel=1e-4)
    assert float(metrics["high"]) == pytest.approx(errors[~low].mean(), rel=1e-4)


def test_training_goes_on_from_a_base(tmp_path):
    unet = UNet(UNET, rngs=nnx.Rngs(9))
    save_component(tmp_path / "unet", unet)
    task = DenoisingTask(UNET, start_from=str(tmp_path))
    begun = task.start()
    assert begun is not None
    np.testing.assert_array_equal(begun["unet"]["conv_in"]["kernel"], unet.conv_in.kernel[...])
    other = dataclasses.replace(task, unet=dataclasses.replace(UNET, layers_per_block=2))
    with pytest.raises(ValueError, match="the task asks for"):
        other.start()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The task of a whole base: with a tokenizer, words become numbers."""
    folder = tmp_path_factory.mktemp("whole")
    write_tokenizer(folder / "tokenizer", *train_bpe(["red", "blue"], 520))
    text = dataclasses.replace(TEXT, vocab_size=520, max_position_embeddings=8, eos_token_id=519)
    samples = SampleSheet(("red", "blue"), seeds=1, steps=2)
    return dataclasses.replace(TASK, text=text, tokenizer=str(folder / "tokenizer"), samples=samples)


@pytest.mark.slow
def test_an_exported_base_makes_the_run_s_pictures(whole, tmp_path):
    params = jax.jit(whole.init)(jax.random.key(1))
    sheet = whole.pictures(params, {})["samples"]
    folder = whole.export(tmp_path / "weights.safetensors", params, {"steps": 3})
    assert json.loads((folder / "training.json").read_text())["steps"] == 3
    pipeline = load(folder)
    images = pipeline(["red", "blue"], seeds=0, steps=2, guidance=whole.samples.guidance)
    np.testing.assert_allclose(contact_sheet(list(images), columns=2, labels=["red", "blue"]), sheet, atol=1e-4)
    whole.export(tmp_path / "weights.safetensors", params, {"steps": 4})  # a better one takes its place
    assert json.loads((folder / "training.json").read_text())["steps"] == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"losses": {}}, "list at least one"),
        ({"dtype": "float16"}, "float32 or bfloat16"),
        ({"min_snr": -1.0}, "0 turns it off"),
        ({"text": dataclasses.replace(TEXT, hidden_size=8)}, "one number"),
    ],
)
def test_a_task_that_cannot_be_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(TASK, **change)


def test_latents_of_an_unknown_autoencoder_are_refused():
    batch = {"latents_mean": np.zeros((1, 4, 4, 3)), "latents_std": np.ones((1, 4, 4, 3))}
    with pytest.raises(ValueError, match="has to name the autoencoder"):
        TASK.latents(batch, {}, jax.random.key(0))
