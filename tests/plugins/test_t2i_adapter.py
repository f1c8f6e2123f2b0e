"""T2I-Adapter against the PyTorch library's outputs, at odd sizes, in all three types."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import SMALL, assert_near, fixture, folder, network
from refusal import refused
from tiny_base import random

from plugins.control import T2IAdapter, T2IAdapterConfig, contract, load
from plugins.diffusion.networks.unet_config import UNetConfig

PARITY = 1e-4
SD15 = UNetConfig.sd15()


def encode(network, image):
    graph, state = nnx.split(network)
    return contract.encode(graph, nnx.to_pure_dict(state), jnp.asarray(image))


@pytest.fixture(scope="module")
def io():
    return fixture("t2i_adapter_io")


@pytest.fixture(scope="module")
def features(io):
    """Of each of the two conditions."""
    adapter = load(folder("t2i_adapter"))
    return {name: encode(adapter, io[name]) for name in ("cond", "cond2")}


@pytest.fixture(scope="module")
def unet(io):
    """Features, and a ControlNet's residuals times `scale` -> the UNet's output, and all values that a tap sees."""
    graph, state = nnx.split(network("unet"))
    residuals = fixture("controlnet_io")

    @jax.jit
    def call(state, features, scale):
        seen = {}
        tap = lambda name, value: seen.setdefault(name, value)  # noqa: E731
        skips, middle = [scale * residuals[f"down_{i:02}"] for i in range(12)], scale * residuals["mid"]
        return nnx.merge(graph, state)(io["x"], io["t"], io["ctx"], features, skips, middle, tap=tap), seen

    return lambda features, scale=0.0: call(state, features, scale)


def test_features(io, features):
    assert len(features["cond"]) == load(folder("t2i_adapter")).num_outputs == 4
    for i, (one, other) in enumerate(zip(features["cond"], features["cond2"], strict=True)):
        assert_near(one, io[f"feat_{i}"], atol=PARITY, err_msg=str(i))
        assert_near(0.7 * one + 0.4 * other, io[f"multi_feat_{i}"], atol=PARITY, err_msg=str(i))


@pytest.mark.long
def test_features_enter_the_unet(io, features, unet):
    """`down3_last_skip` is the hard case: the last level's feature is in the last skip as well."""
    out, seen = unet(features["cond"])
    assert_near(out, io["unet_out"], atol=PARITY)
    assert_near(seen["mid_block"], io["mid"], atol=PARITY)
    for level, last in enumerate((3, 6, 9, 11)):
        assert_near(seen[f"skips.{last}"], io[f"down{level}_last_skip"], atol=PARITY)
        assert_near(seen[f"down_blocks.{level}"], io[f"down{level}_out"], atol=PARITY)
    half, _ = unet(tuple(0.5 * feature for feature in features["cond"]))
    assert_near(half, io["unet_out_scale05"], atol=PARITY)
    beside, _ = unet(features["cond"], 1.0)  # a ControlNet of the same condition
    assert_near(beside, io["unet_out_with_controlnet"], atol=PARITY)


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
    new = T2IAdapter.for_unet(unet, 4, adapter_type=kind, rngs=nnx.Rngs(0))
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


def test_configs():
    light = T2IAdapterConfig.for_unet(SD15, 8, "light_adapter")
    assert light == T2IAdapterConfig.sd15_light() == T2IAdapterConfig.from_json(light.to_json())
    assert T2IAdapterConfig.for_unet(SD15) == T2IAdapterConfig.sd15()
    refused(ValueError, T2IAdapterConfig.for_unet, SMALL, 4, "light_adapter", match=r"\(8, 12\)")
