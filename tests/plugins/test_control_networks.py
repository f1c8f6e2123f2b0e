"""ControlNet and T2I-Adapter against the PyTorch library's outputs; new networks, and the run-once plugin's layers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import SMALL, assert_near, fixture, folder, network, parameters, small_unet, stored_json
from refusal import refused
from tiny_base import diffusion_base, random

from common.nn.init import blank
from common.nn.layers import convolution, depthwise
from plugins.control import (
    ControlNet,
    ControlNetConfig,
    MediaPipeConfig,
    MediaPipePlugin,
    T2IAdapter,
    T2IAdapterConfig,
    contract,
    guess_levels,
    load,
)
from plugins.control.contract import ControlOutput
from plugins.control.mediapipe import BORDERS
from plugins.diffusion.networks.unet_config import UNetConfig

PARITY = 1e-4
TINY = ControlNetConfig.for_unet(SMALL, 4)  # 4 pixels per latent pixel
PLUGIN = MediaPipeConfig((8,), reduction=4, stem=8, approach=(), widths=(8,), depths=(2,), expansion=2, groups=4)
SD15 = UNetConfig.sd15()


@pytest.fixture(scope="module")
def io():
    return fixture("controlnet_io")


@pytest.fixture(scope="module")
def added(io):
    """What it adds for each of the two conditions; one compilation."""
    graph, state = nnx.split(load(folder("controlnet")))

    @jax.jit
    def call(state, image):
        network = nnx.merge(graph, state)
        hint = network.encode(image)
        return hint, network(hint, io["x"], io["t"], io["ctx"])

    return {name: call(state, io[name]) for name in ("cond", "cond2")}


@pytest.fixture(scope="module")
def unet(io):
    """Control output -> the UNet's output."""
    graph, state = nnx.split(network("unet"))
    call = jax.jit(
        lambda state, added: nnx.merge(graph, state)(io["x"], io["t"], io["ctx"], None, added.skip_residuals, added[2])
    )
    return lambda added: call(state, added)


def assert_residuals(added: ControlOutput, io, skips: str, middle: str) -> None:
    assert len(added.skip_residuals) == 12 and added.level_features == ()
    for i, residual in enumerate(added.skip_residuals):
        assert_near(residual, io[f"{skips}_{i:02}"], atol=PARITY, err_msg=str(i))
    assert_near(added.mid_residual, io[middle], atol=PARITY)


@pytest.mark.long
def test_hint_residuals_and_the_unets_output(io, added, unet):
    hint, output = added["cond"]
    assert_near(hint, io["cond_embedding"], atol=PARITY)
    assert_residuals(output, io, "down", "mid")
    assert_near(unet(output), io["unet_out"], atol=PARITY)


@pytest.mark.long
def test_guess_mode(io, added, unet):
    """A factor for each tensor, from 0.1 to 1; the tensors finest first, the middle last."""
    guessed = added["cond"][1].scaled(jnp.asarray([0.8 * level for level in guess_levels(13)]))
    assert_residuals(guessed, io, "down_guess08", "mid_guess08")
    assert_near(unet(guessed), io["unet_out_guess08"], atol=PARITY)
    original = guess_levels(13, "original")
    assert original[-1] == 1 and original[0] == pytest.approx(0.825**12)


@pytest.fixture(scope="module")
def small():
    """A UNet of two levels, and a new ControlNet for it."""
    unet = small_unet()
    return unet, ControlNet.from_unet(unet, 4, rngs=nnx.Rngs(0))


@pytest.mark.long
def test_a_new_one_changes_nothing_and_can_learn(small):
    """Residuals are exactly 0, and the first gradient moves the zero convolutions, and these alone."""
    _, new = small
    assert new.config == TINY and TINY.conditioning_embedding_out_channels == (16, 32, 96) and new.reduction == 4
    rng = np.random.default_rng(0)
    image, x = (jnp.asarray(rng.random(shape, np.float32)) for shape in ((1, 20, 28, 3), (2, 5, 7, 3)))
    context = jnp.asarray(rng.random((2, 4, 6), np.float32))
    graph, state = nnx.split(new)

    def total(state):
        network = nnx.merge(graph, state)
        tensors = jax.tree.leaves(network(network.encode(image), x, jnp.float32(500), context))
        return sum(tensor.sum() for tensor in tensors), tensors

    gradients, tensors = jax.jit(jax.grad(total, has_aux=True))(state)
    assert [t.shape for t in tensors] == [(2, *s) for s in (*SMALL.skip_shapes(5, 7), SMALL.level_shapes(5, 7)[-1])]
    assert len(tensors) == new.num_outputs and not any(np.asarray(tensor).any() for tensor in tensors)
    for name, part in nnx.to_pure_dict(gradients).items():
        largest = [float(np.abs(leaf).max()) for leaf in jax.tree.leaves(part)]
        zero_conv = name in ("controlnet_down_blocks", "controlnet_mid_block")
        assert min(largest) > 1e-3 if zero_conv else max(largest) == 0, name


