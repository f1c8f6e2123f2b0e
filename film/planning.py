"""How an image is computed within a budget of memory: whole, or in windows. Needs no JAX.

The peak of a run of the network grows with the pixels that it sees at once:

    bytes = BASE + parameters + pixels * (PER_PIXEL + SHARE * bytes of an encoded pixel)

`python -m benchmarks.film_memory` measures the peaks of both presets at several sizes beside this model. An encoded
frame is kept beyond the two of a pair only where there is memory for it.

An image too large for the budget is computed in the largest windows that fit (`film.tiling`), with flow found at a
scale at which the whole image fits.
"""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path

from film.config import FilmConfig
from film.tiling import GRID, OVERLAP

BASE = 0.45e9  # the process with JAX and compiled functions
PER_PIXEL, SHARE = 300, 3.1
USABLE = 0.8  # of free memory
FRAME = 12  # bytes of a pixel of a frame, float32
SMALLEST_WINDOW = 2 * OVERLAP + GRID
LARGEST_SCALE = 16


@dataclasses.dataclass(frozen=True)
class ComputePlan:
    """Sizes are (height, width)."""

    padded: tuple[int, int]  # of the image
    window: tuple[int, int]  # of what the network sees; as `padded`: the image is computed whole
    flow_scale: int  # flow begins in the image at 1 / flow_scale of its size, a power of two; 1: in the window itself
    kept: int  # encoded frames, at least two
    together: int  # frames of a gap that are computed window by window together
    memory: float  # bytes at the peak, by the model

    @property
    def tiled(self) -> bool:
        return self.window != self.padded


def make_compute_plan(
    config: FilmConfig,
    size: tuple[int, int],
    *,
    memory: float | None = None,
    flow_scale: int | None = None,
    align: int = 0,
    kept: int = 2,
    together: int = 1,
) -> ComputePlan:
    """The plan for frames of `size`.

    Args:
      memory: bytes for the whole process; None: `USABLE` of what is free.
      flow_scale: None: 1 where the image is computed whole, else as small as fits.
      align: 0: sides are padded to `bucket`; else to multiples of it.
      kept, together: the most that can be of use.

    Raises MemoryError for a budget too small for the smallest window, ValueError for another scale.
    """
    if flow_scale is not None and flow_scale not in (1, 2, 4, 8, LARGEST_SCALE):
        raise ValueError(f"--flow-scale 1/{flow_scale}: give 1, 1/2, 1/4, 1/8 or 1/16")
    budget = USABLE * free_memory() if memory is None else memory
    step = max(1, align)
    height, width = padded = tuple(
        max(config.smallest_side, -(-side // step) * step) if align else max(config.smallest_side, bucket(side))
        for side in size
    )
    encoded = encoded_bytes(config)
    whole = network_bytes(config, height * width) + 3 * FRAME * height * width
    if whole <= budget:
        more = int((budget - whole) // (encoded * height * width))
        return ComputePlan(padded, padded, flow_scale or 1, 2 + max(0, min(more, kept - 2)), together, whole)

    padded = height, width = (height + -height % GRID, width + -width % GRID)
    fixed = 4 * FRAME * height * width  # both frames, a frame being blended, the result
    left = budget - fixed
    window = largest_window(config, padded, left)
    if window is None:
        least = fixed + network_bytes(config, SMALLEST_WINDOW**2)
        raise MemoryError(
            f"images of {size[1]}x{size[0]} need {least / 1e9:.1f} GB or more, {budget / 1e9:.1f} GB are free: give"
            " smaller images (--size) or more memory (--memory)"
        )
    scales = [scale for scale in (2, 4, 8, LARGEST_SCALE) if network_bytes(config, height * width // scale**2) <= left]
    if flow_scale is None or flow_scale not in scales:
        flow_scale = scales[0] if scales else LARGEST_SCALE
    spare = int((left - network_bytes(config, math.prod(window))) // (FRAME * height * width))
    peak = fixed + max(network_bytes(config, n) for n in (math.prod(window), height * width // flow_scale**2))
    return ComputePlan(padded, window, flow_scale, 2, max(1, min(together, 1 + spare)), peak)


def largest_window(config: FilmConfig, padded: tuple[int, int], budget: float) -> tuple[int, int] | None:
    """Of the windows that fit, the one with the least overlap; None: none fits."""
    best = None
    for rows in range(1, 65):
        for columns in range(1, 65):
            window = [_window(side, count) for side, count in zip(padded, (rows, columns), strict=True)]
            if min(window) < min(SMALLEST_WINDOW, *padded) or network_bytes(config, math.prod(window)) > budget:
                continue
            computed = rows * columns * math.prod(window)
            if best is None or computed < best[0]:
                best = computed, (window[0], window[1])
    return best and best[1]


def _window(side: int, count: int) -> int:
    """The side of `count` windows that cover `side`."""
    if count == 1:
        return side
    length = math.ceil((side + (count - 1) * OVERLAP) / count)
    return min(side, length + -length % GRID)


def bucket(side: int) -> int:
    """The side padded to one of sixteen lengths for each power of two: at most a sixteenth more."""
    step = max(1, 1 << max(0, side.bit_length() - 5))
    return -(-side // step) * step


def network_bytes(config: FilmConfig, pixels: int) -> float:
    """The peak of a process that runs the network on a pair of so many pixels."""
    return BASE + 4 * parameters(config) + pixels * (PER_PIXEL + SHARE * encoded_bytes(config))


def encoded_bytes(config: FilmConfig) -> float:
    """Bytes of an encoded frame for each pixel (`film.model.Encoded`)."""
    channels = [
        sum(config.filters << stage for stage in range(min(level + 1, config.sub_levels)))
        for level in range(config.pyramid_levels)
    ]
    return 4 * sum(count / 4**level for level, count in enumerate(channels) if level > 0)


def parameters(config: FilmConfig) -> float:
    """Roughly: the wide convolutions of the decoder's coarsest level and of the flow predictors."""
    widest = config.filters << config.specialized_levels
    return 26.0 * widest**2 * 5


def free_memory() -> float:
    """Bytes that this process may still take: the machine's free memory, or less by a cgroup or `ulimit -v`."""
    limits = [float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))]
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        limits = [float(fields["MemAvailable"].split()[0]) * 1024]
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        folder = Path("/sys/fs/cgroup")
        if (folder / limit).is_file() and (text := (folder / limit).read_text().strip()).isdigit():
            limits.append(float(text) - float((folder / used).read_text()))
    if os.name == "posix":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            limits.append(float(soft))
    return max(0.0, min(limits))


def multiply_adds(config: FilmConfig) -> float:
    """Of the convolutions, for each pixel of a new frame between two others, both encoded for it."""
    filters, levels = config.filters, config.pyramid_levels
    features = [sum(filters << j for j in range(min(i + 1, config.sub_levels))) for i in range(levels)]
    total = 0.0
    for image in range(levels):
        for stage in range(min(levels - image, config.sub_levels)):
            width = filters << stage
            total += 2 * 9 * ((width // 2 if stage else 3) + width) * width / 4 ** (image + stage)
    for level in range(levels):
        number = min(level, config.specialized_levels)
        width, convs = config.flow_filters[number], config.flow_convs[number]
        passes = 1 if config.bilateral else 2
        total += passes * 9 * (2 * features[level] + (convs - 1) * width) * width / 4**level
    widths = [filters << min(level, config.specialized_levels) for level in range(config.fusion_pyramid_levels - 1)]
    for level, width in enumerate(widths):
        total += 9 * (2 * (3 + features[level]) + 4 + 2 * width) * width / 4**level
    return total
