"""The device mesh: along which of its two axes the batch, the parameters and the optimiser state are split.

    data   splits the batch; parameters are replicated
    fsdp   splits the batch too, and the large parameters with their moments and average (FSDP): each device keeps a
           slice, and gathers the rest when a layer needs it

Models name no mesh axis: XLA turns a mean over a sharded batch into the all-reduce of the gradients, and a split kernel
into its gather. *Rules*, pairs (regular expression, tactic), decide what is split. The first expression found in the
path of a leaf, such as `params/fusion/convs/3/kernel` or `opt_state/0/mu/fusion/convs/3/kernel`, counts. Tactics:

    replicate   the whole array on every device
    fsdp        split along its largest axis that the fsdp axis divides; replicated if there is none, or under 4 MB
    rows        split along the first axis over all devices; replicated if they do not divide it
"""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_map_with_path

from common.checked import Rule, is_expression

DATA, FSDP = "data", "fsdp"
REPLICATE, ROWS = "replicate", "rows"
SMALLEST_SPLIT = 4 * 2**20  # bytes: below it, gathering costs more than the memory is worth

TACTIC = Rule(
    lambda rule: len(rule) == 2 and is_expression(rule[0]) and rule[1] in (REPLICATE, FSDP, ROWS),
    f"[regular expression, {REPLICATE} or {FSDP} or {ROWS}]",
)
Rules = Sequence[Annotated[Sequence[str], TACTIC]]


def make_mesh(devices: int = 0, fsdp: int = 1, spare: int = 0) -> Mesh:
    """A mesh of the first `devices` devices (0: all, of all processes), `fsdp` of them along the second axis, without
    the last `spare` devices (`spare_mesh`)."""
    everything = jax.devices()
    if spare >= len(everything) or (spare and jax.process_count() > 1):
        rule = "training needs one, and several processes train on all"
        raise ValueError(f"refresh.spare is {spare} of {len(everything)} devices: {rule}; give 0")
    available = everything[: len(everything) - spare]
    count = devices or len(available)
    if not 1 <= count <= len(available) or (count < len(available) and jax.process_count() > 1):
        there = f"there are {len(available)} that do not only refresh, and several processes train on all"
        raise ValueError(f"trainer.devices is {devices}: {there}; 0 takes all")
    if fsdp < 1 or count % fsdp:
        raise ValueError(f"trainer.fsdp is {fsdp}: it must divide the {count} devices; 1 splits no parameters")
    # Auto: jax.make_mesh would default to Explicit axis types, which every array operation would have to name.
    types, chosen = (AxisType.Auto,) * 2, available[:count]
    return jax.make_mesh((count // fsdp, fsdp), (DATA, FSDP), axis_types=types, devices=chosen)


def spare_mesh(spare: int) -> Mesh | None:
    """A mesh of the last `spare` devices; None without any."""
    if not spare:
        return None
    return Mesh(np.array(jax.devices()[-spare:])[:, None], (DATA, FSDP), axis_types=(AxisType.Auto,) * 2)


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh, shape: Sequence[int]) -> NamedSharding:
    """Split along the first axis over all devices, if they divide it; else replicated."""
    split = len(shape) > 0 and shape[0] % mesh.devices.size == 0
    return NamedSharding(mesh, PartitionSpec((DATA, FSDP)) if split else PartitionSpec())


def place(tree: Any, shardings: Any) -> Any:
    """Arrays on the devices. Of an array of the host that is split a process reads its own devices' share alone; all
    processes must have the same."""

    def put(x: Any, sharding: NamedSharding) -> jax.Array:
        if isinstance(x, np.ndarray) and not sharding.is_fully_replicated:
            return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
        return jax.device_put(x, sharding)

    return jax.tree.map(put, tree, shardings)


def shardings(mesh: Mesh, tree: Any, rules: Rules = (("", FSDP),)) -> Any:
    """The sharding of each leaf (array or shape) of `tree` by `rules`; leaves without a rule are replicated."""
    size = mesh.shape[FSDP]

    def sharding(path: tuple, leaf: Any) -> NamedSharding:
        name = keystr(path, simple=True, separator="/")
        tactic = next((tactic for pattern, tactic in rules if re.search(pattern, name)), REPLICATE)
        if tactic == ROWS:
            return by_rows(mesh, leaf.shape)
        if tactic == REPLICATE or size == 1 or leaf.size * leaf.dtype.itemsize < SMALLEST_SPLIT:
            return replicated(mesh)
        axes = [axis for axis, length in enumerate(leaf.shape) if length % size == 0]
        if not axes:
            return replicated(mesh)
        largest = max(axes, key=lambda axis: leaf.shape[axis])
        return NamedSharding(mesh, PartitionSpec(*[None] * largest, FSDP))

    return tree_map_with_path(sharding, tree)


def shard_batch(mesh: Mesh, batch: Any, microbatches: int = 1) -> Any:
    """Puts a batch on the mesh, split along its first axis over all devices. Of several processes each gives its own
    examples. The share of each device must split into `microbatches` equal parts (`trainer.accumulate`)."""
    count = mesh.devices.size // jax.process_count()
    for leaf in jax.tree.leaves(batch):
        if leaf.shape[0] % (count * microbatches):
            over = f"{count} devices in {microbatches} microbatches each"
            raise ValueError(f"a batch of {leaf.shape[0]} does not split over {over}; choose a multiple")
    sharding = NamedSharding(mesh, PartitionSpec((DATA, FSDP)))
    if jax.process_count() == 1:
        return jax.device_put(batch, sharding)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), batch)


def by_share(function: Callable[[Any, Any], Any], mesh: Mesh | None) -> Callable[[Any, Any], Any]:
    """`function(whole, split)`, run by each device on all of `whole` and its own share of `split`, along first axes;
    the result is split in the same way. Nothing is exchanged inside, where XLA would gather whole batches for a lookup.
    Split parameters (fsdp) are left to XLA, which gathers them late."""
    if mesh is None or mesh.devices.size == 1 or mesh.shape[FSDP] > 1:
        return function
    share = PartitionSpec((DATA, FSDP))
    return jax.shard_map(function, mesh=mesh, in_specs=(PartitionSpec(), share), out_specs=share, check_vma=False)
