"""Published weights in their formats: equal to transformers' networks, moved to their places, refused with reasons."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore
from assistants import mistake
from flax import nnx, serialization, traverse_util
from published import fields, folder, outputs, tensors
from refusal import refused
from reveal_networks import SMALL, arrays, parameters

from common.io.image_preparation import CLIP_MEAN, CLIP_STD
from common.weights import porting
from reveal.cli.main import main
from reveal.network.config import VitConfig
from reveal.network.generator import Decoding
from reveal.network.model import Reveal
from reveal.network.porting import source_name
from reveal.network.published import (
    assemble,
    config_of,
    kind_of,
    read_scenic,
    read_t5,
    read_vit,
    start_params,
    t5x_name,
)
from reveal.network.t5_model import T5
from reveal.network.vit import Vit

CHANGES = {"key_dim": 7, "value_tokens": 3, "sources": 2}


def filled(model, flat):
    graph, state = nnx.split(model)
    params = nnx.to_pure_dict(state)
    flat = {name: jnp.asarray(x) for name, x in flat.items()}
    return nnx.merge(graph, porting.unflatten_like({**porting.flatten(params), **flat}, params))


@pytest.mark.long
def test_t5_is_transformers(tmp_path):
    spare = {"encoder.embed_tokens.weight": np.zeros((128, 16), np.float32)}  # of files before safetensors
    found, expected = read_t5(folder("t5", tmp_path, tensors("t5") | spare)), outputs("t5")
    assert kind_of(tmp_path) == "t5" and found.config.head_dim == 6 and found.config.decoder_layers == 2
    model, tokens = filled(T5(found.config, rngs=nnx.Rngs(0)), found.params), expected["tokens"]
    there = tokens > 0
    np.testing.assert_allclose(np.asarray(model.encode(tokens)[0])[there], expected["states"][there], atol=1e-5)
    np.testing.assert_allclose(model.logits(tokens, expected["answer"]), expected["logits"], atol=1e-5, rtol=1e-5)
    written = np.asarray(model.generate(tokens, Decoding(6)).tokens)
    np.testing.assert_array_equal(written, expected["written"][:, 1:])


def vit_states(found, image):
    """Of the patches, after the last norm: the head is the identity, and tokens are four times its output."""
    vit = filled(Vit(found.config, found.config.width, rngs=nnx.Rngs(0)), found.params)
    vit.head.kernel[...] = jnp.eye(found.config.width) / 4
    return vit(jnp.asarray(image))


def test_vits_are_transformers(tmp_path):
    """Those that normalise otherwise take images in [-1, 1] here: their own normalisation is in the first map."""
    expected = outputs("vit")
    states = vit_states(read_vit(folder("vit", tmp_path / "vit")), expected["pixels"])
    np.testing.assert_allclose(states, expected["states"][:, 1:], atol=2e-5)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    prepared = {"image_mean": mean, "image_std": std, "size": 256, "crop_size": 224, "do_center_crop": True}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(prepared))
    image = 2 * (expected["pixels"] * np.float32(std) + np.float32(mean)) - 1
    np.testing.assert_allclose(vit_states(read_vit(tmp_path / "vit"), image), expected["states"][:, 1:], atol=2e-5)
    for wrong in ({"image_std": [0, 0, 0]}, {"image_mean": [0.5]}, {"do_normalize": False}):
        (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(prepared | wrong))
        with pytest.raises(ValueError, match=next(iter(wrong))):
            read_vit(tmp_path / "vit")
    expected = outputs("siglip")
    states = vit_states(read_vit(folder("siglip", tmp_path / "siglip")), expected["pixels"])
    np.testing.assert_allclose(states, expected["last_image"], atol=2e-5)
    expected = outputs("clip")
    image = 2 * (expected["pixels"] * np.float32(CLIP_STD) + np.float32(CLIP_MEAN)) - 1
    states = vit_states(read_vit(folder("clip", tmp_path / "clip")), image)
    weights = tensors("clip")
    last = expected["last_image"][:, 1:]
    centred = last - last.mean(-1, keepdims=True)
    normed = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5)
    scale, bias = (weights[f"vision_model.post_layernorm.{name}"] for name in ("weight", "bias"))
    np.testing.assert_allclose(states, normed * scale + bias, atol=2e-5)


def write_t5x(params, place: Path) -> Path:
    """A checkpoint as t5x writes it: large arrays as zarr, small ones in the index."""
    flat = {t5x_name(ours): np.asarray(array) for ours, array in params.items()}
    index = {}
    for number, (name, array) in enumerate(flat.items()):
        file = "target." + name.replace("/", ".")
        index[tuple(name.split("/"))] = array if number % 3 == 0 else f"PLACEHOLDER://{file}"
        if number % 3 == 1:
            index[tuple(name.split("/"))] = {"driver": "zarr", "kvstore": {"driver": "gfile", "path": f"there/{file}"}}
        if number % 3:
            spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(place / file)}}
            spec |= {"metadata": {"shape": array.shape, "dtype": "<f4"}, "create": True}
            tensorstore.open(spec).result().write(array).result()
    state = {"target": traverse_util.unflatten_dict(index), "state": {"step": np.int64(3)}}
    (place / "checkpoint").write_bytes(serialization.msgpack_serialize({"version": 3, "optimizer": state}))
    return place


def test_a_t5x_checkpoint_is_the_same_network(tmp_path):
    found = read_t5(folder("t5", tmp_path / "hf"))
    (tmp_path / "t5x").mkdir()
    again = read_t5(write_t5x(found.params, tmp_path / "t5x"))
    assert kind_of(tmp_path / "t5x") == "t5" and again.config == found.config
    jax.tree.map(np.testing.assert_array_equal, dict(again.params), dict(found.params))


@pytest.mark.parametrize("stored", ["layers", "scan", "old"])
def test_big_visions_vit_is_the_references(stored, tmp_path):
    """Against the fixture of the reference, whose image encoder is big_vision's."""
    io = arrays("vit_mu8")
    weights = {f"params/{name.removeprefix('img_encoder/')}": x for name, x in parameters("vit_mu8").items()}
    if stored == "scan":
        layer, scanned = "params/Transformer/encoderblock_0/", "params/Transformer/encoderblock/"
        weights = {name.replace(layer, scanned): x[None] if layer in name else x for name, x in weights.items()}
    if stored == "old":
        for new, old in (("MlpBlock_0", "MlpBlock_3"), ("LayerNorm_1", "LayerNorm_2")):
            weights = {name.replace(new, old): x for name, x in weights.items()}
    np.savez(tmp_path / "vit.npz", **weights)
    found = read_vit(tmp_path / "vit.npz")
    assert found.config == VitConfig(32, 1, 2, 128, 8, 16) and kind_of(tmp_path / "vit.npz") == "vit"
    vit = filled(Vit(found.config, 32, rngs=nnx.Rngs(0)), found.params)
    vit.head.kernel[...], vit.head.bias[...] = (jnp.asarray(weights[f"params/head/{x}"]) for x in ("kernel", "bias"))
    np.testing.assert_allclose(vit(jnp.asarray(io["in:image"])), io["out:img_tokens_times4"], atol=1e-4)


