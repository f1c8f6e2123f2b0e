"""EfficientNet-Lite: equal to its textbook formulation, its files read strictly."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from refusal import refused
from weight_files import write_torch

from common.perceptual import efficientnet
from common.perceptual.efficientnet import LITE0, EfficientNet, EfficientNetConfig, Stage, load_efficientnet, shapes
from common.weights.model_file import load_weights, save_weights
from common.weights.porting import export, flatten

TINY = EfficientNetConfig((Stage(3, 1, 1, 4, 1), Stage(5, 2, 3, 6, 2)), stem=5, features=9, classes=7, side=30)
SMALLEST = EfficientNetConfig((Stage(3, 1, 1, 4, 1), Stage(5, 2, 2, 3, 1)), stem=2, features=5, classes=6, side=8)


def drawn(config: EfficientNetConfig) -> EfficientNet:
    """Random parameters, no two normalisations alike."""
    rng = np.random.default_rng(0)

    def draw(name: str, shape: tuple[int, ...]) -> jax.Array:
        value = rng.standard_normal(shape)
        if name == "kernel":
            value /= np.sqrt(np.prod(shape[:-1]))
        return jnp.asarray(np.exp(value / 2) if name in ("var", "scale") else value, jnp.float32)

    params = {k: {leaf: draw(leaf, x.shape) for leaf, x in leaves.items()} for k, leaves in shapes(config).items()}
    return EfficientNet(params, config)


def textbook(network: EfficientNet, x: jax.Array) -> jax.Array:
    """TINY, written out: grouped convolutions, normalisation as a formula, every shape by hand."""

    def layer(name: str, x: jax.Array, stride: int = 1, groups: int = 1, clip: bool = True) -> jax.Array:
        p, axes = network.params[name], ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, p["kernel"], (stride, stride), "SAME", None, None, axes, groups)
        y = (y - p["mean"]) / jnp.sqrt(p["var"] + 0.001) * p["scale"] + p["bias"]
        return jnp.minimum(jax.nn.relu(y), 6) if clip else y

    x = layer("stem", (255 * x - 127) / 128, 2)
    x = layer("block0_project", layer("block0_depthwise", x, groups=5), clip=False)
    y = layer("block1_depthwise", layer("block1_expand", x), 2, groups=12)
    x = layer("block1_project", y, clip=False)
    y = layer("block2_depthwise", layer("block2_expand", x), groups=18)
    x = x + layer("block2_project", y, clip=False)
    return layer("head", x).mean((1, 2))


@pytest.mark.long
def test_features_are_the_textbooks():
    network, x = drawn(TINY), jnp.asarray(np.random.default_rng(1).random((2, 30, 30, 3), np.float32))
    expected = textbook(network, x)
    assert expected.shape == (2, 9) and float(expected.std()) > 0.3
    np.testing.assert_allclose(network.features(x), expected, rtol=2e-5, atol=2e-5)


def test_pictures_of_any_size_are_shrunk_without_aliasing():
    """A checkerboard that is too fine is grey; taking every fourth pixel of it would give white."""
    network = drawn(TINY)
    fine = np.indices((120, 90)).sum(axis=0) % 2
    board = jnp.asarray(np.tile(fine[None, :, :, None], (1, 1, 1, 3)), jnp.float32)
    grey, white = (network.features(jnp.full((1, 40, 50, 3), value)) for value in (0.5, 1.0))
    np.testing.assert_allclose(network.features(board), grey, atol=1e-4)
    assert float(jnp.abs(white - grey).max()) > 0.1


def test_many_pictures_are_embedded_in_batches(tmp_path):
    """By the network of a file, too."""
    network, images = drawn(TINY), np.random.default_rng(2).integers(0, 256, (5, 12, 12, 3), np.uint8)
    found = network.embed(images, batch=2)
    expected = network.features(jnp.asarray(images, jnp.float32) / 255)
    assert found.shape == (5, 9) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert network.embed(images[:0]).shape == (0, 9)
    path = efficientnet.save_efficientnet(tmp_path / "tiny.safetensors", network, {"note": "drawn"})
    again = load_efficientnet(path)
    assert again.config == TINY and load_weights(path)[1].metadata == {"note": "drawn"}
    np.testing.assert_array_equal(again.embed(images.astype(np.float32) / 255, batch=2), found)


def test_lite0_has_the_published_size_and_pytorchs_names():
    trained = {k: leaf for k, leaf in flatten(shapes(LITE0)).items() if not k.endswith(("mean", "var"))}
    assert sum(math.prod(leaf.shape) for leaf in trained.values()) == 4_652_008
    assert len(LITE0.blocks()) == 16 and shapes(LITE0)["block15_depthwise"]["kernel"].shape == (3, 3, 1, 1152)
    # As in the package's file: 49 convolutions with four statistics each, and a dense layer.
    names = {ours: entry.source for ours, entry in efficientnet.table(LITE0).items()}
    assert len(names) == len(set(names.values())) == 49 * 5 + 2
    for name, conv, norm in [
        ("stem", "_conv_stem", "_bn0"),
        ("block0_depthwise", "_blocks.0._depthwise_conv", "_blocks.0._bn1"),
        ("block0_project", "_blocks.0._project_conv", "_blocks.0._bn2"),
        ("block1_expand", "_blocks.1._expand_conv", "_blocks.1._bn0"),
        ("head", "_conv_head", "_bn1"),
    ]:
        assert names[f"{name}.kernel"] == f"{conv}.weight" and names[f"{name}.scale"] == f"{norm}.weight"
        assert names[f"{name}.mean"] == f"{norm}.running_mean" and names[f"{name}.var"] == f"{norm}.running_var"
    assert (names["classifier.kernel"], names["classifier.bias"]) == ("_fc.weight", "_fc.bias")


def test_a_state_dict_fills_the_network():
    """With the counters of PyTorch's normalisations; that of another network is an error."""
    tensors = export(drawn(SMALLEST).params, efficientnet.table(SMALLEST))
    assert tensors["_blocks.1._depthwise_conv.weight"].shape == (8, 1, 5, 5)
    assert tensors["_fc.weight"].shape == (6, 5)
    network = efficientnet.from_torch(tensors | {"_bn1.num_batches_tracked": np.array(9)}, SMALLEST)
    for path, leaf in flatten(drawn(SMALLEST).params).items():
        np.testing.assert_array_equal(flatten(network.params)[path], leaf, path)
    for change, tensor in [
        ({"_blocks.1._expand_conv.weight": np.zeros((8, 4, 3, 3), np.float32)}, r"block1_expand\.kernel"),
        ({"_blocks.0._bn0.weight": np.zeros(2, np.float32)}, r"_blocks\.0\._bn0\.weight"),
        ({"_bn1.running_var": np.full(5, np.nan, np.float32)}, r"head\.var"),
    ]:
        with pytest.raises(ValueError, match=tensor):
            efficientnet.from_torch(tensors | change, SMALLEST)


def test_files_of_torch_of_no_network_and_none(tmp_path):
    for config in ({}, {"stages": [[3, 1]]}, {"stages": [[3, 1, 1, 4, 1]], "depth": 2}, {"stages": 3}):
        path, tree = tmp_path / "x.safetensors", {"a": np.zeros(1)}
        save_weights(path, tree, kind="efficientnet", config=config, overwrite=True)
        assert "x.safetensors" in refused(ValueError, load_efficientnet, path)
    lite0 = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes(LITE0))
    network = load_efficientnet(write_torch(tmp_path / "lite0.pth", export(lite0, efficientnet.table(LITE0))))
    assert network.config == LITE0 and float(network.params["head"]["var"].sum()) == 1280
    missing = refused(FileNotFoundError, load_efficientnet, tmp_path / "none.safetensors")
    assert "recipes.downloads.efficientnet" in missing
