"""TensorFlow bundles: keys, shapes and values of two, and errors of broken ones.

Reading needs the extra `convert`; finding the bundle does not, and is tested without it.
"""

import importlib.util
import json
import os
import shutil
import sys

import numpy as np
import pytest
from recipe import DATA, variable
from refusal import refused

from common.io.tf_checkpoint import find_prefix, read_tf_checkpoint

SAVED_MODEL, CHECKPOINT = DATA / "tiny_saved_model", DATA / "tiny_checkpoint"
KEYS = json.loads((DATA / "tiny_checkpoint_keys.json").read_text())
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
missing = importlib.util.find_spec("tensorflow") is None
needs_tensorflow = pytest.mark.skipif(missing, reason="reading needs the extra `convert`")


@needs_tensorflow
@pytest.mark.parametrize(("name", "folder"), [("saved_model", SAVED_MODEL), ("checkpoint", CHECKPOINT)])
def test_keys_shapes_and_values_without_text(name, folder):
    listed = {key: tuple(shape) for key, shape in KEYS[name] if key != "_CHECKPOINTABLE_OBJECT_GRAPH"}
    tensors = read_tf_checkpoint(folder)
    assert {key: value.shape for key, value in tensors.items()} == listed
    assert list(tensors) == sorted(tensors)
    if name == "saved_model":
        names = {f"variables/{i}": tf_name for i, tf_name in enumerate(KEYS["saved_model_variable_order"])}
    else:
        assert tensors[f"step{SUFFIX}"] == 3 and tensors[f"step{SUFFIX}"].dtype == np.int64
        layer = "model/layer_with_weights-0/extract_sublevels/convs/0/kernel"
        names = {layer: "feat_net/sub_extractor/cfeat_conv_0/kernel"}
    for key, tf_name in names.items():
        value = tensors[f"{key}{SUFFIX}"]
        expected = variable(tf_name.removesuffix(":0"), value.shape)
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=0)


def test_paths_of_a_bundle():
    saved, checkpoint = SAVED_MODEL / "variables" / "variables", CHECKPOINT / "ckpt-3"
    for given in (SAVED_MODEL, saved.parent, saved.with_suffix(".index")):
        assert find_prefix(given) == saved
    for given in (CHECKPOINT, str(checkpoint), checkpoint.with_suffix(".index")):
        assert find_prefix(given) == checkpoint


def test_the_newest_is_named_by_the_checkpoint_file_also_after_a_move(tmp_path):
    for name in ("ckpt-3", "ckpt-12.5"):
        shutil.copy(CHECKPOINT / "ckpt-3.index", tmp_path / f"{name}.index")
    every = 'all_model_checkpoint_paths: "ckpt-3"\n'
    for named in ("ckpt-12.5", "/gone/since/long/ckpt-12.5"):
        (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{named}"\n{every}')
        assert find_prefix(tmp_path) == tmp_path / "ckpt-12.5"
    (tmp_path / "checkpoint").write_text(every)
    assert "model_checkpoint_path" in refused(ValueError, find_prefix, tmp_path)


def test_no_bundle_here(tmp_path):
    for name in ("", "ckpt-9", "ckpt-9.index", "gone/ckpt"):
        assert str(tmp_path / name) in refused(FileNotFoundError, read_tf_checkpoint, tmp_path / name)


def test_a_missing_shard_is_named(tmp_path):
    prefix = tmp_path / "ckpt-3"
    shutil.copy(CHECKPOINT / "ckpt-3.index", tmp_path)
    assert "ckpt-3.data-00000-of-00001" in refused(FileNotFoundError, read_tf_checkpoint, prefix)
    (tmp_path / "ckpt-3.data-00001-of-00003").write_bytes(b"")
    message = refused(FileNotFoundError, read_tf_checkpoint, prefix)
    assert "00000-of-00003" in message and "00002-of-00003" in message and "00001" not in message


@needs_tensorflow
@pytest.mark.parametrize("damaged", ["ckpt-3.index", "ckpt-3.data-00000-of-00001"])
def test_files_cut_short(tmp_path, damaged):
    shutil.copytree(CHECKPOINT, tmp_path, dirs_exist_ok=True)
    data = (tmp_path / damaged).read_bytes()
    (tmp_path / damaged).write_bytes(data[: len(data) // 2])
    assert str(tmp_path) in refused(ValueError, read_tf_checkpoint, tmp_path)


def test_without_tensorflow_the_extra_is_named_and_the_environment_kept(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    before = dict(os.environ)
    assert "film-plugins-reveal[convert]" in refused(ValueError, read_tf_checkpoint, SAVED_MODEL)
    assert dict(os.environ) == before
