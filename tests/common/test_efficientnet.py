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


def convolution(x: jax.Array, kernel: jax.Array, stride: int, groups: int = 1) -> jax.Array:
    names, strides = ("NHWC", "HWIO", "NHWC"), (stride, stride)
    return lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=names, feature_group_count=groups)


def textbook(network: EfficientNet, x: jax.Array) -> jax.Array:
    """TINY, written out: grouped convolutions, normalisation as a formula, every shape by hand."""

    def layer(name: str, x: jax.Array, stride: int = 1, groups: int = 1, clip: bool = True) -> jax.Array:
        p = network.params[name]
        y = convolution(x, p["kernel"], stride, groups)
        y = (y - p["mean"]) / jnp.sqrt(p["var"] + 0.001) * p["scale"] + p["bias"]
        return jnp.minimum(jax.nn.relu(y), 6) if clip else y

    x = layer("stem", (255 * x - 127) / 128, 2)
    x = layer("block0_project", layer("block0_depthwise", x, groups=5), clip=False)
    y = layer("block1_depthwise", layer("block1_expand", x), 2, groups=12)
    x = layer("block1_project", y, clip=False)
    y = layer("block2_depthwise", layer("block2_expand", x), groups=18)
    x = x + layer("block2_project", y, clip=False)
    return layer("head", x).mean((1, 2))


def test_features_are_the_textbooks():
    network, x = drawn(TINY), jnp.asarray(np.random.default_rng(1).random((2, 30, 30, 3), np.float32))
    expected = textbook(network, x)
    assert expected.shape == (2, 9) and float(expected.std()) > 0.3
    np.testing.assert_allclose(network.features(x), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (5, 2)])
def test_shifted_pictures_make_a_depthwise_convolution(size, stride):
    rng = np.random.default_rng(0)
    x, kernel = (jnp.asarray(rng.standard_normal(shape, np.float32)) for shape in ((2, 8, 7, 4), (size, size, 4)))
    expected = convolution(x, kernel[:, :, None], stride, groups=4)
    np.testing.assert_allclose(efficientnet.depthwise(x, kernel, stride), expected, rtol=1e-5, atol=1e-5)


def test_pictures_of_any_size_are_shrunk_without_aliasing():
    """A checkerboard that is too fine is grey; taking every fourth pixel of it would give white."""
    network = drawn(TINY)
    fine = np.indices((120, 90)).sum(axis=0) % 2
    board = jnp.asarray(np.tile(fine[None, :, :, None], (1, 1, 1, 3)), jnp.float32)
    grey, white = (network.features(jnp.full((1, 40, 50, 3), value)) for value in (0.5, 1.0))
    np.testing.assert_allclose(network.features(board), grey, atol=1e-4)
    assert float(jnp.abs(white - grey).max()) > 0.1


def test_many_pictures_are_embedded_in_batches():
    network, images = drawn(TINY), np.random.default_rng(2).integers(0, 256, (5, 12, 12, 3), np.uint8)
    found = network.embed(images, batch=2)
    expected = network.features(jnp.asarray(images, jnp.float32) / 255)
    assert found.shape == (5, 9) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(network.embed(images.astype(np.float32) / 255, batch=2), found)
    assert network.embed(images[:0]).shape == (0, 9)


def test_lite0_has_the_published_size():
    trained = {k: leaf for k, leaf in flatten(shapes(LITE0)).items() if not k.endswith(("mean", "var"))}
    assert sum(math.prod(leaf.shape) for leaf in trained.values()) == 4_652_008
    assert len(LITE0.blocks()) == 16 and shapes(LITE0)["block15_depthwise"]["kernel"].shape == (3, 3, 1, 1152)


