"""ControlNet against the PyTorch library's outputs; a new one that changes nothing; what fits which base."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import DATA, SMALL, abstract, fixture, folder, network, one_line, parameters, small_unet

from plugins.control import ControlNet, ControlNetConfig, contract, guess_levels, load
from plugins.control.contract import Added
from plugins.diffusion.networks.unet_config import UNetConfig

PARITY = 1e-4
TINY = ControlNetConfig.for_unet(SMALL, 4)  # 4 pixels per latent pixel


@pytest.fixture(scope="module")
def io():
    return fixture("controlnet_io")


@pytest.fixture(scope="module")
def run(io):
    """(picture -> hint, hint -> what is added, what is added -> the UNet's output); each compiled once."""
    (graph, state), (unet_graph, unet_state) = nnx.split(load(folder("controlnet"))), nnx.split(network("unet"))
    x, t, context = io["x"], io["t"], io["ctx"]
    encode = jax.jit(lambda state, picture: nnx.merge(graph, state).encode(picture))
    act = jax.jit(lambda state, hint: nnx.merge(graph, state).act(hint, x, t, context))
    unet = jax.jit(
        lambda state, added: nnx.merge(unet_graph, state)(x, t, context, None, added.skip_residuals, added[2])
    )
    return (
        lambda picture: encode(state, picture),
        lambda hint: act(state, hint),
        lambda added: unet(unet_state, added),
    )


def test_everything_it_makes(io, run):
    encode, act, unet = run
    hint = encode(io["cond"])
    np.testing.assert_allclose(hint, io["cond_embedding"], atol=PARITY)
    added = act(hint)
    assert len(added.skip_residuals) == 12 and added.level_features == ()
    for i, residual in enumerate(added.skip_residuals):
        np.testing.assert_allclose(residual, io[f"down_{i:02}"], atol=PARITY, err_msg=str(i))
    np.testing.assert_allclose(added.mid_residual, io["mid"], atol=PARITY)
    np.testing.assert_allclose(unet(added), io["unet_out"], atol=PARITY)


def test_guess_mode(io, run):
    """A factor for each tensor, from 0.1 to 1; the tensors finest first, the middle last."""
    encode, act, unet = run
    gains = jnp.asarray([0.8 * level for level in guess_levels(13)])
    guessed = act(encode(io["cond"])).times(gains)
    for i, residual in enumerate(guessed.skip_residuals):
        np.testing.assert_allclose(residual, io[f"down_guess08_{i:02}"], atol=PARITY, err_msg=str(i))
    np.testing.assert_allclose(guessed.mid_residual, io["mid_guess08"], atol=PARITY)
    np.testing.assert_allclose(unet(guessed), io["unet_out_guess08"], atol=PARITY)
    original = guess_levels(13, "original")
    assert original[-1] == 1 and original[0] == pytest.approx(0.825**12)
    with pytest.raises(ValueError, match="guess mode 'x' is not known; choose diffusers or original"):
        guess_levels(13, "x")


def test_two_of_them_are_added(io, run):
    encode, act, unet = run
    one, other = (act(encode(io[name])) for name in ("cond", "cond2"))
    both: Added = jax.tree.map(lambda a, b: 0.6 * a + 0.3 * b, one, other)
    np.testing.assert_allclose(unet(both), io["unet_out_multi_06_03"], atol=PARITY)


def test_published_size():
    """Nothing is allocated."""
    whole = abstract(lambda: ControlNet(ControlNetConfig.sd15(), rngs=nnx.Rngs(0)))
    count = lambda part: sum(leaf.size for leaf in jax.tree.leaves(nnx.state(part)))  # noqa: E731
    assert count(whole) == 361_279_120 and count(whole.controlnet_cond_embedding) == 1_086_480
    assert whole.places == 13 and whole.config.reduction == 8


# Below: a network of two levels at 4 pixels per latent pixel.


@pytest.fixture(scope="module")
def unet():
    return small_unet()


@pytest.fixture(scope="module")
def new(unet):
    return ControlNet.from_unet(unet, 4, rngs=nnx.Rngs(0))


def test_a_new_one_changes_nothing_and_can_learn(new):
    """Residuals are exactly 0, and the first gradient moves the zero convolutions, and these alone."""
    assert new.config == TINY and new.config.conditioning_embedding_out_channels == (16, 32, 96)
    rng = np.random.default_rng(0)
    picture, x = (jnp.asarray(rng.random(shape, np.float32)) for shape in ((1, 20, 28, 3), (2, 5, 7, 3)))
    context = jnp.asarray(rng.random((2, 4, 6), np.float32))
    graph, state = nnx.split(new)

    def total(state):
        network = nnx.merge(graph, state)
        tensors = network.act(network.encode(picture), x, jnp.float32(500), context).tensors()
        return sum(tensor.sum() for tensor in tensors), tensors

    gradients, tensors = jax.jit(jax.grad(total, has_aux=True))(state)
    assert [t.shape for t in tensors] == [(2, *s) for s in (*SMALL.skip_shapes(5, 7), SMALL.level_shapes(5, 7)[-1])]
    assert not any(np.asarray(tensor).any() for tensor in tensors)
    for name, part in nnx.to_pure_dict(gradients).items():
        moved = [float(np.abs(leaf).max()) for leaf in jax.tree.leaves(part)]
        silent = name in ("controlnet_down_blocks", "controlnet_mid_block")
        assert min(moved) > 1e-3 if silent else max(moved) == 0, name


def test_the_copy_shares_nothing_with_the_unet(unet, new):
    """So a training that donates its buffers leaves the UNet as it was."""
    ours, theirs = parameters(new), parameters(unet)
    copied = ("conv_in.", "time_embedding.", "down_blocks.", "mid_block.")
    assert {path for path in theirs if path.startswith(copied)} == {path for path in ours if path.startswith(copied)}
    for path, value in theirs.items():
        if path.startswith(copied):
            np.testing.assert_array_equal(value, ours[path])
    both = (unet, new)
    buffers = [{leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(nnx.state(module))} for module in both]
    assert not buffers[0] & buffers[1]
    modules = [{id(node) for _, node in nnx.iter_graph(m) if isinstance(node, nnx.Module)} for m in both]
    assert not modules[0] & modules[1]
    for path, value in ours.items():
        if path.startswith("controlnet_cond_embedding."):
            assert value.any() == (path.endswith("kernel") and "conv_out" not in path)


def test_its_numbers_are_of_the_unets_type_and_its_hint_encoder_may_be_another(unet):
    config = dataclasses.replace(TINY, conditioning_embedding_out_channels=(4, 6))
    graph, state = nnx.split(unet)
    halves = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf).astype(jnp.bfloat16)), nnx.to_pure_dict(state))
    unet = nnx.merge(graph, halves)
    new = ControlNet.from_unet(unet, config=config, rngs=nnx.Rngs(0))
    assert {leaf.dtype for leaf in parameters(new).values()} == {jnp.dtype("bfloat16")}
    picture = jax.ShapeDtypeStruct((1, 10, 14, 3), jnp.bfloat16)
    assert nnx.eval_shape(lambda new, picture: new.encode(picture), new, picture).shape == (1, 5, 7, 8)
    assert new.config.reduction == 2
    with pytest.raises(ValueError, match=r"the ControlNet has cross_attention_dim 9, the base 6: take one") as error:
        wide = dataclasses.replace(config, cross_attention_dim=9)
        ControlNet.from_unet(unet, config=wide, rngs=nnx.Rngs(0))
    one_line(error)


