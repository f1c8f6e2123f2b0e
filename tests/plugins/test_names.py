"""Names of single files and old folders -> diffusers', against names known by heart and against `ldm.py`'s walk."""

import ldm
import numpy as np
import pytest

from plugins.diffusion.io.single_file import infer_config
from plugins.diffusion.io.tensor_names import Origin, from_folder, from_single_file, prefix_of
from plugins.diffusion.networks.text_encoder import TextConfig

UNET = "model.diffusion_model."
VAE = "first_stage_model."
OPEN_CLIP = "cond_stage_model.model."

KNOWN_UNET = {  # Stable Diffusion 1.x and 2.x; what follows a transformer's number is the same in both
    "time_embed.0.weight": "time_embedding.linear_1.weight",
    "time_embed.2.bias": "time_embedding.linear_2.bias",
    "input_blocks.0.0.weight": "conv_in.weight",
    "input_blocks.1.0.in_layers.0.weight": "down_blocks.0.resnets.0.norm1.weight",
    "input_blocks.1.0.in_layers.2.weight": "down_blocks.0.resnets.0.conv1.weight",
    "input_blocks.1.0.emb_layers.1.bias": "down_blocks.0.resnets.0.time_emb_proj.bias",
    "input_blocks.1.1.norm.weight": "down_blocks.0.attentions.0.norm.weight",
    "input_blocks.2.1.proj_in.weight": "down_blocks.0.attentions.1.proj_in.weight",
    "input_blocks.3.0.op.weight": "down_blocks.0.downsamplers.0.conv.weight",
    "input_blocks.4.0.skip_connection.weight": "down_blocks.1.resnets.0.conv_shortcut.weight",
    "input_blocks.5.1.transformer_blocks.0.attn2.to_k.weight": (
        "down_blocks.1.attentions.1.transformer_blocks.0.attn2.to_k.weight"
    ),
    "input_blocks.8.1.transformer_blocks.0.ff.net.0.proj.weight": (
        "down_blocks.2.attentions.1.transformer_blocks.0.ff.net.0.proj.weight"
    ),
    "input_blocks.9.0.op.bias": "down_blocks.2.downsamplers.0.conv.bias",
    "input_blocks.10.0.out_layers.0.weight": "down_blocks.3.resnets.0.norm2.weight",
    "input_blocks.11.0.out_layers.3.bias": "down_blocks.3.resnets.1.conv2.bias",
    "middle_block.0.in_layers.2.weight": "mid_block.resnets.0.conv1.weight",
    "middle_block.1.proj_out.bias": "mid_block.attentions.0.proj_out.bias",
    "middle_block.2.out_layers.3.weight": "mid_block.resnets.1.conv2.weight",
    "output_blocks.0.0.skip_connection.bias": "up_blocks.0.resnets.0.conv_shortcut.bias",
    "output_blocks.2.1.conv.weight": "up_blocks.0.upsamplers.0.conv.weight",
    "output_blocks.3.1.transformer_blocks.0.attn1.to_out.0.bias": (
        "up_blocks.1.attentions.0.transformer_blocks.0.attn1.to_out.0.bias"
    ),
    "output_blocks.5.2.conv.weight": "up_blocks.1.upsamplers.0.conv.weight",
    "output_blocks.8.2.conv.bias": "up_blocks.2.upsamplers.0.conv.bias",
    "output_blocks.11.0.emb_layers.1.weight": "up_blocks.3.resnets.2.time_emb_proj.weight",
    "output_blocks.11.1.transformer_blocks.0.ff.net.2.weight": (
        "up_blocks.3.attentions.2.transformer_blocks.0.ff.net.2.weight"
    ),
    "out.0.weight": "conv_norm_out.weight",
    "out.2.bias": "conv_out.bias",
}
KNOWN_VAE = {
    "encoder.conv_in.weight": "encoder.conv_in.weight",
    "encoder.down.0.block.1.norm2.bias": "encoder.down_blocks.0.resnets.1.norm2.bias",
    "encoder.down.1.block.0.nin_shortcut.weight": "encoder.down_blocks.1.resnets.0.conv_shortcut.weight",
    "encoder.down.2.downsample.conv.weight": "encoder.down_blocks.2.downsamplers.0.conv.weight",
    "encoder.mid.block_1.conv1.weight": "encoder.mid_block.resnets.0.conv1.weight",
    "encoder.mid.attn_1.norm.weight": "encoder.mid_block.attentions.0.group_norm.weight",
    "encoder.mid.attn_1.q.weight": "encoder.mid_block.attentions.0.to_q.weight",
    "encoder.mid.attn_1.proj_out.bias": "encoder.mid_block.attentions.0.to_out.0.bias",
    "encoder.norm_out.weight": "encoder.conv_norm_out.weight",
    "quant_conv.weight": "quant_conv.weight",
    "post_quant_conv.bias": "post_quant_conv.bias",
    "decoder.mid.attn_1.k.weight": "decoder.mid_block.attentions.0.to_k.weight",
    "decoder.mid.block_2.norm1.weight": "decoder.mid_block.resnets.1.norm1.weight",
    "decoder.up.3.block.0.conv1.weight": "decoder.up_blocks.0.resnets.0.conv1.weight",
    "decoder.up.1.upsample.conv.bias": "decoder.up_blocks.2.upsamplers.0.conv.bias",
    "decoder.up.0.block.0.nin_shortcut.weight": "decoder.up_blocks.3.resnets.0.conv_shortcut.weight",
    "decoder.norm_out.bias": "decoder.conv_norm_out.bias",
    "decoder.conv_out.weight": "decoder.conv_out.weight",
}