def test_the_table_names_pytorchs_tensors():
    """As in the package's file: 49 convolutions with four statistics each, and a dense layer."""
    keys = [entry.source for entry in efficientnet.table(LITE0).values()]
    assert len(keys) == len(set(keys)) == 49 * 5 + 2
    small = {ours: entry.source for ours, entry in efficientnet.table(SMALLEST).items()}
    statistics = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
    for name, conv, norm in [
        ("stem", "_conv_stem", "_bn0"),
        ("block0_depthwise", "_blocks.0._depthwise_conv", "_blocks.0._bn1"),
        ("block0_project", "_blocks.0._project_conv", "_blocks.0._bn2"),
        ("block1_expand", "_blocks.1._expand_conv", "_blocks.1._bn0"),
        ("head", "_conv_head", "_bn1"),
    ]:
        assert small[f"{name}.kernel"] == f"{conv}.weight"
        assert [small[f"{name}.{leaf}"] for leaf in statistics] == [f"{norm}.{x}" for x in statistics.values()]
    assert (small["classifier.kernel"], small["classifier.bias"]) == ("_fc.weight", "_fc.bias")


def state(config: EfficientNetConfig) -> dict[str, np.ndarray]:
    """A state dict of PyTorch, counters included."""
    tensors = export(drawn(config).params, efficientnet.table(config))
    stems = [key.removesuffix(".running_var") for key in tensors if key.endswith(".running_var")]
    return tensors | {f"{stem}.num_batches_tracked": np.array(9) for stem in stems}


def test_a_state_dict_fills_the_network():
    tensors = state(SMALLEST)
    assert tensors["_blocks.1._depthwise_conv.weight"].shape == (8, 1, 5, 5)
    assert tensors["_fc.weight"].shape == (6, 5)
    network = efficientnet.from_torch(tensors, SMALLEST)
    for path, leaf in flatten(drawn(SMALLEST).params).items():
        np.testing.assert_array_equal(flatten(network.params)[path], leaf, path)


@pytest.mark.parametrize(
    ("change", "tensor"),
    [
        ({"_blocks.1._expand_conv.weight": np.zeros((8, 4, 3, 3), np.float32)}, r"block1_expand\.kernel"),
        ({"_blocks.0._bn0.weight": np.zeros(2, np.float32)}, r"_blocks\.0\._bn0\.weight"),
        ({"_fc.bias": None}, r"_fc\.bias"),
        ({"_bn1.running_var": np.full(5, np.nan, np.float32)}, r"head\.var"),
    ],
)
def test_a_file_of_another_network_is_refused(change, tensor):
    tensors = {key: value for key, value in (state(SMALLEST) | change).items() if value is not None}
    with pytest.raises(ValueError, match=tensor):
        efficientnet.from_torch(tensors, SMALLEST)


def test_a_network_is_saved_and_read_again(tmp_path):
    network, path = drawn(TINY), tmp_path / "tiny.safetensors"
    efficientnet.save_efficientnet(path, network, {"note": "drawn"})
    again = load_efficientnet(path)
    assert again.config == TINY and load_weights(path)[1].metadata == {"note": "drawn"}
    images = np.random.default_rng(0).random((1, 20, 24, 3), np.float32)
    np.testing.assert_array_equal(again.embed(images), network.embed(images))


@pytest.mark.parametrize("config", [{}, {"stages": [[3, 1]]}, {"stages": [[3, 1, 1, 4, 1]], "depth": 2}, {"stages": 3}])
def test_a_header_of_no_network(tmp_path, config):
    save_weights(tmp_path / "x.safetensors", {"a": np.zeros(1)}, kind="efficientnet", config=config)
    assert "x.safetensors" in refused(ValueError, load_efficientnet, tmp_path / "x.safetensors")


def test_torch_files_and_missing_files(tmp_path):
    lite0 = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes(LITE0))
    network = load_efficientnet(write_torch(tmp_path / "lite0.pth", export(lite0, efficientnet.table(LITE0))))
    assert network.config == LITE0 and float(network.params["head"]["var"].sum()) == 1280
    missing = refused(FileNotFoundError, load_efficientnet, tmp_path / "none.safetensors")
    assert "recipes.downloads.efficientnet" in missing
