"""One mesh, one axis: the batch is split over all devices, the state is the same on each.

Model files name no mesh axis. Within `jit`, XLA turns the mean over a sharded batch into the all-reduce of the
gradients, so one program serves one device and many.
"""

from __future__ import annotations

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

BATCH_AXIS = "data"


def make_mesh(devices: int = 0) -> Mesh:
    """A mesh of the first `devices` devices; 0 means all of them."""
    available = jax.devices()
    count = devices or len(available)
    if not 1 <= count <= len(available):
        raise ValueError(f"trainer.devices is {devices}: this machine has {len(available)}; 0 takes all")
    # Auto: jax.make_mesh would default to Explicit axis types, which every array operation would have to name.
    return jax.make_mesh((count,), (BATCH_AXIS,), axis_types=(AxisType.Auto,), devices=available[:count])


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def shard_batch(mesh: Mesh, batch):
    """Puts a host batch on the mesh, split along its first axis."""
    count = mesh.devices.size
    for leaf in jax.tree.leaves(batch):
        if leaf.shape[0] % count:
            raise ValueError(f"a batch of {leaf.shape[0]} does not split over {count} devices; choose a multiple")
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec(BATCH_AXIS)))
