"""Tensors in files: lazy, sharded, of a variant; and files that are no weights."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from refusal import refused

from common.io import tensor_files
from common.io.json_text import parse_json
from common.io.tensor_files import TensorFiles, find_weights, listing, read_json

STEM = "model"


def write(path, **tensors):
    safetensors.numpy.save_file({name: np.asarray(value) for name, value in tensors.items()}, path)
    return path


def names(files):
    return [path.name for path in files]


def test_tensors_of_every_float_come_back_bit_for_bit(tmp_path):
    values = np.array([[0.1, -2.5, 3e-3]])
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        files = TensorFiles(write(tmp_path / f"{np.dtype(dtype).name}.safetensors", x=values.astype(dtype)))
        assert files["x"].dtype == dtype and files.shape("x") == (1, 3)
        np.testing.assert_array_equal(files["x"].view(np.uint8), values.astype(dtype).view(np.uint8))


def test_several_files_are_one_mapping(tmp_path):
    a = write(tmp_path / "a.safetensors", x=[1.0], y=[2.0])
    b = write(tmp_path / "b.safetensors", z=[3.0])
    files = TensorFiles(a, b)
    assert dict(files) == {"x": [1.0], "y": [2.0], "z": [3.0]} and len(files) == 3
    message = refused(ValueError, TensorFiles, b, a, a)
    assert "a.safetensors: 2 keys" in message and " x first" in message


def test_nothing_is_read_before_it_is_asked_for(tmp_path, monkeypatch):
    """A mapping is dropped after its budget, and taken up again."""
    opened = []
    real = tensor_files._open
    monkeypatch.setattr(tensor_files, "_open", lambda path: opened.append(path) or real(path))
    monkeypatch.setattr(tensor_files, "BUDGET", 1000)
    files = TensorFiles(write(tmp_path / "a.safetensors", **{f"t{i}": np.zeros(100, np.float32) for i in range(9)}))
    assert len(opened) == 1
    for key in files:
        files[key]
    assert len(opened) == 4  # 400 bytes each: three between two openings


def test_the_file_and_its_variants(tmp_path):
    write(tmp_path / "model.fp16.safetensors", x=[1.0])
    assert names(find_weights(tmp_path, STEM)) == ["model.fp16.safetensors"]
    write(tmp_path / "model.safetensors", x=[1.0])
    assert names(find_weights(tmp_path, STEM)) == ["model.safetensors"]
    assert names(find_weights(tmp_path, STEM, "fp16")) == ["model.fp16.safetensors"]
    message = refused(FileNotFoundError, find_weights, tmp_path, STEM, "ema")
    assert "model.ema.safetensors" in message and "model.fp16.safetensors" in message


@pytest.mark.parametrize("tag", ["", ".fp16"])
def test_shards_are_found_by_their_index(tmp_path, tag):
    shards = [f"model{tag}-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for key, name in zip("xy", shards, strict=True):
        write(tmp_path / name, **{key: [1.0]})
    index = {"metadata": {}, "weight_map": dict(zip("xy", shards, strict=True))}
    (tmp_path / f"model.safetensors.index{tag}.json").write_text(json.dumps(index))
    found = find_weights(tmp_path, STEM)
    assert names(found) == shards and set(TensorFiles(*found)) == {"x", "y"}
    (tmp_path / shards[1]).unlink()
    assert f"1 missing: {shards[1]}" in refused(FileNotFoundError, find_weights, tmp_path, STEM)


@pytest.mark.parametrize("text, found", [
    ("{", "index.json"),
    ("[]", "list"),
    ("{}", "weight_map"),
    ('{"weight_map": {"x": "../s.safetensors"}}', "'../s"),
])  # fmt: skip
def test_a_broken_index_is_refused(tmp_path, text, found):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert found in refused(ValueError, find_weights, tmp_path, STEM)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "v1-5.ckpt", "weights.PT"])
def test_pickles_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x02}.")
    for read, arguments in ((TensorFiles, [tmp_path / name]), (find_weights, [tmp_path, STEM])):
        assert f"pickle {name}" in refused(ValueError, read, *arguments)


def test_files_that_are_no_safetensors(tmp_path):
    whole, path = write(tmp_path / "whole.safetensors", x=np.zeros(1000)).read_bytes(), tmp_path / "bad.safetensors"
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3438167540\n"
    for data, found in (
        (whole[:-1], "cut short"),
        (b"<html>" * 9, "web page"),
        (b"none" * 9, "another format"),
        (pointer, "git lfs pull"),
    ):
        path.write_bytes(data)
        message = refused(ValueError, TensorFiles, path)
        assert found in message and "bad.safetensors" in message
    assert "none.safetensors" in refused(FileNotFoundError, TensorFiles, tmp_path / "none.safetensors")


def test_listings_and_json(tmp_path):
    assert listing(tmp_path) == "nothing"
    (tmp_path / "b").mkdir()
    for i in range(3):
        (tmp_path / f"a{i}").touch()
    assert listing(tmp_path) == "a0, a1, a2, b/" and listing(tmp_path, 2) == "a0, a1 and 2 more"
    (tmp_path / "c.json").write_bytes(b"\xff\xfe")
    assert "c.json" in refused(ValueError, read_json, tmp_path / "c.json")
    (tmp_path / "c.json").write_text('{"a": 1}', "utf-8-sig")  # as Windows' editors do
    assert read_json(tmp_path / "c.json") == parse_json('\ufeff{"a": 1}') == {"a": 1}
