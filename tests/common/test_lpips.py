"""LPIPS: equal to the original programs, and their files read strictly.

The numbers and the small files were made by tests/data/common/make_lpips.py.
"""

import json
import math
import runpy
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from refusal import refused

from common.io.torch_file import read_torch
from common.perceptual import lpips
from common.perceptual.lpips import BACKBONES, Lpips, distance, load_lpips, unit_features
from common.weights.porting import export

DATA = Path(__file__).parents[1] / "data" / "common"
RECIPE = runpy.run_path(str(DATA / "make_pictures.py"))
PAIRS = {name: [picture.astype(np.float32) / 255 for picture in pair] for name, pair in RECIPE["pairs"]().items()}
ORIGINAL = json.loads((DATA / "lpips.json").read_text())["scores"]


def tensors(net: str) -> dict[str, np.ndarray]:
    """The recipe's state dict of the original."""
    empty = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), lpips.shapes(net))
    found = {key: RECIPE["drawn"](key, value.shape) for key, value in export(empty, lpips.table(net)).items()}
    if net.startswith("st-"):
        found["net.slice2.4.filt"] = np.tile(lpips.BLUR.astype(np.float32), (64, 1, 1, 1))
    return found


@pytest.mark.long
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
        pairs = zip(BACKBONES[name], (2, 3, 4, 3, 2), strict=True)
        stages = tuple(replace(stage, convs=(replace(stage.convs[0], width=width),)) for stage, width in pairs)
        monkeypatch.setitem(BACKBONES, name, stages)
    jax.clear_caches()  # compiled functions know backbones by name
    yield DATA / "lpips_st_narrow.pth"
    jax.clear_caches()


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
    target = b.copy()
    metric(a, target)
    target[...] = b**3  # in place: the same array, another picture
    far = metric(a, target)
    assert far == Lpips(str(narrow))(a, b**3) != pytest.approx(near, rel=1e-3)
    assert metric(a, b) == near


def test_refusals(narrow, tmp_path):
    small = PAIRS["shift"][0][:31]
    assert "32" in refused(ValueError, Lpips(str(narrow)), small, small)
    heads = DATA / "lpips_heads_narrow.pth"  # need a backbone
    assert str(heads) in refused(ValueError, load_lpips, heads)
    missing = Lpips(str(tmp_path / "none.safetensors"))  # the disk is not read yet
    assert "recipes.downloads.lpips" in refused(FileNotFoundError, missing.prepare)
    for change, tensor in [  # of another network
        ({"net.slice1.0.weight": np.zeros((2, 3, 5, 5), np.float32)}, "stage1_conv1.kernel"),
        ({"net.slice9.99.bias": np.zeros(3, np.float32)}, "net.slice9.99.bias"),
        ({"net.slice2.4.filt": np.full((2, 1, 3, 3), 1 / 9, np.float32)}, "net.slice2.4.filt"),
        ({"scaling_layer.scale": np.ones((1, 3, 1, 1), np.float32)}, "scaling_layer.scale"),
    ]:
        with pytest.raises(ValueError, match=tensor):
            lpips.from_torch(read_torch(narrow) | change)
