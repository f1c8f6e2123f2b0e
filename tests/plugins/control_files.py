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
    yield from (row for row in ldm.unet(widths, context) if not row[0].startswith(("output_blocks.", "out.")))
    skips = [widths[0], *(width for width in widths for _ in range(3))][:-1]  # the last level has no downsampler
    for row, skip in enumerate(skips):
        yield from with_bias((f"zero_convs.{row}.0", f"controlnet_down_blocks.{row}"), skip, skip, 1, 1)
    yield from with_bias(("middle_block_out.0", "controlnet_mid_block"), widths[-1], widths[-1], 1, 1)
    own = "controlnet_cond_embedding"
    yield from conv(("input_hint_block.0", f"{own}.conv_in"), hints[0], 3)
    inner = [(outputs, before) for before, width in itertools.pairwise(hints) for outputs in (before, width)]
    for i, (outputs, inputs) in enumerate(inner):
        yield from conv((f"input_hint_block.{2 * i + 2}", f"{own}.blocks.{i}"), outputs, inputs)
    yield from conv((f"input_hint_block.{2 * len(inner) + 2}", f"{own}.conv_out"), widths[0], hints[-1])


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
