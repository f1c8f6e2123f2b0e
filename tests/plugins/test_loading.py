"""Networks from folders of diffusers and transformers, of whichever year: the same parameters every time."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from networks import DATA, FILES, assert_same, copy, folder, network, one_line, parameters, rewrite, stored

from plugins.diffusion.io.components import load_text_encoder, load_tokenizer, load_unet, load_vae


@pytest.mark.parametrize("kind, path, theirs, axes", [
    ("unet", "conv_in.kernel", "conv_in.weight", (2, 3, 1, 0)),
    ("unet", "up_blocks.1.attentions.2.transformer_blocks.0.ff.net.1.kernel",
     "up_blocks.1.attentions.2.transformer_blocks.0.ff.net.2.weight", (1, 0)),
    ("vae", "decoder.mid_block.attentions.0.to_out.0.bias", "decoder.mid_block.attentions.0.to_out.0.bias", (0,)),
    ("vae", "quant_conv.kernel", "quant_conv.weight", (2, 3, 1, 0)),
    ("text_encoder", "embeddings.token_embedding.embedding", "embeddings.token_embedding.weight", (0, 1)),
    ("text_encoder", "encoder.layers.2.layer_norm1.scale", "encoder.layers.2.layer_norm1.weight", (0,)),
])  # fmt: skip
def test_a_folders_tensors_lie_where_they_belong(kind, path, theirs, axes):
    ours = parameters(network(kind))
    np.testing.assert_array_equal(ours[path], stored(kind)[theirs].transpose(axes))
    assert len(ours) == len(stored(kind)) and sum(v.size for v in ours.values()) == sum(
        v.size for v in stored(kind).values()
    )


def test_a_pipelines_folder(tmp_path):
    for kind in FILES:
        copy(kind, tmp_path / kind)
    assert_same(load_unet(tmp_path), network("unet"))
    assert_same(load_vae(str(tmp_path)), network("vae"))
    assert_same(load_text_encoder(tmp_path), network("text_encoder"))


def test_one_file_of_a_folder():
    assert_same(load_vae(folder("vae") / FILES["vae"]), network("vae"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_parameters_come_in_the_type_asked_for(dtype):
    half = parameters(load_vae(folder("vae"), dtype))
    for path, value in parameters(network("vae")).items():
        assert half[path].dtype == jnp.dtype(dtype)
        np.testing.assert_array_equal(half[path], value.astype(jnp.dtype(dtype)))
    with pytest.raises(ValueError, match="dtype int8 is not one for weights; choose one of float32, float16, bfloat16"):
        load_vae(folder("vae"), jnp.int8)


def test_shards_and_variants(tmp_path):
    tensors = stored("vae")
    half = {key: value.astype(np.float16) for key, value in tensors.items()}
    rewrite("vae", tmp_path, half, "diffusion_pytorch_model.fp16.safetensors")
    assert parameters(load_vae(tmp_path))["quant_conv.bias"][0] == half["quant_conv.bias"][0]  # the variant there is
    names = [f"diffusion_pytorch_model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    placed = {key: names[i % 2] for i, key in enumerate(tensors)}
    for name in names:
        rewrite("vae", tmp_path, {key: tensors[key] for key in tensors if placed[key] == name}, name)
    index = tmp_path / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": placed}))
    assert_same(load_vae(tmp_path), network("vae"))
    halves = parameters(load_vae(tmp_path, "float16", variant="fp16"))
    np.testing.assert_array_equal(halves["quant_conv.bias"], half["quant_conv.bias"])
    (tmp_path / names[1]).unlink()
    with pytest.raises(FileNotFoundError, match="expected 2 shards, 1 missing") as error:
        load_vae(tmp_path)
    one_line(error)


@pytest.mark.parametrize("squeezed", [True, False])
def test_the_vaes_old_attention_names(tmp_path, squeezed):
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    tensors = {}
    for key, value in stored("vae").items():
        part = next((part for part in old if f".attentions.0.{part}." in key), None)
        if part and not squeezed and value.ndim == 2:
            value = value[:, :, None, None]
        tensors[key.replace(part, old[part]) if part else key] = value
    assert "encoder.mid_block.attentions.0.proj_attn.weight" in tensors
    assert_same(load_vae(rewrite("vae", tmp_path, tensors)), network("vae"))


def test_the_text_encoders_old_names(tmp_path):
    tensors = {f"text_model.{key}": value for key, value in stored("text_encoder").items()}
    tensors["text_model.embeddings.position_ids"] = np.arange(77)[None]
    assert_same(load_text_encoder(rewrite("text_encoder", tmp_path, tensors)), network("text_encoder"))


def test_the_tokenizer_of_a_pipeline(tmp_path):
    shutil.copytree(DATA / "tokenizer_tiny", tmp_path / "tokenizer")
    ids = load_tokenizer(tmp_path)(["a photo"])
    np.testing.assert_array_equal(ids, load_tokenizer(DATA / "tokenizer_tiny")(["a photo"]))
    with pytest.raises(NotADirectoryError, match=r"expected a folder with vocab.json"):
        load_tokenizer(tmp_path / "tokenizer" / "vocab.json")
