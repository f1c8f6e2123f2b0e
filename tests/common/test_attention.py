"""All paths of attention agree with the formula, and the blocked one never stores the matrix of all scores."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import avals

from common.nn import attention
from common.nn.attention import attend, fastest

MASKS = {"none": None, "full": (2, 3, 50, 37), "keys": (2, 1, 1, 37), "rows": (1, 3, 50, 1)}


def inputs(seed: int, *shapes: tuple[int, ...]) -> list[jax.Array]:
    return [jax.random.normal(jax.random.key(seed + i), shape) for i, shape in enumerate(shapes)]


def by_hand(q, k, v, mask, causal):
    """Float64 NumPy, written from the formula."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scores = np.einsum("bnhd,bmhd->bhnm", q, k) / np.sqrt(q.shape[-1])
    allowed = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    if causal:
        allowed = allowed & np.tri(*scores.shape[-2:], dtype=bool)
    weights = np.exp(scores - scores.max(-1, keepdims=True)) * allowed
    return np.einsum("bhnm,bmhd->bnhd", weights / weights.sum(-1, keepdims=True), v)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of seven queries: 50 of them do not divide."""
    monkeypatch.setattr(attention, "CPU_SIZES", (100, 7 * 2 * 37))


@pytest.mark.parametrize("mask, causal", [(mask, causal) for mask in MASKS for causal in (False, True)])
def test_paths_equal_the_formula(small_blocks, mask, causal):
    q, k, v = inputs(0, (2, 50, 3, 16), (2, 37, 3, 16), (2, 37, 3, 16))
    allowed = None if MASKS[mask] is None else jax.random.bernoulli(jax.random.key(9), 0.6, MASKS[mask])
    if allowed is not None:  # every query attends to the first key
        allowed = allowed.at[..., 0].set(True)
    expected = by_hand(q, k, v, allowed, causal)
    for path in ("xla", "blocked"):
        out = jax.jit(lambda q, k, v, path=path: attend(q, k, v, mask=allowed, causal=causal, path=path))(q, k, v)
        np.testing.assert_allclose(out, expected, atol=3e-6, err_msg=path)


def test_gradients_are_the_same(small_blocks):
    q, k, v = inputs(3, (2, 50, 3, 16), (2, 37, 3, 16), (2, 37, 3, 16))

    def gradient(path):
        return jax.jit(jax.grad(lambda *x: jnp.sum(jnp.sin(attend(*x, causal=True, path=path))), argnums=(0, 1, 2)))

    for one, other in zip(gradient("xla")(q, k, v), gradient("blocked")(q, k, v), strict=True):
        assert float(jnp.abs(one).max()) > 0.1
        np.testing.assert_allclose(one, other, atol=5e-6)


@pytest.mark.parametrize(("heads", "size"), [(8, 40), (1, 512)])  # the UNet's finest level, the autoencoder's middle
def test_a_64x64_latent_never_has_all_its_scores(heads, size):
    """4,096 tokens, forward and gradient: no value, in no loop, is as large as one head's matrix."""
    q = jax.ShapeDtypeStruct((1, 4096, heads, size), jnp.float32)
    largest = {}
    for path in ("xla", None):
        loss = jax.grad(lambda q, k, v, path=path: jnp.sum(attend(q, k, v, path=path)), argnums=(0, 1, 2))
        largest[path] = max(np.prod(shape) for shape in avals(jax.make_jaxpr(loss)(q, q, q).jaxpr))
    assert largest["xla"] == heads * 4096 * 4096  # the measure sees what it should
    assert largest[None] == max(4096 * heads * size, attention.CPU_SIZES[1])


def test_bfloat16_keeps_a_float32_softmax():
    """300 equal keys: a sum in bfloat16 stops growing at 256 and would be 15 % off."""
    q = jnp.zeros((1, 4, 1, 8), jnp.bfloat16)
    k, v = jnp.zeros((1, 300, 1, 8), jnp.bfloat16), jnp.ones((1, 300, 1, 8), jnp.bfloat16)
    for path in ("xla", "blocked"):
        out = attend(q, k, v, path=path)
        assert out.dtype == jnp.bfloat16
        np.testing.assert_allclose(out.astype(jnp.float32), 1, atol=0.01)


@pytest.mark.parametrize("capability, dtype, head, masked, expected", [
    ("8.0", jnp.bfloat16, 40, False, "cudnn"),
    ("8.0", jnp.float16, 80, False, "cudnn"),
    ("8.0", jnp.bfloat16, 160, False, "xla"),  # too wide for an A100, not for an H100
    ("9.0", jnp.bfloat16, 160, False, "cudnn"),
    ("9.0", jnp.bfloat16, 20, False, "xla"),  # not a multiple of 8
    ("9.0", jnp.bfloat16, 40, True, "xla"),
    ("9.0", jnp.float32, 40, False, "xla"),
    ("7.0", jnp.float16, 40, False, "xla"),
    ("gfx90a", jnp.bfloat16, 40, False, "xla"),
])  # fmt: skip
def test_cudnn_where_it_can(monkeypatch, capability, dtype, head, masked, expected):
    q, k = (jnp.asarray(np.zeros((2, n, 8, head), dtype)) for n in (64, 77))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability=capability)])
    assert fastest(q, k, masked=masked) == expected
