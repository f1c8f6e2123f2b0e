"""Small files that claim much are refused before memory or time is spent on them."""

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from refusal import refused
from weight_files import Storage, Tensor, archive, pickled

from common.io.torch_file import read_torch
from common.nn.text_encoder import TextConfig
from common.weights.torch_names import fill
from film.config import FilmConfig
from plugins.diffusion.networks.unet import UNet
from plugins.diffusion.networks.unet_config import UNetConfig
from reveal.network.config import RevealConfig, VitConfig


def tensor(size: tuple[int, ...], stride: tuple[int, ...], stored: int = 4, key: str = "0") -> Tensor:
    return Tensor(Storage(key, stored), 0, size, stride)


def torch_zip(path: Path, graph, numbers: int = 4) -> Path:
    return archive(path, pickled(graph), **{"0": np.zeros(numbers, np.float32)})


def deflated(path: Path) -> Path:
    """100 MB that take 100 KB."""
    with zipfile.ZipFile(torch_zip(path, {"a": tensor((4,), (1,))}, 25 << 20)) as plain:
        parts = {name: plain.read(name) for name in plain.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in parts.items():
            packed.writestr(name, data)
    return path


def nested(depth: int):
    """Dicts that hold the next one twice."""
    found = tensor((4,), (1,))
    for _ in range(depth - 1):
        found = {"a": found, "b": found}
    return found


def legacy(path: Path) -> Path:
    """A file of before the zip: its magic number, protocol, system, tensors and the keys of their storages."""
    tensors = {f"{n}": tensor((4,), (1,), 3000, f"{n}") for n in range(64)}
    parts = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, tensors, ("0",))
    path.write_bytes(b"".join(map(pickled, parts)))
    return path


CLAIMS = {
    "expanded": lambda path: torch_zip(path, {"a": tensor((10**9,), (0,))}),
    "many": lambda path: torch_zip(path, {f"{n}": tensor((10**6,), (0,)) for n in range(99)}),
    "deflated": deflated,
    "nested": lambda path: torch_zip(path, nested(40)),
    "memo": lambda path: archive(path, b"\x80\x02}r" + struct.pack("<I", 2**31 - 1) + b"."),
    "legacy": legacy,
}


def test_a_plain_file_of_these_parts_is_read(tmp_path):
    found = read_torch(torch_zip(tmp_path / "a.pth", {"a": tensor((2, 2), (2, 1)), "b": tensor((9,), (0,))}))
    assert found["a"].shape == (2, 2) and found["b"].shape == (9,)
    assert set(read_torch(torch_zip(tmp_path / "b.pth", nested(3)))) == {"a.a", "a.b", "b.a", "b.b"}


@pytest.mark.parametrize("claim", CLAIMS)
def test_torch_files(tmp_path, claim):
    path = CLAIMS[claim](tmp_path / "claim.pth")
    assert str(path) in refused(ValueError, read_torch, path)


@pytest.mark.parametrize(("make", "name"), [
    (lambda: FilmConfig(flow_convs=(3, 3, 3, 10**6)), "flow_convs"),
    (lambda: RevealConfig(encoder_layers=10**6), "encoder_layers"),
    (lambda: VitConfig(depth=10**6), "depth"),
    (lambda: TextConfig.from_json({"_class_name": TextConfig.architecture, "num_hidden_layers": 10**6}), "layers"),
    (lambda: UNetConfig.from_json({"transformer_layers_per_block": [1, 10**6]}), "layers"),
])  # fmt: skip
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
