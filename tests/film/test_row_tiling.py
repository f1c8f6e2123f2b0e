"""A level tile by tile equals the whole level: the same frame, the same gradients, for any number of rows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy import toy

import film.ops.row_tiling
from common.nn.remat import remat
from film.model import Film, FilmConfig
from film.ops.convolution import Conv, conv2d, leaky_relu
from film.ops.row_tiling import EVEN, FEWEST, by_rows
from film.warp import backward_warp

KINDS = {"bilateral": {}, "paper": dict(bilateral=False, blend=False, correlation_radius=())}


@pytest.fixture
def small_tiles(monkeypatch):
    """Call it to make tiles of EVEN rows: then images of 64 rows are large."""

    def apply() -> None:
        monkeypatch.setattr(film.ops.row_tiling, "VALUES", EVEN * 40)
        monkeypatch.setattr(film.ops.row_tiling, "ROWS", EVEN)
        jax.clear_caches()

    return apply


def tiny(kind: str, **changes) -> Film:
    """Of images of 64 rows only the finest level is tiled."""
    fields = dict(pyramid_levels=3, fusion_pyramid_levels=2, specialized_levels=1, sub_levels=2, filters=4)
    fields |= dict(flow_convs=(2, 1), flow_filters=(4, 4), correlation_radius=(1, 0), matching=False)
    return toy(FilmConfig.small(**fields | KINDS[kind] | changes), seed=1)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "size"), [("bilateral", (66, 33)), ("paper", (66, 40))], ids=str)
def test_tiles_give_the_same_frame_and_flow(kind, size, small_tiles):
    """The last tile overlaps, also with odd columns."""
    graphdef, state = nnx.split(tiny(kind))
    params, (x0, x1) = nnx.to_pure_dict(state), jax.random.uniform(jax.random.key(size[0]), (2, 1, *size, 3))
    run = jax.jit(lambda params: nnx.merge(graphdef, params).forward(x0, x1, jnp.full((1, 1), 0.3)))
    whole = run(params)
    small_tiles()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), run(params), whole)
    assert float(jnp.abs(whole.forward_flow[0]).max()) > 0.1  # things move, across the tiles' edges


@pytest.mark.parametrize("wrap", [lambda run: run, remat])
def test_gradients_of_tiles(wrap, small_tiles):
    """Of a warp, which looks up the whole image, and a convolution."""
    image, flow = jax.random.normal(jax.random.key(0), (2, 1, 66, 40, 2))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 2, 2))

    def value(tiles, image, flow, kernel):
        @wrap
        def run(top, flow):
            return conv2d(backward_warp(image, flow, top), kernel)

        return jnp.sum(jnp.sin(by_rows(run, [flow], 1, 2) if tiles else run(0, flow)))

    small_tiles()
    gradients = [jax.jit(jax.grad(partial(value, tiles), (0, 1, 2)))(image, flow, kernel) for tiles in (True, False)]
    for tiled, whole in zip(*gradients, strict=True):
        np.testing.assert_allclose(tiled, whole, atol=1e-4 * float(jnp.abs(whole).max()))


def stack(reach: int):
    """`reach` convolutions, and the heights of the windows that they were given."""
    convs, heights = [Conv(3, 2, 2, rngs=nnx.Rngs(i)) for i in range(reach)], []

    def run(top, x, *more):
        heights.append([x.shape[1], *(other.shape[1] for other in more)])
        for conv in convs:
            x = leaky_relu(conv(x))
        return x + sum((jnp.repeat(other, 2, axis=1) for other in more), jnp.zeros_like(x))

    return run, heights


@pytest.mark.parametrize("reach", [1, 5])
def test_a_row_sees_all_rows_in_its_reach(reach, small_tiles):
    small_tiles()
    run, heights = stack(reach)
    x, half = jax.random.normal(jax.random.key(0), (2, 90, 40, 2)), jax.random.normal(jax.random.key(1), (2, 45, 40, 2))
    tiled = by_rows(run, [x, half], reach, 2)
    assert all(rows < 90 and rows == 2 * halves for rows, halves in heights)
    np.testing.assert_allclose(tiled, run(0, x, half), atol=1e-5)
    if reach > 4:  # the comparison can fail: with too short a reach it does
        assert float(jnp.abs(by_rows(run, [x, half], 1, 2) - run(0, x, half)).max()) > 1e-3


def test_small_odd_and_low_images_stay_whole(small_tiles):
    small_tiles()
    run, _ = stack(1)
    few, more = (FEWEST - 1) * EVEN, 4 * FEWEST * EVEN
    for rows, reach, tiled in ((more, 1, True), (few, 1, False), (more, 2 * more, False)):
        jaxpr = jax.make_jaxpr(lambda x, reach=reach: by_rows(run, [x], reach, 2))(jnp.zeros((1, rows, 40, 2)))
        assert tiled == any(equation.primitive.name in ("while", "scan") for equation in jaxpr.eqns)
    x, half = jnp.zeros((1, 91, 40, 2)), jnp.zeros((1, 45, 40, 2))
    assert by_rows(lambda top, x, half: x, [x, half], 1, 2) is x


def test_a_large_image_needs_less_memory(monkeypatch):
    """The finest level's activations are no longer there all at once."""
    net, time = tiny("bilateral", filters=16, flow_filters=(16, 16), correlation_radius=()), jnp.full((1, 1), 0.5)
    pack, encoded = jax.eval_shape(net.encode, jax.ShapeDtypeStruct((1, 512, 512, 3), jnp.float32))
    coarse = jax.eval_shape(net.coarse, encoded, encoded, time)

    def needed(rows: int) -> int:
        monkeypatch.setattr(film.ops.row_tiling, "VALUES", rows * 512 * pack.shape[-1])
        program = jax.jit(lambda *inputs: net.finish(*inputs, time).image)
        return program.lower(pack, pack, coarse).compile().memory_analysis().temp_size_in_bytes

    assert needed(32) < 0.6 * needed(512)
