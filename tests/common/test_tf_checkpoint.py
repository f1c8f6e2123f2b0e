"""TensorFlow bundles: keys, shapes and values of two, and what is said about broken ones.

Reading needs the extra `convert`; finding the bundle does not, and is tested without it.
"""

import importlib.util
import json
import os
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from common.io.tf_checkpoint import find_prefix, read_tf_checkpoint

DATA = Path(__file__).parents[1] / "data" / "film"
SAVED_MODEL, CHECKPOINT = DATA / "tiny_saved_model", DATA / "tiny_checkpoint"
KEYS = json.loads((DATA / "tiny_checkpoint_keys.json").read_text())
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="reading needs the extra `convert`"
)


def recipe(tf_name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The fixtures' weights: a normal draw seeded by the variable's name."""
    draw = np.random.RandomState(zlib.crc32(tf_name.encode())).standard_normal(shape)
    scale = np.sqrt(2 / np.prod(shape[:-1])) if tf_name.endswith("kernel") else 0.05
    return (draw * scale).astype(np.float32)


@needs_tensorflow
@pytest.mark.parametrize(("name", "folder"), [("saved_model", SAVED_MODEL), ("checkpoint", CHECKPOINT)])
def test_keys_and_shapes_are_the_listed_ones_less_the_text(name, folder):
    listed = {key: tuple(shape) for key, shape in KEYS[name] if key != "_CHECKPOINTABLE_OBJECT_GRAPH"}
    tensors = read_tf_checkpoint(folder)
    assert {key: value.shape for key, value in tensors.items()} == listed
    assert list(tensors) == sorted(tensors)


@needs_tensorflow
def test_saved_model_holds_the_recipe_s_values_in_order_of_creation():
    tensors = read_tf_checkpoint(SAVED_MODEL)
    for number, name in enumerate(KEYS["saved_model_variable_order"]):
        value = tensors[f"variables/{number}{SUFFIX}"]
        np.testing.assert_allclose(value, recipe(name.removesuffix(":0"), value.shape), rtol=1e-6, atol=0)


@needs_tensorflow
def test_a_checkpoint_holds_counters_beside_the_weights():
    tensors = read_tf_checkpoint(CHECKPOINT)
    assert tensors[f"step{SUFFIX}"] == 3 and tensors[f"step{SUFFIX}"].dtype == np.int64
    kernel = tensors[f"model/layer_with_weights-0/extract_sublevels/convs/0/kernel{SUFFIX}"]
    np.testing.assert_array_equal(kernel, recipe("feat_net/sub_extractor/cfeat_conv_0/kernel", kernel.shape))


@pytest.mark.parametrize(
    ("given", "prefix"),
    [
        (SAVED_MODEL, SAVED_MODEL / "variables" / "variables"),
        (SAVED_MODEL / "variables", SAVED_MODEL / "variables" / "variables"),
        (SAVED_MODEL / "variables" / "variables.index", SAVED_MODEL / "variables" / "variables"),
        (CHECKPOINT, CHECKPOINT / "ckpt-3"),
        (str(CHECKPOINT / "ckpt-3"), CHECKPOINT / "ckpt-3"),
        (CHECKPOINT / "ckpt-3.index", CHECKPOINT / "ckpt-3"),
    ],
)
def test_all_ways_to_name_a_bundle(given, prefix):
    assert find_prefix(given) == prefix


def moved_checkpoint(tmp_path: Path, state: str) -> Path:
    """A copy of the checkpoint as steps 3 and 12.5, with another `checkpoint` file."""
    for name in ("ckpt-3", "ckpt-12.5"):
        for suffix in (".index", ".data-00000-of-00001"):
            shutil.copy(CHECKPOINT / f"ckpt-3{suffix}", tmp_path / f"{name}{suffix}")
    (tmp_path / "checkpoint").write_text(state)
    return tmp_path


@pytest.mark.parametrize("named", ["ckpt-12.5", "/gone/since/long/ckpt-12.5"])
def test_the_newest_is_what_the_checkpoint_file_says_also_after_a_move(tmp_path, named):
    state = f'model_checkpoint_path: "{named}"\nall_model_checkpoint_paths: "ckpt-3"\n'
    assert find_prefix(moved_checkpoint(tmp_path, state)) == tmp_path / "ckpt-12.5"


def test_a_checkpoint_file_that_names_none(tmp_path):
    with pytest.raises(ValueError, match="names no model_checkpoint_path"):
        find_prefix(moved_checkpoint(tmp_path, 'all_model_checkpoint_paths: "ckpt-3"\n'))


@pytest.mark.parametrize("name", ["", "ckpt-9", "ckpt-9.index", "gone/ckpt"])
def test_no_bundle_here(tmp_path, name):
    with pytest.raises(FileNotFoundError, match="no TensorFlow checkpoint here") as caught:
        read_tf_checkpoint(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_missing_shard_is_named(tmp_path):
    prefix = tmp_path / "ckpt-3"
    shutil.copy(CHECKPOINT / "ckpt-3.index", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"missing: ckpt-3\.data-00000-of-00001"):
        read_tf_checkpoint(prefix)
    (tmp_path / "ckpt-3.data-00001-of-00003").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"3 shard\(s\), missing: .*00000-of-00003, .*00002-of-00003;"):
        read_tf_checkpoint(prefix)


@needs_tensorflow
@pytest.mark.parametrize("damaged", ["ckpt-3.index", "ckpt-3.data-00000-of-00001"])
def test_files_cut_short(tmp_path, damaged):
    shutil.copytree(CHECKPOINT, tmp_path, dirs_exist_ok=True)
    data = (tmp_path / damaged).read_bytes()
    (tmp_path / damaged).write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="damaged TensorFlow checkpoint") as caught:
        read_tf_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)


def test_without_tensorflow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ValueError, match=r'pip install "film-plugins-reveal\[convert\]"') as caught:
        read_tf_checkpoint(SAVED_MODEL)
    assert "\n" not in str(caught.value)


def test_the_import_leaves_the_environment_as_it_was(monkeypatch):
    """A user's own setting stays, and ours is gone afterwards."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    before = dict(os.environ)
    with pytest.raises(ValueError):
        read_tf_checkpoint(SAVED_MODEL)
    assert dict(os.environ) == before
