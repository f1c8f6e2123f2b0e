"""Images depend on prompt, seed and settings alone; functions are compiled once; a base is saved and read again."""

import dataclasses
import functools
import gc
import json
import shutil
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from networks import assert_same, parameters, random
from refusal import refused
from tiny_base import SCHEDULE, TEXT, VAE, diffusion_base, pixel_base, unet_config

from common.training.mesh import make_mesh
from plugins.diffusion.compiled import chunk_size, denoise, in_tiles, make_layout
from plugins.diffusion.io.base import read_base
from plugins.diffusion.io.lora import Lora
from plugins.diffusion.networks.tiny_vae import AutoencoderTiny, TinyVAEConfig
from plugins.diffusion.pipeline import Run, load
from plugins.diffusion.preview import Preview, fit_linear_decoder
from plugins.diffusion.request import make_request
from plugins.diffusion.samplers.schedules import Schedule

APPLE = "a red apple"
# Settings of all runs here, so that they share compiled functions.
QUICK: dict[str, Any] = {"steps": 3, "batch": 2}


@pytest.fixture(scope="module")
def apples() -> np.ndarray:
    """Two images, of seeds 5 and 6."""
    return diffusion_base()(APPLE, seeds=[5, 6], **QUICK)


def test_an_image_depends_on_its_prompt_and_seed_alone(apples):
    before = denoise._cache_size()
    batch = diffusion_base()(["a blue car", APPLE, "a cat"], seeds=[1, 5, 5], **QUICK)
    assert batch.shape == (3, 16, 16, 3) and batch.dtype == np.float32
    assert batch.min() >= 0 and batch.max() <= 1 and batch.std() > 0.05
    np.testing.assert_allclose(batch[1], apples[0], atol=1e-5)  # an index in the batch may order sums otherwise
    stronger = diffusion_base()(APPLE, seeds=5, guidance=3.0, **QUICK)
    for other in (batch[0], batch[2], apples[1], stronger[0]):
        assert np.abs(other - apples[0]).max() > 0.01
    request, calls = make_request(diffusion_base().base, APPLE, seeds=[5, 6, 7], steps=3), []
    for images in diffusion_base().run(request, batch=2, progress=lambda *done: calls.append(done), stepwise=False):
        calls.append(len(images))
    assert calls == [(3, 6), 2, (6, 6), 1]
    assert denoise._cache_size() == before, "numbers of images, prompts, seeds and guidance share one compiled function"


def test_two_devices_make_the_images_of_one(apples):
    before = denoise._cache_size()
    for seeds, batches in (([5, 6, 7], 2), ([5], 1)):
        calls: list[tuple[int, int]] = []
        progress = lambda *done, calls=calls: calls.append(done)  # noqa: E731
        images = diffusion_base()(APPLE, seeds=seeds, mesh=make_mesh(), progress=progress, **QUICK)
        np.testing.assert_allclose(images[0], apples[0], atol=1e-4)
        assert calls[-1] == (3 * batches, 3 * batches) and sorted(calls) == calls
    assert denoise._cache_size() == before + 1, "another callback does not recompile"


def test_a_pipeline_that_reported_its_progress_is_freed(apples):
    """JAX keeps static arguments of compiled functions."""
    fresh, calls = dataclasses.replace(diffusion_base()), []
    fresh(APPLE, seeds=[5, 6], progress=lambda *done: calls.append(done), **QUICK)
    compiled = weakref.ref(fresh.compiled)
    del fresh
    gc.collect()
    assert calls == [(1, 3), (2, 3), (3, 3)] and compiled() is None


def test_guidance_1_leaves_the_negative_prompt_out(apples):
    """Where both halves see the same text, guidance changes nothing at any scale."""
    plain = diffusion_base()(APPLE, seeds=5, guidance=1, **QUICK)
    same_text = diffusion_base()(APPLE, seeds=5, negative=APPLE, **QUICK)
    np.testing.assert_allclose(plain, same_text, atol=1e-4)
    assert np.abs(plain[0] - apples[0]).max() > 0.01
    negative = diffusion_base()(APPLE, seeds=5, negative="a blue car", **QUICK)
    assert np.abs(negative[0] - apples[0]).max() > 0.01


