"""LoRA files of every writer change a network as in the reference, or are refused by name."""

import json

import drawn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from networks import DATA, assert_near, lora, network
from refusal import refused

from common.weights import porting
from plugins.diffusion.io.lora import Lora, merge

KOHYA, PEFT = lora("kohya"), lora("diffusers_peft")
BLOCK = "mid_block.attentions.0.transformer_blocks.0"


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(DATA / "lora_io.npz", allow_pickle=False) as outputs:
        return dict(outputs) | {"x": drawn.given("x"), "ctx": drawn.given("ctx"), "t": np.array([981, 20])}


def split(kind):
    graphdef, state = nnx.split(network(kind))
    return graphdef, nnx.to_pure_dict(state)


def pair(name, shape=(32, 32), rank=2, endings=(".lora_down.weight", ".lora_up.weight"), kernel=(), seed=0):
    """Random matrices for one weight; `kernel` is the down matrix's window."""
    rng = np.random.default_rng(seed)
    down = rng.normal(size=(rank, shape[1], *kernel)).astype(np.float32)
    up = rng.normal(size=(shape[0], rank, *(1 for _ in kernel))).astype(np.float32)
    return {name + endings[0]: down, name + endings[1]: up}


def written(path, tensors, **header):
    safetensors.numpy.save_file(tensors, path, metadata=header or None)
    return Lora.load(path)


def kernel(params, name):
    return np.asarray(porting.flatten(params)[f"{name}.kernel"])


def changed(params, base) -> list[str]:
    """Paths whose leaf is another object than the base's."""
    ours, theirs = porting.flatten(params), porting.flatten(base)
    assert ours.keys() == theirs.keys()
    return [path for path in ours if ours[path] is not theirs[path]]


@pytest.mark.long
def test_the_references_outputs(reference):
    lora = Lora.load(KOHYA)
    assert set(lora.updates) == {"unet", "text_encoder"}
    graphdef, params = split("unet")
    x, context = jnp.asarray(reference["x"]).transpose(0, 2, 3, 1), jnp.asarray(reference["ctx"])
    t = jnp.asarray(reference["t"], jnp.int32)
    denoise = jax.jit(lambda params: nnx.merge(graphdef, params)(x, t, context))
    for weights, name in ([], "base"), ([1.0], "scale1.0"), ([0.5], "scale0.5"), ([0.8, -0.3], "scale0.5"):
        merged = merge(params, [(lora, weight) for weight in weights])
        assert_near(denoise(merged), reference[f"unet_out_{name}"], rtol=0, atol=2e-5)
    text_graphdef, params = split("text_encoder")
    text = nnx.merge(text_graphdef, merge(params, [(lora, 1.0)]))(reference["input_ids"].astype(np.int32))
    assert_near(text.last, reference["text_last_hidden_scale1.0"], rtol=0, atol=2e-5)


def test_both_formats_are_the_same_change_and_weight_0_is_the_base():
    for kind in ("unet", "text_encoder"):
        params, loras = split(kind)[1], [Lora.load(path) for path in (KOHYA, PEFT)]
        before = {path: np.array(leaf) for path, leaf in porting.flatten(params).items()}
        first, second = (merge(params, [(lora, 1.0)]) for lora in loras)
        touched = changed(first, params)
        assert len(touched) == len(loras[0].updates[kind]) and all(path.endswith(".kernel") for path in touched)
        assert changed(merge(params, []), params) == []
        first, second, none = (porting.flatten(p) for p in (first, second, merge(params, [(loras[0], 0.0)])))
        for path, leaf in porting.flatten(params).items():
            np.testing.assert_array_equal(first[path], second[path], path)
            np.testing.assert_array_equal(leaf, before[path], path)
            np.testing.assert_array_equal(none[path], before[path], path)


def test_the_formula_for_a_linear_map_and_several_files(tmp_path):
    params, name = split("unet")[1], f"{BLOCK}.attn1.to_q"
    stem = "lora_unet_" + name.replace(".", "_")
    first = pair(stem) | {f"{stem}.alpha": np.array(3, np.float32)}
    second = pair(stem, rank=5, seed=1)  # without alpha: alpha is r
    loras = [(written(tmp_path / "1.safetensors", first), 0.7), (written(tmp_path / "2.safetensors", second), -1.5)]
    down, up = f"{stem}.lora_down.weight", f"{stem}.lora_up.weight"
    change = 0.7 * 3 / 2 * first[up] @ first[down] - 1.5 * second[up] @ second[down]
    found = merge(params, loras)
    np.testing.assert_allclose(kernel(found, name) - kernel(params, name), change.T, atol=2e-5)
    assert changed(found, params) == [f"{name}.kernel"]