def test_the_copy_shares_nothing_with_the_unet(small):
    """So a training that donates its buffers leaves the UNet as it was."""
    theirs, ours = map(parameters, small)
    copied = ("conv_in.", "time_embedding.", "down_blocks.", "mid_block.")
    assert {path for path in theirs if path.startswith(copied)} == {path for path in ours if path.startswith(copied)}
    for path, value in ours.items():
        if path.startswith(copied):
            np.testing.assert_array_equal(value, theirs[path])
        else:
            random = path.startswith("controlnet_cond_embedding.") and path.endswith("kernel")
            assert value.any() == (random and "conv_out" not in path)
    buffers = [{leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(nnx.state(module))} for module in small]
    assert not buffers[0] & buffers[1]


def test_another_hint_encoder_and_the_unets_dtype(small):
    config = dataclasses.replace(TINY, conditioning_embedding_out_channels=(4, 6))
    graph, state = nnx.split(small[0])
    unet = nnx.merge(graph, jax.tree.map(lambda leaf: np.asarray(leaf).astype(jnp.bfloat16), nnx.to_pure_dict(state)))
    new = ControlNet.from_unet(unet, config=config, rngs=nnx.Rngs(0))
    assert {leaf.dtype for leaf in parameters(new).values()} == {jnp.dtype("bfloat16")}
    new.check(dataclasses.replace(SMALL, sample_size=7, out_channels=3), 2)  # neither changes what it adds
    image = jax.ShapeDtypeStruct((1, 10, 14, 3), jnp.bfloat16)
    assert nnx.eval_shape(lambda new, image: new.encode(image), new, image).shape == (1, 5, 7, 8)
    with pytest.raises(ValueError, match="cross_attention_dim 9"):
        ControlNet.from_unet(unet, config=dataclasses.replace(config, cross_attention_dim=9), rngs=nnx.Rngs(0))


def with_config(**changes):
    """The fixtures' network with another config, as its graph and parameters."""
    config = ControlNetConfig.from_json(stored_json("controlnet") | changes)
    return blank(ControlNet, config)[0], nnx.to_pure_dict(nnx.state(load(folder("controlnet"))))


def test_channel_order(io):
    hint = contract.encode(*with_config(controlnet_conditioning_channel_order="bgr"), io["cond"][..., ::-1])
    assert_near(hint, io["cond_embedding"], atol=PARITY)


def test_pooled_conditions_are_averages_for_the_conditional_half(io, added):
    graph, state = with_config(global_pool_conditions=True)
    inputs = [added["cond"][0], *(io[name] for name in ("x", "t", "ctx"))]
    output = jax.jit(lambda state: nnx.merge(graph, state)(*inputs))(state)
    for i, residual in enumerate(output.skip_residuals):
        expected = np.asarray(io[f"down_{i:02}"]).mean(axis=(1, 2), keepdims=True)
        np.testing.assert_allclose(residual, np.broadcast_to(expected, residual.shape), atol=PARITY)
    assert output.mid_residual.shape == io["mid"].shape and nnx.merge(graph, state).prompt_only


def test_configs():
    assert ControlNetConfig.from_json({"block_out_channels": [320, 640, 1280, 1280]}) == ControlNetConfig()
    assert ControlNetConfig.for_unet(SD15) == ControlNetConfig()
    assert ControlNetConfig.for_unet(UNetConfig.sd21()).attention_head_dim == (5, 10, 20, 20)
    assert ControlNetConfig.from_json(TINY.to_json()) == TINY
    for reduction, widths in ((1, 1), (2, 2), (16, 5)):
        assert len(ControlNetConfig.for_unet(SMALL, reduction).conditioning_embedding_out_channels) == widths
    refused(ValueError, ControlNetConfig.for_unet, SMALL, 6, match="reduction=6")
    assert T2IAdapterConfig.for_unet(SD15) == T2IAdapterConfig() == T2IAdapterConfig.from_json({})


