"""Feature extractors: resizing as published, ONNX files in both layouts, CLIP's folder, errors of one line.

onnxruntime is an optional extra: a stand-in with its interface runs everywhere, the real one where it is installed
(tests of `conditions.onnx_depth`).
"""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import published
import pytest
from networks import DATA
from prepared import write_efficientnet
from refusal import refused

from common.io.clip_tokenizer import Tokenizer
from common.io.image_preparation import ImagePreparation
from common.io.images import to_uint8
from common.weights.two_tower_files import load_two_towers
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
    path = install({"x": [None, 299, 299, 3]}, ["a", "b"], lambda f: {"b": f["x"].mean(axis=(1, 2))})
    np.testing.assert_allclose(features.inception(path, "b")(images), rows, atol=1e-5)


def clip_folder(place: Path, words: int = 1000) -> Path:
    """The published CLIP with a row of its text tower for each token of the tiny tokenizer."""
    weights = published.tensors("clip")
    name = "text_model.embeddings.token_embedding.weight"
    weights[name] = np.resize(weights[name][::-1], (words, weights[name].shape[1]))
    published.folder("clip", place, weights)
    config = json.loads((place / "config.json").read_text("utf-8"))
    config["text_config"] |= {"vocab_size": words, "eos_token_id": 999}
    (place / "config.json").write_text(json.dumps(config), "utf-8")
    for path in (DATA / "tokenizer_tiny").iterdir():
        shutil.copy(path, place)
    return place


@pytest.mark.long
def test_clip_embeds_images_and_texts_in_batches(tmp_path):
    """With images of any size, and a last batch that is not full."""
    clip, towers = features.clip(clip_folder(tmp_path), batch=2), load_two_towers(tmp_path)
    images = [RNG.random(shape, np.float32) for shape in ((30, 24, 3), (40, 64, 3), (24, 24, 3))]
    preparation = ImagePreparation(24)
    pixels = [preparation.normalised(preparation.resized(to_uint8(image))) for image in images]
    np.testing.assert_allclose(clip.images(images), towers.embed_image(np.stack(pixels)), atol=1e-5)
    texts = ["a", "hello!", "hello " * 50]  # the last is cut after ten tokens
    ids = Tokenizer.from_folder(tmp_path)(texts, 10)
    np.testing.assert_allclose(clip.texts(texts), towers.embed_text(ids), atol=1e-5)
    assert clip.images.name == clip.texts.name == "ViT-24/8-24" != features.CMMD_TOWER


def test_another_model_than_clip_is_refused(tmp_path):
    refused(ValueError, features.clip, published.folder("siglip", tmp_path / "siglip"), match="SigLIP")
    refused(ValueError, features.clip, clip_folder(tmp_path / "clip", 60), match="1000 tokens.* 60")


@pytest.mark.parametrize(("make", "inputs", "outputs", "value"), [
    (features.inception, {"x": [1, 5]}, ["y"], r"x \[1, 5\]"),
    (features.inception, {"x": [1, 3, 8, 8], "t": [1]}, ["y"], r"t \[1\]"),
    (features.inception, {"x": [1, 3, 8, 8]}, ["y", "z"], "None.* y, z"),
])  # fmt: skip
def test_files_of_another_form_are_refused(install, make, inputs, outputs, value):
    refused(ValueError, lambda: make(install(inputs, outputs, means)), match=value)