@pytest.mark.long
def test_strength_is_the_share_of_steps_that_change_an_image(apples):
    pipeline = diffusion_base()
    little = pipeline(APPLE, image=apples[0], strength=0.34, seeds=[8, 9], **QUICK)
    much = pipeline(APPLE, image=apples[0], strength=1, seeds=[8, 9], **QUICK)
    through = pipeline.compiled.encode_image(pipeline.compiled.params()["vae"], jnp.asarray(apples[:1]))
    back = np.asarray(pipeline.compiled.decode(pipeline.compiled.params()["vae"], through))
    assert np.abs(little - back).mean() < 0.6 * np.abs(much - back).mean()
    assert np.abs(little[0] - little[1]).max() > 0.001
    before = denoise._cache_size()
    each = pipeline(APPLE, image=apples, strength=0.4, seeds=[8, 9], **QUICK)
    assert denoise._cache_size() == before, "0.34 and 0.4 of three steps are one step"
    np.testing.assert_array_equal(each[0], little[0])  # the same image, given for all or by itself
    assert np.abs(each[1] - little[1]).max() > 0.001


def test_parameters_are_cast_once():
    functions = diffusion_base().compiled
    cast = functions.params("bfloat16")
    assert cast is functions.params("bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(cast)} == {jnp.dtype("bfloat16")}
    by_network = {k: {leaf.dtype.name for leaf in jax.tree.leaves(t)} for k, t in functions.params("float16").items()}
    assert by_network == {"unet": {"float16"}, "vae": {"float32"}, "text_encoder": {"float16"}}


def test_a_control_has_the_type_of_the_unet():
    """Of one that was loaded as bfloat16 too, in a run that names no type."""
    pipeline, layout = diffusion_base(), make_layout(1, 16, 16, 2, None, None)
    request = make_request(pipeline.base, APPLE)
    for dtype in ("bfloat16", "float32"):
        run = Run(pipeline, request, pipeline.compiled.params(dtype), layout, None, None)
        _, params = run.placed(pipeline.vae)  # any network
        assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(dtype)}


def test_a_base_is_saved_and_read_again(tmp_path, apples):
    pipeline = diffusion_base()
    folder = pipeline.save(tmp_path / "base")
    again = load(folder)
    for kind in ("unet", "vae", "text_encoder"):
        assert_same(getattr(again, kind), getattr(pipeline, kind))
    assert (again.sampler, again.schedule) == (pipeline.sampler, pipeline.schedule)
    assert again.tokenizer.vocab == pipeline.tokenizer.vocab and again.tokenizer.merges == pipeline.tokenizer.merges
    np.testing.assert_array_equal(again.tokenizer("A Café!  it's"), pipeline.tokenizer("A Café!  it's"))
    np.testing.assert_array_equal(again(APPLE, seeds=[5, 6], **QUICK), apples)
    index = json.loads((folder / "model_index.json").read_text())
    assert index["_class_name"] == "StableDiffusionPipeline" and index["scheduler"] == ["diffusers", "DDIMScheduler"]
    refused(FileExistsError, pipeline.save, folder, match="base")
    pipeline.save(folder, "float16", overwrite=True)
    halves = load(folder, "float16")
    assert parameters(halves.unet)["conv_in.kernel"].dtype == np.float16
    assert parameters(halves.vae)["decoder.conv_in.kernel"].dtype == np.float32


@pytest.mark.long
def test_a_base_of_pixels_has_no_autoencoder(tmp_path):
    base = load(pixel_base().save(tmp_path / "pixels"))
    assert base.vae is None and base.base.unit == 1 and base.base.side == 8
    images = base(APPLE, steps=2, height=8, width=11, guidance=1)
    assert images.shape == (1, 8, 11, 3) and 0 <= images.min() < images.max() <= 1


def test_a_prompt_that_is_too_long_is_a_warning():
    long = " ".join(["apple"] * 4 + ["tail"] * 30)
    with pytest.warns(UserWarning, match="14 .*'apple .*'tail") as warned:
        diffusion_base()(long, seeds=5, **QUICK)
    assert len(warned) == 1


IMAGE = np.full((16, 16, 3), 0.5, np.float32)


