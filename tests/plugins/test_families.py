"""Bases of every family make the PyTorch library's images; SDXL's architectures and single files; what each refuses."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import commands
import families
import jax.numpy as jnp
import ldm
import numpy as np
import pytest
import safetensors.numpy
from families import FAMILIES, IMAGES
from networks import DATA, assert_same, random, stored_shapes
from refusal import refused

from common.nn.text_encoder import TextConfig, TextEncoder
from common.weights.torch_names import state_dict
from plugins.diffusion.io.base import load_networks, read_base
from plugins.diffusion.io.components import load_vae
from plugins.diffusion.io.lora import Lora
from plugins.diffusion.io.single_file import XL, from_single_file, infer_config
from plugins.diffusion.networks.tiny_vae import TinyVAEConfig
from plugins.diffusion.networks.unet import UNet, UNetConfig
from plugins.diffusion.networks.vae import AutoencoderKL, VAEConfig
from plugins.diffusion.pipeline import load
from plugins.diffusion.request import make_request


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_images_of_the_library(name, monkeypatch):
    monkeypatch.setattr("plugins.diffusion.samplers.sampler._normal", families.noise)
    pipeline = families.base(name)
    if "lora" in FAMILIES[name]:
        peft = load(families.folder(name)).with_loras([(Lora.load(families.lora("peft")), 1.0)])
        for kind, network in pipeline.networks.items():
            assert_same(network, peft.networks[kind])
    image = pipeline(**families.arguments(name))[0]
    np.testing.assert_allclose(image, IMAGES[name], atol=1e-5)


UNET, FIRST, SECOND = "model.diffusion_model.", f"{XL}0.transformer.text_model.", f"{XL}1.model."
# Names of the published file, for those that only SDXL has.
KNOWN = {
    "label_emb.0.0.weight": "add_embedding.linear_1.weight",
    "label_emb.0.2.bias": "add_embedding.linear_2.bias",
    "input_blocks.4.1.transformer_blocks.1.attn1.to_q.weight": (
        "down_blocks.1.attentions.0.transformer_blocks.1.attn1.to_q.weight"
    ),
    "middle_block.1.transformer_blocks.9.ff.net.2.bias": "mid_block.attentions.0.transformer_blocks.9.ff.net.2.bias",
    "output_blocks.2.2.conv.weight": "up_blocks.0.upsamplers.0.conv.weight",
    "output_blocks.8.0.skip_connection.weight": "up_blocks.2.resnets.2.conv_shortcut.weight",
}


@pytest.mark.long
@pytest.mark.parametrize("config, count", [(UNetConfig.sdxl(), 2_567_463_684), (UNetConfig.sdxl_refiner(), None)])
def test_full_size_unet(config, count):
    """The published number of parameters, and the architecture back from a single file's names and shapes."""
    shapes = stored_shapes(UNet, config)
    assert count is None or sum(int(np.prod(shape)) for shape in shapes.values()) == count
    file = {UNET + single: shapes[name] for name, single in ldm.single_names(shapes, config).items()}
    origins = from_single_file("unet", file, UNET)
    assert {name: file[origin.key] for name, origin in origins.items()} == shapes
    if count:
        assert KNOWN.items() <= {o.key.removeprefix(UNET): name for name, o in origins.items()}.items()
    inferred = UNetConfig.from_json(infer_config("unet", shapes, UNET, xl=True))
    depth = inferred.transformer_layers_per_block  # of a level without transformers nothing is known
    assert dataclasses.replace(inferred, transformer_layers_per_block=config.transformer_layers_per_block) == config
    wanted = zip(config.depths, inferred.depths, config.down_block_types, strict=True)
    assert all(ours == theirs for ours, theirs, kind in wanted if kind.startswith("Cross")), depth


def test_full_size_second_text_encoder():
    file = {SECOND + key: shape for key, shape in ldm.open_clip_shapes(1280, 32, 49408).items()}
    origins = from_single_file("text_encoder_2", file, SECOND)
    shapes = {name: origin.shape(file[origin.key]) for name, origin in origins.items()}
    inferred = TextConfig.from_json(infer_config("text_encoder_2", shapes, SECOND))
    assert inferred == TextConfig.openclip_bigg() and shapes == stored_shapes(TextEncoder, inferred)
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 694_659_840