def test_convolutions(tmp_path):
    """A 3x3 window belongs to the down matrix; a linear pair fits a 1x1 convolution."""
    params, name, flat = split("unet")[1], "down_blocks.1.resnets.0.conv1", "mid_block.attentions.0.proj_in"
    stem, stem1 = ("lora_unet_" + n.replace(".", "_") for n in (name, flat))
    tensors = pair(stem, (32, 16), kernel=(3, 3)) | pair(stem1, seed=2)
    found = merge(params, [(written(tmp_path / "c.safetensors", tensors), 1.0)])
    down, up = (tensors[f"{stem}.lora_{end}.weight"] for end in ("down", "up"))
    change = np.einsum("or,rikl->klio", up[:, :, 0, 0], down)
    np.testing.assert_allclose(kernel(found, name) - kernel(params, name), change, atol=2e-5)
    change = tensors[f"{stem1}.lora_up.weight"] @ tensors[f"{stem1}.lora_down.weight"]
    np.testing.assert_allclose(kernel(found, flat)[0, 0] - kernel(params, flat)[0, 0], change.T, atol=2e-5)


@pytest.mark.parametrize("kind, theirs, endings, ours", [
    ("unet", f"unet.{BLOCK}.attn2.processor.to_v_lora", ".down.weight .up.weight", f"{BLOCK}.attn2.to_v"),
    ("unet", f"{BLOCK}.attn1.processor.to_out_lora", ".down.weight .up.weight", f"{BLOCK}.attn1.to_out.0"),
    ("unet", f"unet.{BLOCK}.attn1.to_out.0", ".lora.down.weight .lora.up.weight", f"{BLOCK}.attn1.to_out.0"),
    ("unet", f"base_model.model.{BLOCK}.attn1.to_k", ".lora_A.weight .lora_B.weight", f"{BLOCK}.attn1.to_k"),
    ("text_encoder", "text_encoder.text_model.encoder.layers.1.self_attn.q_proj",
     ".lora_linear_layer.down.weight .lora_linear_layer.up.weight", "encoder.layers.1.self_attn.q_proj"),
    ("text_encoder", "text_encoder.text_model.encoder.layers.0.self_attn.to_out_lora", ".down.weight .up.weight",
     "encoder.layers.0.self_attn.out_proj"),
    ("text_encoder", "text_encoder.encoder.layers.2.self_attn.v_proj", ".lora_A.weight .lora_B.weight",
     "encoder.layers.2.self_attn.v_proj"),
    ("text_encoder", "lora_te_text_model_encoder_layers_2_self_attn_k_proj", ".lora_down.weight .lora_up.weight",
     "encoder.layers.2.self_attn.k_proj"),
])  # fmt: skip
def test_names_of_every_writer(tmp_path, kind, theirs, endings, ours):
    down, up = endings.split()
    (tmp_path / "adapter_config.json").write_text('{"lora_alpha": 2}')  # which PEFT itself has, and no other reads
    tensors = pair(theirs, endings=(down, up))
    lora, params = written(tmp_path / "l.safetensors", tensors), split(kind)[1]
    assert [*lora.updates] == [kind]
    merged = merge(params, [(lora, 1.0)])
    assert changed(merged, params) == [f"{ours}.kernel"]
    change = tensors[theirs + up] @ tensors[theirs + down]
    np.testing.assert_allclose(kernel(merged, ours) - kernel(params, ours), change.T, atol=2e-5)


@pytest.mark.parametrize("header, scale", [
    ({}, 1.0),
    ({"unet.lora_alpha": 8}, 2.0),
    ({"unet.lora_alpha": 8, "unet.use_rslora": True}, 4.0),
    ({"unet.lora_alpha": 8, "unet.alpha_pattern": {"attn1.to_k": 1, "1.to_q": 3, "attn1.to_q": 6}}, 1.5),
    ({"lora_alpha": 1}, 0.25),
    ({"text_encoder.lora_alpha": 8}, 1.0),
])  # fmt: skip
def test_alpha_of_peft(tmp_path, header, scale):
    tensors = pair(f"unet.{BLOCK}.attn1.to_q", rank=4, endings=(".lora_A.weight", ".lora_B.weight"))
    lora = written(tmp_path / "l.safetensors", tensors, lora_adapter_metadata=json.dumps(header))
    assert lora.updates["unet"][f"{BLOCK}.attn1.to_q"].scale == scale


