"""VGG: equal to the programs that wrote its files, the conventions, and files that are not VGG's."""

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusal import refused
from weight_files import keras, matconvnet, random_params, write_vgg_onnx

from common.perceptual import vgg
from common.perceptual.vgg import MEAN, Vgg, layer_names, param_shapes
from common.perceptual.vgg_weights import load_vgg, save_vgg
from common.weights.model_file import load_weights, save_weights

DATA = Path(__file__).parents[1] / "data" / "common"
assert_same = partial(jax.tree.map, np.testing.assert_array_equal)


@pytest.fixture
def narrow(monkeypatch):
    """Networks of the widths of the test files: 16 convolutions in some kilobytes."""
    monkeypatch.setattr(vgg, "WIDTHS", (2, 2, 3, 3, 3))


def picture(height: int, width: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).random((1, height, width, 3), np.float32))


@pytest.mark.parametrize(("file", "golden"), [
    ("vgg16_torchvision.pth", "vgg_torch.npz"),
    ("vgg19_keras_model.h5", "vgg_keras.npz"),
    ("vgg19_keras.weights.h5", "vgg_keras.npz"),
])  # fmt: skip
def test_activations_equal_those_of_the_program_that_wrote_the_file(narrow, file, golden):
    network = load_vgg(DATA / file, pooling="max")
    assert str(network.depth) in file
    expected = dict(np.load(DATA / golden))
    x = jnp.asarray(np.random.default_rng(0).random((1, 48, 64, 3)).astype(np.float32))  # make_vgg_files.PICTURE
    found = jax.jit(lambda network: network.features(x, tuple(expected)))(network)
    for layer, values in expected.items():
        ours = found[layer][:, ::3, ::3] if layer == "conv1_1" else found[layer]
        assert ours.shape == values.shape
        np.testing.assert_allclose(ours, values, atol=3e-6 * np.abs(values).max())
        assert 0 < np.mean(values > 0) < 1


def test_each_format_gives_the_parameters(narrow, tmp_path):
    for write, name, depth in ((matconvnet, "net.mat", 16), (write_vgg_onnx, "net.onnx", 16), (keras, "old.h5", 19)):
        params = random_params(depth)
        network = load_vgg(write(tmp_path / name, params))
        assert network.depth == depth and network.mean == MEAN
        assert_same(network.params, params)


def test_our_own_file_keeps_everything(narrow, tmp_path):
    network = load_vgg(DATA / "vgg16_torchvision.pth")
    assert network.mean == pytest.approx((123.675, 116.28, 103.53))
    again = load_vgg(save_vgg(tmp_path / "vgg.safetensors", network, {"licence": "none"}))
    assert again.mean == network.mean and again.depth == 16
    assert_same(again.params, network.params)
    assert load_weights(tmp_path / "vgg.safetensors")[1].metadata == {"licence": "none"}


def test_damaged_files_and_other_networks_are_refused(narrow, tmp_path):
    for suffix in (".mat", ".h5", ".onnx", ".pth", ".safetensors", ".ckpt"):
        path = tmp_path / f"broken{suffix}"
        path.write_bytes(b"\x93no such thing" * 40)
        assert path.name in refused(ValueError, load_vgg, path)
    with_norm = random_params() | {"norm1_1": random_params()["conv1_2"]}
    short = {name: leaf for name, leaf in random_params().items() if name != "conv5_3"}
    save_weights(tmp_path / "film.safetensors", random_params(), kind="film", config={})
    for path, value in [
        (matconvnet(tmp_path / "net.mat", with_norm), r"net\.mat.*\n.*norm1_1"),
        (write_vgg_onnx(tmp_path / "short.onnx", short), r"conv5_3\.kernel"),
        (tmp_path / "film.safetensors", "film"),
    ]:
        with pytest.raises(ValueError, match=value):
            load_vgg(path)
    refused(FileNotFoundError, load_vgg, tmp_path / "none.mat", match=r"none\.mat")


@pytest.mark.parametrize(("write", "name"), [(matconvnet, "net.mat"), (keras, "old.h5")])
def test_a_reader_that_crashes_is_an_error_of_the_file(narrow, tmp_path, monkeypatch, write, name):
    """As scipy's does for some flipped bits; here the child kills itself."""
    path, run = write(tmp_path / name, random_params()), subprocess.run
    crash = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
    monkeypatch.setattr(subprocess, "run", lambda _, **options: run(crash, **options))
    message = refused(ValueError, load_vgg, path)
    assert name in message and str(int(-signal.SIGSEGV)) in message


def test_a_file_of_the_published_widths_is_needed_without_the_fixture():
    with pytest.raises(ValueError, match=r"conv1_1\.kernel"):
        load_vgg(DATA / "vgg16_torchvision.pth")
    for depth, count in ((16, 14_714_688), (19, 20_024_384)):
        assert sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(param_shapes(depth))) == count


@pytest.mark.parametrize(("pooling", "reduce"), [("average", np.mean), ("max", np.max)])
def test_pooling_rounds_up_and_takes_only_what_is_there(narrow, pooling, reduce):
    params = random_params()
    x = picture(7, 5)
    both = Vgg(params, pooling=pooling).features(x, ("conv2_1", "conv1_2"))
    assert list(both) == ["conv2_1", "conv1_2"]
    fine = np.asarray(both["conv1_2"])
    halved = [[reduce(fine[0, y : y + 2, x : x + 2], axis=(0, 1)) for x in range(0, 5, 2)] for y in range(0, 7, 2)]
    padded = np.pad(np.array(halved), ((1, 1), (1, 1), (0, 0)))  # 6 5 2
    kernel, bias = params["conv2_1"]["kernel"], params["conv2_1"]["bias"]
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(0, 1))  # 4 3 2 3 3
    expected = np.maximum(np.einsum("hwiyx,yxio->hwo", windows, kernel) + bias, 0)
    np.testing.assert_allclose(both["conv2_1"][0], expected, rtol=1e-4, atol=1e-3)


def test_nothing_behind_the_deepest_layer_is_computed(narrow):
    params = random_params()
    program = str(jax.make_jaxpr(lambda x: Vgg(params).features(x, ("conv2_1", "conv1_2")))(picture(8, 8)))
    assert program.count("conv_general_dilated[") == 3
    few = {name: params[name] for name in layer_names(16)[:3]}
    run = jax.jit(lambda params: Vgg(params).features(picture(8, 8), ("conv2_1",)))
    assert_same(run(few), run(params))


def test_refusals(narrow):
    params, x = random_params(), picture(8, 8)
    assert "conv3_4" in refused(ValueError, Vgg(params).features, x, ("conv3_4",))
    assert "conv1_1" in refused(ValueError, Vgg(params).features, x, ())
    odd = Vgg({name: params[name] for name in ("conv1_1", "conv2_1")})
    assert "conv2_1" in refused(ValueError, odd.features, x, ("conv1_1",))
    assert "11" in refused(ValueError, layer_names, 11)


def test_a_file_that_keeps_the_reader_busy_is_refused():
    """A count that a flipped bit has made large: scipy reads for 4 to 9 seconds of the processor without a limit, which
    is 3 seconds for so small a file."""
    refused(ValueError, load_vgg, DATA / "endless.mat", match=r"endless\.mat.*too long")
