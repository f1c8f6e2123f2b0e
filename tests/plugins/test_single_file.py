"""Networks from one file in the names of the first release: the same as from folders; architectures off the shapes."""

import ldm
import numpy as np
import pytest
import safetensors.numpy
from networks import assert_same, network, one_line, parameters, stored

from common.weights import porting
from plugins.diffusion.io.components import KINDS, load_component, load_text_encoder, load_unet, load_vae
from plugins.diffusion.io.porting import blank, table
from plugins.diffusion.io.single_file import infer_config
from plugins.diffusion.networks.unet import UNetConfig
from plugins.diffusion.networks.vae import VAEConfig

PREFIXES = {
    "unet": "model.diffusion_model.",
    "vae": "first_stage_model.",
    "text_encoder": "cond_stage_model.transformer.text_model.",
}
WIDTHS = {"unet": (16, 32, 32, 32), "vae": (16, 32, 32, 32)}


def single_file() -> dict[str, np.ndarray]:
    """The three fixtures in one file, as the first release laid them out, with what else such files hold."""
    tensors = {"model_ema.decay": np.ones(1, np.float32), "alphas_cumprod": np.ones(1000, np.float32)}
    names = {"unet": ldm.unet(WIDTHS["unet"], 32), "vae": ldm.vae(WIDTHS["vae"])}
    for kind, known in names.items():
        source = stored(kind)
        for theirs, ours, shape in known:
            tensors[PREFIXES[kind] + theirs] = source.pop(ours).reshape(shape)
        assert not source
    for key, value in stored("text_encoder").items():
        tensors[PREFIXES["text_encoder"] + key] = value
    tensors[PREFIXES["text_encoder"] + "embeddings.position_ids"] = np.arange(77)[None]
    return tensors


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("single") / "tiny.safetensors"
    safetensors.numpy.save_file(single_file(), path)
    return path


def test_a_single_file_holds_the_same_networks(checkpoint):
    """The groups of its norms and its heads are not those of Stable Diffusion, so the configs are given."""
    for kind in PREFIXES:
        whole = network(kind)
        assert_same(load_component(kind, checkpoint, config=whole.config), whole)


def test_a_network_cut_out_of_a_single_file(checkpoint, tmp_path):
    tensors = safetensors.numpy.load_file(checkpoint)
    for kind in ("unet", "vae"):
        cut = {k.removeprefix(PREFIXES[kind]): v for k, v in tensors.items() if k.startswith(PREFIXES[kind])}
        safetensors.numpy.save_file(cut, tmp_path / f"{kind}.safetensors")
        whole = network(kind)
        assert_same(load_component(kind, tmp_path / f"{kind}.safetensors", config=whole.config), whole)


def test_a_single_files_architecture_is_inferred(tmp_path):
    """A narrow network with Stable Diffusion's 32 groups and 8 heads."""
    rng = np.random.default_rng(0)
    unet = {PREFIXES["unet"] + name: rng.random(shape, np.float32) for name, _, shape in ldm.unet((32, 64), 48)}
    vae = {PREFIXES["vae"] + name: rng.random(shape, np.float32) for name, _, shape in ldm.vae((32, 64), 4, 1)}
    safetensors.numpy.save_file(unet | vae, tmp_path / "f.safetensors")
    loaded = load_unet(tmp_path / "f.safetensors")
    assert loaded.config.block_out_channels == (32, 64) and loaded.config.cross_attention_dim == 48
    np.testing.assert_array_equal(parameters(loaded)["conv_out.bias"], unet[PREFIXES["unet"] + "out.2.bias"])
    assert load_vae(tmp_path / "f.safetensors").config == VAEConfig(block_out_channels=(32, 64), layers_per_block=1)


def test_the_text_encoder_of_sd_2(tmp_path):
    """OpenCLIP's names; the result is transformers' network with one layer less, GELU, and q, k, v apart."""
    rng, prefix = np.random.default_rng(0), "cond_stage_model.model."
    tensors = {prefix + k: rng.random(s, np.float32) for k, s in ldm.open_clip_shapes(64, 3, 50).items()}
    safetensors.numpy.save_file(tensors, tmp_path / "f.safetensors")
    loaded = load_text_encoder(tmp_path / "f.safetensors")
    assert loaded.config.num_hidden_layers == 2 and loaded.config.hidden_act == "gelu"
    fused = tensors[prefix + "transformer.resblocks.1.attn.in_proj_weight"]
    ours = parameters(loaded)
    for i, part in enumerate("qkv"):
        kernel = ours[f"encoder.layers.1.self_attn.{part}_proj.kernel"]
        np.testing.assert_array_equal(kernel, fused[64 * i : 64 * (i + 1)].T)


@pytest.mark.parametrize("kind, published, walk", [
    ("unet", UNetConfig.sd15(), ldm.unet()),
    ("unet", UNetConfig.sd21(), ldm.unet(context=1024, linear=True)),
    ("vae", VAEConfig.sd(), ldm.vae()),
])  # fmt: skip
def test_full_size_names_and_shapes(kind, published, walk):
    """Every tensor of the published networks, by name and shape, and the architecture back from the shapes."""
    leaves = porting.flatten(blank(KINDS[kind].module, published)[1])
    ours = {}
    for path, entry in table(leaves).items():
        axes = entry.layout.axes or range(len(leaves[path].shape))
        ours[entry.source] = tuple(np.array(leaves[path].shape)[np.argsort(axes)].tolist())
    theirs = {name: shape for _, name, shape in walk}
    matrices = {name: shape[:2] for name, shape in theirs.items() if kind == "vae" and ".attentions.0.to_" in name}
    assert ours == theirs | matrices and len(ours) == {"unet": 686, "vae": 248}[kind]
    inferred = KINDS[kind].config.from_json(infer_config(kind, ours) | {"sample_size": published.sample_size})
    assert inferred == published


def test_sdxl_is_refused_by_name(tmp_path):
    tensors = {PREFIXES["unet"] + name: np.zeros(shape, np.float32) for name, _, shape in ldm.unet((32, 64), 48)}
    tensors[PREFIXES["unet"] + "label_emb.0.0.weight"] = np.zeros((128, 64), np.float32)
    safetensors.numpy.save_file(tensors, tmp_path / "xl.safetensors")
    with pytest.raises(ValueError, match=r"xl.safetensors: expected the unet of Stable Diffusion.*SDXL") as error:
        load_unet(tmp_path / "xl.safetensors")
    one_line(error)
