"""Latents and text states computed once: they are the networks' outputs, and batches contain them."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from prepared import write_prepared
from refusal import refused
from streams import take

from common.io.images import write_image
from plugins.data.captioned_batches import CaptionedConfig
from plugins.data.latent_cache import write_cache
from plugins.data.own_batches import OwnPicturesConfig
from plugins.diffusion import TextConfig, TextEncoder, load_vae, save_component
from plugins.diffusion.networks.vae import AutoencoderKL, VAEConfig
from recipes.captioned_pictures.train_tokenizer import train_bpe, write_tokenizer

SIZE = 8
VAE = VAEConfig(latent_channels=2, block_out_channels=(4, 4), layers_per_block=1, norm_num_groups=2)
TEXT = TextConfig(520, 8, 16, 1, 2, max_position_embeddings=6, eos_token_id=519)
IMAGES = np.random.default_rng(0).integers(0, 256, (3, SIZE, SIZE, 3), np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A prepared folder and the same images as a user's own, a base, and the caches of both."""
    folder = tmp_path_factory.mktemp("cache")
    write_prepared(folder / "pictures", IMAGES, lambda i: {"split": "train"})
    for kind in ("images", "conditions/canny"):
        for number, image in enumerate(IMAGES):
            write_image(folder / "own" / kind / f"{number}.png", image.astype(np.float32) / 255)
    write_tokenizer(folder / "base" / "tokenizer", *train_bpe(["thing 0, 3d emoji"], 520))
    save_component(folder / "base" / "text_encoder", TextEncoder(TEXT, rngs=nnx.Rngs(1)))
    save_component(folder / "vae", AutoencoderKL(VAE, rngs=nnx.Rngs(0)))
    write_cache(folder / "own", folder / "vae", folder / "own_latents", batch=2, size=SIZE)
    write_cache(folder / "pictures", folder / "vae", folder / "latents", folder / "base", batch=2)
    return folder


def config(folder, **changes) -> CaptionedConfig:
    plain = dict(batch_size=3, length=6, latents=str(folder / "latents"))
    return CaptionedConfig(str(folder / "pictures"), **(plain | changes))


def test_latents_are_the_autoencoders(folder):
    mean, std = (np.load(folder / "latents" / name) for name in ("mean.npy", "std.npy"))
    assert mean.shape == std.shape == (3, 2, 4, 4, 2) and mean.dtype == np.float16
    graph, state = nnx.split(load_vae(folder / "vae"))
    both = np.concatenate([IMAGES, IMAGES[:, :, ::-1]]).astype(np.float32) / 255
    posterior = jax.jit(lambda state, image: nnx.merge(graph, state).encode(2 * image - 1))(state, both)
    np.testing.assert_allclose(mean.swapaxes(0, 1).reshape(6, 4, 4, 2), posterior.mean, atol=2e-3)
    np.testing.assert_allclose(std.swapaxes(0, 1).reshape(6, 4, 4, 2), posterior.std, atol=2e-3)
    for name in ("mean.npy", "std.npy"):
        np.testing.assert_array_equal(np.load(folder / "own_latents" / name), np.load(folder / "latents" / name))
    scaled = load_vae(folder / "latents" / "vae")
    scale = json.loads((folder / "latents" / "index.json").read_text())["scaling_factor"]
    assert scaled.config.scaling_factor == pytest.approx(scale)
    draws = mean + std * np.random.default_rng(1).standard_normal((400, *mean.shape), np.float32)
    assert float(jnp.std(scaled.to_latents(jnp.asarray(draws.reshape(-1, 4, 4, 2))))) == pytest.approx(1, abs=0.02)


def test_latents_replace_images(folder):
    mean, sides = np.load(folder / "latents" / "mean.npy"), set()
    for batch in take(config(folder).batches(0), 6):
        assert set(batch) == {"latents_mean", "latents_std", "tokens", "id"}
        for row, number in zip(batch["latents_mean"], batch["id"], strict=True):
            sides.add(next(side for side in range(2) if np.array_equal(row, mean[number, side])))
    assert sides == {0, 1}


def test_a_condition_fits_the_latents(folder):
    names = dict(latents=str(folder / "own_latents"), tokenizer=str(folder / "pictures" / "tokenizer"))
    data = OwnPicturesConfig(str(folder / "own"), size=SIZE, batch_size=3, unseen=0, mirror=True, **names)
    assert set(next(data.batches(0))) == {"latents_mean", "latents_std", "tokens", "id"}
    mean = np.load(folder / "own_latents" / "mean.npy")
    batch = next(dataclasses.replace(data, condition="canny", stored=True).batches(0))
    for row, condition, number in zip(batch["latents_mean"], batch["condition"], batch["id"], strict=True):
        flip = np.array_equal(row, mean[number, 1])  # the stored condition is the image itself
        assert flip or np.array_equal(row, mean[number, 0])
        image = IMAGES[number, :, ::-1] if flip else IMAGES[number]
        np.testing.assert_array_equal(condition, image.astype(np.float32) / 255)
    refused(ValueError, lambda: dataclasses.replace(data, size=4).batches(0), match=r"8 .* 4")


def test_states_replace_tokens(folder):
    states, seen = np.load(folder / "latents" / "states.npy"), set()
    assert states.shape == (4, 6, 8) and not np.array_equal(states[0], states[3])
    for batch in take(config(folder, tag=0, plain=0, drop=0.5, states=True).batches(0), 6):
        for row, number in zip(batch["states"], batch["id"], strict=True):
            rows = [i for i in (number, 3) if np.array_equal(row, states[i])]
            seen.add(rows[0] == 3)
    assert seen == {False, True}


def test_missing_or_foreign_caches_are_refused(folder, tmp_path):
    refused(FileNotFoundError, lambda: config(folder, latents=str(tmp_path)).batches(0), match="latent_cache")
    without_states = config(folder, latents=str(folder / "own_latents"), states=True, tag=0, plain=0)
    refused(FileNotFoundError, without_states.batches, 0, match=r"states\.npy")
    np.save(tmp_path / "mean.npy", np.zeros((2, 2, 4, 4, 2), np.float16))
    refused(ValueError, lambda: config(folder, latents=str(tmp_path)).batches(0), match=r"2 .* 3")
    refused(FileExistsError, write_cache, folder / "pictures", folder / "vae", folder / "latents", match="latents")
    base, new = folder / "base", tmp_path / "new"
    refused(ValueError, write_cache, folder / "own", folder / "vae", new, base, 2, SIZE, match="text")


def test_a_cache_of_images_with_other_names_is_refused(folder, tmp_path):
    own = Path(shutil.copytree(folder / "own", tmp_path / "own"))
    (own / "images" / "1.png").rename(own / "images" / "3.png")
    names = dict(latents=str(folder / "own_latents"), tokenizer=str(folder / "pictures" / "tokenizer"))
    data = OwnPicturesConfig(str(own), size=SIZE, batch_size=3, unseen=0, **names)
    refused(ValueError, data.batches, 0, match="own_latents")