def test_a_class_token_of_the_first_vits_has_a_position(tmp_path):
    found = read_vit(folder("vit", tmp_path))
    flat = {
        source_name(f"vit.{ours}").removeprefix("img_encoder/"): np.asarray(x)
        for ours, x in found.params.items()
        if ours != "class_token"
    }
    table = flat.pop("pos_embedding")
    token = np.asarray(found.params["class_token"])
    flat["cls"], flat["Transformer/posembed_input/pos_embedding"] = 0 * token, np.concatenate([token, table], axis=1)
    for name in list(flat):
        if "/MultiHead" in name and name.endswith(("query/kernel", "key/kernel", "value/kernel")):
            flat[name] = flat[name].reshape(24, 3, 8)
    flat["embedding/kernel"] = flat["embedding/kernel"].reshape(8, 8, 3, 24)
    np.savez(tmp_path / "old.npz", **flat)
    again = read_vit(tmp_path / "old.npz")
    assert again.config == dataclasses.replace(found.config, activation="gelu_pytorch_tanh", norm_eps=1e-6)
    jax.tree.map(np.testing.assert_array_equal, dict(again.params), dict(found.params))


def test_a_network_begins_with_both(tmp_path):
    t5, vit = read_t5(folder("t5", tmp_path / "t5")), read_vit(folder("siglip", tmp_path / "siglip"))
    config = config_of(t5, vit, **CHANGES)
    assert config.fusion_layers == 2 and config.vit.image_size == 24
    flat = porting.flatten(assemble(config, t5, vit))
    for ours, theirs in {
        "embedding.embedding": "embedding.embedding",
        "text.layers.1.mlp.wo.kernel": "encoder.layers.1.mlp.wo.kernel",
        "fusion.encoder.layers.0.mlp.wo.kernel": "encoder.layers.2.mlp.wo.kernel",
        "key_head.encoder.layers.1.attention.out.kernel": "encoder.layers.3.attention.out.kernel",
        "query_head.encoder.positions.rel_embedding": "encoder.positions.rel_embedding",
        "fusion.norm.scale": "norm.scale",
        "decoder.logits.kernel": "decoder.logits.kernel",
    }.items():
        np.testing.assert_array_equal(flat[ours], t5.params[theirs])
    np.testing.assert_array_equal(flat["vit.positions"], vit.params["positions"])
    other = porting.flatten(assemble(config, t5, vit, 1))
    moved = {name for name, x in flat.items() if not np.array_equal(x, other[name])}
    assert {name.split(".")[0] for name in moved} == {"vit", "projection", "value_head", "gate"}
    with pytest.raises(ValueError, match=r"vit.patch .*network.mlp"):
        assemble(dataclasses.replace(config, mlp=25, vit=dataclasses.replace(config.vit, patch=4)), t5, vit)


