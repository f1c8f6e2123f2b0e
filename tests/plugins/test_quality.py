"""Distances between sets: closed forms and brute force; the features: resizing as published, files in both layouts.

onnxruntime is an optional extra: a stand-in with its interface runs everywhere, the real one where it is installed
(`OnnxDepth` in test_conditions).
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
from scipy.linalg import sqrtm

from common.io.clip_tokenizer import Tokenizer
from common.io.image_preparation import ImagePreparation
from common.io.images import to_uint8
from common.weights.two_tower_files import load_two_towers
from plugins.metrics import (
    clip_score,
    cmmd,
    compare,
    compare_with_texts,
    features,
    frechet_distance,
    kid,
    precision_recall,
)
from plugins.metrics.features import CMMD_TOWER, INCEPTION, LITE0


@pytest.mark.parametrize("n", [20, 90])
def test_equal_sets_have_distance_0(n):
    features = np.random.default_rng(0).random((n, 64), np.float32)  # the type that networks give
    assert frechet_distance(features, features) < 1e-10
    assert frechet_distance(features, features[::-1].copy()) < 1e-10
    other = features + np.float32(0.5)
    assert frechet_distance(features, other) == pytest.approx(64 * 0.25, rel=1e-5) == frechet_distance(other, features)


@pytest.mark.parametrize("d", [2, 16])
def test_frechet_is_that_of_the_matrix_root(d):
    """As pytorch-fid and clean-fid compute it."""
    a, b = np.random.default_rng(d).random((2, 60, d)) ** [[[1]], [[2]]]
    of_a, of_b = np.cov(a.T), np.cov(b.T)
    root = np.real(sqrtm(of_a @ of_b))
    expected = np.sum((a.mean(0) - b.mean(0)) ** 2) + np.trace(of_a) + np.trace(of_b) - 2 * np.trace(root)
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-7)
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a), rel=1e-10)


def pairs(n: int, m: int, draw: str = "random") -> tuple[np.ndarray, np.ndarray]:
    a, b = (getattr(np.random.default_rng(seed), draw)((count, 4)) for seed, count in ((0, n), (1, m)))
    return a, b


def test_kid_by_double_loops():
    a, b = pairs(5, 6)
    own = [np.mean([(x @ y / 4 + 1) ** 3 for i, x in enumerate(s) for j, y in enumerate(s) if i != j]) for s in (a, b)]
    across = np.mean([(x @ y / 4 + 1) ** 3 for x in a for y in b])
    assert kid(a, b).value == pytest.approx(own[0] + own[1] - 2 * across, rel=1e-10)
    without = [kid(np.delete(a, i, 0), b).value for i in range(5)], [kid(a, np.delete(b, i, 0)).value for i in range(6)]
    jackknife = np.sqrt(sum((len(values) - 1) * np.var(values) for values in without))
    assert kid(a, b).error == pytest.approx(jackknife, rel=1e-9)


def test_cmmd_by_double_loops():
    a, b = pairs(5, 6, "standard_normal")
    x, y = ([row / np.sqrt(np.sum(row**2)) for row in rows] for rows in (a, b))

    def mean(first: list, second: list, same: bool) -> float:
        some = [(p, q) for i, p in enumerate(first) for j, q in enumerate(second) if same or i != j]
        return np.mean([np.exp(-np.sum((p - q) ** 2) / 200) for p, q in some])

    expected = 1000 * (mean(x, x, False) + mean(y, y, False) - 2 * mean(x, y, True))
    assert cmmd(a, b) == pytest.approx(expected, rel=1e-9) == cmmd(7 * a, b)
    opposite = np.tile([1.0, 0.0], (4, 1))
    assert cmmd(opposite, -opposite) == pytest.approx(2000 * (1 - np.exp(-1 / 50)), rel=1e-9)  # the maximum


def test_precision_and_recall_by_double_loops():
    rng = np.random.default_rng(5)
    a, b = rng.random((12, 3)), rng.random((15, 3)) + 0.4

    def covered(points: np.ndarray, by: np.ndarray) -> float:
        balls = [(x, sorted(np.linalg.norm(x - y) for y in by)[3]) for x in by]  # the 0-th is itself
        return float(np.mean([any(np.linalg.norm(p - x) <= radius for x, radius in balls) for p in points]))

    assert precision_recall(a, b) == pytest.approx((covered(a, b), covered(b, a)))
    assert 0 < covered(a, b) < 1
    assert precision_recall(a, a) == (1, 1) and precision_recall(a + 50, a) == (0, 0)


def test_clip_score_is_the_mean_cosine_of_pairs():
    images, texts = np.array([[3.0, 4], [0, 2]], np.float32), np.array([[1.0, 0], [0, -5]], np.float32)
    assert clip_score(images, texts) == pytest.approx((0.6 - 1) / 2)
    assert clip_score(images, images) == pytest.approx(1) and clip_score(images[:1], texts[:1]) == pytest.approx(0.6)


def test_only_inceptions_distance_is_called_fid():
    a, b = pairs(8, 8)
    published, ours = compare(INCEPTION, a, b), compare(LITE0, a, b)
    assert list(published) == ["FID", "KID", "KID error", "precision", "recall"]
    assert list(published.values()) == list(ours.values())
    assert not any("FID" in title or "KID" in title for title in ours)
    assert ours["Fréchet efficientnet-lite0"] == frechet_distance(a, b)
    assert (published["KID"], published["KID error"]) == kid(a, b)
    assert (published["precision"], published["recall"]) == precision_recall(a, b)


def test_only_the_tower_of_the_paper_gives_cmmd():
    a, b = pairs(8, 8)
    published, ours = (compare_with_texts(name, a, b, b) for name in (CMMD_TOWER, "ViT-B/32-224"))
    assert list(published) == ["CMMD", "CLIP score ViT-L/14-336"] and published["CMMD"] == cmmd(a, b)
    assert list(ours) == ["CMMD ViT-B/32-224", "CLIP score ViT-B/32-224"]
    assert list(ours.values()) == list(published.values()) == [cmmd(a, b), clip_score(a, b)]


POINTS = np.random.default_rng(0).random((4, 2))
UNIT = np.tile([1.0, 0.0], (4, 1))


@pytest.mark.parametrize(("call", "value"), [
    (lambda: frechet_distance(POINTS, POINTS[:2]), "2"),
    (lambda: kid(POINTS, POINTS[:2]), "2"),
    (lambda: kid(POINTS + np.array([0, np.inf]), POINTS), "infinity"),
    (lambda: precision_recall(POINTS[:3], np.tile(POINTS, (2, 1))), "4"),
    (lambda: cmmd(UNIT, UNIT * np.array([[1], [1], [0], [1]])), "embedding 2"),
    (lambda: clip_score(UNIT, 0 * UNIT), "embedding 0"),
])  # fmt: skip
def test_invalid_sets_are_refused(call, value):
    refused(ValueError, call, match=value)


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