@pytest.mark.parametrize("settings, message", [
    ({"height": 17}, "16x17.* 16x16"),
    ({"height": 0}, "16x0"),
    ({"sampler": "eulr"}, "'eulr'.*ddim"),
    ({"sampler": "ddim_inversion"}, "ddim_inversion.*ddpm"),
    ({"strength": 0.5}, "strength=0.5"),
    ({"image": IMAGE, "strength": 0.1}, "strength=0.1"),
    ({"image": IMAGE, "width": 32}, "16x16.*32x16"),
    ({"image": IMAGE[:, :15]}, "15x16.*16x16"),
    ({"image": IMAGE[..., :1]}, r"\(16, 16, 1\)"),
    ({"guidance": float("nan")}, "guidance=nan"),
    ({"guidance": 1, "negative": "dark"}, "guidance=1"),
    ({"rescale": 2.0}, "rescale=2.0"),
    ({"clip_skip": 2}, "clip_skip=2.*0 to 1"),
    ({"seeds": -1}, "-1"),
    ({"seeds": [1, 2], "negative": ["a", "b", "c"]}, "3 negative, 2 seeds"),
    ({"seeds": []}, "0 seeds"),
    ({"batch": 0}, "batch=0"),
    ({"batch": 3, "mesh": "two"}, "batch=3.* 2 devices"),
    ({"dtype": "int8"}, "int8"),
])  # fmt: skip
def test_errors_come_before_anything_is_computed(settings, message):
    settings = {"steps": 3, **settings, "mesh": make_mesh() if "mesh" in settings else None}
    before = denoise._cache_size()
    refused(ValueError, lambda: diffusion_base()(APPLE, **settings), match=message)
    assert denoise._cache_size() == before


@pytest.mark.parametrize("change, message", [
    ({"unet": unet_config(9, 8)}, "9 channels in, 9 out.* 4"),
    ({"unet": dataclasses.replace(unet_config(4, 8), in_channels=5)}, r"5 channels in \(depth to image\)"),
    ({"unet": dataclasses.replace(unet_config(4, 8), cross_attention_dim=8)}, "of 8.* 16"),
    ({"text_encoder": dataclasses.replace(TEXT, vocab_size=999)}, "999"),
    ({"vae": dataclasses.replace(VAE, in_channels=1)}, "1 channels"),
])  # fmt: skip
def test_components_that_do_not_fit_are_refused(change, message):
    refused(ValueError, lambda: dataclasses.replace(diffusion_base().base, **change), match=message)


def test_a_lora_is_merged_into_another_pipeline(tmp_path, apples):
    name = "mid_block.attentions.0.transformer_blocks.0.attn2.to_k"
    pipeline, file = diffusion_base(), tmp_path / "style.safetensors"
    down, up = np.ones((2, 16), np.float32), np.ones((8, 2), np.float32)
    safetensors.numpy.save_file({f"unet.{name}.lora_A.weight": down, f"unet.{name}.lora_B.weight": up}, file)
    before = parameters(pipeline.unet)[f"{name}.kernel"]
    merged = pipeline.with_loras([(Lora.load(file), 0.5)])
    np.testing.assert_allclose(parameters(merged.unet)[f"{name}.kernel"], before + 1, atol=1e-6)
    np.testing.assert_array_equal(parameters(pipeline.unet)[f"{name}.kernel"], before)
    assert merged.text_encoder is pipeline.text_encoder
    compiled = denoise._cache_size()
    changed = merged(APPLE, seeds=[5, 6], **QUICK)
    assert denoise._cache_size() == compiled and np.any(changed != apples)


def test_batches_are_even_and_padded():
    def sizes(total, side, mesh=None):
        return [len(rows) for rows in make_layout(total, side, side, 8, None, mesh).batches]

    assert [sizes(total, 512) for total in (1, 8, 9, 20)] == [[1], [8], [5, 5], [7, 7, 7]]
    assert sizes(20, 512, make_mesh()) == [10, 10] and sizes(3, 512, make_mesh()) == [4] and sizes(2, 8000) == [1, 1]
    assert chunk_size(8, 512 * 512) == 2 and chunk_size(1, 64 * 64) == 1 and chunk_size(8, 2000 * 2000, 2) == 2
    assert [rows.tolist() for rows in make_layout(5, 16, 16, 2, 2, None).batches] == [[0, 1], [2, 3], [4, 4]]