@pytest.mark.parametrize("gate", [True, False])
def test_scenics_checkpoints(gate, tmp_path):
    model = Reveal(SMALL, rngs=nnx.Rngs(3))
    flat = {source_name(ours): np.asarray(x) for ours, x in porting.flatten(nnx.to_pure_dict(nnx.state(model))).items()}
    for name in flat:  # the reference's ViT has separate axes
        if "img_encoder" in name and name.endswith(("query/kernel", "key/kernel", "value/kernel")):
            flat[name] = flat[name].reshape(32, 2, 16)
        elif "img_encoder" in name and name.endswith(("query/bias", "key/bias", "value/bias")):
            flat[name] = flat[name].reshape(2, 16)
        elif "img_encoder" in name and name.endswith("out/kernel"):
            flat[name] = flat[name].reshape(2, 16, 32)
    flat["img_encoder/embedding/kernel"] = flat["img_encoder/embedding/kernel"].reshape(8, 8, 3, 32)
    if not gate:
        flat = {name: x for name, x in flat.items() if not name.startswith("dataset_gate")}
    tree = traverse_util.unflatten_dict({tuple(name.split("/")): x for name, x in flat.items()})
    path = tmp_path / "checkpoint_10"
    path.write_bytes(serialization.msgpack_serialize({"params": tree, "global_step": 10}))
    found = read_scenic(path)
    assert kind_of(path) == "reveal"
    assert dataclasses.replace(found.config, bos=SMALL.bos) == dataclasses.replace(SMALL, sources=2 if gate else 1)
    ours, theirs = (porting.flatten(nnx.to_pure_dict(nnx.state(one))) for one in (model, found))
    for name, expected in ours.items():
        if gate or not name.startswith("gate"):
            np.testing.assert_array_equal(theirs[name], expected)
        else:
            assert not theirs[name].any() and theirs[name].shape[-1] == 1


def test_faults_are_listed(tmp_path):
    weights = tensors("t5")
    weights["encoder.block.1.layer.0.layer_norm.bias"] = weights.pop("encoder.block.1.layer.0.layer_norm.weight")
    weights["decoder.final_layer_norm.weight"] = weights["decoder.final_layer_norm.weight"][1:]
    with pytest.raises(ValueError) as error:
        read_t5(folder("t5", tmp_path / "t5", weights))
    assert all(name in str(error.value) for name in ("block.1.layer.0.layer_norm.bias", "layer_norm.weight", "final_"))
    weights = tensors("vit")
    del weights["vit.encoder.layer.1.output.dense.bias"]
    with pytest.raises(ValueError, match=r"layer\.1\.output\.dense\.bias"):
        read_vit(folder("vit", tmp_path / "vit", weights))


@pytest.mark.parametrize("change", [{"feed_forward_proj": "relu"}, {"relative_attention_num_buckets": 64}])
def test_other_t5s_are_refused(change, tmp_path):
    place = folder("t5", tmp_path)
    (place / "config.json").write_text(json.dumps(fields("t5")["config"] | change))
    with pytest.raises(ValueError):
        read_t5(place)


def test_files_of_other_kinds_are_refused(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 nothing")
    (tmp_path / "checkpoint_1").write_bytes(b"\x80\x04 a pickle")
    np.savez(tmp_path / "y.npz", a=np.ones(3))
    for call, name in ((read_vit, "x.npz"), (read_vit, "y.npz"), (read_scenic, "checkpoint_1")):
        refused(ValueError, call, tmp_path / name, match=name)
    for name in ("nowhere", "."):
        refused(FileNotFoundError, kind_of, tmp_path / name)


def test_the_command_and_training_begin_with_the_same(tmp_path):
    places = [str(folder("t5", tmp_path / "t5")), str(folder("clip", tmp_path / "clip"))]
    target = str(tmp_path / "start.safetensors")
    main(["convert", *places, target, "--sources", "2", "--key-dim", "7", "--value-tokens", "3", "--json"])
    config = config_of(read_t5(places[0]), read_vit(places[1]), **CHANGES)
    both = [porting.flatten(start_params(paths, config)) for paths in ([target], places)]
    jax.tree.map(np.testing.assert_array_equal, *both)
    with pytest.raises(FileNotFoundError, match="reveal convert"):
        start_params([str(tmp_path / "none.safetensors")], config)


@pytest.mark.parametrize("words", [["t5"], ["clip", "out.safetensors"], ["t5", "t5", "out.safetensors"], ["t5", "out"]])
def test_the_command_refuses(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("t5", "clip"):
        folder(name, Path(name))
    mistake(capsys, "convert", *words)
    assert not Path("out.safetensors").exists()
