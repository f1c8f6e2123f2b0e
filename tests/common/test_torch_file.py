"""PyTorch files read without PyTorch: true files of every container, and files that mean harm.

The true files were written by tests/data/film/make_torch_files.py.
"""

import io
import os
import pickle
import sys
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from common.io import torch_file
from common.io.torch_file import read_torch

DATA = Path(__file__).parents[1] / "data" / "film"


def recipe(tf_name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The fixtures' weights: a normal draw seeded by the variable's name; kernels HWIO."""
    draw = np.random.RandomState(zlib.crc32(tf_name.encode())).standard_normal(shape)
    scale = np.sqrt(2 / np.prod(shape[:-1])) if tf_name.endswith("kernel") else 0.05
    return (draw * scale).astype(np.float32)


@pytest.mark.parametrize("name", ["dajes_tiny.pth", "dajes_tiny_torchscript.pt"])
def test_film_port_has_the_reference_s_values_under_the_port_s_names(name):
    tensors = read_torch(DATA / name)
    assert len(tensors) == 50 and sum(value.size for value in tensors.values()) == 72_397
    expected = {
        "extract.extract_sublevels.convs.1.0.0": ("feat_net/sub_extractor/cfeat_conv_2", (3, 3, 8, 16)),
        "predict_flow._predictor._convs.0.0": ("predict_flow/flow_predictor_shared/conv_0", (3, 3, 112, 16)),
        "predict_flow._predictors.0._convs.3.0": ("predict_flow/flow_predictor_1/conv_3", (1, 1, 8, 2)),
        "fuse.convs.0.1.0": ("fusion/conv2d_4", (3, 3, 74, 16)),
        "fuse.convs.1.0.0": ("fusion/conv2d", (2, 2, 16, 8)),
        "fuse.output_conv": ("fusion/conv2d_6", (1, 1, 8, 3)),
    }
    for ours, (theirs, shape) in expected.items():
        kernel = recipe(f"{theirs}/kernel", shape)
        np.testing.assert_array_equal(tensors[f"{ours}.weight"], kernel.transpose(3, 2, 0, 1))
        np.testing.assert_array_equal(tensors[f"{ours}.bias"], recipe(f"{theirs}/bias", shape[-1:]))


def test_script_and_state_dict_agree():
    state, script = (read_torch(DATA / name) for name in ("dajes_tiny.pth", "dajes_tiny_torchscript.pt"))
    assert state.keys() == script.keys()
    assert all(np.array_equal(state[key], script[key]) for key in state)


@pytest.mark.parametrize("name", ["torch_tensors.pth", "torch_legacy.pth"])
class TestTensors:
    def test_dtypes(self, name):
        tensors = read_torch(DATA / name)
        kinds = ["float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"]
        for kind in kinds:
            value = tensors[f"dtype.{kind}"]
            assert value.dtype == np.dtype(kind)
            np.testing.assert_array_equal(value, np.array([0, 1, 3]).astype(kind))
        assert tensors["dtype.bfloat16"].dtype == ml_dtypes.bfloat16
        assert tensors["dtype.bfloat16"].astype(np.float32).tolist() == [0, 1, 3]

    def test_views(self, name):
        tensors = read_torch(DATA / name)
        whole = np.arange(24, dtype=np.float32)
        np.testing.assert_array_equal(tensors["shared.whole"], whole)
        np.testing.assert_array_equal(tensors["shared.offset"], whole[5:11])
        np.testing.assert_array_equal(tensors["strided.transposed"], whole.reshape(4, 6).T)
        np.testing.assert_array_equal(tensors["strided.step"], whole[1::3])
        np.testing.assert_array_equal(tensors["strided.expanded"], [[7, 7, 7], [8, 8, 8]])

    def test_shapes_and_parameters(self, name):
        tensors = read_torch(DATA / name)
        assert tensors["scalar"].shape == () and tensors["scalar"] == 2.5
        assert tensors["empty"].shape == (0, 4)
        np.testing.assert_array_equal(tensors["parameter"], np.full((2, 2), 4.0))

    def test_arrays_are_ours_to_change(self, name):
        tensors = read_torch(DATA / name)
        assert all(value.flags.c_contiguous and value.flags.writeable for value in tensors.values())
        tensors["shared.offset"][:] = -1
        assert tensors["shared.whole"].min() == 0

    def test_state_dict_is_taken_from_a_training_checkpoint(self, name):
        assert not [key for key in read_torch(DATA / name) if "optimizer" in key or "state_dict" in key]


class Call:
    """Pickles as a call: what a hostile file does."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Global:
    """Pickles as a bare name of a module that is not here."""

    def __init__(self, module: str, name: str):
        self.text = f"c{module}\n{name}\n".encode()


class TorchPickler(pickle._Pickler):
    """Python's own pickler that can write names of modules we do not have, and torch's storages."""

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Global):
            self.write(obj.text)  # type: ignore[attr-defined]
        else:
            super().save(obj, save_persistent_id)

    def persistent_id(self, obj):
        return obj.pid if isinstance(obj, Storage) else None