def encode(network, image):
    graph, state = nnx.split(network)
    return contract.encode(graph, nnx.to_pure_dict(state), jnp.asarray(image))


@pytest.fixture(scope="module")
def adapter_io():
    return fixture("t2i_adapter_io")


@pytest.fixture(scope="module")
def features(adapter_io):
    """Of each of the two conditions."""
    adapter = load(folder("t2i_adapter"))
    return {name: encode(adapter, adapter_io[name]) for name in ("cond", "cond2")}


@pytest.fixture(scope="module")
def unet_with_features(io):
    """Features, and a ControlNet's residuals times `scale` -> the UNet's output, and all values that a tap sees."""
    graph, state = nnx.split(network("unet"))

    @jax.jit
    def call(state, features, scale):
        seen = {}
        tap = lambda name, value: seen.setdefault(name, value)  # noqa: E731
        skips, middle = [scale * io[f"down_{i:02}"] for i in range(12)], scale * io["mid"]
        return nnx.merge(graph, state)(io["x"], io["t"], io["ctx"], features, skips, middle, tap=tap), seen

    return lambda features, scale=0.0: call(state, features, scale)


def test_features(adapter_io, features):
    assert len(features["cond"]) == load(folder("t2i_adapter")).num_outputs == 4
    for i, (one, other) in enumerate(zip(features["cond"], features["cond2"], strict=True)):
        assert_near(one, adapter_io[f"feat_{i}"], atol=PARITY, err_msg=str(i))
        assert_near(0.7 * one + 0.4 * other, adapter_io[f"multi_feat_{i}"], atol=PARITY, err_msg=str(i))


@pytest.mark.long
def test_features_enter_the_unet(adapter_io, features, unet_with_features):
    """`down3_last_skip` is the hard case: the last level's feature is in the last skip as well."""
    out, seen = unet_with_features(features["cond"])
    assert_near(out, adapter_io["unet_out"], atol=PARITY)
    assert_near(seen["mid_block"], adapter_io["mid"], atol=PARITY)
    for level, last in enumerate((3, 6, 9, 11)):
        assert_near(seen[f"skips.{last}"], adapter_io[f"down{level}_last_skip"], atol=PARITY)
        assert_near(seen[f"down_blocks.{level}"], adapter_io[f"down{level}_out"], atol=PARITY)
    half, _ = unet_with_features(tuple(0.5 * feature for feature in features["cond"]))
    assert_near(half, adapter_io["unet_out_scale05"], atol=PARITY)
    beside, _ = unet_with_features(features["cond"], 1.0)  # a ControlNet of the same condition
    assert_near(beside, adapter_io["unet_out_with_controlnet"], atol=PARITY)


def test_an_xl_adapter_halves_at_the_third_level_alone():
    """So it fits no Stable Diffusion, whose first level has 8 pixels. Nothing is allocated."""
    config = T2IAdapterConfig(downscale_factor=16, adapter_type="full_adapter_xl")
    whole = nnx.eval_shape(lambda: T2IAdapter(config, rngs=nnx.Rngs(0)))
    features = nnx.eval_shape(T2IAdapter.encode, whole, jax.ShapeDtypeStruct((1, 1024, 1024, 3), jnp.float32))
    assert [f.shape[1:] for f in features] == [(64, 64, 320), (64, 64, 640), (32, 32, 1280), (32, 32, 1280)]
    refused(ValueError, whole.check, SD15, 8, match=r"\(320, 16\)")


