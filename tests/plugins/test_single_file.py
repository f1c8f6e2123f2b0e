"""Single files in the names of the first release: the same networks as from folders, and architectures from shapes."""

import math

import ldm
import numpy as np
import pytest
import safetensors.numpy
from networks import assert_same, network, parameters, stored, stored_shapes
from refusal import refused

from common.nn.text_encoder import TextConfig
from plugins.diffusion.io.components import MODULES, load_component, load_text_encoder, load_unet, load_vae
from plugins.diffusion.io.porting import from_folder
from plugins.diffusion.io.single_file import from_single_file, infer_config
from plugins.diffusion.networks.unet import UNetConfig
from plugins.diffusion.networks.vae import VAEConfig

TEXT, OPEN_CLIP = "cond_stage_model.transformer.text_model.", "cond_stage_model.model."
PREFIXES = {"unet": "model.diffusion_model.", "vae": "first_stage_model.", "text_encoder": TEXT}
TINY = {"unet": list(ldm.unet((16, 32, 32, 32), 32)), "vae": list(ldm.vae((16, 32, 32, 32)))}
# Some names of Stable Diffusion 1.x and 2.x, which `ldm.py` has to give too.
KNOWN = {
    "unet": {
        "input_blocks.3.0.op.weight": "down_blocks.0.downsamplers.0.conv.weight",
        "input_blocks.8.1.transformer_blocks.0.ff.net.0.proj.weight": (
            "down_blocks.2.attentions.1.transformer_blocks.0.ff.net.0.proj.weight"
        ),
        "middle_block.1.proj_out.bias": "mid_block.attentions.0.proj_out.bias",
        "output_blocks.2.1.conv.weight": "up_blocks.0.upsamplers.0.conv.weight",
        "output_blocks.8.2.conv.bias": "up_blocks.2.upsamplers.0.conv.bias",
        "output_blocks.11.0.in_layers.0.weight": "up_blocks.3.resnets.2.norm1.weight",
    },
    "vae": {
        "encoder.down.1.block.0.nin_shortcut.weight": "encoder.down_blocks.1.resnets.0.conv_shortcut.weight",
        "encoder.mid.attn_1.proj_out.bias": "encoder.mid_block.attentions.0.to_out.0.bias",
        "decoder.up.3.block.0.conv1.weight": "decoder.up_blocks.0.resnets.0.conv1.weight",
        "decoder.up.1.upsample.conv.bias": "decoder.up_blocks.2.upsamplers.0.conv.bias",
    },
}


def renamed(kind, keys, prefix=None):
    """{name in the file, without prefix: ours}."""
    prefix = prefix or PREFIXES[kind]
    origins = from_single_file(kind, [prefix + key for key in keys], prefix)
    return {origin.key.removeprefix(prefix): name for name, origin in origins.items()}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The three fixtures in one file, as the first release laid them out, with its other tensors."""
    tensors = {"model_ema.decay": np.ones(1, np.float32), "alphas_cumprod": np.ones(1000, np.float32)}
    for kind, names in TINY.items():
        source = stored(kind)
        tensors |= {PREFIXES[kind] + theirs: source.pop(ours).reshape(shape) for theirs, ours, shape in names}
        assert not source
    tensors |= {TEXT + key: value for key, value in stored("text_encoder").items()}
    tensors[TEXT + "embeddings.position_ids"] = np.arange(77)[None]
    path = tmp_path_factory.mktemp("single") / "tiny.safetensors"
    safetensors.numpy.save_file(tensors, path)
    return path


@pytest.mark.long
def test_a_single_file_holds_the_same_networks(checkpoint, tmp_path, monkeypatch):
    """Also a network cut out of it. Its groups and heads are not Stable Diffusion's, so no config is inferred."""
    tensors = safetensors.numpy.load_file(checkpoint)
    configs = {kind: network(kind).config.to_json() for kind in PREFIXES}
    monkeypatch.setattr("plugins.diffusion.io.single_file.infer_config", lambda kind, *_, **__: configs[kind])
    for kind, prefix in PREFIXES.items():
        assert_same(load_component(kind, checkpoint), network(kind))
        if kind in TINY:
            cut = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            safetensors.numpy.save_file(cut, tmp_path / f"{kind}.safetensors")
            assert_same(load_component(kind, tmp_path / f"{kind}.safetensors"), network(kind))


def test_a_single_files_architecture_is_inferred(tmp_path):
    """A narrow network with Stable Diffusion's 32 groups and 8 heads; a diffusion transformer's is refused."""
    rng, path = np.random.default_rng(0), tmp_path / "f.safetensors"
    unet = {PREFIXES["unet"] + name: rng.random(shape, np.float32) for name, _, shape in ldm.unet((32, 64), 48)}
    vae = {PREFIXES["vae"] + name: rng.random(shape, np.float32) for name, _, shape in ldm.vae((32, 64), 4, 1)}
    safetensors.numpy.save_file(unet | vae, path)
    loaded = load_unet(path)
    assert loaded.config.block_out_channels == (32, 64) and loaded.config.cross_attention_dim == 48
    np.testing.assert_array_equal(parameters(loaded)["conv_out.bias"], unet[PREFIXES["unet"] + "out.2.bias"])
    assert load_vae(path).config == VAEConfig(block_out_channels=(32, 64), layers_per_block=1)
    safetensors.numpy.save_file({PREFIXES["unet"] + "joint_blocks.0.weight": np.zeros(1, np.float32)}, path)
    refused(ValueError, load_unet, path, match=r"f\.safetensors.*conv_in\.weight")
    refused(ValueError, infer_config, "vae", {"joint_blocks.0.weight": (1,)}, match=r"encoder\.conv_in\.weight")


