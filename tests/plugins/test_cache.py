"""Latents and states computed once: they are what the networks say, and the loader hands them on."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from plugins.data.captioned_batches import CaptionedConfig
from plugins.data.latent_cache import write_cache
from plugins.diffusion import TextConfig, TextEncoder, load_vae, save_component
from plugins.diffusion.networks.vae import AutoencoderKL, VAEConfig
from recipes.captioned_pictures.train_tokenizer import train_bpe, write_tokenizer

VAE = VAEConfig(latent_channels=2, block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4)
TEXT = TextConfig(520, 8, 16, 1, 2, max_position_embeddings=6, eos_token_id=519)
LABELS = ("red apple", "dog", "green tree")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of pictures, a base of networks, and the cache of what they say."""
    folder = tmp_path_factory.mktemp("cache")
    pictures = folder / "pictures"
    pictures.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    np.save(pictures / "images.npy", images)
    fields = {"style": "3d emoji", "tags": [], "mirror": True, "split": "train", "source": "s", "group": "g"}
    entries = [{"label": label, **fields} for label in LABELS]
    (pictures / "index.json").write_text(json.dumps({"pictures": entries}))
    write_tokenizer(pictures / "tokenizer", *train_bpe(list(LABELS), 520))
    write_tokenizer(folder / "base" / "tokenizer", *train_bpe(list(LABELS), 520))
    save_component(folder / "base" / "text_encoder", TextEncoder(TEXT, rngs=nnx.Rngs(1)))
    save_component(folder / "vae", AutoencoderKL(VAE, rngs=nnx.Rngs(0)))
    scale = write_cache(pictures, folder / "vae", folder / "latents", folder / "base", batch=2)
    return folder, images, scale


def test_latents_are_the_autoencoders(made):
    folder, images, _ = made
    mean, std = (np.load(folder / "latents" / name) for name in ("mean.npy", "std.npy"))
    assert mean.shape == std.shape == (3, 2, 4, 4, 2) and mean.dtype == np.float16
    vae = load_vae(folder / "vae")
    for side, flipped in enumerate((images, images[:, :, ::-1])):
        posterior = vae.encode(2 * jnp.asarray(flipped, jnp.float32) / 255 - 1)
        np.testing.assert_allclose(mean[:, side], posterior.mean, atol=2e-3)
        np.testing.assert_allclose(std[:, side], posterior.std, atol=2e-3)


def test_the_scaled_autoencoder_gives_unit_latents(made):
    folder, _, scale = made
    vae = load_vae(folder / "latents" / "vae")
    assert vae.config.scaling_factor == pytest.approx(scale)
    mean, std = (np.load(folder / "latents" / name).astype(np.float32) for name in ("mean.npy", "std.npy"))
    draws = mean + std * np.random.default_rng(1).standard_normal((400, *mean.shape), np.float32)
    assert float(jnp.std(vae.to_latents(jnp.asarray(draws.reshape(-1, 4, 4, 2))))) == pytest.approx(1, abs=0.02)


def test_the_loader_hands_them_on(made):
    folder, _, _ = made
    config = CaptionedConfig(str(folder / "pictures"), batch_size=3, length=6, latents=str(folder / "latents"))
    mean = np.load(folder / "latents" / "mean.npy")
    stream, sides = config.batches(0), set()
    for _ in range(6):
        batch = next(stream)
        assert set(batch) == {"latents_mean", "latents_std", "tokens", "id"}
        for row, number in zip(batch["latents_mean"], batch["id"], strict=True):
            sides.add(next(side for side in range(2) if np.array_equal(row, mean[number, side])))
    assert sides == {0, 1}


def test_states_come_instead_of_tokens(made):
    folder, _, _ = made
    plain = dict(batch_size=3, length=6, tag=0.0, plain=0.0)
    config = CaptionedConfig(str(folder / "pictures"), **plain, drop=0.5, latents=str(folder / "latents"), states=True)
    states = np.load(folder / "latents" / "states.npy")
    assert states.shape == (4, 6, 8) and not np.array_equal(states[0], states[3])
    stream, seen = config.batches(0), set()
    for _ in range(6):
        batch = next(stream)
        for row, number in zip(batch["states"], batch["id"], strict=True):
            rows = [i for i in (number, 3) if np.array_equal(row, states[i])]
            seen.add(rows[0] == 3)
            assert rows
    assert seen == {False, True}


def test_captions_that_change_have_no_states(made):
    with pytest.raises(ValueError, match="tag=0 and plain=0"):
        CaptionedConfig(str(made[0] / "pictures"), latents="anything", states=True)


def test_missing_or_foreign_latents_are_one_line(made, tmp_path):
    folder = made[0]
    config = CaptionedConfig(str(folder / "pictures"), batch_size=3, latents=str(tmp_path))
    with pytest.raises(FileNotFoundError, match="writes them"):
        config.batches(0)
    np.save(tmp_path / "mean.npy", np.zeros((2, 2, 4, 4, 2), np.float16))
    with pytest.raises(ValueError, match="cache again"):
        CaptionedConfig(str(folder / "pictures"), batch_size=3, latents=str(tmp_path)).batches(0)
    with pytest.raises(FileExistsError):
        write_cache(folder / "pictures", folder / "vae", folder / "latents")
