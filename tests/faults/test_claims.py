"""Small files that claim much are refused before memory or time is spent on them."""

import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from refusal import refused

from common.io.torch_file import read_torch
from common.nn.text_encoder import TextConfig
from common.weights.torch_names import fill
from film.config import FilmConfig
from plugins.diffusion.networks.unet import UNet
from plugins.diffusion.networks.unet_config import UNetConfig
from reveal.network.config import RevealConfig, VitConfig


class Global:
    """Pickled as a name: what `torch.save` writes for `torch.FloatStorage` or `torch._utils._rebuild_tensor_v2`."""

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name


class Call:
    def __init__(self, function: Global, *arguments):
        self.function, self.arguments = function, arguments


def pickled(value) -> bytes:
    """Protocol 2, by hand where the standard pickler would import torch."""
    match value:
        case Global():
            return f"c{value.module}\n{value.name}\n".encode()
        case Call():
            return pickled(value.function) + pickled(value.arguments) + b"R"
        case bytes():  # a persistent id, already pickled
            return value + b"Q"
        case tuple():
            return b"(" + b"".join(map(pickled, value)) + b"t"
        case dict():
            return b"}(" + b"".join(pickled(key) + pickled(one) for key, one in value.items()) + b"u"
        case str():  # the pickler would give it a place in the memo
            return b"X" + struct.pack("<I", len(value)) + value.encode()
        case _:
            return pickle.dumps(value, 2)[2:-1]


def tensor(size: tuple[int, ...], stride: tuple[int, ...], stored: int = 4, key: str = "0") -> Call:
    identity = pickled(("storage", Global("torch", "FloatStorage"), key, "cpu", stored))
    rebuild = Global("torch._utils", "_rebuild_tensor_v2")
    return Call(rebuild, identity, 0, size, stride, False, Call(Global("collections", "OrderedDict")))


def torch_zip(path: Path, root: bytes, storage: bytes = bytes(16), compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + root + b".")
        archive.writestr("a/data/0", storage)
    return path


def nested(depth: int) -> bytes:
    """Dicts that hold the next one twice: memo 0 is a tensor."""
    text = pickled(tensor((4,), (1,))) + b"q\x00"
    for level in range(1, depth):
        before = bytes([level - 1])
        text += b"0}(" + pickled("a") + b"h" + before + pickled("b") + b"h" + before + b"uq" + bytes([level])
    return text


CLAIMS = {
    "expanded": lambda path: torch_zip(path, pickled({"a": tensor((10**9,), (0,))})),
    "many": lambda path: torch_zip(path, pickled({f"{n}": tensor((10**6,), (0,)) for n in range(99)})),
    "deflated": lambda path: torch_zip(
        path, pickled({"a": tensor((4,), (1,))}), bytes(100 << 20), zipfile.ZIP_DEFLATED
    ),
    "nested": lambda path: torch_zip(path, nested(40)),
    "memo": lambda path: torch_zip(path, b"}r" + struct.pack("<I", 2**31 - 1)),
    "legacy": lambda path: (
        path.write_bytes(
            b"".join(
                b"\x80\x02" + one + b"."
                for one in (
                    pickle.dumps(0x1950A86A20F9469CFC6C, 2)[2:-1],
                    pickled(1001),
                    pickled({"little_endian": True}),
                    pickled({f"{n}": tensor((4,), (1,), 3000, f"{n}") for n in range(64)}),
                    pickled(("0",)),
                )
            )
        )
        and path
    ),
}


def test_a_plain_file_of_these_parts_is_read(tmp_path):
    found = read_torch(torch_zip(tmp_path / "a.pth", pickled({"a": tensor((2, 2), (2, 1)), "b": tensor((9,), (0,))})))
    assert found["a"].shape == (2, 2) and found["b"].shape == (9,)
    assert set(read_torch(torch_zip(tmp_path / "b.pth", nested(3)))) == {"a.a", "a.b", "b.a", "b.b"}


@pytest.mark.parametrize("claim", CLAIMS)
def test_torch_files(tmp_path, claim):
    path = CLAIMS[claim](tmp_path / "claim.pth")
    assert str(path) in refused(ValueError, read_torch, path)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: FilmConfig(flow_convs=(3, 3, 3, 10**6)), "flow_convs"),
        (lambda: RevealConfig(encoder_layers=10**6), "encoder_layers"),
        (lambda: VitConfig(depth=10**6), "depth"),
        (lambda: TextConfig.from_json({"_class_name": TextConfig.architecture, "num_hidden_layers": 10**6}), "layers"),
        (lambda: UNetConfig.from_json({"transformer_layers_per_block": [1, 10**6]}), "layers"),
    ],
)
def test_layers_of_a_header(make, name):
    assert name in refused(ValueError, make)


def test_layers_that_the_tensors_cannot_be():
    """Each number is within its limit, and all together are 14,000 transformers."""
    config = UNetConfig.from_json({"transformer_layers_per_block": 1000})
    assert "over 500 parameters" in refused(ValueError, lambda: fill(UNet, config, dict.fromkeys("abc", np.zeros(1))))


@pytest.mark.parametrize("item", [[[]], [{}], {"": []}])
def test_lists_within_a_list_of_names(item):
    fields = {"down_block_types": ["DownBlock2D", "DownBlock2D", "DownBlock2D", item]}
    assert "down_block_types" in refused(ValueError, lambda: UNetConfig.from_json(fields))
