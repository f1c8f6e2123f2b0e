"""T2I-Adapter against the PyTorch library's outputs, at odd sizes, in all three kinds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import SMALL, abstract, fixture, folder, network, one_line
from tiny_base import random

from plugins.control import T2IAdapter, T2IAdapterConfig, contract, load
from plugins.control.t2i_adapter import average_2x2, pixel_unshuffle
from plugins.diffusion.networks.unet_config import UNetConfig

PARITY = 1e-4


def encoded(network, picture):
    graph, state = nnx.split(network)
    return contract.encode(graph, nnx.to_pure_dict(state), jnp.asarray(picture))


@pytest.fixture(scope="module")
def io():
    return fixture("t2i_adapter_io")


@pytest.fixture(scope="module")
def adapter():
    """Picture -> features, compiled once."""
    graph, state = nnx.split(load(folder("t2i_adapter")))
    encode = jax.jit(lambda state, picture: nnx.merge(graph, state).encode(picture))
    return lambda picture: encode(state, picture)


@pytest.fixture(scope="module")
def unet(io):
    """What is added -> the UNet's output, and all that a tap sees."""
    graph, state = nnx.split(network("unet"))

    @jax.jit
    def call(state, features, residuals, middle):
        seen = {}
        tap = lambda name, value: seen.setdefault(name, value)  # noqa: E731
        out = nnx.merge(graph, state)(io["x"], io["t"], io["ctx"], features, residuals, middle, tap=tap)
        return out, seen

    nothing = fixture("controlnet_io")
    zeros = [0 * nothing[f"down_{i:02}"] for i in range(12)]
    return lambda features, residuals=zeros, middle=0 * nothing["mid"]: call(state, features, residuals, middle)


def test_features(io, adapter):
    network = load(folder("t2i_adapter"))
    features = adapter(io["cond"])
    assert len(features) == network.places == 4
    for i, feature in enumerate(features):
        np.testing.assert_allclose(feature, io[f"feat_{i}"], atol=PARITY, err_msg=str(i))
    added = network.act(features, io["x"], io["t"], io["ctx"])
    assert added.level_features == features and added.skip_residuals == () and added.mid_residual is None


def test_features_enter_the_unet(io, adapter, unet):
    """`down3_last_skip` holds the trap: the last level's feature is in the last skip as well."""
    features = adapter(io["cond"])
    out, seen = unet(features)
    np.testing.assert_allclose(out, io["unet_out"], atol=PARITY)
    np.testing.assert_allclose(seen["mid_block"], io["mid"], atol=PARITY)
    for level, last in enumerate((3, 6, 9, 11)):
        np.testing.assert_allclose(seen[f"skips.{last}"], io[f"down{level}_last_skip"], atol=PARITY)
        np.testing.assert_allclose(seen[f"down_blocks.{level}"], io[f"down{level}_out"], atol=PARITY)
    half, _ = unet(tuple(0.5 * feature for feature in features))
    np.testing.assert_allclose(half, io["unet_out_scale05"], atol=PARITY)


def test_several_and_a_controlnet_beside(io, adapter, unet):
    one, other = adapter(io["cond"]), adapter(io["cond2"])
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        np.testing.assert_allclose(0.7 * a + 0.4 * b, io[f"multi_feat_{i}"], atol=PARITY)
    known = fixture("controlnet_io")
    for name in ("x", "t", "ctx", "cond"):  # one picture for both, or the sum would mean nothing
        np.testing.assert_array_equal(io[name], known[name])
    out, _ = unet(one, [known[f"down_{i:02}"] for i in range(12)], known["mid"])
    np.testing.assert_allclose(out, io["unet_out_with_controlnet"], atol=PARITY)


def test_published_sizes():
    """Nothing is allocated."""
    for config, count in ((T2IAdapterConfig.sd15(), 77_369_280), (T2IAdapterConfig.sd15_light(), 18_689_200)):
        whole = abstract(lambda config=config: T2IAdapter(config, rngs=nnx.Rngs(0)))
        assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(whole))) == count
        whole.check(UNetConfig.sd15(), 8)
        picture = jax.ShapeDtypeStruct((1, 512, 512, 3), jnp.float32)
        features = nnx.eval_shape(lambda whole, picture: whole.encode(picture), whole, picture)
        assert [f.shape[1:] for f in features] == UNetConfig.sd15().level_shapes(64, 64)


def test_the_xl_adapter_halves_once():
    config = T2IAdapterConfig(downscale_factor=16, adapter_type="full_adapter_xl")
    whole = abstract(lambda: T2IAdapter(config, rngs=nnx.Rngs(0)))
    picture = jax.ShapeDtypeStruct((1, 1024, 1024, 3), jnp.float32)
    shapes = [f.shape[1:] for f in nnx.eval_shape(lambda whole, picture: whole.encode(picture), whole, picture)]
    assert shapes == [(64, 64, 320), (64, 64, 640), (32, 32, 1280), (32, 32, 1280)]
    with pytest.raises(ValueError, match=r"the T2I-Adapter has tensors of .*the base") as error:
        whole.check(UNetConfig.sd15(), 8)
    one_line(error)


