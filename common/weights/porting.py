"""Strict porting of parameters: one table, three hard checks.

Another program's file is a flat mapping from its own key to an array. Ours is a *pure nested dict*
(`nnx.to_pure_dict(nnx.state(model))`): keys are str or int, leaves are arrays. The flat view of it joins
the keys with dots, so `tree["extractor"]["convs"][0]["kernel"]` is called "extractor.convs.0.kernel".

A table says, for each of our leaves, which of their keys fills it and how the axes are laid out there:

    table = {
        "extractor.convs.0.kernel": Entry("extract.convs.0.weight", OIHW_TO_HWIO),
        "extractor.convs.0.bias": "extract.convs.0.bias",      # a bare key means: same layout
    }

`port` reads the table from theirs to ours, `export` reads it backwards. Both hold it to three checks:

1. every source key is used exactly once (`ignore` names the keys that are no weights, e.g. optimiser slots);
2. every target leaf is filled exactly once;
3. every shape is equal after the layout change.

A value that is NaN or infinite, or whose kind differs (an integer for a float), is an offender too. Nothing
is filled in part: all offenders are raised together as one ValueError whose first line is a complete summary.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

ALIGNMENT = 64  # bytes; what XLA asks of a buffer on the processor
Tree = Mapping[Any, Any]  # nested: str or int keys; leaves are arrays or jax.ShapeDtypeStruct


class Layout(NamedTuple):
    """Where each axis of ours lies in theirs; `axes` as for `np.transpose`, None for the same layout."""

    name: str
    axes: tuple[int, ...] | None = None

    def to_ours(self, theirs: np.ndarray) -> np.ndarray:
        return theirs if self.axes is None else np.transpose(theirs, self.axes)

    def to_theirs(self, ours: np.ndarray) -> np.ndarray:
        return ours if self.axes is None else np.transpose(ours, np.argsort(self.axes))

    def fits(self, rank: int) -> bool:
        return self.axes is None or len(self.axes) == rank


IDENTITY = Layout("identity")
OIHW_TO_HWIO = Layout("oihw_to_hwio", (2, 3, 1, 0))  # convolution kernels, PyTorch -> TensorFlow and flax
OI_TO_IO = Layout("oi_to_io", (1, 0))  # dense kernels, PyTorch -> flax


class Entry(NamedTuple):
    """One line of a table: the source key and the layout that turns it into ours."""

    source: str
    layout: Layout = IDENTITY


Table = Mapping[str, Entry | str]


def make_table(lines: Iterable[tuple[str, Entry | str]]) -> dict[str, Entry]:
    """(target, entry) pairs -> table. A dict would keep the last of two equal targets in silence; this raises
    ValueError that names every target given twice."""
    pairs = [(target, Entry(entry) if isinstance(entry, str) else entry) for target, entry in lines]
    repeated = [target for target, count in Counter(target for target, _ in pairs).items() if count > 1]
    _refuse("table", "", {"target named more than once": repeated})
    return dict(pairs)


def flatten(tree: Tree) -> dict[str, Any]:
    """Nested dict -> {dotted path: leaf}, in the tree's order; a flat dict comes back unchanged.

    Raises ValueError if two leaves get the same dotted path (0 beside "0", or "a.b" beside a -> b)."""
    leaves = list(_walk(tree))
    twice = [path for path, count in Counter(path for path, _ in leaves).items() if count > 1]
    _refuse("flattening", "", {"path of more than one leaf": twice})
    return dict(leaves)


def unflatten_like(flat: Mapping[str, Any], target_tree: Tree) -> dict[Any, Any]:
    """{dotted path: leaf} -> nested dict with exactly the keys of `target_tree`, its int keys included.

    Raises one ValueError that lists every path that is missing, unknown, or of a shape unlike its leaf's."""
    target = flatten(target_tree)
    common = [path for path in target if path in flat]
    _refuse(
        "filling the parameters",
        f"{len(flat)} values for {len(target)} leaves",
        {
            "leaf without a value": [path for path in target if path not in flat],
            "value without a leaf": [path for path in flat if path not in target],
            "shape differs": [
                f"{path}: value {_shape(flat[path])}, leaf {_shape(target[path])}"
                for path in common
                if _shape(flat[path]) != _shape(target[path])
            ],
        },
    )
    return _fill(flat, target_tree, "")


def port(
    source: Mapping[str, np.ndarray],
    table: Table,
    target: Tree,
    ignore: Callable[[str], bool] = lambda key: False,
    place: Callable[[np.ndarray], Any] = lambda array: array,
) -> dict[str, Any]:
    """Their arrays -> ours, flat, in the layout, shape and dtype of `target` (nested or flat, arrays or
    ShapeDtypeStructs: `nnx.eval_shape` spares the random weights). `unflatten_like` nests the result.

    `place` takes each array as soon as it is converted, and what it returns is kept in its stead: one that moves the
    array to a device holds the network and a single tensor in memory, not the network twice.

    Raises one ValueError that lists all offenders of the checks in the module's docstring."""
    entries, leaves = _entries(table), flatten(target)
    problems = _coverage(entries, leaves)
    problems["source key missing"] = [
        f"{entry.source} (for {path})" for path, entry in entries.items() if entry.source not in source
    ]
    named = {entry.source for entry in entries.values()}
    problems["source key not used"] = [key for key in source if key not in named and not ignore(key)]
    ported = {}
    for path, entry in entries.items():
        if path in leaves and entry.source in source:
            value, complaint = _convert(np.asarray(source[entry.source]), entry.layout, leaves[path])
            ported[path] = value if complaint else place(value)
            for kind, text in complaint.items():
                problems.setdefault(kind, []).append(f"{path}: {entry.source} {text}")
    _refuse("porting", f"source has {len(source)} keys, target {len(leaves)} leaves", problems)
    return {path: ported[path] for path in leaves}