def test_prediction_and_tokenizer_may_be_given(tmp_path):
    folder = diffusion_base().save(tmp_path / "base")
    shutil.move(folder / "tokenizer", tmp_path / "other")
    refused(FileNotFoundError, read_base, folder, match=r"vocab\.json and merges\.txt")
    files = read_base(folder, tokenizer=tmp_path / "other", prediction="v_prediction")
    assert files.base.schedule == dataclasses.replace(SCHEDULE, prediction_type="v_prediction")
    assert isinstance(files.base.schedule, Schedule) and files.components["unet"].dtype == "float32"
    assert files.components["unet"].parameters == sum(v.size for v in parameters(diffusion_base().unet).values())


@pytest.mark.long
def test_previews_show_each_steps_prediction(apples):
    """In order, without the padding of a batch, by a linear map of latents or a given decoder."""
    shown, base = [], diffusion_base()
    preview = Preview(lambda done, total, images: shown.append((done, total, images)))
    images = base(APPLE, seeds=[5, 6, 5], preview=preview, **QUICK)
    done = [done for done, *_ in shown]
    assert done == sorted(set(done)) and shown[-1][:2] == (6, 6)
    assert shown[0][2].shape == (2, 8, 8, 3) and shown[-1][2].shape == (1, 8, 8, 3)
    np.testing.assert_allclose(images[:2], apples, atol=1e-5)
    base(APPLE, seeds=[5, 6], preview=dataclasses.replace(preview, decoder=base.vae), **QUICK)
    assert shown[-1][2].shape == (2, 16, 16, 3) and np.abs(shown[-1][2] - apples).mean() < 0.01
    other = AutoencoderTiny(TinyVAEConfig(), rngs=nnx.Rngs(0))
    refused(ValueError, lambda: base(APPLE, preview=dataclasses.replace(preview, decoder=other)), match="1/8")


def test_a_linear_decoder_gives_the_colours_of_its_chart():
    """Of an encoder that mixes colours linearly it is the inverse."""
    mix = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    decoder = fit_linear_decoder(lambda image: (2 * image[:, ::2, ::2] - 1) @ mix + 0.3, 2)
    image = np.random.default_rng(1).random((1, 2, 5, 3)).astype(np.float32)
    decoded = decoder.decode(decoder.from_latents(jnp.asarray((2 * image - 1) @ mix + 0.3)))
    np.testing.assert_allclose((decoded + 1) / 2, image, atol=1e-4)


def test_a_large_image_goes_through_the_autoencoder_in_tiles():
    """Without norms and attention (TAESD) tiles give the whole image; with them they change it a little."""
    sizes = {name: (8, 8) for name in ("encoder_block_out_channels", "decoder_block_out_channels")}
    counts = {name: (1, 1) for name in ("num_encoder_blocks", "num_decoder_blocks")}
    picture = np.random.default_rng(0).random((1, 96, 128, 3)).astype(np.float32)
    for vae, worst in ((random(AutoencoderTiny, TinyVAEConfig(**sizes, **counts)), 1e-4), (diffusion_base().vae, 0.03)):
        compiled = dataclasses.replace(diffusion_base(), vae=vae).compiled
        both = compiled.encode_image, compiled.decode
        encode, decode = (functools.partial(function, compiled.params()["vae"]) for function in both)
        whole, tiled = (make_layout(1, 96, 128, 2, 1, None, tile) for tile in (None, 72))
        assert whole.window == (96, 128) and tiled.window == (72, 72)
        latents = [in_tiles(encode, picture, layout, 2, (48, 64)) for layout in (whole, tiled)]
        images = [in_tiles(decode, latents[0], layout, 2, (96, 128)) for layout in (whole, tiled)]
        for a, b in (latents, images):
            assert a.shape == b.shape and np.abs(a - b).mean() < worst * a.std() and np.any(a != b)
    refused(ValueError, lambda: make_request(diffusion_base().base, APPLE, tile=64), match="tile=64")
