"""Strict porting: round trips, and every way in which a table and a file can disagree."""

import jax
import ml_dtypes
import numpy as np
import pytest

from common.weights.porting import OI_TO_IO, OIHW_TO_HWIO, Entry, export, flatten, port, unflatten_like

TABLE = {
    "convs.0.kernel": Entry("body.0.weight", OIHW_TO_HWIO),
    "convs.0.bias": Entry("body.0.bias"),
    "head.kernel": Entry("head.weight", OI_TO_IO),
}
TARGET = {
    "convs": {
        0: {"kernel": jax.ShapeDtypeStruct((3, 2, 4, 5), np.float32), "bias": jax.ShapeDtypeStruct((5,), np.float32)}
    },
    "head": {"kernel": jax.ShapeDtypeStruct((6, 7), np.float32)},
}


def source() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    shapes = {"body.0.weight": (5, 4, 3, 2), "body.0.bias": (5,), "head.weight": (7, 6)}
    return {key: draw.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}


def test_layouts_put_each_axis_in_its_place_and_export_undoes_them():
    theirs = source()
    ours = port(theirs, TABLE, TARGET)
    assert ours["convs.0.kernel"].shape == (3, 2, 4, 5)
    assert ours["convs.0.kernel"][2, 1, 3, 4] == theirs["body.0.weight"][4, 3, 2, 1]
    assert ours["head.kernel"][5, 6] == theirs["head.weight"][6, 5]
    back = export(unflatten_like(ours, TARGET), TABLE)
    assert back.keys() == theirs.keys()
    for key, value in theirs.items():
        np.testing.assert_array_equal(back[key], value)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_floats_take_the_dtype_of_the_target_in_copies(dtype):
    theirs = {key: value.astype(dtype) for key, value in source().items()}
    ours, expected = port(theirs, TABLE, TARGET), theirs["body.0.bias"].astype(np.float32)
    assert {value.dtype for value in ours.values()} == {np.dtype(np.float32)}
    theirs["body.0.bias"][:] = 9
    np.testing.assert_array_equal(ours["convs.0.bias"], expected)


ZEROS, TURNED = np.zeros(5, np.float32), source()["head.weight"].T
GONE = object()
DISAGREEMENTS = [  # (changes of the file, changes of the table, the line of the error)
    ({"body.1.weight": ZEROS}, {}, "source key not used: body.1.weight"),
    ({"head.weight": GONE}, {}, "source key missing: head.weight (for head.kernel)"),
    ({"body.0.bias": GONE}, {"convs.0.bias": GONE}, "target leaf not filled: convs.0.bias"),
    ({"extra": ZEROS}, {"convs.1.bias": Entry("extra")}, "target not in the model: convs.1.bias"),
    ({}, {"convs.0.bias": Entry("body.0.weight")}, "source key used more than once: body.0.weight"),
    ({"head.weight": TURNED}, {}, "shape differs: head.kernel: head.weight (6, 7)"),
    ({"body.0.weight": ZEROS}, {}, "shape differs: convs.0.kernel: body.0.weight (5,)"),
    ({"body.0.bias": ZEROS + np.nan}, {}, "not finite: convs.0.bias: body.0.bias"),
    ({"body.0.bias": np.arange(5)}, {}, "kind differs: convs.0.bias: body.0.bias is int64, want float32"),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("entry", "shape", "axes"), [
    (Entry("b", OI_TO_IO), (160, 130), (1, 0)),
    (Entry("b", OIHW_TO_HWIO), (40, 70, 3, 3), (2, 3, 1, 0)),
    (Entry("b"), (20_000,), (0,)),
])  # fmt: skip
def test_large_tensors_are_the_same_numbers(dtype, entry, shape, axes):
    """They take another way than small ones; the sign of zero stays."""
    theirs = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    theirs.reshape(-1)[5] = -0.0
    expected = np.transpose(theirs, axes).astype(np.float32)
    target = {"a": jax.ShapeDtypeStruct(expected.shape, np.float32)}
    assert port({"b": theirs}, {"a": entry}, target)["a"].tobytes() == expected.tobytes()
    theirs.reshape(-1)[-1] = np.inf
    assert lines_of(lambda: port({"b": theirs}, {"a": entry}, target))[0].startswith("not finite")


@pytest.mark.parametrize("cases", [*([i] for i in range(len(DISAGREEMENTS))), [0, 5, 7]])
def test_all_disagreements_are_named_in_one_error(cases):
    theirs, table = source(), dict(TABLE)
    for i in cases:
        theirs |= DISAGREEMENTS[i][0]
        table |= DISAGREEMENTS[i][1]
    theirs, table = ({k: v for k, v in each.items() if v is not GONE} for each in (theirs, table))
    lines = lines_of(lambda: port(theirs, table, TARGET))
    assert all(any(line.startswith(DISAGREEMENTS[i][2]) for line in lines) for i in cases)
    assert len(cases) == 1 or len(lines) == 3


def test_ignored_keys_may_stay_but_a_used_one_is_still_used():
    theirs = source() | {"optimizer.m": np.zeros(1)}
    ours = port(theirs, TABLE, TARGET, ignore=lambda key: "optimizer" in key or key == "head.weight")
    assert "head.kernel" in ours and len(ours) == 3


def lines_of(call) -> list[str]:
    with pytest.raises(ValueError) as caught:
        call()
    return [line.strip() for line in str(caught.value).split("\n")[1:]]


def test_overflow_of_a_narrower_target_is_not_finite():
    target = {"x": jax.ShapeDtypeStruct((2,), np.float16)}
    (line,) = lines_of(lambda: port({"a": np.array([1.0, 1e6])}, {"x": Entry("a")}, target))
    assert line.startswith("not finite: x: a") and "float16" in line


def test_export_lists_all_that_does_not_fit():
    params = port(source(), TABLE, TARGET)
    params["more"] = np.zeros(2, np.float32)
    params["convs.0.bias"][0] = np.inf
    params["head.kernel"] = np.zeros(3, np.float32)
    lines = lines_of(lambda: export(params, TABLE))
    assert {"target leaf not filled: more", "not finite: convs.0.bias"} < set(lines) and len(lines) == 3
    assert any("head.kernel" in line and "(3,)" in line for line in lines)


def test_flatten_and_unflatten_keep_keys_and_order():
    tree = {"b": {1: {"x": 1.0}, 0: {"x": 2.0}}, "a": 3.0}
    flat = flatten(tree)
    assert list(flat) == ["b.1.x", "b.0.x", "a"] and flatten(flat) == flat
    assert unflatten_like(dict(reversed(flat.items())), tree) == tree


def test_repeated_missing_unknown_and_misshapen_paths_are_listed():
    assert lines_of(lambda: flatten({"a": {0: 1.0, "0": 2.0}}))[0].endswith("a.0")
    flat = {"convs.0.kernel": np.zeros((3, 2, 4, 6)), "convs.0.bias": np.zeros(5), "tail": np.zeros(1)}
    assert lines_of(lambda: unflatten_like(flat, TARGET)) == [
        "leaf without a value: head.kernel",
        "value without a leaf: tail",
        "shape differs: convs.0.kernel: value (3, 2, 4, 6), leaf (3, 2, 4, 5)",
    ]