class Storage:
    def __init__(self, key: str, size: int, kind: str = "FloatStorage"):
        self.pid = ("storage", Global("torch", kind), key, "cpu", size)


class Tensor:
    def __init__(self, storage: "Storage | Tensor", offset, size, stride):
        self.arguments = (storage, offset, size, stride, False, OrderedDict())

    def __reduce__(self):
        return Named("torch._utils", "_rebuild_tensor_v2"), self.arguments


class Named(Global):
    """A Global that the pickler accepts as a function."""

    def __call__(self):
        raise AssertionError


def pickled(obj) -> bytes:
    buffer = io.BytesIO()
    TorchPickler(buffer, protocol=2).dump(obj)
    return buffer.getvalue()


def archive(path: Path, graph: bytes, **storages: np.ndarray) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("model/data.pkl", graph)
        for key, value in storages.items():
            file.writestr(f"model/data/{key}", value.tobytes())
    return path


STORAGE = np.arange(6, dtype=np.float32)


def test_hand_made_archive_is_readable(tmp_path):
    """The harmful archives below differ from this one only where they mean to."""
    path = archive(tmp_path / "m.pth", pickled({"a": Tensor(Storage("s", 6), 1, (2, 2), (1, 2))}), s=STORAGE)
    np.testing.assert_array_equal(read_torch(path)["a"], [[1, 3], [2, 4]])


@pytest.mark.parametrize("container", ["zip", "bare pickle"])
def test_calls_are_refused_by_name_and_never_made(tmp_path, container):
    trace = tmp_path / "trace"
    graph = pickle.dumps({"a": Call(os.mkdir, str(trace))}, protocol=2)
    path = tmp_path / "evil.pth"
    if container == "zip":
        archive(path, graph)
    else:
        path.write_bytes(graph)
    with pytest.raises(ValueError, match=r"refused to load: it asks for (posix|nt)\.mkdir") as caught:
        read_torch(path)
    assert not trace.exists() and "\n" not in str(caught.value) and "re-save" in str(caught.value)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("torch", "load"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("common.io.torch_file", "read_torch"),
        ("numpy", "load"),
        ("__torch", "Module"),
        ("torch.nn.modules.conv", "Conv2d"),
    ],
)
def test_names_outside_the_list_are_refused(tmp_path, module, name):
    path = archive(tmp_path / "m.pth", pickled({"a": Global(module, name)}))
    with pytest.raises(ValueError, match="refused to load: it asks for") as caught:
        read_torch(path)
    assert f"{module}.{name}" in str(caught.value)


def test_a_name_of_a_module_not_yet_imported_is_not_imported(tmp_path):
    (tmp_path / "trapdoor_module.py").write_text("raise SystemExit('imported')")
    path = archive(tmp_path / "m.pth", pickled({"a": Global("trapdoor_module", "x")}))
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(ValueError, match="refused"):
            read_torch(path)
    finally:
        sys.path.remove(str(tmp_path))
    assert "trapdoor_module" not in sys.modules