def test_pixel_unshuffle_numbers_channels_as_pytorch():
    x = np.arange(2 * 4 * 6 * 3).reshape(2, 4, 6, 3).astype(np.float32)
    ours = pixel_unshuffle(jnp.asarray(x), 2)
    assert ours.shape == (2, 2, 3, 12)
    for channel, row, column in np.ndindex(3, 2, 2):
        np.testing.assert_array_equal(ours[..., channel * 4 + row * 2 + column], x[:, row::2, column::2, channel])


@pytest.mark.parametrize(("h", "w"), [(4, 6), (5, 6), (5, 7), (1, 1)])
def test_averages_at_an_odd_side_are_over_what_there_is(h, w):
    x = np.random.default_rng(0).random((2, h, w, 3), np.float32)
    ours = average_2x2(jnp.asarray(x))
    assert ours.shape == (2, -(-h // 2), -(-w // 2), 3)
    for i, j in np.ndindex(*ours.shape[1:3]):
        np.testing.assert_allclose(ours[:, i, j], x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean((1, 2)), atol=1e-6)


def test_features_of_a_new_one_have_the_levels_shapes_at_odd_sizes():
    """Full and light; 4 pixels per latent pixel, 5x7 latent pixels."""
    equal = UNetConfig(**{**vars(SMALL), "block_out_channels": (8, 8), "attention_head_dim": 1})
    for unet, kind in ((SMALL, "full_adapter"), (equal, "light_adapter")):
        new = random(T2IAdapter, T2IAdapterConfig.for_unet(unet, 4, kind))
        new.check(unet, 4)
        features = encoded(new, np.ones((2, 20, 28, 3), np.float32))
        assert [f.shape[1:] for f in features] == unet.level_shapes(5, 7)
        with pytest.raises(ValueError, match=r"a picture of 28x21: .* multiples of 4") as error:
            encoded(new, np.ones((1, 21, 28, 3), np.float32))
        one_line(error)
        with pytest.raises(
            ValueError, match=r"the T2I-Adapter has tensors .* \[\(8, 4\).*, the base \[\(8, 8\)"
        ) as error:
            new.check(unet, 8)
        one_line(error)


def test_a_sketch_adapter_reads_the_first_channel():
    new = random(T2IAdapter, T2IAdapterConfig(1, (8,), 1, 2))
    picture = np.random.default_rng(0).random((1, 4, 4, 3), np.float32)
    grey, turned = np.repeat(picture[..., :1], 3, -1), picture[..., ::-1]
    np.testing.assert_array_equal(encoded(new, picture)[0], encoded(new, grey)[0])
    assert np.abs(np.asarray(encoded(new, picture)[0]) - np.asarray(encoded(new, turned)[0])).max() > 1e-3


def test_a_new_one_is_not_silent():
    """Unlike the other networks: the paper starts without zeros."""
    draw = jax.jit(lambda key: nnx.state(T2IAdapter.for_unet(SMALL, 4, rngs=nnx.Rngs(key))))
    kernels = [np.asarray(leaf) for leaf in jax.tree.leaves(draw(jax.random.key(0))) if leaf.ndim > 1]
    assert kernels and all(kernel.any() for kernel in kernels)


def test_configs():
    light = T2IAdapterConfig.for_unet(UNetConfig.sd15(), 8, "light_adapter")
    assert light == T2IAdapterConfig.sd15_light() == T2IAdapterConfig.from_json(light.to_json())
    assert T2IAdapterConfig.for_unet(UNetConfig.sd15()) == T2IAdapterConfig.sd15()
    for make, message in (
        (lambda: T2IAdapterConfig(in_channels=4), "in_channels is 1 or 3"),
        (lambda: T2IAdapterConfig(channels=()), "channels are positive"),
        (lambda: T2IAdapterConfig(adapter_type="style"), "adapter_type is full_adapter or light_adapter or full_adapt"),
        (lambda: T2IAdapterConfig(channels=(6, 6), adapter_type="light_adapter"), "4 divides the channels"),
        (lambda: T2IAdapterConfig(channels=(8, 8, 8, 4), adapter_type="full_adapter_xl"), "equal from the third on"),
        (lambda: T2IAdapterConfig.for_unet(SMALL, 4, "light_adapter"), r"equally wide, the UNet's are \(8, 12\)"),
        (lambda: T2IAdapterConfig.from_json({"_class_name": "ControlNetModel"}), "only 'T2IAdapter' is read here"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            make()
        one_line(error)
