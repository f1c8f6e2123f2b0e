"""How an image is computed within a budget of memory: whole, or in windows. Needs no JAX.

The peak of a process that runs the network grows with the pixels that it sees at once:

    bytes = BASE + PER_PARAMETER * parameters + pixels * (SHARE * finest + held + MATCHING_BYTES)

A parameter is stored, and in wide convolutions of a CPU transformed (`common.nn.winograd`). `finest` are the bytes of a
pixel of an encoded frame's finest level, `held` those of the encoded frames in memory, which are known (`held_bytes`).
The last term is that of `film.matching`; windows (below) do without most of it. `python -m benchmarks.film_memory`
measures peaks of both presets at several sizes and fits the other constants: the smallest with which no measured peak
is above the model.

They are those of a CPU, whose finest level is computed some rows at a time (`film.ops.row_tiling`). An accelerator
computes it at once, and its library tries convolutions that need more: its peak is planned as `ACCELERATOR` times the
model's. Peaks on one H200, taken by hand without matching, trials included: small at 3840x2160 8.5 to 11.2 GB, the
model 5.0; small at 1920x1080 2.4 to 5.5, the model 1.8; paper at 1920x1080 7.4 to 10.4, the model 6.0. The factor
covers all but the highest of the second. Where it does not, `film.clip` plans again.

Encoded frames are kept for the next new frames as far as there is memory; by default not beyond `MODEST`, since they
save a few percent of the time.

An image too large for the budget is computed in the largest windows that fit (`common.nn.tiling`), with flow found at a
scale at which the whole image fits.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from common.nn.tiling import GRID, OVERLAP
from film.config import FilmConfig

BASE, PER_PARAMETER, SHARE = 0.72e9, 7.8, 1.39
ACCELERATOR = 2.3  # bytes of an accelerator for each byte of the model
USABLE = 0.8  # of free memory
MODEST = 2 << 30  # bytes up to which encoded frames are kept by default
MAPPED = 1.5  # bytes of address space, which `ulimit -v` limits, for each byte in use
FRAME, FLOWS = 12, 16  # bytes of a pixel of a frame, and of both flows, float32
MATCHING = 35_000  # multiply-adds of convolutions that take as long as `film.matching`, for each pixel of 1280x720
MATCHING_BYTES = 130.0  # for each pixel, at the peak
SMALLEST_WINDOW = 2 * OVERLAP + GRID
SCALES = (1, 2, 4, 8, 16)
CGROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclasses.dataclass(frozen=True)
class ComputePlan:
    """Sizes are (height, width)."""

    padded: tuple[int, int]  # of the image
    window: tuple[int, int]  # of what the network sees; as `padded`: the image is computed whole
    flow_scale: int  # flow begins in the image at 1 / flow_scale of its size, a power of two; 1: in the window itself
    kept: int  # encoded frames, from one new frame to the next; below two they lack their finest level
    together: int  # frames of a gap that are computed window by window together
    memory: float  # bytes at the peak, by the model
    batch: int = 1  # pairs of whole images that are computed at once

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
    ensemble: bool = False,
    accelerator: bool = False,
    batch: int = 1,
) -> ComputePlan:
    """The plan for frames of `size`.

    Args:
      memory: bytes for the whole process; None: `default_memory`.
      flow_scale: None: 1 where the image is computed whole, else as small as fits. A window needs at least 2.
      align: 0: sides are padded to `bucket`; else to multiples of it.
      kept, together, batch: the most that can be of use. A batch goes before encoded frames that are kept. `kept` is
        both ends of a gap and each midpoint on the way to a moment; in windows these are kept as frames.
      ensemble: a frame is kept twice, its mirror image as well.
      accelerator: `memory` is that of an accelerator.

    Raises MemoryError for a budget too small for the smallest window or for `flow_scale`, ValueError for another scale.
    """
    scales = [scale for scale in SCALES if scale < 2**config.pyramid_levels]
    if flow_scale is not None and flow_scale not in scales:
        raise ValueError(f"--flow-scale 1/{flow_scale}: give {', '.join(f'1/{scale}' for scale in scales)}")
    factor = ACCELERATOR if accelerator else 1.0
    budget = (default_memory() if memory is None else memory) / factor
    height, width = padded = (_padded(config, size[0], align, flow_scale), _padded(config, size[1], align, flow_scale))
    pixels = height * width
    # A network that is asked for the moment itself never needs more than a pair, and for each moment both of it.
    useful, modest = (2, budget) if config.bilateral else (max(2, kept), budget if memory else min(budget, MODEST))
    peaks = {
        count: network_bytes(config, pixels, ensemble, count) + 3 * FRAME * pixels for count in range(useful, -1, -1)
    }
    if peaks[0] <= budget:
        # Of each more pair: its activations and frames; both encoded frames in the batch, and a third on its own.
        pair = network_bytes(config, pixels, ensemble, 3) - network_bytes(config, 0) + 3 * FRAME * pixels
        batch = max(1, min(batch, 1 + int((budget - peaks[0]) // pair)))
        more = (batch - 1) * pair
        count = next((count for count, peak in peaks.items() if peak + more <= modest), 0)
        return ComputePlan(padded, padded, flow_scale or 1, count, together, factor * (peaks[count] + more), batch)

    height, width = padded = (height + -height % GRID, width + -width % GRID)
    pixels = height * width
    # Both frames, a frame being blended, the result; photos and encoder take as much again; midpoints but the last.
    fixed = (7 + (0 if config.bilateral else max(0, kept - 3))) * FRAME * pixels
    left = budget - fixed
    window = largest_window(config, padded, left, ensemble)
    fitting = [scale for scale in scales[1:] if network_bytes(config, pixels // scale**2) <= left]
    if window is None or not fitting or flow_scale not in (None, *fitting):
        smallest = network_bytes(config, min(pixels, SMALLEST_WINDOW**2), ensemble)
        small = network_bytes(config, pixels // (flow_scale or scales[-1]) ** 2)
        least = peaks[0] if flow_scale == 1 else fixed + max(smallest, small)
        asked = "" if flow_scale is None else f" with --flow-scale 1/{flow_scale}"
        raise MemoryError(
            f"images of {size[1]}x{size[0]}{asked} need {factor * least / 1e9:.1f} GB or more, there are"
            f" {factor * budget / 1e9:.1f} GB:"
            f" give smaller images (--size){', a smaller scale' * bool(asked)} or more memory (--memory)"
        )
    flow_scale = flow_scale or fitting[0]
    network = network_bytes(config, math.prod(window), ensemble)
    small, flows = network_bytes(config, pixels // flow_scale**2), FLOWS * pixels / flow_scale**2
    frame = FRAME * (pixels + math.prod(window)) + flows  # of each more, with one window of it
    room = min((left - network) / frame, (left - small) / flows)
    more = max(0, min(together - 1, int(room))) if config.bilateral else 0  # midpoints have pairs of their own
    peak = fixed + max(network + more * frame, small + more * flows)
    return ComputePlan(padded, window, flow_scale, 2, 1 + more, factor * peak)


def _padded(config: FilmConfig, side: int, align: int, flow_scale: int | None) -> int:
    """A multiple of `align`, or a bucket; and of the scale at which flow is found."""
    least = max(config.smallest_side, side + -side % align if align else bucket(side))
    return least + -least % (flow_scale or 1)


def largest_window(
    config: FilmConfig, padded: tuple[int, int], budget: float, ensemble: bool = False
) -> tuple[int, int] | None:
    """Of the windows that fit, the one with the least overlap; None: none fits."""
    empty = network_bytes(config, 0, ensemble)
    most = (budget - empty) / (network_bytes(config, 1, ensemble) - empty)  # pixels
    rows, columns = ([(count, _window(side, count)) for count in range(1, 65)] for side in padded)
    fitting = [
        (down * across * height * width, (height, width))
        for (down, height), (across, width) in itertools.product(rows, columns)
        if 0 < height * width <= most
    ]
    return min(fitting)[1] if fitting else None


def _window(side: int, count: int) -> int:
    """The side of `count` windows that cover `side`; 0 where they would be smaller than the smallest."""
    length = math.ceil((side + (count - 1) * OVERLAP) / count)
    length = min(side, length + -length % GRID)
    return length if length >= min(SMALLEST_WINDOW, side) else 0


def bucket(side: int) -> int:
    """The side padded to one of 32 lengths for each power of two: at most a 32nd more."""
    step = max(1, 1 << max(0, side.bit_length() - 6))
    return -(-side // step) * step


def network_bytes(config: FilmConfig, pixels: int, ensemble: bool = False, kept: int = 2) -> float:
    """The peak of a process that runs the network on a pair of so many pixels and keeps `kept` encoded frames; an
    ensemble encodes each frame twice."""
    held = held_bytes(config, kept) * (2 if ensemble else 1)
    each = SHARE * encoded_bytes(config)[0] + held + MATCHING_BYTES * config.matching
    return BASE + PER_PARAMETER * parameters(config) + pixels * each


def held_bytes(config: FilmConfig, kept: int) -> float:
    """Bytes of encoded frames for each pixel, at the peak."""
    finest, coarser = encoded_bytes(config)
    if kept >= 2:
        return kept * (finest + coarser)
    return max(2 * coarser, 2 * finest + kept * coarser)  # while the coarser levels are computed, and the finest one


def encoded_bytes(config: FilmConfig) -> tuple[float, float]:
    """Bytes of an encoded frame for each pixel (`film.model.Film.encode`): its finest level, and the others."""
    channels = [config.feature_channels(level) for level in range(config.pyramid_levels)]
    for level in range(config.fusion_pyramid_levels):
        channels[level] += 4  # the image, packed
    finest, *coarser = (4 * count / 4**level for level, count in enumerate(channels))
    return finest, sum(coarser)


def parameters(config: FilmConfig) -> float:
    """Roughly: the wide convolutions of the decoder's coarsest level and of the flow predictors."""
    widest = config.filters << config.specialized_levels
    return 26.0 * widest**2 * 5


