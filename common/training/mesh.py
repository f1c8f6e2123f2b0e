"""One mesh, two axes: where the batch, the parameters and the optimiser's memory lie.

    data   the batch is split over it, parameters are the same along it
    fsdp   the batch is split over it too, and so are the large parameters with their moments and average (FSDP):
           each device keeps a slice and gathers the rest when a layer needs it

Model files name no mesh axis: XLA turns a mean over a sharded batch into the all-reduce of the gradients, and a split
kernel into its gather. What is split is decided by *rules*, pairs (regular expression, tactic) over the path of a leaf
in the train state, such as `params/fusion/convs/3/kernel` or `opt_state/0/mu/fusion/convs/3/kernel`; the first
expression found in the path decides. Tactics:

    replicate   the whole array on every device
    fsdp        split along its largest axis that the fsdp axis divides; whole if there is none, or under 4 MB
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_map_with_path

DATA, FSDP = "data", "fsdp"
REPLICATE = "replicate"
SMALLEST_SPLIT = 4 * 2**20  # bytes: below it, gathering costs more than the memory is worth

Rules = Sequence[tuple[str, str]]


def make_mesh(devices: int = 0, fsdp: int = 1, spare: int = 0) -> Mesh:
    """A mesh of the first `devices` devices (0: all, of all processes), `fsdp` of them along the second axis.

    The last `spare` devices are kept out of it (`spare_mesh`)."""
    available = _all_but(spare)
    count = devices or len(available)
    if not 1 <= count <= len(available):
        beside = f" beside the {spare} of refresh.spare" if spare else ""
        raise ValueError(f"trainer.devices is {devices}: there are {len(available)}{beside}; 0 takes all")
    if count < len(available) and jax.process_count() > 1:
        raise ValueError(f"trainer.devices is {devices}: several processes train on all {len(available)}; give 0")
    if fsdp < 1 or count % fsdp:
        raise ValueError(f"trainer.fsdp is {fsdp}: it has to divide the {count} devices; 1 splits no parameters")
    # Auto: jax.make_mesh would default to Explicit axis types, which every array operation would have to name.
    return jax.make_mesh(
        (count // fsdp, fsdp), (DATA, FSDP), axis_types=(AxisType.Auto,) * 2, devices=available[:count]
    )


def spare_mesh(spare: int) -> Mesh | None:
    """A mesh of the last `spare` devices; None without any."""
    if not spare:
        return None
    devices = np.array(jax.devices()[-spare:]).reshape(spare, 1)
    return Mesh(devices, (DATA, FSDP), axis_types=(AxisType.Auto,) * 2)


def _all_but(spare: int) -> list:
    available = jax.devices()
    if spare and jax.process_count() > 1:
        raise ValueError(f"refresh.spare is {spare}: several processes train on all {len(available)} devices; give 0")
    if spare >= len(available):
        raise ValueError(
            f"refresh.spare is {spare}: there are {len(available)} devices, and training needs one; 0 shares"
        )
    return available[: len(available) - spare]


def check_rules(rules: Rules) -> None:
    for pattern, tactic in rules:
        if tactic not in (REPLICATE, FSDP):
            raise ValueError(f"trainer.sharding: {tactic!r} is not a tactic; choose {REPLICATE} or {FSDP}")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"trainer.sharding: {pattern!r} is not a regular expression ({error})") from error


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def shardings(mesh: Mesh, tree: Any, rules: Rules = (("", FSDP),)) -> Any:
    """A sharding for each leaf (array or shape) of `tree`, by `rules`; leaves that no rule finds are replicated."""

    def place(path: tuple, leaf: Any) -> NamedSharding:
        name = keystr(path, simple=True, separator="/")
        tactic = next((tactic for pattern, tactic in rules if re.search(pattern, name)), REPLICATE)
        axis = _split_axis(leaf, mesh.shape[FSDP]) if tactic == FSDP else None
        return replicated(mesh) if axis is None else NamedSharding(mesh, PartitionSpec(*[None] * axis, FSDP))

    return tree_map_with_path(place, tree)


def shard_batch(mesh: Mesh, batch: Any, parts: int = 1) -> Any:
    """Puts this process's share of a batch on the mesh, split along its first axis over all devices.

    With several processes each brings its own examples; together they are the global batch. Each device's share has
    to make `parts` equal parts (`trainer.accumulate`).
    """
    count = mesh.devices.size // jax.process_count()
    for leaf in jax.tree.leaves(batch):
        if leaf.shape[0] % (count * parts):
            into = f"{count} devices" + (f" in {parts} parts each" if parts > 1 else "")
            raise ValueError(f"a batch of {leaf.shape[0]} does not split over {into}; choose a multiple")
    sharding = NamedSharding(mesh, PartitionSpec((DATA, FSDP)))
    if jax.process_count() == 1:
        return jax.device_put(batch, sharding)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), batch)


def by_share(function: Callable[[Any, Any], Any], mesh: Mesh | None) -> Callable[[Any, Any], Any]:
    """`function(whole, split)`, run by every device on all of `whole` and its own share of `split`, along first axes.

    What comes back is split in the same way. XLA is not left to divide the work, so nothing is exchanged inside: for a
    lookup, for one, it would gather whole batches. Split parameters (fsdp) are left to it, to be gathered late.
    """
    if mesh is None or mesh.devices.size == 1 or mesh.shape[FSDP] > 1:
        return function
    share = PartitionSpec((DATA, FSDP))
    return jax.shard_map(function, mesh=mesh, in_specs=(PartitionSpec(), share), out_specs=share, check_vma=False)


def _split_axis(leaf: Any, parts: int) -> int | None:
    if parts == 1 or leaf.size * leaf.dtype.itemsize < SMALLEST_SPLIT:
        return None
    axes = [axis for axis, size in enumerate(leaf.shape) if size % parts == 0]
    return max(axes, key=lambda axis: leaf.shape[axis], default=None)
