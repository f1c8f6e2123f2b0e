"""Control networks as their first releases name tensors, written down a second time: made by counting, as their
constructors do, where `plugins/control/single_file.py` decodes. (name in the release, name in diffusers, shape)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import ldm
from ldm import Tensor, conv, with_bias


def controlnet(
    widths: Sequence[int] = (320, 640, 1280, 1280), context: int = 768, hints: Sequence[int] = (16, 32, 96, 256)
) -> Iterator[Tensor]:
    """The UNet's walk without its way up; a zero convolution for each block of the way down; the hint encoder, whose
    every second layer is an activation."""
    rows = set()
    for theirs, ours, shape in ldm.unet(widths, context):
        if not theirs.startswith(("output_blocks.", "out.")):
            rows |= {theirs.split(".")[1]} if theirs.startswith("input_blocks.") else set()
            yield theirs, ours, shape
    row, place = 0, 0
    for level, width in enumerate(widths):
        count = 3 if level < len(widths) - 1 else 2
        for skip in [widths[0]] * (level == 0) + [width] * count:
            yield from with_bias((f"zero_convs.{row}.0", f"controlnet_down_blocks.{row}"), skip, skip, 1, 1)
            row += 1
    assert len(rows) == row
    yield from with_bias(("middle_block_out.0", "controlnet_mid_block"), widths[-1], widths[-1], 1, 1)
    own = "controlnet_cond_embedding"
    yield from conv(("input_hint_block.0", f"{own}.conv_in"), hints[0], 3)
    for before, width in itertools.pairwise(hints):
        for outputs in (before, width):
            place += 1
            yield from conv((f"input_hint_block.{2 * place}", f"{own}.blocks.{place - 1}"), outputs, before)
    yield from conv((f"input_hint_block.{2 * place + 2}", f"{own}.conv_out"), widths[0], hints[-1])


def full_adapter(widths: Sequence[int] = (320, 640, 1280, 1280), unshuffled: int = 192) -> Iterator[Tensor]:
    """Two residual blocks a level, all in one row."""
    yield from conv(("conv_in", "adapter.conv_in"), widths[0], unshuffled)
    row, before = 0, widths[0]
    for level, width in enumerate(widths):
        if width != before:
            yield from conv((f"body.{row}.in_conv", f"adapter.body.{level}.in_conv"), width, before, 1)
        for i in range(2):
            ours = f"adapter.body.{level}.resnets.{i}"
            yield from conv((f"body.{row}.block1", f"{ours}.block1"), width, width)
            yield from conv((f"body.{row}.block2", f"{ours}.block2"), width, width, 1)
            row += 1
        before = width


def light_adapter(widths: Sequence[int] = (320, 640, 1280, 1280), unshuffled: int = 192) -> Iterator[Tensor]:
    """Four residual blocks a level, each level by itself."""
    before = unshuffled
    for level, width in enumerate(widths):
        inner, theirs, ours = width // 4, f"body.{level}", f"adapter.body.{level}"
        yield from conv((f"{theirs}.in_conv", f"{ours}.in_conv"), inner, before, 1)
        for i in range(4):
            for block in ("block1", "block2"):
                yield from conv((f"{theirs}.body.{i}.{block}", f"{ours}.resnets.{i}.{block}"), inner, inner)
        yield from conv((f"{theirs}.out_conv", f"{ours}.out_conv"), width, inner, 1)
        before = width
