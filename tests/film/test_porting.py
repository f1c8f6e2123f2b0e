"""Weights of the reference programs are ported whole and exact, both ways, and refused for all faults at once."""

import json
import re

import numpy as np
import pytest
import recipe
from toy import assert_same_parameters, foreign, parameters

from common.weights.porting import OIHW_TO_HWIO
from film.model import FilmConfig
from film.porting import from_tf_variables, from_torch, key_table, read_reference

CONFIG = recipe.config("tiny")
TABLE = key_table(CONFIG, "variables")


def renumbered(variables: dict[str, np.ndarray], by: int, gap_at: int | None = None) -> dict[str, np.ndarray]:
    """Keras' auto-names of a later model in the same process: conv2d -> conv2d_13 and so on."""

    def rename(match: re.Match) -> str:
        number = int(match[1] or 0)
        return f"fusion/conv2d_{number + by + (gap_at is not None and number >= gap_at)}/"

    return {re.sub(r"^fusion/conv2d(?:_(\d+))?/", rename, name): value for name, value in variables.items()}


def test_each_variable_is_exact_both_ways():
    reference, variables = recipe.model("tiny"), recipe.variables("tiny")
    ours, back = parameters(reference), foreign(reference, "variables")
    assert len(ours) == len(variables) == len(recipe.manifest("tiny")["variables"])
    assert back.keys() == variables.keys()
    for path, entry in TABLE.items():
        np.testing.assert_array_equal(ours[path], variables[entry.source])
        np.testing.assert_array_equal(back[entry.source], variables[entry.source])
    assert_same_parameters(from_torch(foreign(reference, "torch"), CONFIG), reference)


def test_names_may_end_in_colon_0_come_in_any_order_and_with_later_numbers():
    reference, variables = recipe.model("tiny"), recipe.variables("tiny")
    shuffled = {f"{name}:0": variables[name] for name in sorted(variables, reverse=True)}
    assert_same_parameters(from_tf_variables(shuffled, CONFIG), reference)
    later = renumbered(variables, 97)  # conv2d_100 sorts before conv2d_97 as text
    assert "fusion/conv2d_97/kernel" in later and "fusion/conv2d/kernel" not in later
    assert_same_parameters(from_tf_variables(later, CONFIG), reference)


def test_every_fault_is_in_one_error():
    names, variables = [entry.source for entry in TABLE.values()], recipe.variables("tiny")
    missing, narrow, broken, infinite = (names[i] for i in (0, 5, 8, 11))
    several = variables | {"feat_net/surplus/kernel": np.zeros((1,), np.float32)}
    del several[missing]
    several[narrow] = several[narrow][..., :-1]
    several[broken] = np.full_like(several[broken], np.nan)
    several[infinite] = np.where(np.arange(several[infinite].size).reshape(several[infinite].shape), 0, np.inf)
    one, decoder = names[3], "fusion/conv2d_0/kernel"
    for given, named in (
        (variables | {f"{one}:0": variables[one] + 1}, [one, f"{one}:0"]),
        (variables | {decoder: variables["fusion/conv2d/kernel"] + 1}, [decoder]),
        (renumbered(variables, 5, gap_at=3), ["fusion/conv2d/"]),
        (several, [missing, "feat_net/surplus/kernel", narrow, broken, infinite]),
    ):
        with pytest.raises(ValueError) as error:
            from_tf_variables(given, CONFIG)
        assert all(name in str(error.value) for name in named)


def test_weights_of_another_size_and_faults_of_torch():
    with pytest.raises(ValueError, match="extractor"):
        from_tf_variables(recipe.variables("tiny"), FilmConfig.small())
    tensors = foreign(recipe.model("tiny"), "torch")
    first, second = sorted(tensors)[:2]
    del tensors[first]
    tensors["module." + second] = tensors.pop(second)
    with pytest.raises(ValueError) as error:
        from_torch(tensors, CONFIG)
    assert all(name in str(error.value) for name in (first, second, "module." + second))


@pytest.mark.long
@pytest.mark.parametrize("path", [
    *("tiny_saved_model", "tiny_checkpoint/", "tiny_checkpoint/ckpt-3.index"),
    *("dajes_tiny.pth", "dajes_tiny_torchscript.pt"),
])  # fmt: skip
def test_files_of_the_reference_programs_hold_the_same_network(path):
    reference = recipe.narrow()
    assert_same_parameters(read_reference(recipe.DATA / path, reference.config), reference)


def test_names_of_the_published_network():
    """Every row of the PyTorch port's own list (its name, its shape, the TensorFlow variable), and of a checkpoint."""
    config = FilmConfig.paper()
    rows = json.loads((recipe.DATA / "dajes_state_dict_map.json").read_text())
    paths = {entry.source: path for path, entry in key_table(config, "variables").items()}
    torch = key_table(config, "torch")
    shapes = {entry["name"]: tuple(entry["shape"]) for entry in recipe.manifest("full")["variables"]}
    assert len(rows) == len(torch) and {row["tf"] for row in rows} == paths.keys() == shapes.keys()
    for row in rows:
        entry, shape = torch[paths[row["tf"]]], tuple(row["shape"])
        assert entry.source == row["torch"]
        if row["torch"].endswith("weight"):
            assert entry.layout == OIHW_TO_HWIO
            shape = tuple(shape[axis] for axis in (2, 3, 1, 0))
        assert shape == shapes[row["tf"]]
    listed = {key for key, _ in json.loads((recipe.DATA / "tiny_checkpoint_keys.json").read_text())["checkpoint"]}
    assert {entry.source for entry in key_table(CONFIG, "checkpoint").values()} <= listed
