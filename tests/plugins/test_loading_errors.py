"""What is no network, or another one, is refused in a line that says what was expected and what was found."""

import json

import numpy as np
import pytest
import safetensors.numpy
from networks import FILES, copy, folder, one_line, rewrite, stored

from plugins.diffusion.io.components import load_component, load_unet, load_vae


@pytest.mark.parametrize("kind, found", [("controlnet", "ControlNetModel"), ("t2i_adapter", "T2IAdapter")])
def test_a_control_network_is_no_unet(kind, found):
    with pytest.raises(ValueError, match=f"expected the unet, UNet2DConditionModel, found {found}; name") as error:
        load_unet(folder(kind))
    one_line(error)


def test_another_architecture_is_refused(tmp_path):
    for kind, other, found in (
        ("vae", {"architectures": ["CLIPTextModel"]}, "CLIPTextModel"),
        ("text_encoder", {"_class_name": "AutoencoderKL"}, "AutoencoderKL"),
        ("text_encoder", {"model_type": "clip", "architectures": ["CLIPModel"]}, "CLIPModel"),
        ("vae", {}, "None"),
    ):
        folder = tmp_path / f"{kind}-{found}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(other))
        with pytest.raises(ValueError, match=found) as error:
            load_component(kind, folder)
        one_line(error)


def test_an_option_that_is_not_there_is_named_with_its_file(tmp_path):
    folder = copy("unet", tmp_path)
    fields = json.loads((folder / "config.json").read_text()) | {"class_embed_type": "timestep"}
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=r"config\.json: class_embed_type is 'timestep'") as error:
        load_unet(folder)
    one_line(error)


def test_every_tensor_that_does_not_fit_is_listed(tmp_path):
    tensors = stored("vae")
    tensors["encoder.conv_in.weight"] = tensors["encoder.conv_in.weight"][:, :2]
    tensors["decoder.extra.weight"] = tensors.pop("quant_conv.bias")
    tensors["decoder.conv_in.bias"][3] = np.nan
    with pytest.raises(ValueError) as error:
        load_vae(rewrite("vae", tmp_path, tensors))
    first, *rest = str(error.value).split("\n")
    assert str(tmp_path) in first and "porting failed, 4 in all" in first and len(rest) == 4
    for offender in (
        "quant_conv.bias",
        "decoder.extra.weight",
        "encoder.conv_in.weight (16, 2, 3, 3)",
        "decoder.conv_in.bias",
    ):
        assert sum(offender in line for line in rest) == 1


def test_folders_and_files_without_the_network(tmp_path):
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"unet/config.json"):
        load_unet(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_unet(tmp_path / "nowhere")
    copy("unet", tmp_path / "unet")
    (tmp_path / "unet" / FILES["unet"]).rename(tmp_path / "unet" / "other.safetensors")
    with pytest.raises(FileNotFoundError, match="diffusion_pytorch_model") as error:
        load_unet(tmp_path)
    one_line(error)
    lora = tmp_path / "lora.safetensors"
    safetensors.numpy.save_file({"lora_unet_mid.alpha": np.ones(1, np.float32)}, lora)
    with pytest.raises(ValueError, match="lora_unet_mid") as error:
        load_vae(lora)
    one_line(error)
    with pytest.raises(ValueError, match="'clip'"):
        load_component("clip", lora)
    with pytest.raises(ValueError, match="'fp16'"):
        load_unet(lora, variant="fp16")


def test_damaged_files_and_pickles(tmp_path):
    folder = copy("vae", tmp_path / "vae")
    data = (folder / FILES["vae"]).read_bytes()
    (folder / FILES["vae"]).write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"diffusion_pytorch_model.safetensors") as error:
        load_vae(tmp_path)
    one_line(error)
    (folder / FILES["vae"]).unlink()
    (folder / "diffusion_pytorch_model.bin").write_bytes(b"\x80\x02}.")
    with pytest.raises(ValueError, match=r"diffusion_pytorch_model.bin") as error:
        load_vae(folder)
    one_line(error)
    (tmp_path / "v1-5.ckpt").write_bytes(b"\x80\x02}.")
    with pytest.raises(ValueError, match=r"v1-5.ckpt"):
        load_unet(tmp_path / "v1-5.ckpt")
