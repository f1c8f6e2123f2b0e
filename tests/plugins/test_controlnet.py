"""ControlNet against the PyTorch library's outputs; a new one that changes nothing; which bases it fits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import SMALL, assert_near, fixture, folder, network, parameters, small_unet, stored_json
from refusal import refused

from plugins.control import ControlNet, ControlNetConfig, contract, guess_levels, load
from plugins.control.contract import ControlOutput
from plugins.diffusion.networks.unet_config import UNetConfig

PARITY = 1e-4
TINY = ControlNetConfig.for_unet(SMALL, 4)  # 4 pixels per latent pixel


@pytest.fixture(scope="module")
def io():
    return fixture("controlnet_io")


@pytest.fixture(scope="module")
def added(io):
    """What it adds for each of the two conditions; one compilation."""
    graph, state = nnx.split(load(folder("controlnet")))

    @jax.jit
    def call(state, image):
        network = nnx.merge(graph, state)
        hint = network.encode(image)
        return hint, network(hint, io["x"], io["t"], io["ctx"])

    return {name: call(state, io[name]) for name in ("cond", "cond2")}


@pytest.fixture(scope="module")
def unet(io):
    """Control output -> the UNet's output."""
    graph, state = nnx.split(network("unet"))
    call = jax.jit(
        lambda state, added: nnx.merge(graph, state)(io["x"], io["t"], io["ctx"], None, added.skip_residuals, added[2])
    )
    return lambda added: call(state, added)


def assert_residuals(added: ControlOutput, io, skips: str, middle: str) -> None:
    assert len(added.skip_residuals) == 12 and added.level_features == ()
    for i, residual in enumerate(added.skip_residuals):
        assert_near(residual, io[f"{skips}_{i:02}"], atol=PARITY, err_msg=str(i))
    assert_near(added.mid_residual, io[middle], atol=PARITY)


@pytest.mark.long
def test_hint_residuals_and_the_unets_output(io, added, unet):
    hint, output = added["cond"]
    assert_near(hint, io["cond_embedding"], atol=PARITY)
    assert_residuals(output, io, "down", "mid")
    assert_near(unet(output), io["unet_out"], atol=PARITY)


@pytest.mark.long
def test_guess_mode(io, added, unet):
    """A factor for each tensor, from 0.1 to 1; the tensors finest first, the middle last."""
    guessed = added["cond"][1].scaled(jnp.asarray([0.8 * level for level in guess_levels(13)]))
    assert_residuals(guessed, io, "down_guess08", "mid_guess08")
    assert_near(unet(guessed), io["unet_out_guess08"], atol=PARITY)
    original = guess_levels(13, "original")
    assert original[-1] == 1 and original[0] == pytest.approx(0.825**12)
    refused(ValueError, guess_levels, 13, "x", match="'x'")


def test_two_of_them_are_added(io, added, unet):
    both: ControlOutput = jax.tree.map(lambda a, b: 0.6 * a + 0.3 * b, added["cond"][1], added["cond2"][1])
    assert_near(unet(both), io["unet_out_multi_06_03"], atol=PARITY)


@pytest.fixture(scope="module")
def small():
    """A UNet of two levels, and a new ControlNet for it."""
    unet = small_unet()
    return unet, ControlNet.from_unet(unet, 4, rngs=nnx.Rngs(0))


@pytest.mark.long
def test_a_new_one_changes_nothing_and_can_learn(small):
    """Residuals are exactly 0, and the first gradient moves the zero convolutions, and these alone."""
    _, new = small
    assert new.config == TINY and TINY.conditioning_embedding_out_channels == (16, 32, 96) and new.reduction == 4
    rng = np.random.default_rng(0)
    image, x = (jnp.asarray(rng.random(shape, np.float32)) for shape in ((1, 20, 28, 3), (2, 5, 7, 3)))
    context = jnp.asarray(rng.random((2, 4, 6), np.float32))
    graph, state = nnx.split(new)

    def total(state):
        network = nnx.merge(graph, state)
        tensors = jax.tree.leaves(network(network.encode(image), x, jnp.float32(500), context))
        return sum(tensor.sum() for tensor in tensors), tensors

    gradients, tensors = jax.jit(jax.grad(total, has_aux=True))(state)
    assert [t.shape for t in tensors] == [(2, *s) for s in (*SMALL.skip_shapes(5, 7), SMALL.level_shapes(5, 7)[-1])]
    assert len(tensors) == new.num_outputs and not any(np.asarray(tensor).any() for tensor in tensors)
    for name, part in nnx.to_pure_dict(gradients).items():
        largest = [float(np.abs(leaf).max()) for leaf in jax.tree.leaves(part)]
        zero_conv = name in ("controlnet_down_blocks", "controlnet_mid_block")
        assert min(largest) > 1e-3 if zero_conv else max(largest) == 0, name


