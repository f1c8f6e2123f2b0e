"""PyTorch files read without PyTorch: real files of every container, and hostile ones.

The real files were written by tests/data/film/make_torch_files.py.
"""

import os
import pickle
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest
from recipe import DATA
from refusal import refused
from weight_files import Global, Storage, Tensor, archive, pickled

from common.io import torch_file
from common.io.torch_file import read_torch

STORAGE = np.arange(6, dtype=np.float32)


@pytest.mark.parametrize("name", ["torch_tensors.pth", "torch_legacy.pth"])
def test_tensors_of_all_types_and_views(name):
    tensors = read_torch(DATA / name)
    kinds = ["float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool", "bfloat16"]
    for kind in kinds:
        dtype = ml_dtypes.bfloat16 if kind == "bfloat16" else np.dtype(kind)
        assert tensors[f"dtype.{kind}"].dtype == dtype
        np.testing.assert_array_equal(tensors[f"dtype.{kind}"], np.array([0, 1, 3]).astype(dtype))
    whole = np.arange(24, dtype=np.float32)
    expected = {
        "shared.whole": whole,
        "shared.offset": whole[5:11],
        "strided.transposed": whole.reshape(4, 6).T,
        "strided.step": whole[1::3],
        "strided.expanded": [[7, 7, 7], [8, 8, 8]],
        "scalar": 2.5,
        "empty": np.zeros((0, 4)),
        "parameter": np.full((2, 2), 4.0),
    }
    for key, value in expected.items():
        np.testing.assert_array_equal(tensors[key], value, key)
        assert tensors[key].shape == np.shape(value)
    assert not [key for key in tensors if "optimizer" in key or "state_dict" in key]  # it is a training checkpoint
    assert all(value.flags.c_contiguous and value.flags.writeable for value in tensors.values())
    tensors["shared.offset"][:] = -1
    assert tensors["shared.whole"].min() == 0


def test_calls_are_refused_by_name_and_never_made(tmp_path):
    trace, bare = tmp_path / "trace", tmp_path / "bare.pth"

    class Call:
        def __reduce__(self):
            return os.mkdir, (str(trace),)

    graph = pickle.dumps({"a": Call()}, protocol=2)
    bare.write_bytes(graph)
    for path in (bare, archive(tmp_path / "zip.pth", graph)):
        assert f"{os.mkdir.__module__}.mkdir" in refused(ValueError, read_torch, path)
    assert not trace.exists()


def test_names_outside_the_list_are_refused_and_not_imported(tmp_path, monkeypatch):
    (tmp_path / "trapdoor_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for module, name in (
        ("builtins", "eval"),
        ("torch", "load"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("common.io.torch_file", "read_torch"),
        ("__torch", "Module"),
        ("trapdoor_module", "x"),
    ):
        path = archive(tmp_path / "m.pth", pickled({"a": Global(module, name)}))
        assert f"{module}.{name}" in refused(ValueError, read_torch, path)
    assert "trapdoor_module" not in sys.modules


def test_allowed_names_cannot_be_altered_for_the_next_file(tmp_path):
    """BUILD may set attributes of any named object; it must not reach our own functions."""
    first, second = (pickle.dumps(d, protocol=2)[2:-1] for d in ({"marked": 1}, {"__kwdefaults__": {"x": 1}}))
    graph = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n" + first + second + b"\x86b."
    with pytest.raises(ValueError, match="evil"):  # no tensor
        read_torch(archive(tmp_path / "evil.pth", graph))
    good = archive(tmp_path / "m.pth", pickled({"a": Tensor(Storage("s", 6), 0, (6,), (1,))}), s=STORAGE)
    np.testing.assert_array_equal(read_torch(good)["a"], STORAGE)
    assert torch_file._rebuild_tensor.__kwdefaults__ is None
    assert "marked" not in vars(torch_file._rebuild_tensor)


OUTSIDE = [(0, (7,), (1,)), (3, (2, 2), (2, 1)), (-1, (2,), (1,)), (5, (2,), (-1,))]  # offset, size, stride
OUTSIDE += [(0, (2, 2), (1,)), (7, (1,), (1,)), (0, (2,), (1 << 40,))]


def test_tensors_cannot_read_outside_their_storage(tmp_path):
    for view in OUTSIDE:
        path = archive(tmp_path / "m.pth", pickled({"a": Tensor(Storage("s", 6), *view)}), s=STORAGE)
        assert "m.pth" in refused(ValueError, read_torch, path)


def test_inconsistent_graphs_are_refused(tmp_path):
    """The archive of `view` is the one that is right."""
    tensor, view = Tensor(Storage("s", 6), 0, (6,), (1,)), Tensor(Storage("s", 6), 1, (2, 2), (1, 2))
    wide = Tensor(Storage("s", 6), 0, (1 << 30,), (0,))  # an expanded tensor is not a larger storage
    loop: dict = {}
    loop["again"] = loop
    path = tmp_path / "m.pth"
    np.testing.assert_array_equal(read_torch(archive(path, pickled({"a": view}), s=STORAGE))["a"], [[1, 3], [2, 4]])
    for graph, storages, value in [
        ({"a": Tensor(wide, 1 << 20, (4,), (1,))}, {"s": STORAGE}, "storage"),
        ({"a": tensor}, {"s": STORAGE[:4]}, "buffer is smaller"),
        (loop, {"s": STORAGE}, "64"),
        ({"a.b": tensor, "a": {"b": tensor}}, {"s": STORAGE}, "a.b"),
        ({"epoch": 3}, {"s": STORAGE}, "no tensor"),
        ({"a": tensor}, {}, "model/data/s"),
    ]:
        assert value in refused(ValueError, read_torch, archive(path, pickled(graph), **storages))


def test_other_files_and_files_cut_short(tmp_path):
    for name in ("dajes_tiny.pth", "dajes_tiny_torchscript.pt", "torch_legacy.pth"):
        data = (DATA / name).read_bytes()
        for keep in (0.999, 0.01):
            (tmp_path / name).write_bytes(data[: int(len(data) * keep)])
            assert name in refused(ValueError, read_torch, tmp_path / name)
    (tmp_path / "text.pth").write_text("hello")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("readme.txt", "hello")
    for name, kind in (("nowhere.pth", FileNotFoundError), ("text.pth", ValueError), ("other.zip", ValueError)):
        assert name in refused(kind, read_torch, tmp_path / name)