def renamed(kind, prefix, keys):
    """{name in the file, without prefix: ours}."""
    origins = from_single_file(kind, [prefix + key for key in keys], prefix)
    return {origin.key.removeprefix(prefix): name for name, origin in origins.items()}


@pytest.mark.parametrize("context, linear", [(768, False), (1024, True)])
def test_a_single_files_unet(context, linear):
    tensors = list(ldm.unet(context=context, linear=linear))
    assert len(tensors) == 686
    ours = renamed("unet", UNET, [name for name, _, _ in tensors])
    assert ours == {name: diffusers for name, diffusers, _ in tensors}
    assert {name: ours[name] for name in KNOWN_UNET} == KNOWN_UNET


@pytest.mark.parametrize("widths, layers", [((64,), 1), ((32, 64), 3), ((32, 64, 64), 1)])
def test_a_unet_of_other_depth(widths, layers):
    """Names count the blocks of a level; they are seen by the first downsampler, which a UNet of one level lacks."""
    tensors = list(ldm.unet(widths, 64, layers=layers))
    assert renamed("unet", UNET, [name for name, _, _ in tensors]) == {name: ours for name, ours, _ in tensors}


def test_a_single_files_vae():
    tensors = list(ldm.vae())
    assert len(tensors) == 248
    ours = renamed("vae", VAE, [name for name, _, _ in tensors])
    assert ours == {name: diffusers for name, diffusers, _ in tensors}
    assert {name: ours[name] for name in KNOWN_VAE} == KNOWN_VAE


def test_the_vaes_attention_is_squeezed_and_nothing_else():
    origins = from_single_file("vae", [VAE + name for name, _, _ in ldm.vae()], VAE)
    squeezed = sorted(name.removesuffix(".weight") for name, origin in origins.items() if origin.squeeze)
    parts = ("to_k", "to_out.0", "to_q", "to_v")
    assert squeezed == [f"{side}.mid_block.attentions.0.{part}" for side in ("decoder", "encoder") for part in parts]
    stored = np.arange(6.0).reshape(3, 2, 1, 1)
    origin = Origin("k", squeeze=True)
    np.testing.assert_array_equal(origin.take(stored), stored.reshape(3, 2))
    assert origin.shape((3, 2, 1, 1)) == (3, 2) and origin.shape((3, 2)) == (3, 2)


def test_text_of_sd_1_with_and_without_the_inner_prefix():
    keys = ["embeddings.position_ids", "embeddings.token_embedding.weight", "encoder.layers.11.mlp.fc1.bias"]
    for inner in ("", "text_model."):
        prefix = "cond_stage_model.transformer."
        origins = from_single_file("text_encoder", [f"{prefix}{inner}{key}" for key in keys], prefix)
        assert {name: origin.key for name, origin in origins.items()} == {k: f"{prefix}{inner}{k}" for k in keys[1:]}
        assert set(from_folder("text_encoder", [inner + key for key in keys])) == set(keys[1:])


def test_text_of_sd_2_is_open_clips_with_its_last_block_left_out():
    shapes = ldm.open_clip_shapes(1024, 24, 49408)
    origins = from_single_file("text_encoder", [OPEN_CLIP + key for key in shapes], OPEN_CLIP)
    keys = {name: origin.key.removeprefix(OPEN_CLIP) for name, origin in origins.items()}
    assert len(origins) == 23 * 16 + 4  # what the text encoder of SD 2.1 in diffusers holds
    assert keys["embeddings.position_embedding.weight"] == "positional_embedding"
    assert keys["encoder.layers.22.mlp.fc2.bias"] == "transformer.resblocks.22.mlp.c_proj.bias"
    assert keys["encoder.layers.0.layer_norm2.weight"] == "transformer.resblocks.0.ln_2.weight"
    assert keys["final_layer_norm.bias"] == "ln_final.bias"
    assert not any("layers.23" in name for name in origins)
    stored = np.arange(12.0).reshape(6, 2)
    for i, part in enumerate("qkv"):
        origin = origins[f"encoder.layers.3.self_attn.{part}_proj.weight"]
        assert origin.key == OPEN_CLIP + "transformer.resblocks.3.attn.in_proj_weight"
        np.testing.assert_array_equal(origin.take(stored), stored[2 * i : 2 * i + 2])
        assert origin.shape((3072, 1024)) == (1024, 1024)


