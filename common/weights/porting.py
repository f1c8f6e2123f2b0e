"""Strict porting of parameters: one table, three checks.

The file of another program is a flat mapping from its own keys to arrays. Ours is a *pure nested dict*
(`nnx.to_pure_dict(nnx.state(model))`) with str or int keys. Its flat view joins the keys with dots, so
`tree["extractor"]["convs"][0]["kernel"]` is "extractor.convs.0.kernel".

A table has, for each of our leaves, the key that fills it and the layout of the axes there:

    table = {
        "extractor.convs.0.kernel": Entry("extract.convs.0.weight", OIHW_TO_HWIO),
        "extractor.convs.0.bias": Entry("extract.convs.0.bias"),      # the same layout
    }

`port` reads the table from theirs to ours, `export` reads it backwards. Both check that

1. every source key is used exactly once (`ignore` names the keys that are not weights, e.g. optimiser slots);
2. every target leaf is filled exactly once;
3. every shape is equal after the layout change.

NaN, infinity, or a value of another kind (an integer for a float) is an error too. One ValueError lists all offenders,
with a summary in its first line.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from common.nn.init import blank

ALIGNMENT = 64  # bytes, of a buffer of XLA on the processor
LARGE = 2**14  # numbers, from which on OpenCV copies faster
DTYPES = ("float32", "float16", "bfloat16")  # of weights
Tree = Mapping[Any, Any]  # nested: str or int keys; leaves are arrays or jax.ShapeDtypeStruct


class Layout(NamedTuple):
    """`axes` as for `np.transpose` of theirs to ours; None for the same layout."""

    name: str
    axes: tuple[int, ...] | None = None

    def to_ours(self, theirs: np.ndarray) -> np.ndarray:
        return theirs if self.axes is None else np.transpose(theirs, self.axes)

    def fits(self, rank: int) -> bool:
        return self.axes is None or len(self.axes) == rank


IDENTITY = Layout("identity")
OIHW_TO_HWIO = Layout("oihw_to_hwio", (2, 3, 1, 0))  # convolution kernels, PyTorch -> TensorFlow and flax
OI_TO_IO = Layout("oi_to_io", (1, 0))  # dense kernels, PyTorch -> flax


class Entry(NamedTuple):
    """One line of a table: the source key and the layout that turns it into ours."""

    source: str
    layout: Layout = IDENTITY


Table = Mapping[str, Entry]


def flatten(tree: Tree) -> dict[str, Any]:
    """Nested dict -> {dotted path: leaf} in the order of the tree; a flat dict is unchanged. Raises ValueError if two
    leaves get the same path (0 beside "0", or "a.b" beside a -> b)."""
    leaves = list(_walk(tree))
    twice = [path for path, count in Counter(path for path, _ in leaves).items() if count > 1]
    _refuse("flattening", "", {"path of more than one leaf": twice})
    return dict(leaves)


def unflatten_like(flat: Mapping[str, Any], target_tree: Tree) -> dict[Any, Any]:
    """{dotted path: leaf} -> nested dict with the keys of `target_tree`, its int keys included. Raises one ValueError
    with every path that is missing, unknown, or of another shape."""
    target = flatten(target_tree)
    shapes = {path: (np.shape(flat[path]), np.shape(leaf)) for path, leaf in target.items() if path in flat}
    problems = {
        "leaf without a value": [path for path in target if path not in flat],
        "value without a leaf": [path for path in flat if path not in target],
        "shape differs": [f"{path}: value {a}, leaf {b}" for path, (a, b) in shapes.items() if a != b],
    }
    _refuse("filling the parameters", f"{len(flat)} values for {len(target)} leaves", problems)
    return _fill(flat, target_tree, "")


def assemble(network: type, config: Any, flat: Mapping[str, Any]) -> Any:
    """The nnx `network` of that config with the parameters {dotted path: array}, on the device. Raises as `blank` and
    `unflatten_like`."""
    graph, shapes = blank(network, config, len(flat))
    on_device = {path: jnp.asarray(value) for path, value in flat.items()}  # once, not at each call
    return nnx.merge(graph, unflatten_like(on_device, shapes))


def port(
    source: Mapping[str, np.ndarray],
    table: Table,
    target: Tree,
    ignore: Callable[[str], bool] = lambda key: False,
    place: Callable[[np.ndarray], Any] = lambda array: array,
) -> dict[str, Any]:
    """Their arrays -> ours, flat, in the layout, shape and dtype of `target` (nested or flat, arrays or
    ShapeDtypeStructs). `unflatten_like` nests the result.

    `place` converts each array at once, and its result is kept instead: one that moves it to a device does not hold the
    network twice. Raises one ValueError with all offenders."""
    leaves = flatten(target)
    problems = _coverage(table, leaves)
    needed = {path: entry.source for path, entry in table.items()}
    problems["source key missing"] = [f"{key} (for {path})" for path, key in needed.items() if key not in source]
    named = set(needed.values())
    problems["source key not used"] = [key for key in source if key not in named and not ignore(key)]
    ported = {}
    for path, entry in table.items():
        if path in leaves and entry.source in source:
            value, complaint = _convert(np.asarray(source[entry.source]), entry.layout, leaves[path])
            ported[path] = value if complaint else place(value)
            for kind, text in complaint.items():
                problems.setdefault(kind, []).append(f"{path}: {entry.source} {text}")
    _refuse("porting", f"source has {len(source)} keys, target {len(leaves)} leaves", problems)
    return {path: ported[path] for path in leaves}


def export(params: Tree, table: Table) -> dict[str, np.ndarray]:
    """Ours (nested or flat) -> their arrays by their keys: the inverse of `port`, dtype unchanged. Raises one
    ValueError with all offenders."""
    leaves = flatten(params)
    problems = _coverage(table, leaves)
    exported = {}
    for path, leaf in leaves.items():
        source, layout = table.get(path, Entry(""))  # without a line it is among the problems already
        value = np.asarray(leaf)
        if not layout.fits(value.ndim):
            problems.setdefault("shape differs", []).append(f"{path}: {layout.name} cannot turn {value.shape}")
        elif not all_finite(value):
            problems.setdefault("not finite", []).append(path)
        else:
            axes = range(value.ndim) if layout.axes is None else np.argsort(layout.axes)
            exported[source] = np.array(np.transpose(value, axes), order="C")
    _refuse("export", f"{len(leaves)} leaves, table has {len(table)} lines", problems)
    return exported


def all_finite(value: np.ndarray) -> bool:
    """Whether no float (bfloat16 included) is NaN or infinite."""
    return not is_float(value.dtype) or bool(np.isfinite(value).all())


def is_float(dtype: Any) -> bool:
    """Whether it is a float; for NumPy, bfloat16 is not."""
    return bool(jnp.issubdtype(dtype, jnp.floating))


def dtype_name(dtype: Any) -> str:
    """ "float32", "float16" or "bfloat16", from a name or a type. Raises ValueError for any other."""
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not one for weights; choose one of {', '.join(DTYPES)}")
    return name


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


def _coverage(table: Table, leaves: Mapping[str, Any]) -> dict[str, list[str]]:
    uses = Counter(entry.source for entry in table.values())
    return {
        "target leaf not filled": [path for path in leaves if path not in table],
        "target not in the model": [path for path in table if path not in leaves],
        "source key used more than once": [key for key, count in uses.items() if count > 1],
    }


def _convert(theirs: np.ndarray, layout: Layout, leaf: Any) -> tuple[np.ndarray, dict[str, str]]:
    """(the array as the leaf wants it, {kind of problem: what is wrong with it})."""
    if not layout.fits(theirs.ndim):
        return theirs, {"shape differs": f"{theirs.shape}, which {layout.name} cannot turn; want {np.shape(leaf)}"}
    ours = layout.to_ours(theirs)
    if ours.shape != np.shape(leaf):
        turned = "" if layout.axes is None else f" is {ours.shape} after {layout.name}"
        return theirs, {"shape differs": f"{theirs.shape}{turned}, want {np.shape(leaf)}"}
    if theirs.dtype != leaf.dtype and not (is_float(theirs.dtype) and is_float(leaf.dtype)):
        return theirs, {"kind differs": f"is {theirs.dtype}, want {leaf.dtype}"}
    memory = np.empty(ours.size * np.dtype(leaf.dtype).itemsize + ALIGNMENT, np.uint8)  # for JAX to use without a copy
    start = -memory.ctypes.data % ALIGNMENT
    converted = memory[start : start + memory.size - ALIGNMENT].view(leaf.dtype).reshape(ours.shape)
    with np.errstate(over="ignore"):  # an overflow of a narrower type shows up as an infinity below
        _copy(theirs, layout, converted)
    return converted, {} if all_finite(converted) else {"not finite": f"holds NaN or infinity as {leaf.dtype}"}


def _copy(theirs: np.ndarray, layout: Layout, target: np.ndarray) -> None:
    """`theirs` into `target`, in its layout and type. OpenCV widens float16 and transposes matrices several times as
    fast as NumPy."""
    if theirs.size >= LARGE and theirs.flags.c_contiguous and target.dtype == np.float32:
        import cv2

        rows = theirs.reshape(len(theirs), -1)
        if theirs.dtype == np.float16:
            rows = cv2.multiply(rows, np.ones(1), dtype=cv2.CV_32F)  # exact
        if rows.dtype == np.float32 and layout == OI_TO_IO:
            cv2.transpose(rows, dst=target)
            return
        if rows.dtype == np.float32 and layout == OIHW_TO_HWIO:  # o (i h w) -> (i h w) o -> h w i o
            outputs, *others = theirs.shape
            theirs, layout = cv2.transpose(rows).reshape(*others, outputs), Layout("ihwo_to_hwio", (1, 2, 0, 3))
        elif layout == IDENTITY:
            theirs = rows.reshape(theirs.shape)
    np.copyto(target, layout.to_ours(theirs), casting="unsafe")


def _refuse(doing: str, totals: str, problems: Mapping[str, list[str]]) -> None:
    """Raises one ValueError for all problems, if there are any: a headline with counts, then a line each."""
    lines = [f"  {kind}: {offender}" for kind, offenders in problems.items() for offender in offenders]
    if lines:
        listed = ", ".join(f"{len(offenders)} x {kind}" for kind, offenders in problems.items() if offenders)
        hint = f" ({totals}); is this the right file and model size?" if totals else ""
        raise ValueError("\n".join([f"{doing} failed, {len(lines)} in all: {listed}{hint}", *lines]))
