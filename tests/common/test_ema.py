"""The averaged parameters' warm-up."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from common.training.state import ema_decay

FIXTURE = Path(__file__).parents[1] / "data/plugins/schedulers.npz"


def test_the_warm_up_is_the_reference_programs():
    """20 steps of (decay, average) of the parameter 1 + step, from the PyTorch library."""
    average = 0.0
    with np.load(FIXTURE, allow_pickle=False) as file:
        expected = file["train/ema_warmup_decay_shadow"]
    for step, (decay, shadow) in enumerate(expected):
        found = float(ema_decay(jnp.int32(step), 0.9999, 2 / 3))
        average = found * average + (1 - found) * (1 + step)
        assert (found, average) == pytest.approx((decay, shadow), abs=1e-5)


def test_without_a_power_it_is_tensorflows():
    decays = [float(ema_decay(jnp.int32(step), 0.9, 0.0)) for step in (0, 8, 1000)]
    assert decays == pytest.approx([0.1, 0.5, 0.9])
