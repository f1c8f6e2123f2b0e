"""The run-once plugin: its size, its levels, its two depthwise convolutions; gradients reach all of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import SMALL
from tiny_base import diffusion_base, random

from common.nn.init import blank
from common.nn.layers import convolution, depthwise
from plugins.control import MediaPipeConfig, MediaPipePlugin
from plugins.control.mediapipe import BORDERS
from plugins.diffusion.networks.unet_config import UNetConfig

TINY = MediaPipeConfig((8,), reduction=4, stem=8, approach=(), widths=(8,), depths=(2,), expansion=2, groups=4)
SD15 = UNetConfig.sd15()


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
        assert plugin.config == MediaPipeConfig.sd15()
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
def test_gradients_reach_every_parameter():
    """Heads first: as long as they are zero nothing before them moves. Then everything."""
    unet = diffusion_base().unet
    keys = jax.random.split(jax.random.key(0), 3)
    x, context = jax.random.normal(keys[0], (2, 8, 8, 4)), jax.random.normal(keys[1], (2, 5, 16))
    image = jax.random.uniform(keys[2], (2, 32, 32, 3))
    graph, _ = blank(MediaPipePlugin, TINY)

    @jax.jit
    @jax.grad
    def gradient(params):
        return (unet(x, 300, context, nnx.merge(graph, params).encode(image)) ** 2).mean()

    def moved(plugin: MediaPipePlugin) -> dict[str, bool]:
        gradients = jax.tree_util.tree_leaves_with_path(gradient(nnx.to_pure_dict(nnx.state(plugin))))
        return {jax.tree_util.keystr(path): bool(jnp.abs(leaf).max() > 0) for path, leaf in gradients}

    new = moved(MediaPipePlugin(TINY, rngs=nnx.Rngs(0)))
    assert new == {path: "heads" in path for path in new}
    assert all(moved(random(MediaPipePlugin, TINY)).values())
