"""Networks from folders of every year and from addresses, saved with the other libraries' names, or refused."""

import json
import shutil
import subprocess
import sys

import ldm
import networks
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from fake_hub import hub
from flax import nnx
from huggingface_hub import constants
from networks import DATA, FILES, assert_same, copy, folder, network, parameters, rewrite, stored
from refusal import refused
from tiny_base import diffusion_base

import plugins
from common.io.tensor_files import digest_of
from plugins.cli.generate import read_lora
from plugins.diffusion.io.base import read_base
from plugins.diffusion.io.components import (
    load_component,
    load_text_encoder,
    load_tokenizer,
    load_unet,
    load_vae,
    save_component,
)
from plugins.diffusion.io.lora import Lora
from plugins.diffusion.networks.unet import UNetConfig

WEIGHTS = FILES["vae"]


def test_a_pipelines_folder_and_a_file_of_one(tmp_path):
    for kind in FILES:
        copy(kind, tmp_path / kind)
    assert_same(load_unet(tmp_path), network("unet"))
    assert_same(load_vae(str(tmp_path)), network("vae"))
    assert_same(load_text_encoder(tmp_path), network("text_encoder"))
    assert_same(load_vae(tmp_path / "vae" / WEIGHTS), network("vae"))
    shutil.copytree(DATA / "tokenizer_tiny", tmp_path / "tokenizer")
    expected = load_tokenizer(DATA / "tokenizer_tiny")(["a photo"])
    np.testing.assert_array_equal(load_tokenizer(tmp_path)(["a photo"]), expected)


def test_variants(tmp_path):
    half = {key: value.astype(np.float16) for key, value in stored("vae").items()}
    rewrite("vae", tmp_path, half, "diffusion_pytorch_model.fp16.safetensors")
    assert parameters(load_vae(tmp_path))["quant_conv.bias"][0] == half["quant_conv.bias"][0]  # the only variant
    copy("vae", tmp_path)
    assert_same(load_vae(tmp_path), network("vae"))
    halves = parameters(load_vae(tmp_path, "float16", variant="fp16"))
    np.testing.assert_array_equal(halves["quant_conv.bias"], half["quant_conv.bias"])


@pytest.mark.parametrize("squeezed", [True, False])
def test_the_vaes_old_attention_names(tmp_path, squeezed):
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    tensors = {}
    for key, value in stored("vae").items():
        name = next((name for name in old if f".attentions.0.{name}." in key), None)
        if name and not squeezed and value.ndim == 2:
            value = value[:, :, None, None]
        tensors[key.replace(name, old[name]) if name else key] = value
    assert "encoder.mid_block.attentions.0.proj_attn.weight" in tensors
    assert_same(load_vae(rewrite("vae", tmp_path, tensors)), network("vae"))


def test_the_text_encoders_old_names(tmp_path):
    tensors = {f"text_model.{key}": value for key, value in stored("text_encoder").items()}
    tensors["text_model.embeddings.position_ids"] = np.arange(77)[None]
    assert_same(load_text_encoder(rewrite("text_encoder", tmp_path, tensors)), network("text_encoder"))


@pytest.mark.parametrize("kind, fields, message", [
    ("unet", json.loads((DATA / "controlnet" / "config.json").read_text()), "'ControlNetModel'"),
    ("unet", {"_class_name": "UNet2DConditionModel", "class_embed_type": "timestep"}, "class_embed_type is 'timestep'"),
    ("vae", {"architectures": ["CLIPTextModel"]}, "'CLIPTextModel'"),
    ("text_encoder", {"_class_name": "AutoencoderKL"}, "'AutoencoderKL'"),
    ("text_encoder", {"model_type": "clip", "architectures": ["CLIPModel"]}, "'CLIPModel'"),
    ("vae", {}, "'None'"),
])  # fmt: skip
def test_another_architecture_is_refused(tmp_path, kind, fields, message):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert "config.json" in refused(ValueError, load_component, kind, tmp_path, match=message)


