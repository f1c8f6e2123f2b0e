"""Extractors of features: resizing as published, files in both layouts, errors of one line.

onnxruntime is an optional extra: a stand-in with its interface runs everywhere, the real one where it is installed.
"""

import importlib.util
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from networks import one_line
from PIL import Image

from common.perceptual.efficientnet import EfficientNet, EfficientNetConfig, Stage, save_efficientnet, shapes
from plugins.metrics import features

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (30, 40, 3), np.uint8)


def session(inputs: dict, outputs: list[str], run, types: dict | None = None) -> type:
    """A class like onnxruntime.InferenceSession; `run(feed)` gives all outputs."""

    class Session:
        def __init__(self, path: str, providers: list[str]):
            assert providers == ["CPUExecutionProvider"]

        def get_inputs(self):
            kinds = types or {}
            return [SimpleNamespace(name=k, shape=v, type=kinds.get(k, "tensor(int64)")) for k, v in inputs.items()]

        def get_outputs(self):
            return [SimpleNamespace(name=name) for name in outputs]

        def run(self, wanted, feed):
            return [run(feed)[name] for name in wanted]

    return Session


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Puts a stand-in for onnxruntime in place; returns the path of its file."""

    def use(cls: type):
        monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=cls))
        (tmp_path / "net.onnx").write_bytes(b"net")
        return tmp_path / "net.onnx"

    return use


# ---- resizing


def cubic(x: np.ndarray) -> np.ndarray:
    """Keys' kernel with a = -0.5, which is Pillow's bicubic."""
    x = np.abs(x)
    near, far = (1.5 * x - 2.5) * x**2 + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def bicubic(line: int, to: int) -> np.ndarray:
    """The matrix that resizes `line` values to `to`, the kernel widened where it shrinks."""
    wide = max(line / to, 1)
    centres = (np.arange(to) + 0.5) * line / to - 0.5
    weights = cubic((np.arange(line) - centres[:, None]) / wide)
    return weights / weights.sum(axis=1, keepdims=True)


def resized(image: np.ndarray, height: int, width: int) -> np.ndarray:
    down = np.tensordot(bicubic(image.shape[0], height), image.astype(np.float64), 1)
    return np.tensordot(bicubic(image.shape[1], width), down, (1, 1)).swapaxes(0, 1)


@pytest.mark.parametrize("shape", [(30, 40, 3), (500, 420, 3)])
def test_clean_fid_is_bicubic_with_antialiasing_on_floats(shape):
    image = RNG.integers(0, 256, shape, np.uint8)
    found = features.clean_fid(image)
    expected = resized(image, 299, 299)
    assert found.dtype == np.float32 and found.shape == (299, 299, 3)
    np.testing.assert_allclose(found, (expected - 128) / 128, atol=1e-4)
    assert not np.allclose(found * 128, np.rint(found * 128), atol=1e-3), "nothing is rounded afterwards"


@pytest.mark.parametrize(("shape", "side"), [((300, 400, 3), 224), ((400, 300, 3), 224), ((35, 35, 3), 336)])
def test_clip_takes_the_middle_square(shape, side):
    image = RNG.integers(80, 176, shape, np.uint8)  # no overshoot, which Pillow cuts off after each direction
    found = features.clip_resize(image, side)
    scale = side / min(shape[:2])
    height, width = int(shape[0] * scale + 1e-9), int(shape[1] * scale + 1e-9)
    top, left = (height - side) // 2, (width - side) // 2
    expected = resized(image, height, width)[top : top + side, left : left + side] / 255
    back = found * [0.26862954, 0.26130258, 0.27577711] + [0.48145466, 0.4578275, 0.40821073]
    assert found.shape == (side, side, 3) and (height - side) % 2 == (width - side) % 2 == 0
    np.testing.assert_allclose(back, expected, atol=1.2 / 255)  # 8 bits between the two directions, too


# ---- networks


def test_lite0_is_the_network_on_8_bits(tmp_path):
    config = EfficientNetConfig((Stage(3, 1, 1, 4, 1),), stem=4, features=6, classes=2, side=16)
    params = {
        name: {leaf: jnp.asarray(RNG.random(x.shape), jnp.float32) for leaf, x in leaves.items()}
        for name, leaves in shapes(config).items()
    }
    network = EfficientNet(params, config)
    save_efficientnet(tmp_path / "net.safetensors", network, {})
    extractor = features.lite0(tmp_path / "net.safetensors")
    assert extractor.name == "efficientnet-lite0" != features.INCEPTION
    images = RNG.integers(0, 256, (3, 20, 20, 3), np.uint8)
    found = extractor((images / 255 + 0.001).astype(np.float32))  # what 8 bits cannot hold is gone
    np.testing.assert_array_equal(found, network.embed(images))


def means(feed: dict) -> dict:
    """(b, 3, 1, 1): each channel's mean."""
    (x,) = feed.values()
    assert x.dtype == np.float32 and x.flags.c_contiguous
    return {"pool": x.mean(axis=(2, 3), keepdims=True)}