def test_the_copy_shares_nothing_with_the_unet(small):
    """So a training that donates its buffers leaves the UNet as it was."""
    theirs, ours = map(parameters, small)
    copied = ("conv_in.", "time_embedding.", "down_blocks.", "mid_block.")
    assert {path for path in theirs if path.startswith(copied)} == {path for path in ours if path.startswith(copied)}
    for path, value in ours.items():
        if path.startswith(copied):
            np.testing.assert_array_equal(value, theirs[path])
        else:
            random = path.startswith("controlnet_cond_embedding.") and path.endswith("kernel")
            assert value.any() == (random and "conv_out" not in path)
    buffers = [{leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(nnx.state(module))} for module in small]
    assert not buffers[0] & buffers[1]


def test_another_hint_encoder_and_the_unets_dtype(small):
    config = dataclasses.replace(TINY, conditioning_embedding_out_channels=(4, 6))
    graph, state = nnx.split(small[0])
    unet = nnx.merge(graph, jax.tree.map(lambda leaf: np.asarray(leaf).astype(jnp.bfloat16), nnx.to_pure_dict(state)))
    new = ControlNet.from_unet(unet, config=config, rngs=nnx.Rngs(0))
    assert {leaf.dtype for leaf in parameters(new).values()} == {jnp.dtype("bfloat16")}
    new.check(dataclasses.replace(SMALL, sample_size=7, out_channels=3), 2)  # neither changes what it adds
    image = jax.ShapeDtypeStruct((1, 10, 14, 3), jnp.bfloat16)
    assert nnx.eval_shape(lambda new, image: new.encode(image), new, image).shape == (1, 5, 7, 8)
    with pytest.raises(ValueError, match="cross_attention_dim 9"):
        ControlNet.from_unet(unet, config=dataclasses.replace(config, cross_attention_dim=9), rngs=nnx.Rngs(0))


def with_config(**changes):
    """The fixtures' network with another config, as its graph and parameters."""
    config = ControlNetConfig.from_json(stored_json("controlnet") | changes)
    graph, state = nnx.split(load(folder("controlnet"), config=config))
    return graph, nnx.to_pure_dict(state)


def test_channel_order(io):
    hint = contract.encode(*with_config(controlnet_conditioning_channel_order="bgr"), io["cond"][..., ::-1])
    assert_near(hint, io["cond_embedding"], atol=PARITY)


def test_pooled_conditions_are_averages_for_the_conditional_half(io, added):
    graph, state = with_config(global_pool_conditions=True)
    inputs = [added["cond"][0], *(io[name] for name in ("x", "t", "ctx"))]
    output = jax.jit(lambda state: nnx.merge(graph, state)(*inputs))(state)
    for i, residual in enumerate(output.skip_residuals):
        expected = np.asarray(io[f"down_{i:02}"]).mean(axis=(1, 2), keepdims=True)
        np.testing.assert_allclose(residual, np.broadcast_to(expected, residual.shape), atol=PARITY)
    assert output.mid_residual.shape == io["mid"].shape and nnx.merge(graph, state).prompt_only


def test_configs():
    assert ControlNetConfig.from_json({"block_out_channels": [320, 640, 1280, 1280]}) == ControlNetConfig.sd15()
    assert ControlNetConfig.for_unet(UNetConfig.sd15()) == ControlNetConfig.sd15()
    assert ControlNetConfig.for_unet(UNetConfig.sd21()).attention_head_dim == (5, 10, 20, 20)
    assert ControlNetConfig.from_json(TINY.to_json()) == TINY
    for reduction, widths in ((1, 1), (2, 2), (16, 5)):
        assert len(ControlNetConfig.for_unet(SMALL, reduction).conditioning_embedding_out_channels) == widths
    refused(ValueError, ControlNetConfig.for_unet, SMALL, 6, match="reduction=6")
