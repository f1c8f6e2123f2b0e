"""Taps: look at what is inside a network while it runs, or put something else there.

A tap is a function of a name and an array that returns an array: the same to look, another one of that shape and type
to replace it. The network calls it on the output of its modules, by the modules' names in a weights file:

    seen = {}
    unet(x, t, context, tap=lambda name, value: seen.setdefault(name, value))
    seen["up_blocks.1.resnets.1"], seen["up_blocks.1.attentions.1.transformer_blocks.0.attn1.to_q"]

Those two are what Plug-and-Play (Tumanyan et al., 2023) takes from one picture's run and puts into another's. Inside
`jax.jit` a tap is called once, while tracing; what it has seen must be returned from the same traced function.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Array

Tap = Callable[[str, Array], Array]


def untouched(name: str, value: Array) -> Array:
    """The tap of a network that nobody looks into."""
    return value


def within(tap: Tap, module: str) -> Tap:
    """A tap for the inside of `module`: it puts "module." before every name."""
    return tap if tap is untouched else lambda name, value: tap(f"{module}.{name}", value)
