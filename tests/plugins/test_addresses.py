"""A base, a control and a LoRA by the address of a repository, from a server on this machine that is like the hub."""

import shutil

import networks
import numpy as np
import pytest
from fake_hub import hub
from huggingface_hub import constants
from refusal import refused
from tiny_base import diffusion_base

import plugins
from plugins.cli.generate import read_lora
from plugins.diffusion.io.base import read_base
from plugins.diffusion.io.lora import Lora


@pytest.fixture
def server(tmp_path, monkeypatch):
    with hub(tmp_path, monkeypatch) as running:
        (running.root / "who").mkdir(parents=True)
        yield running


def test_a_base_comes_without_what_is_not_read_and_then_from_the_disk(server, monkeypatch):
    repository = server.root / "who" / "tiny"
    diffusion_base().save(repository)
    (repository / "all.safetensors").write_bytes(b"a single file beside the folders")
    (repository / "unet" / "diffusion_pytorch_model.bin").write_bytes(b"a pickle")
    files = read_base("hf:who/tiny")
    here = read_base(repository)
    assert files.parameters == here.parameters and files.base.unet == here.base.unet
    sent = {name for name, _ in server.sent}
    assert {"model_index.json", "config.json", "diffusion_pytorch_model.safetensors"} < sent
    assert not sent & {"all.safetensors", "diffusion_pytorch_model.bin"}
    server.shutdown()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert read_base("hf:who/tiny").path == files.path


def test_a_control(server):
    shutil.copytree(networks.folder("t2i_adapter"), server.root / "who" / "adapter")
    assert type(plugins.control.load("hf:who/adapter")).__name__ == "T2IAdapter"


def test_a_lora_with_and_without_a_weight(server):
    repository = server.root / "who" / "lora"
    repository.mkdir()
    shutil.copy(networks.lora("kohya"), repository / "style.safetensors")
    here = Lora.load(networks.lora("kohya"))
    for option, weight in (("hf:who/lora", 1), ("hf:who/lora:0.5", 0.5), ("hf:who/lora/style.safetensors:-1", -1)):
        lora, found = read_lora(option)
        assert found == weight and lora.updates.keys() == here.updates.keys()
        for part, updates in here.updates.items():
            for name, update in updates.items():
                np.testing.assert_array_equal(lora.updates[part][name].delta(), update.delta())
    shutil.copy(networks.lora("kohya"), repository / "other.safetensors")
    assert "other.safetensors" in refused(ValueError, Lora.load, str(repository))