@pytest.mark.long
@pytest.mark.parametrize("kind, published, walk, count", [
    ("unet", UNetConfig.sd15(), ldm.unet(), 859_520_964),
    ("unet", UNetConfig.sd21(), ldm.unet(context=1024, linear=True), 865_910_724),
    ("vae", VAEConfig.sd(), ldm.vae(), 83_653_863),
])  # fmt: skip
def test_full_size_names_and_shapes(kind, published, walk, count):
    """Every tensor of the published networks, by name and shape, and the architecture back from the shapes."""
    walk = list(walk)
    assert sum(math.prod(shape) for _, _, shape in walk) == count
    names = renamed(kind, [name for name, _, _ in walk])
    assert names == {name: ours for name, ours, _ in walk} and len(names) == {"unet": 686, "vae": 248}[kind]
    assert {name: names[name] for name in KNOWN[kind]} == KNOWN[kind]
    ours = stored_shapes(MODULES[type(published)], published)
    theirs = {name: shape for _, name, shape in walk}
    matrices = {name: shape[:2] for name, shape in theirs.items() if kind == "vae" and ".attentions.0.to_" in name}
    assert ours == theirs | matrices
    inferred = type(published).from_json(infer_config(kind, ours) | {"sample_size": published.sample_size})
    assert inferred == published


@pytest.mark.parametrize("widths, layers", [((64,), 1), ((32, 64), 3)])
def test_a_unet_of_other_depth(widths, layers):
    """Names count the blocks of a level; the first downsampler shows their number, and one level has none."""
    tensors = list(ldm.unet(widths, 64, layers=layers))
    assert renamed("unet", [name for name, _, _ in tensors]) == {name: ours for name, ours, _ in tensors}


def test_text_of_sd_2_is_open_clips_with_its_last_block_left_out(tmp_path):
    """OpenCLIP's names; the result is transformers' network with one layer less, GELU, and q, k, v apart."""
    shapes = {OPEN_CLIP + key: shape for key, shape in ldm.open_clip_shapes(1024, 24, 49408).items()}
    origins = from_single_file("text_encoder", shapes, OPEN_CLIP)
    keys = {name: origin.key.removeprefix(OPEN_CLIP) for name, origin in origins.items()}
    assert len(origins) == 23 * 16 + 4  # SD 2.1's text encoder in diffusers
    assert keys["embeddings.position_embedding.weight"] == "positional_embedding"
    assert keys["encoder.layers.22.mlp.fc2.bias"] == "transformer.resblocks.22.mlp.c_proj.bias"
    ours = {name: origin.shape(shapes[origin.key]) for name, origin in origins.items()}
    assert TextConfig.from_json(infer_config("text_encoder", ours, OPEN_CLIP)) == TextConfig.openclip_h()
    cut = [OPEN_CLIP + key for key in ldm.open_clip_shapes(8, 23, 9)]  # the unused block is already missing
    assert "encoder.layers.22.mlp.fc1.weight" in from_single_file("text_encoder", cut, OPEN_CLIP)

    rng = np.random.default_rng(0)
    tensors = {OPEN_CLIP + k: rng.random(s, np.float32) for k, s in ldm.open_clip_shapes(64, 3, 50).items()}
    safetensors.numpy.save_file(tensors, tmp_path / "f.safetensors")
    loaded = load_text_encoder(tmp_path / "f.safetensors")
    assert loaded.config.num_hidden_layers == 2 and loaded.config.hidden_act == "gelu"
    fused = tensors[OPEN_CLIP + "transformer.resblocks.1.attn.in_proj_weight"]
    for i, name in enumerate("qkv"):
        kernel = parameters(loaded)[f"encoder.layers.1.self_attn.{name}_proj.kernel"]
        np.testing.assert_array_equal(kernel, fused[64 * i : 64 * (i + 1)].T)


def test_text_of_sd_1():
    shapes = {
        "embeddings.token_embedding.weight": (49408, 768),
        "embeddings.position_embedding.weight": (77, 768),
        **{f"encoder.layers.{i}.mlp.fc1.weight": (3072, 768) for i in range(12)},
    }
    for inner in ("", "text_model."):
        keys = [inner + key for key in (*shapes, "embeddings.position_ids")]
        assert set(from_folder(TextConfig(), keys)) == {*shapes}
    assert TextConfig.from_json(infer_config("text_encoder", shapes)) == TextConfig.clip_l()


def test_unknown_and_repeated_names():
    odd = ["input_blocks.1.0.fourth_norm.weight", "middle_block.3.norm.weight", "label_emb.0.1.weight"]
    assert renamed("unet", odd) == {name: name for name in odd}
    with pytest.raises(ValueError, match=r"text_model\.x\.weight and x\.weight"):
        from_folder(TextConfig(), ["text_model.x.weight", "x.weight"])