def test_inception_from_a_file_in_batches(install):
    path = install(session({"x": ["b", 3, 299, 299]}, ["pool"], means))
    images = RNG.random((5, 20, 24, 3), np.float32)
    extractor = features.inception(path, batch=2)
    found = extractor(images)
    rows = [features.clean_fid(np.rint(image * 255).astype(np.uint8)).mean(axis=(0, 1)) for image in images]
    assert extractor.name == "inception-2015-12-05" and found.shape == (5, 3)
    np.testing.assert_allclose(found, rows, atol=1e-5)


def test_channels_may_come_last(install):
    path = install(session({"x": [None, 224, 224, 3]}, ["a", "b"], lambda f: {"b": f["x"].mean(axis=(1, 2))}))
    found = features.clip_images(path, output="b")(BYTES[None].astype(np.float32) / 255)
    np.testing.assert_allclose(found[0], features.clip_resize(BYTES).mean(axis=(0, 1)), atol=1e-5)


def test_texts_become_tokens_and_embeddings(install):
    def run(feed: dict) -> dict:
        assert feed["input_ids"].dtype == np.int64 and feed["attention_mask"].dtype == np.int32
        assert feed["attention_mask"].all()
        return {"text_embeds": feed["input_ids"].astype(np.float32)}

    inputs = {"attention_mask": ["b", 4], "input_ids": ["b", 4]}
    path = install(session(inputs, ["text_embeds", "hidden"], run, {"attention_mask": "tensor(int32)"}))

    def tokenizer(texts):
        return np.array([[len(text), 1, 2, 3] for text in texts], np.int32)

    found = features.clip_texts(path, tokenizer, "text_embeds")(["a", "bcd"] * 20)
    assert found.shape == (40, 4) and found[:2, 0].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [
        ({"x": [1, 5]}, ["y"], "one batch of pictures"),
        ({"x": [1, 3, 8, 8], "t": [1]}, ["y"], r"t \[1\]"),
        ({"x": [1, 3, 8, 8]}, ["y", "z"], "output None is not among y, z"),
    ],
)
def test_files_of_another_form_are_one_line(install, inputs, outputs, said):
    path = install(session(inputs, outputs, means))
    with pytest.raises(ValueError, match=said) as error:
        features.inception(path)
    one_line(error)


def test_text_towers_of_another_form_are_one_line(install):
    path = install(session({"input_ids": [1], "pixel_values": [1]}, ["y"], means))
    with pytest.raises(ValueError, match="input_ids, pixel_values") as error:
        features.clip_texts(path, lambda texts: np.zeros((len(texts), 4), np.int32))
    one_line(error)


def test_a_missing_file_and_a_missing_package(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"none\.onnx") as error:
        features.inception(tmp_path / "none.onnx")
    one_line(error)
    (tmp_path / "net.onnx").write_bytes(b"net")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"film-plugins-reveal\[onnx\]") as missing:
        features.inception(tmp_path / "net.onnx")
    one_line(missing)


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="the extra `onnx` is not installed")
def test_a_real_file(tmp_path):
    import onnx
    from onnx import TensorProto, helper

    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["pool"])]
    picture = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 3, 299, 299])
    pooled = helper.make_tensor_value_info("pool", TensorProto.FLOAT, ["b", 3, 1, 1])
    graph = helper.make_graph(nodes, "means", [picture], [pooled])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, tmp_path / "means.onnx")
    found = features.inception(tmp_path / "means.onnx")(BYTES[None].astype(np.float32) / 255)
    np.testing.assert_allclose(found[0], features.clean_fid(BYTES).mean(axis=(0, 1)), atol=1e-5)
    (tmp_path / "broken.onnx").write_bytes(b"broken")
    with pytest.raises(ValueError, match="is no network that onnxruntime reads") as error:
        features.inception(tmp_path / "broken.onnx")
    one_line(error)


def test_pillow_is_what_the_resizing_is_done_with():
    """8 bits and floats differ: the one rounds between the directions and clips, the other does neither."""
    image = np.zeros((4, 4, 3), np.uint8)
    image[:, 2:] = 255
    found = features.clean_fid(image) * 128 + 128
    assert found.max() > 256 and found.min() < -1, "the filter overshoots, and that is kept"
    assert np.asarray(Image.fromarray(image).resize((299, 299), Image.Resampling.BICUBIC)).max() == 255