def test_alpha_of_pefts_own_file_is_beside_it(tmp_path):
    name, file = f"{BLOCK}.attn1.to_q", tmp_path / "adapter_model.safetensors"
    tensors = pair(f"base_model.model.{name}", rank=4, endings=(".lora_A.weight", ".lora_B.weight"))
    refused(FileNotFoundError, written, file, tensors, match="adapter_config.json")
    config = {"r": 4, "lora_alpha": 8, "use_dora": False, "alpha_pattern": {}, "rank_pattern": {}}
    for changes, scale in (({}, 2.0), ({"use_rslora": True}, 4.0)):
        (tmp_path / "adapter_config.json").write_text(json.dumps(config | changes))
        for path in (file, tmp_path):
            assert Lora.load(path).updates["unet"][name].scale == scale
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    refused(ValueError, Lora.load, file, match="use_dora")


def test_half_precision_stays_and_is_rounded_once(tmp_path):
    name = f"{BLOCK}.attn1.to_q"
    tensors = pair("unet." + name, endings=(".lora_A.weight", ".lora_B.weight"))
    half = {key: value.astype(np.float16) for key, value in tensors.items()}
    lora = written(tmp_path / "l.safetensors", half)
    base = split("unet")[1]
    base = porting.unflatten_like({p: v.astype(jnp.bfloat16) for p, v in porting.flatten(base).items()}, base)
    found = porting.flatten(merge(base, [(lora, 0.5), (lora, 0.25)]))[f"{name}.kernel"]
    down, up = (value.astype(np.float32) for value in half.values())
    exact = kernel(base, name).astype(np.float32) + 0.75 * (up @ down).T
    assert found.dtype == jnp.bfloat16
    assert np.abs(np.asarray(found, np.float32) - exact).max() <= np.abs(exact).max() / 256


def test_all_that_does_not_fit_is_listed(tmp_path):
    tensors = pair("lora_unet_mid_block_attentions_9_proj_in") | pair("unet.no.such.layer", seed=1)
    tensors |= pair(f"unet.{BLOCK}.attn1.to_q", (32, 16), seed=2)
    lora, params = written(tmp_path / "l.safetensors", tensors), split("unet")[1]
    with pytest.raises(ValueError) as caught:
        merge(params, [(lora, 1.0)])
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    for name in ("mid_block_attentions_9_proj_in", "no.such.layer", "(32, 16)"):
        assert any(name in line for line in lines[1:])
    text = split("text_encoder")[1]
    assert changed(merge(text, [(lora, 1.0)]), text) == []


@pytest.mark.parametrize("key, message", [
    ("lora_unet_mid_block_attentions_0_proj_in.hada_w1_a", "LoHa"),
    ("lora_unet_mid_block_attentions_0_proj_in.lokr_w1", "LoKr"),
    ("lora_unet_mid_block_attentions_0_proj_in.dora_scale", "DoRA"),
    ("unet.mid_block.attentions.0.proj_in.lora_magnitude_vector", "DoRA"),
    ("lora_unet_mid_block_resnets_0_conv1.lora_mid.weight", "Tucker"),
    ("unet.mid_block.attentions.0.proj_in.weight", "lora_A"),
])  # fmt: skip
def test_other_kinds_are_named_and_refused(tmp_path, key, message):
    tensors = pair("unet.mid_block.attentions.0.proj_out") | {key: np.ones(1)}
    error = refused(ValueError, written, tmp_path / "l.safetensors", tensors, match=message)
    assert key in error and "l.safetensors" in error


def test_headers_that_are_refused(tmp_path):
    for header, message in (
        ('{"unet.use_dora": true, "unet.lora_alpha": 2}', r"unet\.use_dora"),
        ('{"lora_bias": true}', "lora_bias"),
        ("{", "lora_adapter_metadata"),
        ("[]", "lora_adapter_metadata"),
    ):
        with pytest.raises(ValueError, match=message):
            written(tmp_path / "l.safetensors", pair("unet.mid_block.x"), lora_adapter_metadata=header)


def test_damaged_files(tmp_path):
    tensors = pair("unet.a") | pair("unet.b") | pair("unet.c") | pair("unet.e", kernel=(3, 3))
    del tensors["unet.a.lora_up.weight"]
    tensors["unet.b.lora_up.weight"] = np.ones((32, 3), np.float32)
    tensors["unet.c.lora_down.weight"][0, 0] = np.nan
    tensors["unet.e.lora_up.weight"] = np.ones((32, 2, 3, 3), np.float32)
    tensors["unet.d.alpha"] = np.ones(())
    with pytest.raises(ValueError) as caught:
        written(tmp_path / "l.safetensors", tensors)
    assert sorted(line.strip()[0] for line in str(caught.value).splitlines()[1:]) == ["a", "b", "c", "d", "e"]
