"""LPIPS: equal to the original programs, and their files read strictly.

The numbers and the small files were made by tests/data/common/make_lpips.py.
"""

import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from refusal import refused

from common.io.torch_file import read_torch
from common.perceptual import lpips
from common.perceptual.lpips import BACKBONES, Conv, Lpips, Stage, distance, load_lpips, unit_features
from common.weights.porting import export

DATA = Path(__file__).parents[1] / "data" / "common"
RECIPE = runpy.run_path(str(DATA / "make_pictures.py"))
PAIRS = {name: [picture.astype(np.float32) / 255 for picture in pair] for name, pair in RECIPE["pairs"]().items()}
ORIGINAL = json.loads((DATA / "lpips.json").read_text())["scores"]


def tensors(net: str, whole: bool = True) -> dict[str, np.ndarray]:
    """The recipe's state dict of the original."""
    empty = {
        name: {leaf: np.zeros(x.shape, x.dtype) for leaf, x in leaves.items()}
        for name, leaves in lpips.shapes(net).items()
    }
    found = {key: RECIPE["drawn"](key, value.shape) for key, value in export(empty, lpips.table(net, whole)).items()}
    return found | (
        {"net.slice2.4.filt": np.tile(lpips.BLUR.astype(np.float32), (64, 1, 1, 1))} if net.startswith("st-") else {}
    )


@pytest.mark.parametrize("net", ORIGINAL)
def test_distances_equal_the_originals(net):
    name, params = lpips.from_torch(tensors(net))
    assert name == net
    pair = "blur"  # 33x40
    a, b = (x[None] for x in PAIRS[pair])
    found = float(distance(name, params, a, unit_features(name, params, b))[0])
    assert found == pytest.approx(ORIGINAL[net][pair], rel=2e-5)


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
    lpips.save_lpips(tmp_path / "ours.safetensors", *load_lpips(narrow), metadata={})
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


def test_refusals(narrow, tmp_path):
    small = PAIRS["shift"][0][:31]
    with pytest.raises(ValueError, match="32"):
        Lpips(str(narrow))(small, small)
    with pytest.raises(ValueError, match="lpips_heads_narrow"):  # heads alone need a backbone
        load_lpips(DATA / "lpips_heads_narrow.pth")
    missing = Lpips(str(tmp_path / "none.safetensors"))  # the disk is not read yet
    assert "recipes.downloads.lpips" in refused(FileNotFoundError, missing.prepare)


@pytest.mark.parametrize(
    ("change", "tensor"),
    [
        ({"net.slice1.0.weight": np.zeros((2, 3, 5, 5), np.float32)}, "stage1_conv1.kernel"),
        ({"net.slice9.99.bias": np.zeros(3, np.float32)}, "net.slice9.99.bias"),
        ({"lin3.model.1.weight": None}, "lin3.model.1.weight"),
        ({"net.slice2.4.filt": np.full((2, 1, 3, 3), 1 / 9, np.float32)}, "net.slice2.4.filt"),
        ({"scaling_layer.scale": np.ones((1, 3, 1, 1), np.float32)}, "scaling_layer.scale"),
    ],
)
def test_a_file_of_another_network_is_refused(narrow, change, tensor):
    state = {key: value for key, value in (read_torch(narrow) | change).items() if value is not None}
    with pytest.raises(ValueError, match=tensor):
        lpips.from_torch(state)
