"""Weights files: round trips, the header, and refusals by name."""

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from refusal import refused
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import common.weights.model_file
from common.weights.model_file import git_commit, load_weights, save_weights

CONFIG = {"levels": 7, "widths": [32, 64], "name": "paper"}


def params() -> dict:
    draw = np.random.default_rng(0)
    return {
        "convs": {
            0: {"kernel": draw.standard_normal((3, 3, 2, 4)).astype(np.float32)},
            1: {"kernel": draw.standard_normal((1, 1, 4, 2)).astype(np.float32)},
        },
        "scale": np.float32(0.1),
        "count": np.array([2, 3], np.int32),
    }


def save(path: Path, **options) -> Path:
    return save_weights(path, params(), kind="film", config=CONFIG, **options)


def with_header(path: Path, **text: str | None) -> None:
    """None removes an entry."""
    with safe_open(path, "np") as file:
        header = file.metadata() | text
    save_file(load_file(path), path, {key: value for key, value in header.items() if value is not None})


def test_round_trip_keeps_values_and_config(tmp_path):
    path = save(tmp_path / "w.safetensors", metadata={"psnr": 35.5, "data": ["a", "b"]})
    assert "'film', not 'unet'" in refused(ValueError, load_weights, path, expect_kind="unet")
    flat, header = load_weights(path, expect_kind="film")
    np.testing.assert_array_equal(load_file(path)["convs.0.kernel"], params()["convs"][0]["kernel"])  # other programs
    np.testing.assert_array_equal(flat["convs.1.kernel"], params()["convs"][1]["kernel"])
    assert flat["scale"].shape == () and flat["scale"] == np.float32(0.1)
    assert flat["count"].dtype == np.int32 and flat["count"].tolist() == [2, 3]
    assert (header.kind, header.config, header.dtype) == ("film", CONFIG, "float32")
    assert header.value_range == "[0, 1]" and header.metadata == {"psnr": 35.5, "data": ["a", "b"]}
    assert header.libraries["numpy"] == np.__version__ and header.git_commit == git_commit()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_rounded_once_and_read_as_float32(tmp_path, dtype):
    path = save(tmp_path / "w.safetensors", dtype=dtype)
    narrow = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    flat, header = load_weights(path)
    expected = params()["convs"][0]["kernel"].astype(narrow).astype(np.float32)
    np.testing.assert_array_equal(flat["convs.0.kernel"], expected)
    assert flat["convs.0.kernel"].dtype == np.float32 and header.dtype == dtype
    assert flat["count"].dtype == np.int32
    with safe_open(path, "np") as file:
        assert file.get_tensor("convs.0.kernel").dtype == narrow


def test_same_parameters_give_the_same_bytes_in_another_process(tmp_path):
    """The library orders the header at random in each process."""
    program = (
        "import sys, numpy as np; from common.weights.model_file import save_weights\n"
        "save_weights(sys.argv[1], {'b': np.arange(3.), 'a': np.ones(2)}, kind='k', config={'z': 1, 'y': 2})"
    )
    root = Path(common.weights.model_file.__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "one")], check=True, cwd=root, env=environment)
    save_weights(tmp_path / "two", {"a": np.ones(2), "b": np.arange(3.0)}, kind="k", config={"y": 2, "z": 1})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    data = (tmp_path / "one").read_bytes()
    text = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]
    assert list(text) == sorted(text)


@pytest.mark.parametrize(("tree", "options", "value"), [
    ({"a": np.array([1.0, np.nan])}, {}, "a .*NaN"),
    ({"a": np.array([7e4])}, {"dtype": "float16"}, "a .*float16"),
    ({"a": np.ones(1)}, {"dtype": "float8"}, "'float8'"),
    ({}, {}, "no parameters"),
    ({"a": np.ones(1)}, {"metadata": {"x": np.ones(1)}}, "metadata"),
    ({"a": np.ones(1)}, {"metadata": {"x": float("nan")}}, "metadata"),
])  # fmt: skip
def test_invalid_parameters_are_refused_and_leave_nothing(tmp_path, tree, options, value):
    message = refused(ValueError, save_weights, tmp_path / "w", tree, kind="film", config={}, **options)
    assert re.search(value, message) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("make", "value"), [
    (lambda path: save_file({"a": np.ones(2)}, path, metadata={"format": "pt"}), "film convert"),
    (lambda path: path.write_bytes(save(path).read_bytes()[:-5]), "safetensors"),
    (lambda path: path.write_bytes(b"PK\x03\x04 not a safetensors file at all"), "safetensors"),
    (lambda path: with_header(save(path), format_version="2"), "2 is newer than 1"),
    (lambda path: with_header(save(path), config="{"), "header"),
    (lambda path: with_header(save(path), config="[1]"), "config"),
    (lambda path: with_header(save(path), libraries=None), "'libraries'"),
])  # fmt: skip
def test_other_files_are_refused_in_one_line(tmp_path, make, value):
    path = tmp_path / "w.safetensors"
    make(path)
    message = refused(ValueError, load_weights, path)
    assert str(path) in message and value in message


def test_damaged_tensors_are_refused(tmp_path):
    """A flipped bit by the digest; a file without digest, of an earlier version, by values that are not finite."""
    path = save(tmp_path / "w.safetensors")
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    assert "sha256" in refused(ValueError, load_weights, path)
    with_header(path, sha256=None)
    assert load_weights(path)[1].sha256 == ""
    tensors = load_file(path)
    tensors["scale"] = np.array(np.nan, np.float32)
    with safe_open(path, "np") as file:
        save_file(tensors, path, file.metadata())
    assert "scale" in refused(ValueError, load_weights, path)


def test_commit_is_that_of_the_file_s_own_checkout(tmp_path, monkeypatch):
    """An installed copy inside another repository must not claim its commit."""
    repository = tmp_path / "theirs"
    copy = repository / "weights.py"
    repository.mkdir()
    copy.write_text("")

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e@x", *arguments]
        return subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True).stdout

    monkeypatch.setattr(common.weights.model_file, "__file__", str(copy))
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "theirs")
    assert git_commit() == "unknown"
    git("add", "weights.py")
    git("commit", "-q", "-m", "ours")
    assert git_commit() == git("rev-parse", "HEAD").strip()
    copy.write_text("changed")
    assert git_commit() == git("rev-parse", "HEAD").strip() + "-dirty"
    monkeypatch.setenv("PATH", "")
    assert git_commit() == "unknown"
