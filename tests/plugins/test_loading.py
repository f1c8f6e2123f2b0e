"""Networks from diffusers and transformers folders of every year, and refusals that name the value."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
from networks import DATA, FILES, assert_same, copy, folder, network, parameters, rewrite, stored
from refusal import refused

from plugins.diffusion.io.components import load_component, load_text_encoder, load_tokenizer, load_unet, load_vae

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
    refused(NotADirectoryError, load_tokenizer, tmp_path / "tokenizer" / "vocab.json", match=r"vocab\.json")


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


def test_every_tensor_that_does_not_fit_is_listed(tmp_path):
    tensors = stored("vae")
    tensors["encoder.conv_in.weight"] = tensors["encoder.conv_in.weight"][:, :2]
    tensors["decoder.extra.weight"] = tensors.pop("quant_conv.bias")
    tensors["decoder.conv_in.bias"][3] = np.nan
    with pytest.raises(ValueError) as error:
        load_vae(rewrite("vae", tmp_path, tensors))
    first, *rest = str(error.value).split("\n")
    assert str(tmp_path) in first and len(rest) == 4
    found = "quant_conv.bias", "decoder.extra.weight", "encoder.conv_in.weight (16, 2, 3, 3)", "decoder.conv_in.bias"
    for name in found:
        assert sum(name in line for line in rest) == 1


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
        (lambda: load_component("clip", lora), ValueError, "'clip'"),
        (lambda: load_unet(lora, variant="fp16"), ValueError, "'fp16'"),
        (lambda: load_vae(folder("vae"), "int8"), ValueError, "int8.*float32, float16, bfloat16"),
        (lambda: load_vae(cut.parent), ValueError, WEIGHTS),
    ):
        refused(error, load, match=message)