def test_allowed_names_cannot_be_altered_for_the_next_file(tmp_path):
    """BUILD may set attributes of whatever was named; it must not reach our own functions."""
    graph = pickled_build(b"ctorch._utils\n_rebuild_tensor_v2\n")
    with pytest.raises(ValueError, match="holds no tensor"):
        read_torch(archive(tmp_path / "evil.pth", graph))
    good = archive(tmp_path / "m.pth", pickled({"a": Tensor(Storage("s", 6), 0, (6,), (1,))}), s=STORAGE)
    np.testing.assert_array_equal(read_torch(good)["a"], STORAGE)
    assert torch_file._rebuild_tensor.__kwdefaults__ is None
    assert "marked" not in vars(torch_file._rebuild_tensor)


def pickled_build(name: bytes) -> bytes:
    """`name`, then BUILD with ({"marked": 1}, {"__kwdefaults__": {}})."""
    first, second = (pickle.dumps(d, protocol=2)[2:-1] for d in ({"marked": 1}, {"__kwdefaults__": {"x": 1}}))
    return b"\x80\x02" + name + first + second + b"\x86b."


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (0, (7,), (1,)),
        (3, (2, 2), (2, 1)),
        (-1, (2,), (1,)),
        (5, (2,), (-1,)),
        (0, (2, 2), (1,)),
        (7, (1,), (1,)),
        (0, (2,), (1 << 40,)),
    ],
)
def test_tensors_cannot_look_outside_their_storage(tmp_path, offset, size, stride):
    graph = pickled({"a": Tensor(Storage("s", 6), offset, size, stride)})
    path = archive(tmp_path / "m.pth", graph, s=STORAGE)
    with pytest.raises(ValueError, match=r"tensor (ends at element|of size)"):
        read_torch(path)


def test_an_expanded_tensor_cannot_pose_as_a_larger_storage(tmp_path):
    wide = Tensor(Storage("s", 6), 0, (1 << 30,), (0,))
    path = archive(tmp_path / "m.pth", pickled({"a": Tensor(wide, 1 << 20, (4,), (1,))}), s=STORAGE)
    with pytest.raises(ValueError, match="something else than a storage"):
        read_torch(path)


def test_short_and_absent_storages(tmp_path):
    graph = pickled({"a": Tensor(Storage("s", 6), 0, (6,), (1,))})
    with pytest.raises(ValueError, match="buffer is smaller"):
        read_torch(archive(tmp_path / "short.pth", graph, s=STORAGE[:4]))
    with pytest.raises(ValueError, match="model/data/s"):
        read_torch(archive(tmp_path / "absent.pth", graph))


def test_loops_and_equal_names_end_in_an_error(tmp_path):
    loop: dict = {}
    loop["again"] = loop
    with pytest.raises(ValueError, match="nested deeper than 64"):
        read_torch(archive(tmp_path / "loop.pth", pickled(loop)))
    tensor = Tensor(Storage("s", 6), 0, (6,), (1,))
    with pytest.raises(ValueError, match=r"two tensors are called a\.b"):
        read_torch(archive(tmp_path / "two.pth", pickled({"a.b": tensor, "a": {"b": tensor}}), s=STORAGE))


@pytest.mark.parametrize("name", ["dajes_tiny.pth", "dajes_tiny_torchscript.pt", "torch_legacy.pth"])
@pytest.mark.parametrize("keep", [0.999, 0.5, 0.01])
def test_files_cut_short(tmp_path, name, keep):
    data = (DATA / name).read_bytes()
    path = tmp_path / name
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(ValueError, match="cut short") as caught:
        read_torch(path)
    assert "\n" not in str(caught.value)


def test_other_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_torch(tmp_path / "nowhere.pth")
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(ValueError, match="no PyTorch file"):
        read_torch(tmp_path / "text.pth")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("readme.txt", "hello")
    with pytest.raises(ValueError, match=r"a zip file without data\.pkl"):
        read_torch(tmp_path / "other.zip")
    with pytest.raises(ValueError, match="holds no tensor"):
        read_torch(archive(tmp_path / "empty.pth", pickled({"epoch": 3})))
