"""Feature extractors: resizing as published, ONNX files in both layouts, errors of one line.

onnxruntime is an optional extra: a stand-in with its interface runs everywhere, the real one where it is installed
(tests of `conditions.onnx_depth`).
"""

import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from prepared import write_efficientnet
from refusals import refused

from plugins.metrics import features

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (30, 40, 3), np.uint8)


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Replaces onnxruntime by one that runs `run(feed)`; returns the path of its file."""

    def use(inputs: dict, outputs: list[str], run, **types: str):
        kinds = dict.fromkeys(inputs, "tensor(int64)") | types

        def session(path: str, providers: list[str]) -> SimpleNamespace:
            assert providers == ["CPUExecutionProvider"]
            return SimpleNamespace(
                get_inputs=lambda: [SimpleNamespace(name=k, shape=v, type=kinds[k]) for k, v in inputs.items()],
                get_outputs=lambda: [SimpleNamespace(name=name) for name in outputs],
                run=lambda wanted, feed: [run(feed)[name] for name in wanted],
            )

        monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=session))
        (tmp_path / "net.onnx").write_bytes(b"net")
        return tmp_path / "net.onnx"

    return use


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
    assert found.dtype == np.float32 and found.shape == (299, 299, 3)
    np.testing.assert_allclose(found, (resized(image, 299, 299) - 128) / 128, atol=1e-4)
    assert not np.allclose(found * 128, np.rint(found * 128), atol=1e-3), "nothing is rounded afterwards"


@pytest.mark.parametrize(("shape", "side"), [((300, 400, 3), 224), ((400, 300, 3), 224), ((35, 35, 3), 336)])
def test_clip_takes_the_centre(shape, side):
    image = RNG.integers(80, 176, shape, np.uint8)  # no overshoot, which Pillow clips after each direction
    found = features.clip_resize(image, side)
    scale = side / min(shape[:2])
    height, width = int(shape[0] * scale + 1e-9), int(shape[1] * scale + 1e-9)
    top, left = (height - side) // 2, (width - side) // 2
    expected = resized(image, height, width)[top : top + side, left : left + side] / 255
    back = found * [0.26862954, 0.26130258, 0.27577711] + [0.48145466, 0.4578275, 0.40821073]
    assert found.shape == (side, side, 3) and (height - side) % 2 == (width - side) % 2 == 0
    np.testing.assert_allclose(back, expected, atol=1.2 / 255)  # 8 bits between the two directions, too


def test_lite0_is_the_network_on_8_bits(tmp_path):
    network = write_efficientnet(tmp_path / "net.safetensors")
    extractor = features.lite0(tmp_path / "net.safetensors")
    assert extractor.name == "efficientnet-lite0" != features.INCEPTION
    images = RNG.integers(0, 256, (3, 20, 20, 3), np.uint8)
    found = extractor((images / 255 + 0.001).astype(np.float32))  # what 8 bits cannot hold is lost
    np.testing.assert_array_equal(found, network.embed(images))


def means(feed: dict) -> dict:
    """(b, 3, 1, 1): each channel's mean."""
    (x,) = feed.values()
    assert x.dtype == np.float32 and x.flags.c_contiguous
    return {"pool": x.mean(axis=(2, 3), keepdims=True)}


def test_image_networks_run_in_batches_and_both_layouts(install):
    images = RNG.random((5, 20, 24, 3), np.float32)
    extractor = features.inception(install({"x": ["b", 3, 299, 299]}, ["pool"], means), batch=2)
    rows = [features.clean_fid(np.rint(image * 255).astype(np.uint8)).mean(axis=(0, 1)) for image in images]
    found = extractor(images)
    assert extractor.name == "inception-2015-12-05" and found.shape == (5, 3)
    np.testing.assert_allclose(found, rows, atol=1e-5)
    path = install({"x": [None, 224, 224, 3]}, ["a", "b"], lambda f: {"b": f["x"].mean(axis=(1, 2))})
    found = features.clip_images(path, output="b")(BYTES[None].astype(np.float32) / 255)
    np.testing.assert_allclose(found[0], features.clip_resize(BYTES).mean(axis=(0, 1)), atol=1e-5)


def tokenizer(texts):
    return np.array([[len(text), 1, 2, 3] for text in texts], np.int32)


def test_texts_become_tokens_and_embeddings(install):
    def run(feed: dict) -> dict:
        assert feed["input_ids"].dtype == np.int64 and feed["attention_mask"].dtype == np.int32
        assert feed["attention_mask"].all()
        return {"text_embeds": feed["input_ids"].astype(np.float32)}

    inputs = {"attention_mask": ["b", 4], "input_ids": ["b", 4]}
    path = install(inputs, ["text_embeds", "hidden"], run, attention_mask="tensor(int32)")
    found = features.clip_texts(path, tokenizer, "text_embeds")(["a", "bcd"] * 20)
    assert found.shape == (40, 4) and found[:2, 0].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("make", "inputs", "outputs", "value"),
    [
        (features.inception, {"x": [1, 5]}, ["y"], r"x \[1, 5\]"),
        (features.inception, {"x": [1, 3, 8, 8], "t": [1]}, ["y"], r"t \[1\]"),
        (features.inception, {"x": [1, 3, 8, 8]}, ["y", "z"], "None.* y, z"),
        (partial(features.clip_texts, tokenizer=tokenizer), {"input_ids": [1], "x": [1]}, ["y"], "input_ids, x"),
    ],
)
def test_files_of_another_form_are_refused(install, make, inputs, outputs, value):
    refused(ValueError, value, lambda: make(install(inputs, outputs, means)))
