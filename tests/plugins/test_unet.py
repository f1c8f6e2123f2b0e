"""The UNet against the PyTorch library's outputs, its layers by themselves, and configurations of all networks."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import SMALL, assert_near, fixture, network, normal, small_unet, stored_json
from refusal import refused

from common.nn.text_encoder import TextConfig
from plugins.diffusion.networks.layers import GroupNorm, upsample_nearest
from plugins.diffusion.networks.unet import UNetConfig, sinusoid
from plugins.diffusion.networks.vae import VAEConfig

PARITY = 1e-4
BLOCK = "down_blocks.0.attentions.0.transformer_blocks.0"
NAMES = {
    **{f"skip_{i:02}": f"skips.{i}" for i in range(12)},
    **{f"up{i}": f"up_blocks.{i}" for i in range(4)},
    **{f"dbg_d0a0_{part}": f"{BLOCK}.{part}" for part in ("attn1", "attn2", "ff")},
    "dbg_d0r0": "down_blocks.0.resnets.0",
    "dbg_d0a0": "down_blocks.0.attentions.0",
    "dbg_d0a0_tb": BLOCK,
    "mid": "mid_block",
    "time_proj": "time_proj",
    "time_embedding": "time_embedding",
}


@pytest.mark.long
def test_output_and_everything_inside():
    """What controls add inside is tested with them (test_control_networks)."""
    io, (graphdef, state) = fixture("unet_io"), nnx.split(network("unet"))

    @jax.jit
    def call(state, t):
        seen = {}
        tap = lambda name, value: seen.setdefault(name, value)  # noqa: E731
        return nnx.merge(graphdef, state)(io["x"], t, io["ctx"], tap=tap), seen

    out, seen = call(state, io["t"])
    assert_near(out, io["out"], atol=PARITY)
    for key, ours in NAMES.items():
        assert_near(seen[ours], io[key], key, atol=PARITY)
    assert_near(call(state, jnp.array([500, 500]))[0], io["out_t500"], atol=PARITY)


@pytest.mark.long
def test_plain_call_on_a_wide_picture():
    """Nothing plugged in, one time as a number, not square."""
    io, unet = fixture("unet_io"), network("unet")
    graphdef, state = nnx.split(unet)
    out = jax.jit(lambda s, x, c: nnx.merge(graphdef, s)(x, 0, c))(state, io["x_rect"], io["ctx"][:1])
    assert_near(out, io["out_rect_t0"], atol=PARITY)


# Below: a network of two levels with random parameters, at odd sizes.


@pytest.fixture(scope="module")
def small():
    """(call of the small network with parameters first, its parameters, and inputs with those for controls)."""
    graphdef, state = nnx.split(small_unet())
    rng = np.random.default_rng(1)
    inputs = {
        "x": normal(rng, 2, 5, 7, 3),
        "t": np.float32([3, 700]),
        "context": normal(rng, 2, 4, 6),
        "level_features": [normal(rng, 1, *s) for s in (*SMALL.level_shapes(5, 7), SMALL.level_shapes(5, 7)[-1])],
        "skip_residuals": [normal(rng, 2, *s) for s in SMALL.skip_shapes(5, 7)],
    }

    def call(params, inputs, **options):
        return nnx.merge(graphdef, params)(**inputs, **options)

    return call, nnx.to_pure_dict(state), jax.tree.map(jnp.asarray, inputs)


def test_odd_sizes_come_back(small):
    call, params, inputs = small
    seen = {}
    out = jax.eval_shape(lambda p, i: call(p, i, tap=lambda n, v: seen.setdefault(n, v)), params, inputs)
    assert out.shape == (2, 5, 7, 5)
    assert [seen[f"skips.{i}"].shape[1:] for i in range(4)] == SMALL.skip_shapes(5, 7)
    assert seen["up_blocks.0.upsamplers.0"].shape == (2, 5, 7, 12) and seen["mid_block"].shape == (2, 3, 4, 12)


@pytest.mark.long
def test_remat_changes_no_gradient_and_frozen_parameters_pass_it(small):
    """Of features, residuals, latents, text; and of parameters."""
    call, params, inputs = small
    floats = {name: value for name, value in inputs.items() if name != "t"}

    def gradient(**options):
        def loss(params, floats):
            return jnp.sum(jnp.sin(call(params, {**floats, "t": inputs["t"]}, **options)))

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(params, floats)

    (plain, plain_grads), (again, again_grads) = gradient(), gradient(remat=True)
    assert float(plain) == pytest.approx(float(again), rel=1e-5)
    for one, other in zip(jax.tree.leaves(plain_grads), jax.tree.leaves(again_grads), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=1e-4)
    assert all(float(jnp.abs(leaf).max()) > 1e-5 for leaf in jax.tree.leaves(plain_grads[1]))


def test_taps_replace_and_batches_of_one_are_broadcast(small):
    """Both halves of the batch get the same: with one picture twice and everything unequal replaced or broadcast."""
    call, params, inputs = small
    twice = np.array([0, 0])
    same = {**inputs, "x": inputs["x"][twice], "t": inputs["t"][0], "context": inputs["context"][twice]}
    same["skip_residuals"] = [r[:1] for r in inputs["skip_residuals"]]
    names = ("up_blocks.0.resnets.0", "up_blocks.0.attentions.1.transformer_blocks.0.attn1.to_q")

    @jax.jit
    def replaced(gains):
        return call(params, same, tap=lambda name, value: value * gains[names.index(name)] if name in names else value)

    outs = [replaced(jnp.array(gains)) for gains in ((1.0, 1.0), (0.0, 1.0), (0.0, 0.0))]  # a block, then a query too
    for out in outs:
        np.testing.assert_allclose(out[0], out[1], atol=1e-5)
    assert float(jnp.abs(outs[0] - outs[1]).max()) > 1e-3 and float(jnp.abs(outs[1] - outs[2]).max()) > 1e-4


def test_bfloat16_all_the_way(small):
    """Parameters stay float32; every value between input and output is what the input was, but the sinusoid."""
    call, params, inputs = small
    half = {**inputs, "x": inputs["x"].astype(jnp.bfloat16)}
    seen = {}
    out = jax.eval_shape(lambda p, i: call(p, i, tap=lambda n, v: seen.setdefault(n, v)), params, half)
    assert out.dtype == jnp.bfloat16
    assert {name for name, value in seen.items() if value.dtype != jnp.bfloat16} == {"time_proj"}


@pytest.mark.parametrize("change, message", [
    ({"x": jnp.zeros((2, 5, 7, 4))}, "(2, 5, 7, 4)"),
    ({"t": jnp.zeros(3)}, "(3,)"),
    ({"context": jnp.zeros((2, 4, 7))}, "(2, 4, 7)"),
    ({"context": jnp.zeros((1, 4, 6))}, "(1, 4, 6)"),
    ({"remat": True, "tap": lambda name, value: value}, "remat"),
    ({"level_features": [jnp.zeros((2, 5, 7, 8))]}, "1 level_features"),
    ({"level_features": [None, jnp.zeros((2, 2, 4, 12))]}, "level_features[1] has shape (2, 2, 4, 12)"),
    ({"skip_residuals": [jnp.zeros((2, 5, 7, 8))] * 3}, "3 skip_residuals"),
    ({"skip_residuals": [jnp.zeros((2, 5, 7, 8))] * 4}, "skip_residuals[2]"),
    ({"mid_residual": jnp.zeros((2, 3, 4, 8))}, "mid_residual has shape (2, 3, 4, 8)"),
])  # fmt: skip
def test_inputs_that_do_not_fit(small, change, message):
    call, params, inputs = small
    inputs = {name: inputs[name] for name in ("x", "t", "context")} | change
    refused(ValueError, call, params, inputs, match=re.escape(message))


CONFIGS = {"unet": UNetConfig, "vae": VAEConfig, "text_encoder": TextConfig}


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations_come_back_from_json(name):
    """Every key that we write is one of theirs, with their value."""
    config, theirs = CONFIGS[name], stored_json(name)
    ours = config.from_json(theirs).to_json()
    assert json.loads(json.dumps(ours)) == ours == {key: theirs[key] for key in ours}
    assert config.from_json(ours) == config.from_json(theirs) and hash(config.from_json(ours))


def test_old_files_omit_keys():
    theirs = {"_class_name": "UNet2DConditionModel", "cross_attention_dim": 768, "attention_head_dim": 8}
    assert UNetConfig.from_json(theirs | {"_name_or_path": "x", "dropout": 0.1}) == UNetConfig.sd15()
    heads = {"attention_head_dim": [5, 10, 20, 20], "cross_attention_dim": 1024, "use_linear_projection": True}
    extra = {"sample_size": 96, "upcast_attention": True, "only_cross_attention": False, "num_class_embeds": None}
    assert UNetConfig.from_json(theirs | heads | extra) == UNetConfig.sd21()
    assert TextConfig.from_json({}) == TextConfig()
    assert UNetConfig.sd15().heads == (8, 8, 8, 8) and UNetConfig.sd21().heads == (5, 10, 20, 20)


@pytest.mark.parametrize("name, change, message", [
    ("unet", {"addition_embed_type": "text_image"}, "addition_embed_type is 'text_image'.*text_time"),
    ("unet", {"addition_embed_type": "text_time"}, "addition_time_embed_dim"),
    ("unet", {"transformer_layers_per_block": [1, 2]}, "transformer_layers_per_block"),
    ("unet", {"mid_block_type": "UNetMidBlock2D"}, "mid_block_type.*UNetMidBlock2DCrossAttn"),
    ("unet", {"_class_name": "ControlNetModel"}, "ControlNetModel.*UNet2DConditionModel"),
    ("unet", {"down_block_types": ["AttnDownBlock2D"] * 4}, "down_block_types.*CrossAttnDownBlock2D"),
    ("unet", {"attention_head_dim": [8, 8]}, "attention_head_dim"),
    ("unet", {"attention_head_dim": 7}, "attention_head_dim is 7"),
    ("unet", {"norm_num_groups": 5}, "norm_num_groups"),
    ("unet", {"layers_per_block": [1, 2, 2, 2.5]}, "layers_per_block"),
    ("vae", {"use_quant_conv": False}, "use_quant_conv.*True"),
    ("vae", {"down_block_types": ["AttnDownEncoderBlock2D"]}, "down_block_types.*'DownEncoderBlock2D'"),
    ("vae", {"_class_name": "AsymmetricAutoencoderKL"}, "AutoencoderKL"),
    ("vae", {"norm_num_groups": 32}, "norm_num_groups"),
    ("text_encoder", {"hidden_act": "gelu_new"}, "hidden_act"),
    ("text_encoder", {"model_type": "t5"}, "model_type is 't5'"),
    ("text_encoder", {"architectures": ["T5EncoderModel"]}, r"\['T5EncoderModel'\]"),
    ("text_encoder", {"num_attention_heads": 5}, "num_attention_heads"),
])  # fmt: skip
def test_other_configurations_are_refused(name, change, message):
    refused(ValueError, CONFIGS[name].from_json, stored_json(name) | change, match=message)


def test_norms_keep_float32_statistics():
    """Around 100 bfloat16 has steps of 0.5: the deviation of 1 is seen, but only if sums are not rounded."""
    x = (100 + jax.random.normal(jax.random.key(0), (1, 64, 64, 4))).astype(jnp.bfloat16)
    out = GroupNorm(1, 4, 1e-5)(x)
    assert out.dtype == jnp.bfloat16
    assert abs(float(out.astype(jnp.float32).mean())) < 0.01
    assert float(out.astype(jnp.float32).std()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("size", [(6, 8), (5, 8), (6, 7), (5, 7)])
def test_upsampling_is_the_nearest_of_pytorch(size):
    """Pixel i reads floor(i * n_in / n_out), also where the size was odd."""
    x = jnp.arange(24.0).reshape(1, 3, 4, 2)
    rows, columns = (np.arange(m) * n // m for n, m in zip((3, 4), size, strict=True))
    np.testing.assert_array_equal(upsample_nearest(x, size), np.asarray(x)[:, rows][:, :, columns])


def test_sinusoid():
    """At time 0 all cosines are 1 and all sines 0; the first frequency is 1, and `shift` 1 makes the last 1 / 10000."""
    np.testing.assert_array_equal(sinusoid(jnp.array([0]), 6)[0], [1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(sinusoid(jnp.array([0]), 6, cosine_first=False)[0], [0, 0, 0, 1, 1, 1])
    waves = np.asarray(sinusoid(jnp.array([2.5]), 6, shift=1)[0])
    frequencies = 10_000.0 ** (-np.arange(3) / 2)
    np.testing.assert_allclose(waves, [*np.cos(2.5 * frequencies), *np.sin(2.5 * frequencies)], rtol=1e-5)
