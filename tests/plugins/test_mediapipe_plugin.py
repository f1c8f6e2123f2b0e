"""The run-once plugin: its size, its levels, its two depthwise convolutions; gradients reach all of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import abstract
from tiny_base import diffusion_base, random

from plugins.control import MediaPipeConfig, MediaPipePlugin
from plugins.control.mediapipe import grouped_conv, shifted_sum
from plugins.diffusion.networks.unet_config import UNetConfig

SMALL = MediaPipeConfig((8,), reduction=4, stem=8, approach=(), widths=(8,), depths=(2,), expansion=2, groups=4)
SD15, TWO_LEVELS = (
    UNetConfig.sd15(),
    UNetConfig(block_out_channels=(32, 64), down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2),
)


@pytest.mark.parametrize(
    ("unet", "reduction", "size"),
    [(SD15, 8, (512, 512)), (SD15, 8, (384, 640)), *((TWO_LEVELS, r, (3 * r, 5 * r)) for r in (1, 2, 4, 8, 16))],
)
def test_features_have_the_shapes_of_the_unets_levels(unet, reduction, size):
    """Nothing is allocated; odd numbers of latent pixels included."""
    plugin = abstract(lambda: MediaPipePlugin.for_unet(unet, reduction, rngs=nnx.Rngs(0)))
    image = jax.ShapeDtypeStruct((2, *size, 3), jnp.float32)
    features = nnx.eval_shape(lambda plugin, image: plugin.encode(image), plugin, image)
    assert [f.shape[1:] for f in features] == unet.level_shapes(*(side // reduction for side in size))
    if unet is SD15:
        assert plugin.config == MediaPipeConfig.sd15()
        assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(plugin))) == 5_929_336  # the article's 6 M


@pytest.mark.parametrize(("shape", "stride"), [((1, 9, 8, 4), 1), ((2, 7, 7, 3), 2), ((1, 1, 2, 5), 2)])
def test_both_depthwise_methods_are_equal(shape, stride):
    keys = jax.random.split(jax.random.key(0))
    x, kernel = jax.random.normal(keys[0], shape), jax.random.normal(keys[1], (3, 3, 1, shape[-1]))
    losses = [lambda k, conv=conv: jnp.sin(conv(x, k, stride)).sum() for conv in (shifted_sum, grouped_conv)]
    values, grads = zip(*(jax.value_and_grad(loss)(kernel) for loss in losses), strict=True)
    np.testing.assert_allclose(*values, rtol=1e-5)
    np.testing.assert_allclose(*grads, rtol=1e-4, atol=1e-4)


def test_a_new_plugin_changes_nothing():
    base, image = diffusion_base(), np.random.default_rng(0).random((16, 16, 3), np.float32)
    plugin = MediaPipePlugin.for_unet(base.unet.config, base.base.unit, rngs=nnx.Rngs(0))
    settings = {"steps": 3, "seeds": [5, 6], "batch": 2}
    images = base("a red apple", **settings, controls=[plugin.on(image)])
    np.testing.assert_array_equal(images, base("a red apple", **settings))


def test_gradients_reach_every_parameter():
    """Heads first: as long as they are zero nothing before them moves. Then everything."""
    unet = diffusion_base().unet
    keys = jax.random.split(jax.random.key(0), 3)
    x, context = jax.random.normal(keys[0], (2, 8, 8, 4)), jax.random.normal(keys[1], (2, 5, 16))
    image = jax.random.uniform(keys[2], (2, 32, 32, 3))
    graph = nnx.graphdef(abstract(lambda: MediaPipePlugin(SMALL, rngs=nnx.Rngs(0))))

    @jax.jit
    @jax.grad
    def gradient(params):
        return (unet(x, 300, context, nnx.merge(graph, params).encode(image)) ** 2).mean()

    def moved(plugin: MediaPipePlugin) -> dict[str, bool]:
        gradients = jax.tree_util.tree_leaves_with_path(gradient(nnx.to_pure_dict(nnx.state(plugin))))
        return {jax.tree_util.keystr(path): bool(jnp.abs(leaf).max() > 0) for path, leaf in gradients}

    new = moved(MediaPipePlugin(SMALL, rngs=nnx.Rngs(0)))
    assert new == {path: "heads" in path for path in new}
    assert all(moved(random(MediaPipePlugin, SMALL)).values())


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"reduction": 6}, "reduction is 1, 2, 4"),
        ({"approach": ()}, "approach has"),
        ({"depths": (1, 1)}, "per level"),
        ({"groups": 5}, "groups divides"),
        ({"expansion": 0}, "expansion and"),
    ],
)
def test_architectures_that_are_refused(fields, value):
    with pytest.raises(ValueError, match=value):
        MediaPipeConfig(**fields)
