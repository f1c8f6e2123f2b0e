"""Saved networks have the names, layouts and header of the other libraries, and load again."""

import json
import subprocess
import sys

import jax.numpy as jnp
import ldm
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from flax import nnx
from networks import DATA, FILES, assert_same, folder, network, parameters, stored
from refusal import refused

from common.io.tensor_files import digest_of
from common.nn.layers import Linear
from plugins.diffusion.io.components import load_component, load_vae, save_component
from plugins.diffusion.networks.unet import UNetConfig

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


def test_halves_survive_bit_for_bit(tmp_path):
    half = load_vae(folder("vae"), "bfloat16")
    save_component(tmp_path, half, dtype="bfloat16")
    assert_same(load_vae(tmp_path, "bfloat16"), half)
    written = safetensors.numpy.load_file(tmp_path / FILES["vae"]).values()
    assert {value.dtype for value in written} == {jnp.dtype("bfloat16")}
    wide = parameters(load_vae(tmp_path))
    for path, value in parameters(half).items():
        np.testing.assert_array_equal(wide[path], value.astype(np.float32))


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
    with pytest.raises(ValueError, match=r"Linear.*UNet, AutoencoderKL, AutoencoderTiny, TextEnc"):
        save_component(tmp_path / "new", Linear(2, 3, rngs=nnx.Rngs(0)))
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