WIDE = UNetConfig(
    sample_size=128,
    block_out_channels=(64, 128), layers_per_block=1, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=128, attention_head_dim=(1, 2),
    transformer_layers_per_block=(1, 2), use_linear_projection=True, addition_embed_type="text_time",
    addition_time_embed_dim=256, projection_class_embeddings_input_dim=64 + 6 * 256,
)  # fmt: skip


def test_a_single_file_holds_the_networks_of_a_folder(tmp_path):
    """Everything but the tokenizer, which lies beside it, comes out of one file as it went in."""
    text = TextConfig(1000, 64, 256, 2, 1, eos_token_id=2, projection_dim=64)
    second = dataclasses.replace(text, hidden_act="gelu", projected=True)
    vae = VAEConfig(block_out_channels=(32, 32), layers_per_block=1, scaling_factor=0.13025)
    networks = {
        "unet": random(UNet, WIDE), "vae": random(AutoencoderKL, vae),
        "text_encoder": random(TextEncoder, text), "text_encoder_2": random(TextEncoder, second),
    }  # fmt: skip
    tensors = state_dict(networks["unet"])
    file = {UNET + single: tensors[name] for name, single in ldm.single_names(tensors, WIDE).items()}
    tensors = state_dict(networks["vae"])
    for single, name, shape in ldm.vae((32, 32), 4, 1):
        file[f"first_stage_model.{single}"] = tensors[name].reshape(shape)
    file |= {FIRST + name: value for name, value in state_dict(networks["text_encoder"]).items()}
    file |= {SECOND + name: value for name, value in open_clip(state_dict(networks["text_encoder_2"])).items()}
    path = tmp_path / "xl.safetensors"
    safetensors.numpy.save_file({name: np.ascontiguousarray(value) for name, value in file.items()}, path)
    shutil.copytree(DATA / "tokenizer_tiny", tmp_path / "tokenizer")
    files = read_base(path)
    base = files.base
    assert base.sampler.name == "euler" and base.zero_empty and base.sizes == 6 and base.vae == vae
    assert base.tokenizer is not None and base.tokenizer_2 is not None
    assert base.tokenizer.pad_id == 999 and base.tokenizer_2.tokens[base.tokenizer_2.pad_id] == "!"
    for kind, network in load_networks(files).items():
        assert_same(network, networks[kind])


