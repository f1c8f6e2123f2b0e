"""The run-once plugin: nothing at first, bit for bit; gradients reach all of it and none of the base."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import one_line
from tiny_base import diffusion_base, random

from plugins.control.convolutions import depthwise
from plugins.control.mediapipe import MediaPipePlugin
from plugins.control.mediapipe_config import MediaPipeConfig
from plugins.diffusion.networks.unet_config import UNetConfig

APPLE = "a red apple"
SMALL = MediaPipeConfig((8,), reduction=4, stem=8, approach=(), widths=(8,), depths=(2,), expansion=2, groups=4)


def count(network: nnx.Module) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(network)))


def test_six_million_parameters_and_the_levels_of_stable_diffusion():
    config = MediaPipeConfig.for_unet(UNetConfig.sd15(), 8)
    plugin = nnx.eval_shape(lambda: MediaPipePlugin(config, rngs=nnx.Rngs(0)))
    assert config == MediaPipeConfig.sd15() and count(plugin) == 5_929_336
    graph, state = nnx.split(plugin)
    for h, w in ((512, 512), (384, 640)):
        picture = jax.ShapeDtypeStruct((1, h, w, 3), jnp.float32)
        features = jax.eval_shape(lambda s, p: nnx.merge(graph, s).encode(p), state, picture)
        assert [f.shape[1:] for f in features] == UNetConfig.sd15().level_shapes(h // 8, w // 8)


@pytest.mark.parametrize("reduction", [1, 2, 4, 8, 16])
def test_features_fit_a_base_of_any_reduction(reduction):
    unet = UNetConfig(
        block_out_channels=(32, 64), down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2
    )
    plugin = MediaPipePlugin.for_unet(unet, reduction, rngs=nnx.Rngs(0))
    side = 3 * reduction  # latents of three pixels: odd
    features = plugin.encode(jnp.zeros((2, side, side, 3)))
    assert [f.shape[1:] for f in features] == unet.level_shapes(3, 3)


@pytest.mark.parametrize("shape", [(1, 9, 8, 4), (2, 7, 7, 3), (1, 1, 2, 5)])
@pytest.mark.parametrize("stride", [1, 2])
def test_both_ways_of_filtering_are_one(shape, stride):
    keys = jax.random.split(jax.random.key(0))
    x, kernel = jax.random.normal(keys[0], shape), jax.random.normal(keys[1], (3, 3, 1, shape[-1]))
    ways = [depthwise(x, kernel, stride, way) for way in ("shifts", "groups")]
    np.testing.assert_allclose(*ways, atol=1e-5)
    grads = [
        jax.grad(lambda k, way=way: (depthwise(x, k, stride, way) ** 2).sum())(kernel) for way in ("shifts", "groups")
    ]
    np.testing.assert_allclose(*grads, rtol=1e-4, atol=1e-4)


def test_a_new_plugin_changes_nothing():
    base, edges = diffusion_base(), np.random.default_rng(0).random((16, 16, 3), np.float32)
    plugin = MediaPipePlugin.for_unet(base.unet.config, base.base.unit, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (1, 8, 8, 4))
    context = jax.random.normal(jax.random.key(1), (1, 5, 16))
    features = plugin.encode(jnp.asarray(edges[None]))
    assert all(not f.any() for f in features) and features[0].shape == (1, 8, 8, 8)
    free, steered = (jax.jit(base.unet.__call__)(x, 500, context, f) for f in (None, features))
    np.testing.assert_array_equal(free, steered)
    settings: dict = {"steps": 3, "seeds": [5, 6], "batch": 2}
    np.testing.assert_array_equal(base(APPLE, **settings), base(APPLE, **settings, controls=[plugin.on(edges)]))


def test_gradients_reach_every_weight_of_the_plugin():
    """Heads first: as long as they are zero nothing behind them moves. Then everything."""
    unet = diffusion_base().unet
    x = jax.random.normal(jax.random.key(0), (2, 8, 8, 4))
    context, picture = (
        jax.random.normal(jax.random.key(1), (2, 5, 16)),
        jax.random.uniform(jax.random.key(2), (2, 32, 32, 3)),
    )

    def gradient(plugin: MediaPipePlugin) -> dict[str, float]:
        graph, state = nnx.split(plugin)

        def loss(state):
            return (unet(x, 300, context, nnx.merge(graph, state).encode(picture)) ** 2).mean()

        leaves = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(jax.jit(jax.grad(loss))(state)))
        return {jax.tree_util.keystr(path): float(jnp.abs(leaf).max()) for path, leaf in leaves}

    new = gradient(MediaPipePlugin(SMALL, rngs=nnx.Rngs(0)))
    assert {path for path, size in new.items() if size > 0} == {path for path in new if "heads" in path}
    # A bias in front of a norm over single groups of a channel is taken out by it; here groups have more.
    assert all(size > 0 for size in gradient(random(MediaPipePlugin, SMALL)).values())


def test_a_plugin_for_another_base_is_refused():
    base = diffusion_base()
    plugin = MediaPipePlugin(SMALL, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="the plugin is for") as error:
        base(APPLE, steps=2, controls=[plugin.on(np.zeros((16, 16, 3), np.float32))])
    assert "the plugin is for levels of (8,) at 4 pixels per latent pixel, the base has (8,) at 2" in one_line(error)


def test_a_part_of_the_run_has_two_ends():
    plugin = MediaPipePlugin(SMALL, rngs=nnx.Rngs(0))
    for steps in ((0.0, 0.3, 1.0), (0.5,), (0.5, 0.5)):
        with pytest.raises(ValueError, match="has to be a part of the run"):
            plugin.on(np.zeros((16, 16, 3), np.float32), steps=steps)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"reduction": 6}, "reduction is 1, 2, 4"),
        ({"approach": ()}, "approach has an entry"),
        ({"depths": (1, 1)}, "an entry per level"),
        ({"groups": 5}, "groups divides all widths"),
        ({"expansion": 0}, "expansion and channels are positive"),
    ],
)
def test_shapes_that_make_no_network(fields, rule):
    with pytest.raises(ValueError, match=rule):
        MediaPipeConfig(**fields)