def export(params: Tree, table: Table) -> dict[str, np.ndarray]:
    """Ours (nested or flat) -> their arrays by their keys: the inverse of `port`, dtype unchanged.

    Raises one ValueError that lists every leaf without a line in the table, line without a leaf, key used
    twice, array whose rank its layout cannot turn, and value that is not finite."""
    entries, leaves = _entries(table), flatten(params)
    problems = _coverage(entries, leaves)
    exported = {}
    for path, entry in entries.items():
        if path not in leaves:
            continue
        value = np.asarray(leaves[path])
        if not entry.layout.fits(value.ndim):
            text = f"{path}: {entry.layout.name} cannot turn {value.shape}"
            problems.setdefault("shape differs", []).append(text)
        elif not all_finite(value):
            problems.setdefault("not finite", []).append(path)
        else:
            exported[entry.source] = np.array(entry.layout.to_theirs(value), order="C")
    _refuse("export", f"{len(leaves)} leaves, table has {len(entries)} lines", problems)
    return exported


def all_finite(value: np.ndarray) -> bool:
    """False if a float array (bfloat16 included) holds NaN or an infinity; True for every other kind."""
    return not is_float(value.dtype) or bool(np.isfinite(value).all())


def is_float(dtype: Any) -> bool:
    """NumPy does not count bfloat16 as floating; JAX's lattice does."""
    return bool(jnp.issubdtype(dtype, jnp.floating))


def _walk(tree: Tree, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _walk(value, path + ".")
        else:
            yield path, value


def _fill(flat: Mapping[str, Any], tree: Tree, prefix: str) -> dict[Any, Any]:
    return {
        key: _fill(flat, value, f"{prefix}{key}.") if isinstance(value, Mapping) else flat[f"{prefix}{key}"]
        for key, value in tree.items()
    }


def _entries(table: Table) -> dict[str, Entry]:
    return make_table(table.items())


def _shape(leaf: Any) -> tuple[int, ...]:
    return tuple(np.shape(leaf) if not hasattr(leaf, "shape") else leaf.shape)


def _coverage(entries: Mapping[str, Entry], leaves: Mapping[str, Any]) -> dict[str, list[str]]:
    """The offenders that the table and our leaves have before any array is looked at."""
    uses = Counter(entry.source for entry in entries.values())
    return {
        "target leaf not filled": [path for path in leaves if path not in entries],
        "target not in the model": [path for path in entries if path not in leaves],
        "source key used more than once": [key for key, count in uses.items() if count > 1],
    }


def _convert(theirs: np.ndarray, layout: Layout, leaf: Any) -> tuple[np.ndarray, dict[str, str]]:
    """(the array as the leaf wants it, {kind of problem: what is wrong with it})."""
    if not layout.fits(theirs.ndim):
        return theirs, {"shape differs": f"{theirs.shape}, which {layout.name} cannot turn; want {_shape(leaf)}"}
    ours = layout.to_ours(theirs)
    if ours.shape != _shape(leaf):
        turned = "" if layout.axes is None else f" is {ours.shape} after {layout.name}"
        return theirs, {"shape differs": f"{theirs.shape}{turned}, want {_shape(leaf)}"}
    if theirs.dtype != leaf.dtype and not (is_float(theirs.dtype) and is_float(leaf.dtype)):
        return theirs, {"kind differs": f"is {theirs.dtype}, want {leaf.dtype}"}
    converted = _aligned(ours.shape, leaf.dtype)
    with np.errstate(over="ignore"):  # an overflow of a narrower type shows up as an infinity below
        np.copyto(converted, ours, casting="unsafe")
    return converted, {} if all_finite(converted) else {"not finite": f"holds NaN or infinity as {leaf.dtype}"}


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array not yet written to, that JAX on the processor can take over without a copy."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _refuse(doing: str, totals: str, problems: Mapping[str, list[str]]) -> None:
    """Raise one ValueError for all problems, if there are any: a headline with counts, then a line each."""
    counts = {kind: len(offenders) for kind, offenders in problems.items() if offenders}
    if not counts:
        return
    listed = ", ".join(f"{count} x {kind}" for kind, count in counts.items())
    hint = f" ({totals}); is this the right file and model size?" if totals else ""
    lines = [f"  {kind}: {offender}" for kind in counts for offender in problems[kind]]
    raise ValueError("\n".join([f"{doing} failed, {sum(counts.values())} in all: {listed}{hint}", *lines]))