@pytest.mark.parametrize("kind", ["full_adapter", "light_adapter"])
def test_new_ones_have_the_levels_shapes_at_odd_sizes(kind):
    """4 pixels per latent pixel, 5x7 latent pixels; unlike the other networks a new one has no zeros in its kernels."""
    unet = UNetConfig(**{**vars(SMALL), "block_out_channels": (8, 8), "attention_head_dim": 1})
    config = T2IAdapterConfig(channels=(8, 8)[: 2 - ("light" in kind)], downscale_factor=4, adapter_type=kind)
    new = T2IAdapter(config, rngs=nnx.Rngs(0))
    new.check(unet, 4)
    assert [f.shape[1:] for f in encode(new, np.ones((2, 20, 28, 3), np.float32))] == unet.level_shapes(5, 7)
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(nnx.state(new)) if leaf.ndim > 1)
    refused(ValueError, encode, new, np.ones((1, 21, 28, 3), np.float32), match="28x21")
    refused(ValueError, new.check, unet, 8, match=r"\(8, 4\)")


def test_one_channel_is_the_first():
    sketch = random(T2IAdapter, T2IAdapterConfig(1, (8, 8), 1, 2))
    image = np.random.default_rng(0).random((1, 4, 4, 3), np.float32)
    first, grey, turned = (encode(sketch, each)[0] for each in (image, image[..., :1].repeat(3, -1), image[..., ::-1]))
    np.testing.assert_array_equal(first, grey)
    assert np.abs(np.asarray(first - turned)).max() > 1e-3


@pytest.mark.parametrize(
    ("unet", "reduction", "latents"), [(SD15, 8, (48, 80)), *((SMALL, r, (3, 5)) for r in (1, 2, 4, 8, 16))]
)
def test_features_have_the_shapes_of_the_unets_levels(unet, reduction, latents):
    """Nothing is allocated; odd numbers of latent pixels included."""
    plugin = nnx.eval_shape(lambda: MediaPipePlugin.for_unet(unet, reduction, rngs=nnx.Rngs(0)))
    image = jax.ShapeDtypeStruct((2, *(side * reduction for side in latents), 3), jnp.float32)
    features = nnx.eval_shape(MediaPipePlugin.encode, plugin, image)
    assert [f.shape[1:] for f in features] == unet.level_shapes(*latents)
    if unet is SD15:
        assert plugin.config == MediaPipeConfig()
        assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(plugin))) == 5_929_336  # the article's 6 M


@pytest.mark.parametrize(("shape", "stride"), [((1, 9, 8, 4), 1), ((2, 7, 7, 3), 2), ((1, 1, 2, 5), 2)])
def test_both_depthwise_methods_are_equal(shape, stride):
    keys = jax.random.split(jax.random.key(0))
    x, kernel = jax.random.normal(keys[0], shape), jax.random.normal(keys[1], (3, 3, 1, shape[-1]))
    methods = (depthwise, functools.partial(convolution, groups=shape[-1]))
    losses = [lambda k, conv=conv: jnp.sin(conv(x, k, stride, BORDERS)).sum() for conv in methods]
    values, grads = zip(*(jax.value_and_grad(loss)(kernel) for loss in losses), strict=True)
    np.testing.assert_allclose(*values, rtol=1e-5)
    np.testing.assert_allclose(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_a_new_plugin_changes_nothing():
    base, image = diffusion_base(), np.random.default_rng(0).random((16, 16, 3), np.float32)
    plugin = MediaPipePlugin.for_unet(base.unet.config, base.base.unit, rngs=nnx.Rngs(0))
    settings = {"steps": 3, "seeds": [5, 6], "batch": 2}
    images = base("a red apple", **settings, controls=[plugin.on(image)])
    np.testing.assert_array_equal(images, base("a red apple", **settings))


@pytest.mark.long
def test_the_first_gradient_moves_the_heads_alone():
    """As long as they are zero nothing before them moves; then everything does (test_control_task)."""
    unet = diffusion_base().unet
    keys = jax.random.split(jax.random.key(0), 3)
    x, context = jax.random.normal(keys[0], (2, 8, 8, 4)), jax.random.normal(keys[1], (2, 5, 16))
    image = jax.random.uniform(keys[2], (2, 32, 32, 3))
    graph, params = nnx.split(MediaPipePlugin(PLUGIN, rngs=nnx.Rngs(0)))

    @jax.jit
    @jax.grad
    def gradient(params):
        return (unet(x, 300, context, nnx.merge(graph, params).encode(image)) ** 2).mean()

    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient(nnx.to_pure_dict(params))):
        assert (jnp.abs(leaf).max() > 0) == ("heads" in jax.tree_util.keystr(path)), path