def test_a_file_from_which_the_unused_block_was_cut_keeps_its_23():
    keys = [OPEN_CLIP + key for key in ldm.open_clip_shapes(8, 23, 9)]
    assert "encoder.layers.22.mlp.fc1.weight" in from_single_file("text_encoder", keys, OPEN_CLIP)


def test_old_folder_names_of_the_vae():
    start = "decoder.mid_block.attentions.0"
    old = ["query.weight", "key.bias", "value.weight", "proj_attn.weight", "group_norm.weight"]
    new = ["to_q.weight", "to_k.bias", "to_v.weight", "to_out.0.weight", "group_norm.weight"]
    origins = from_folder("vae", [f"{start}.{key}" for key in old])
    assert [origins[f"{start}.{key}"].key for key in new] == [f"{start}.{key}" for key in old]


def test_a_name_that_no_rule_knows_is_passed_on():
    odd = ["input_blocks.1.0.fourth_norm.weight", "middle_block.3.norm.weight", "label_emb.0.0.weight"]
    assert renamed("unet", UNET, odd) == {name: name for name in odd}


def test_two_names_for_one_tensor_are_refused():
    with pytest.raises(ValueError, match=r"1 tensors .* two names: text_model\.x\.weight and x\.weight"):
        from_folder("text_encoder", ["text_model.x.weight", "x.weight"])


def test_the_network_is_known_by_its_prefix():
    keys = [UNET + "out.0.weight", VAE + "quant_conv.bias", OPEN_CLIP + "ln_final.bias", "model_ema.decay"]
    assert [prefix_of(kind, keys) for kind in ("unet", "vae", "text_encoder")] == [UNET, VAE, OPEN_CLIP]
    assert prefix_of("unet", ["input_blocks.0.0.weight"]) == "" and prefix_of("unet", ["conv_in.weight"]) is None
    assert prefix_of("vae", keys[:1]) is None


def shapes_of(tensors):
    return {name: shape for _, name, shape in tensors}


def test_the_architecture_is_read_off_the_shapes():
    one = infer_config("unet", shapes_of(ldm.unet()))
    assert one["block_out_channels"] == [320, 640, 1280, 1280] and one["layers_per_block"] == 2
    assert one["cross_attention_dim"] == 768 and one["attention_head_dim"] == 8 and not one["use_linear_projection"]
    assert one["down_block_types"] == ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"]
    assert one["up_block_types"] == ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3
    two = infer_config("unet", shapes_of(ldm.unet(context=1024, linear=True)))
    assert two["attention_head_dim"] == [5, 10, 20, 20] and two["use_linear_projection"]
    vae = infer_config("vae", shapes_of(ldm.vae()))
    assert vae["block_out_channels"] == [128, 256, 512, 512] and vae["latent_channels"] == 4


def test_the_text_encoders_architecture_is_read_off_the_shapes():
    origins = from_single_file(
        "text_encoder", [OPEN_CLIP + key for key in ldm.open_clip_shapes(1024, 24, 49408)], OPEN_CLIP
    )
    stored = {OPEN_CLIP + key: shape for key, shape in ldm.open_clip_shapes(1024, 24, 49408).items()}
    shapes = {name: origin.shape(stored[origin.key]) for name, origin in origins.items()}
    assert TextConfig.from_json(infer_config("text_encoder", shapes, open_clip=True)) == TextConfig.openclip_h()
    narrow = {
        "embeddings.token_embedding.weight": (49408, 768),
        "embeddings.position_embedding.weight": (77, 768),
        **{f"encoder.layers.{i}.mlp.fc1.weight": (3072, 768) for i in range(12)},
    }
    assert TextConfig.from_json(infer_config("text_encoder", narrow)) == TextConfig.clip_l()


def test_shapes_of_another_network_are_refused():
    with pytest.raises(
        ValueError, match=r"expected the unet of Stable Diffusion 1\.x or 2\.x, found .*label_emb.*SDXL"
    ):
        infer_config("unet", shapes_of(ldm.unet()) | {"label_emb.0.0.weight": (1280, 2816)})
    with pytest.raises(ValueError, match=r"expected the vae .* found another network: encoder\.conv_in\.weight"):
        infer_config("vae", {"joint_blocks.0.weight": (1,)})
