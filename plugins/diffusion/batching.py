"""How many pictures are worked on at once: batches of the UNet, chunks of the autoencoder, shares of devices.

A program is compiled for one shape, so the last batch is filled up: its last picture stands in again and again, and
what comes of it is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

DENOISED = 8 * 64 * 64  # most latent pixels of a batch, per device: eight pictures of 512 pixels a side
DECODED = 2 * 512 * 512  # most pixels that a device decodes at once: a VAE takes about 1 GB for them

Progress = Callable[[int, int], None]  # called with the calls of the UNet that are done, and with all there will be


class Layout(NamedTuple):
    """How the pictures of a request are cut up.

    Attributes:
      batches: which pictures are made at once; all of one length, and the last picture of all fills up the last.
      chunk: how many the autoencoder takes at once.
      split: where rows of a batch lie; None: all on the default device.
    """

    batches: list[Int[np.ndarray, " b"]]
    chunk: int
    split: NamedSharding | None


def make_layout(total: int, height: int, width: int, unit: int, batch: int | None, mesh: Mesh | None) -> Layout:
    """The layout of `total` pictures; latents are smaller by `unit` a side. Raises as `batch_size`, `split_over`."""
    split, devices = split_over(mesh), 1 if mesh is None else mesh.devices.size
    size = batch_size(total, height * width // unit**2, batch, devices)
    batches = [filled(start, size, total) for start in range(0, total, size)]
    return Layout(batches, chunk_size(size, height * width, devices), split)


def batch_size(total: int, latent_pixels: int, asked: int | None, devices: int = 1) -> int:
    """Pictures at once: `asked`, or an even split into batches of at most `DENOISED`. A multiple of `devices`.

    Raises ValueError if `asked` is none."""
    if asked is None:
        most = devices * max(1, DENOISED // latent_pixels)
        batches = -(-total // most)
        return devices * -(-total // (batches * devices))
    if isinstance(asked, bool) or asked < 1 or asked % devices:
        rule = f"a multiple of the {devices} devices" if devices > 1 else "1 or more"
        raise ValueError(f"batch={asked} has to be {rule}; leave it out to let the program choose")
    return asked


def chunk_size(batch: int, pixels: int, devices: int = 1) -> int:
    """Pictures that the autoencoder takes at once: a multiple of `devices`."""
    return devices * min(-(-batch // devices), max(1, DECODED // pixels))


def filled(start: int, size: int, total: int) -> Int[np.ndarray, " size"]:
    """`size` places from `start` on; the last of all stands for those past the end."""
    return np.minimum(np.arange(start, start + size), total - 1)


def in_chunks(
    function: Callable[[Any], Array], rows: Float[np.ndarray, "n ..."], size: int, split: NamedSharding | None
) -> Float[np.ndarray, "n ..."]:
    """`function` of all rows, `size` at a time."""
    parts = []
    for start in range(0, len(rows), size):
        chunk = jax.device_put(rows[filled(start, size, len(rows))], split)
        parts.append(np.asarray(function(chunk))[: len(rows) - start])
    return np.concatenate(parts)


def split_over(mesh: Mesh | None) -> NamedSharding | None:
    """The first axis over all devices. Raises ValueError for axes of another type than Auto."""
    if mesh is None:
        return None
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        ours = f"axis_types=(jax.sharding.AxisType.Auto,) * {len(mesh.axis_names)}"
        raise ValueError(f"mesh has axes of types {mesh.axis_types}; make it with {ours}")
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


def counted(progress: Progress | None, batch: int, batches: int, calls: int) -> Callable[[int], None] | None:
    """What hears the index of each finished call of one batch, at times out of order, and tells `progress`."""
    if progress is None:
        return None
    done = 0

    def hear(index: int) -> None:
        nonlocal done
        if index >= done:
            done = index + 1
            progress(batch * calls + done, batches * calls)

    return hear