def other(**changes):
    """The fixtures' network with another config, as its graph and parameters."""
    config = {**json.loads((DATA / "controlnet" / "config.json").read_text()), **changes}
    graph, state = nnx.split(load(folder("controlnet"), config=ControlNetConfig.from_json(config)))
    return graph, nnx.to_pure_dict(state)


def test_channel_order(io):
    turned = contract.encode(*other(controlnet_conditioning_channel_order="bgr"), io["cond"][..., ::-1])
    np.testing.assert_allclose(turned, io["cond_embedding"], atol=PARITY)


def test_pooled_conditions_say_what_and_not_where(io):
    graph, state = other(global_pool_conditions=True)
    hint, x, t, context = (io[name] for name in ("cond_embedding", "x", "t", "ctx"))
    added = jax.jit(lambda s: nnx.merge(graph, s).act(hint, x, t, context))(state)
    for i, residual in enumerate(added.skip_residuals):
        expected = np.asarray(io[f"down_{i:02}"]).mean(axis=(1, 2), keepdims=True)
        np.testing.assert_allclose(residual, np.broadcast_to(expected, residual.shape), atol=PARITY)
    assert added.mid_residual is not None and added.mid_residual.shape == io["mid"].shape


def test_what_fits():
    tiny = abstract(lambda: ControlNet(TINY, rngs=nnx.Rngs(0)))
    tiny.check(SMALL, 4)
    tiny.check(dataclasses.replace(SMALL, sample_size=7, out_channels=3), 4)
    for base, unit, message in (
        (SMALL, 8, "the ControlNet has pixels per latent pixel 4, the base 8"),
        (UNetConfig.sd15(), 4, r"in_channels 3, the base 4; block_out_channels \(8, 12\), the base \(320, 640,"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            tiny.check(base, unit)
        one_line(error)


def test_configs():
    config = ControlNetConfig.from_json(
        {"_class_name": "ControlNetModel", "block_out_channels": [320, 640, 1280, 1280]}
    )
    assert config == ControlNetConfig.sd15() == ControlNetConfig.for_unet(UNetConfig.sd15())
    assert ControlNetConfig.for_unet(UNetConfig.sd21()).attention_head_dim == (5, 10, 20, 20)
    assert ControlNetConfig.from_json(TINY.to_json()) == TINY
    assert [ControlNetConfig.for_unet(SMALL, r).reduction for r in (1, 2, 4, 16)] == [1, 2, 4, 16]
    for make, message in (
        (lambda: ControlNetConfig.for_unet(SMALL, 6), "reduction=6: .* take 1, 2, 4, 8"),
        (lambda: ControlNetConfig(conditioning_embedding_out_channels=()), "embedding_out_channels are positive"),
        (lambda: ControlNetConfig(controlnet_conditioning_channel_order="gbr"), "is rgb or bgr"),
        (lambda: ControlNetConfig(down_block_types=("X",) * 4), "down_block_types are CrossAttnDownBlock2D or"),
        (lambda: ControlNetConfig.from_json({"_class_name": "UNet2DConditionModel"}), "only 'ControlNetModel' is read"),
        (lambda: ControlNetConfig.from_json({"conditioning_channels": 1}), "conditioning_channels is 1: there is no"),
        (
            lambda: ControlNetConfig.from_json({"addition_embed_type": "text_time"}),
            "addition_embed_type is 'text_time'",
        ),
    ):
        with pytest.raises(ValueError, match=message) as error:
            make()
        one_line(error)