def test_sources_without_the_network(tmp_path):
    (tmp_path / "model_index.json").write_text("{}")
    copy("vae", tmp_path / "vae")
    (tmp_path / "vae" / WEIGHTS).rename(tmp_path / "vae" / "other.safetensors")
    lora = tmp_path / "lora.safetensors"
    safetensors.numpy.save_file({"lora_unet_mid.alpha": np.ones(1, np.float32)}, lora)
    cut = copy("vae", tmp_path / "cut") / WEIGHTS
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    for load, error, message in (
        (lambda: load_unet(tmp_path), FileNotFoundError, "unet/config.json"),
        (lambda: load_unet(tmp_path / "nowhere"), FileNotFoundError, "nowhere"),
        (lambda: load_vae(tmp_path), FileNotFoundError, "diffusion_pytorch_model"),
        (lambda: load_vae(lora), ValueError, "lora_unet_mid"),
        (lambda: load_unet(lora, variant="fp16"), ValueError, "'fp16'"),
        (lambda: load_vae(folder("vae"), "int8"), ValueError, "int8.*float32, float16, bfloat16"),
        (lambda: load_vae(cut.parent), ValueError, WEIGHTS),
    ):
        refused(error, load, match=message)


NAMES = {"unet": "", "vae": "", "text_encoder": "text_model."}


@pytest.mark.parametrize("kind", FILES)
def test_a_saved_network_is_the_reference_file_again(tmp_path, kind):
    path = save_component(tmp_path / kind, network(kind))
    assert path == tmp_path / kind / FILES[kind]
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "pt", "sha256": digest_of(path)}
    written, reference = safetensors.numpy.load_file(path), stored(kind)
    assert written.keys() == {NAMES[kind] + key for key in reference}
    for key, value in reference.items():
        assert written[NAMES[kind] + key].dtype == np.float32
        np.testing.assert_array_equal(written[NAMES[kind] + key], value, key)
    theirs, ours = (json.loads((place / kind / "config.json").read_text()) for place in (DATA, tmp_path))
    assert all(ours[key] == theirs[key] for key in ours if key in theirs)
    assert all(ours.get(key) == theirs.get(key) for key in ("_class_name", "architectures"))
    assert_same(load_component(kind, tmp_path), network(kind))
    assert save_component(tmp_path / "again", network(kind)).read_bytes() == path.read_bytes()


def test_nothing_is_overwritten_unasked(tmp_path):
    vae = network("vae")
    (tmp_path / "README.md").write_text("mine")
    save_component(tmp_path, vae)
    refused(FileExistsError, save_component, tmp_path, vae, match=r"config\.json.*overwrite=True")
    save_component(tmp_path, vae, dtype="float16", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", FILES["vae"]]
    (tmp_path / f"{FILES['vae']}.index.json").write_text("{}")
    refused(FileExistsError, save_component, tmp_path, vae, overwrite=True, match=r"index\.json")


def test_what_cannot_be_saved_leaves_nothing(tmp_path):
    vae = load_vae(folder("vae"))
    vae.quant_conv.bias = nnx.Param(vae.quant_conv.bias[...].at[0].set(1e6))
    with pytest.raises(ValueError, match="quant_conv"):
        save_component(tmp_path / "new", vae, dtype="float16")
    assert not (tmp_path / "new").exists()
    refused(ValueError, save_component, tmp_path / "new", vae, dtype="int8", match="int8")


PEAK = """
import json, sys
from pathlib import Path

def peak():  # of this program since it began
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024

import cv2  # which loading imports
import jax
from common.nn.init import blank
from plugins.diffusion.io.components import load_unet
from plugins.diffusion.networks.unet import UNet, UNetConfig
folder = Path(sys.argv[1])
config = UNetConfig.from_json(json.loads((folder / "config.json").read_text()))
blank(UNet, config)  # tracing and the device's start have a price that does not grow with the network
jax.block_until_ready(jax.numpy.ones(3))
before = peak()
unet = load_unet(folder)
print((folder / "diffusion_pytorch_model.safetensors").stat().st_size, peak() - before)
"""


def test_loading_needs_the_networks_size_and_little_more(tmp_path):
    """A UNet of 60 MB, a sixtieth of the real one, from a folder."""
    config = UNetConfig(
        block_out_channels=(128, 256), cross_attention_dim=64, layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    tensors = {name: rng.random(shape, np.float32) for _, name, shape in ldm.unet((128, 256), 64, layers=1)}
    safetensors.numpy.save_file(tensors, tmp_path / FILES["unet"])
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    done = subprocess.run([sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, check=True)
    size, extra = map(int, done.stdout.split())
    in_flight = 16 * 2**20  # a tensor, its copy and the mapped pages: they do not grow with the network
    assert 40e6 < size < 80e6 and extra < 1.1 * size + in_flight


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
