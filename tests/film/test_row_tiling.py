"""A level in strips is the level: the same picture, the same gradients, whatever the rows come to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import film.ops.row_tiling
from film.convolution import Conv, leaky_relu
from film.model import Film, FilmConfig
from film.ops.row_tiling import EVEN, FEWEST, by_rows, even_share

KINDS = {"between": {}, "paper": dict(bilateral=False, blend=False, correlation_radius=())}
SIZES = [(64, 40), (66, 40), (72, 33), (67, 40)]  # whole strips; a last one that overlaps; odd columns; an odd row


def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips of EVEN rows: pictures of 64 rows are large."""
    monkeypatch.setattr(film.ops.row_tiling, "PIXELS", EVEN * 40)
    monkeypatch.setattr(film.ops.row_tiling, "ROWS", EVEN)


def tiny(kind: str) -> Film:
    fields = dict(pyramid_levels=4, fusion_pyramid_levels=3, specialized_levels=2, sub_levels=3, filters=4)
    fields |= dict(flow_convs=(2, 1, 1), flow_filters=(4, 6, 8), correlation_radius=(1, 1, 1))
    return Film(FilmConfig.small(**fields | KINDS[kind]), rngs=nnx.Rngs(1))


def pictures(height: int, width: int, batch: int = 2) -> jax.Array:
    return jax.random.uniform(jax.random.key(height), (2, batch, height, width, 3))


def made(net: Film, x0: jax.Array, x1: jax.Array, time: float = 0.3):
    moments = jnp.full((len(x0), 1), time)
    return jax.jit(lambda x0, x1: net.forward(x0, x1, moments))(x0, x1)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_strips_make_the_same_frame_and_flow(kind, size, monkeypatch):
    net, frames = tiny(kind), pictures(*size)
    whole = made(net, *frames)
    narrow(monkeypatch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), made(net, *frames), whole)
    assert float(jnp.abs(whole.forward_flow[0]).max()) > 0.1  # things move, across the strips' edges


@pytest.mark.parametrize("remat", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_the_same(kind, remat, monkeypatch):
    graphdef, state = nnx.split(tiny(kind))
    params, (x0, x1) = nnx.to_pure_dict(state), pictures(64, 40, 1)

    def loss(params):
        return jnp.sum(jnp.sin(nnx.merge(graphdef, params).forward(x0, x1, jnp.full((1, 1), 0.5), remat=remat).image))

    whole = jax.jit(jax.grad(loss))(params)
    narrow(monkeypatch)
    jax.clear_caches()
    found = jax.jit(jax.grad(loss))(params)
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(whole))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4 * scale), found, whole)


def loops(function, *inputs) -> bool:
    return any(equation.primitive.name in ("while", "scan") for equation in jax.make_jaxpr(function)(*inputs).eqns)


def test_an_even_share_divides_and_fits():
    assert [even_share(12, 10, most) for most in (5, 10, 39, 50, 60, 1000)] == [1, 1, 3, 4, 6, 12]
    assert even_share(13, 10, 100) == 1


def stack(reach: int):
    """`reach` convolutions, and the inputs and windows that they were given."""
    convs, seen = [Conv(3, 2, 2, rngs=nnx.Rngs(i)) for i in range(reach)], []

    def run(top, x, *more):
        seen.append([x.shape[1], *(other.shape[1] for other in more)])
        for conv in convs:
            x = leaky_relu(conv(x))
        return x + sum((jnp.repeat(other, 2, axis=1) for other in more), jnp.zeros_like(x))

    return run, seen


@pytest.mark.parametrize("reach", [1, 3, 4, 5])
def test_a_row_sees_all_that_it_reaches(reach, monkeypatch):
    narrow(monkeypatch)
    run, seen = stack(reach)
    x, half = jax.random.normal(jax.random.key(0), (2, 90, 40, 2)), jax.random.normal(jax.random.key(1), (2, 45, 40, 2))
    found = by_rows(run, [x, half], reach)
    assert {rows < 90 for rows, _ in seen} == {True} and all(rows == 2 * few for rows, few in seen)
    np.testing.assert_allclose(found, run(0, x, half), atol=1e-5)


def test_a_reach_too_short_is_seen(monkeypatch):
    """The comparison above can fail: the same strips, told of fewer rows than the convolutions see."""
    narrow(monkeypatch)
    run, _ = stack(6)
    x = jax.random.normal(jax.random.key(0), (1, 96, 40, 2))
    assert float(jnp.abs(by_rows(run, [x], 1) - run(0, x)).max()) > 1e-3


def test_a_window_higher_than_the_picture_is_the_picture(monkeypatch):
    narrow(monkeypatch)
    x = jnp.ones((1, FEWEST * EVEN, 40, 2))
    assert by_rows(lambda top, x: x, [x], 32).shape == x.shape


def test_small_and_odd_pictures_stay_whole(monkeypatch):
    narrow(monkeypatch)
    run, _ = stack(1)
    large, small = jnp.zeros((1, FEWEST * EVEN, 40, 2)), jnp.zeros((1, FEWEST * EVEN - 1, 40, 2))
    assert loops(lambda x: by_rows(run, [x], 1), large) and not loops(lambda x: by_rows(run, [x], 1), small)
    odd, half = jnp.zeros((1, 91, 40, 2)), jnp.zeros((1, 45, 40, 2))
    assert not loops(lambda x, half: by_rows(lambda top, x, half: x, [x, half], 1), odd, half)


def test_a_large_picture_needs_less_memory(monkeypatch):
    """The finest level's activations are no longer there all at once."""
    net = Film(FilmConfig.small(pyramid_levels=4, fusion_pyramid_levels=2), rngs=nnx.Rngs(0))
    e0 = jax.eval_shape(net.encode, jax.ShapeDtypeStruct((1, 512, 512, 3), jnp.float32))

    def needed(pixels: int) -> int:
        monkeypatch.setattr(film.ops.row_tiling, "PIXELS", pixels)
        program = jax.jit(lambda e0, e1: net.interpolate_encoded(e0, e1, jnp.full((1, 1), 0.5)).image)
        return program.lower(e0, e0).compile().memory_analysis().temp_size_in_bytes

    assert needed(32 * 512) < 0.6 * needed(512 * 512)