def open_clip(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A text encoder's tensors in OpenCLIP's names, written down a second time."""
    parts = {"layer_norm1": "ln_1", "layer_norm2": "ln_2", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}
    parts["self_attn.out_proj"] = "attn.out_proj"
    renamed = {
        "positional_embedding": tensors["embeddings.position_embedding.weight"],
        "token_embedding.weight": tensors["embeddings.token_embedding.weight"],
        "text_projection": tensors["text_projection.weight"].T,
        "ln_final.weight": tensors["final_layer_norm.weight"],
        "ln_final.bias": tensors["final_layer_norm.bias"],
    }
    for layer in range(2):
        ours, theirs = f"encoder.layers.{layer}", f"transformer.resblocks.{layer}"
        for leaf in ("weight", "bias"):
            renamed |= {f"{theirs}.{new}.{leaf}": tensors[f"{ours}.{old}.{leaf}"] for old, new in parts.items()}
            qkv = [tensors[f"{ours}.self_attn.{name}_proj.{leaf}"] for name in "qkv"]
            renamed[f"{theirs}.attn.in_proj_{leaf}"] = np.concatenate(qkv)
    return renamed


def test_taesd_replaces_the_autoencoder_of_a_base():
    base = read_base(families.folder("plms_v"), vae=families.folder("taesd") / "vae").base
    assert isinstance(base.vae, TinyVAEConfig) and base.unit == 2 and TinyVAEConfig().reduction == 8


def test_an_autoencoder_in_a_file_has_the_scale_of_its_config_or_else_of_the_base(tmp_path):
    config = VAEConfig(block_out_channels=(32, 32), layers_per_block=1)
    tensors, path = state_dict(random(AutoencoderKL, config)), tmp_path / "vae.safetensors"
    file = {single: tensors[name].reshape(shape) for single, name, shape in ldm.vae((32, 32), 4, 1)}
    safetensors.numpy.save_file({name: np.ascontiguousarray(value) for name, value in file.items()}, path)
    for family, scale in {"sdxl": 0.13025, "plms_v": 0.18215}.items():
        found = read_base(families.folder(family), vae=path).base.vae
        assert found == dataclasses.replace(config, scaling_factor=scale)
    own = dataclasses.replace(config, scaling_factor=0.5)
    (tmp_path / "config.json").write_text(json.dumps(own.to_json()))
    assert load_vae(path).config == own


def test_a_base_without_an_autoencoder_takes_the_given_one(tmp_path):
    folder = Path(shutil.copytree(families.folder("plms_v"), tmp_path / "base"))
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"vae": [None, None]}))
    assert read_base(folder, vae=folder / "vae").base.vae == read_base(families.folder("plms_v")).base.vae
    refused(FileNotFoundError, lambda: read_base(folder, vae=tmp_path / "none"), match="none")


IMAGE, MASK = families.picture(), families.mask()


@pytest.mark.parametrize("family, options, value", [
    ("plms_v", {"mask": MASK}, "reads no mask"),
    ("plms_v", {"crop": (1, 1)}, "SDXL"),
    ("inpainting", {"image": IMAGE}, "mask"),
    ("inpainting", {"image": IMAGE, "mask": MASK[:8]}, "16x8.*16x16"),
    ("inpainting", {"image": IMAGE, "mask": MASK * 255}, "255"),
    ("inpainting", {"image": IMAGE, "mask": MASK[..., None, None]}, r"\(16, 16, 1, 1\)"),
    ("inpainting", {"image": IMAGE, "mask": np.stack([MASK] * 3)[:2], "seeds": [1, 2, 3]}, "2 mask"),
    ("editing", {}, "InstructPix2Pix"),
    ("editing", {"image": IMAGE, "strength": 0.5}, "strength=0.5"),
    ("editing", {"image": IMAGE, "image_guidance": 0.5}, "image_guidance=0.5"),
    ("lcm", {"negative": "dark"}, "distilled"),
    ("sdxl", {"original": (-1, 4)}, r"original=\(-1, 4\)"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(family, options, value):
    base = read_base(families.folder(family)).base
    refused(ValueError, lambda: make_request(base, "a red apple", **options), match=value)


def test_steps_and_rows_of_each_family():
    def request(family: str, **options: Any) -> Any:
        return make_request(read_base(families.folder(family)).base, "a red apple", **options)

    assert request("lcm").steps == 4 and not request("lcm").guided
    assert request("plms_v").steps == 50 and request("plms_v").guided
    assert request("inpainting", image=IMAGE, mask=MASK).strength == 1
    assert request("plms_v", image=IMAGE).strength == 0.8


def test_the_inputs_of_a_unet_are_checked():
    unet, x, context = random(UNet, WIDE), jnp.zeros((1, 4, 4, 4)), jnp.zeros((1, 3, 128))
    for added in ({}, {"pooled": jnp.zeros((1, 64)), "sizes": jnp.zeros((1, 5))}):
        refused(ValueError, lambda added=added: unet(x, 0, context, **added), match="pooled and sizes")
    refused(ValueError, lambda: unet(x, 0, context, guidance=3), match="guidance is 3")


@pytest.mark.long
def test_the_command_repairs_under_a_mask(tmp_path, monkeypatch, capsys):
    from common.io.images import read_image, write_image
    from plugins.cli.main import main

    monkeypatch.chdir(tmp_path)
    write_image("photo.png", IMAGE)
    write_image("hole.png", np.repeat(MASK[..., None], 3, -1))
    words = f"generate --base {families.folder('inpainting')} --prompt apple --steps 2 --image photo.png"
    main(f"{words} --mask hole.png -o out.png".split())
    assert read_image("out.png").shape == (16, 16, 3) and "under hole.png" in capsys.readouterr().out
    commands.mistake(f"{words} -o other.png", capsys)