def default_memory() -> float:
    """Bytes for the whole process: what it has already, and `USABLE` of what is free."""
    return psutil.Process().memory_info().rss + USABLE * free_memory()


def free_memory() -> float:
    """Bytes that this process may still take: what the machine, its cgroups and `ulimit -v` leave."""
    limits = [float(psutil.virtual_memory().available), *_left_in_cgroups()]
    if os.name == "posix":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            limits.append((soft - psutil.Process().memory_info().vms) / MAPPED)
    return max(0.0, min(limits))


def _left_in_cgroups() -> Iterator[float]:
    """What each limit of the process's cgroups (both versions) and of those around them leaves. The kernel drops
    cached files before it stops a process: they are free."""
    for line in MEMBERSHIP.read_text().splitlines() if MEMBERSHIP.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, limit, usage, cached = CGROUPS, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top, limit, usage = CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cached = "total_inactive_file"
        else:
            continue
        folder = top / path.strip("/")
        for group in (folder, *folder.parents):
            if (group / limit).is_file() and (most := (group / limit).read_text().strip()).isdigit():
                counts = dict(entry.split() for entry in (group / "memory.stat").read_text().splitlines())
                yield float(most) - float((group / usage).read_text()) + float(counts.get(cached, 0))


def multiply_adds(config: FilmConfig) -> float:
    """Of the convolutions, for each pixel of a new frame between two others, both encoded for it."""
    filters, levels = config.filters, config.pyramid_levels
    features = [config.feature_channels(level) for level in range(levels)]
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
    return total + MATCHING * config.matching
