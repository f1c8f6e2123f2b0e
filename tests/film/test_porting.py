"""Weights of the reference programs come over whole and exact, go back, and are refused for every fault at once."""

import json
import re

import numpy as np
import pytest
import recipe
import safetensors.numpy
from toy import assert_same_parameters, parameters

from common.weights.porting import OIHW_TO_HWIO
from film.model import Film, FilmConfig
from film.porting import (
    checkpoint_table,
    from_tf_checkpoint,
    from_tf_variables,
    from_torch,
    read_reference,
    to_tf_variables,
    to_torch,
    torch_table,
    variable_table,
)

CONFIG = recipe.config("tiny")


@pytest.fixture(scope="module")
def reference() -> Film:
    return recipe.model("tiny")


@pytest.fixture
def variables() -> dict[str, np.ndarray]:
    return recipe.variables("tiny")


def renumbered(variables: dict[str, np.ndarray], by: int, gap_at: int | None = None) -> dict[str, np.ndarray]:
    """Keras' auto-names of a later model in the same process: conv2d -> conv2d_13 and so on."""

    def rename(name: str) -> str:
        found = re.fullmatch(r"fusion/conv2d(?:_(\d+))?/(\w+)", name)
        if not found:
            return name
        number = int(found[1] or 0)
        return f"fusion/conv2d_{number + by + (gap_at is not None and number >= gap_at)}/{found[2]}"

    return {rename(name): value for name, value in variables.items()}


def test_each_variable_lands_where_the_table_says(reference, variables):
    ours = parameters(reference)
    assert len(ours) == len(variables) == len(recipe.manifest("tiny")["variables"])
    for path, entry in variable_table(CONFIG).items():
        np.testing.assert_array_equal(ours[path], variables[entry.source])


def test_names_may_end_in_colon_0_and_come_in_any_order(reference, variables):
    shuffled = {f"{name}:0": variables[name] for name in sorted(variables, reverse=True)}
    assert_same_parameters(from_tf_variables(shuffled, CONFIG), reference)


def test_one_variable_under_two_names_is_refused(variables):
    """Whichever came last would win in silence."""
    one, other = list(variables)[:2]
    variables[f"{one}:0"], variables[f"{other}:0"] = variables[one] + 1, variables[other]
    with pytest.raises(ValueError) as error:
        from_tf_variables(variables, CONFIG)
    said = str(error.value)
    assert f"{one} and {one}:0" in said and f"{other} and {other}:0" in said and "\n" not in said


def test_two_decoder_variables_of_one_number_are_refused(variables):
    variables["fusion/conv2d_0/kernel"] = variables["fusion/conv2d/kernel"] + 1
    with pytest.raises(ValueError, match=r"not used: fusion/conv2d_0/kernel"):
        from_tf_variables(variables, CONFIG)


@pytest.mark.parametrize("by", [2, 4, 13, 97])  # 97: conv2d_100 sorts before conv2d_97 as text
def test_keras_auto_names_are_ranked_by_number(reference, variables, by):
    later = renumbered(variables, by)
    assert f"fusion/conv2d_{by}/kernel" in later and "fusion/conv2d/kernel" not in later
    assert_same_parameters(from_tf_variables(later, CONFIG), reference)


def test_auto_names_with_a_hole_are_not_guessed(variables):
    with pytest.raises(ValueError, match=r"fusion/conv2d"):
        from_tf_variables(renumbered(variables, 5, gap_at=3), CONFIG)


def test_every_fault_is_in_one_error(variables):
    names = [entry.source for entry in variable_table(CONFIG).values()]
    missing, narrow, broken, infinite = names[0], names[5], names[8], names[11]
    del variables[missing]
    variables["feat_net/surplus/kernel"] = np.zeros((1,), np.float32)
    variables[narrow] = variables[narrow][..., :-1]
    variables[broken] = np.full_like(variables[broken], np.nan)
    variables[infinite] = variables[infinite].copy()
    variables[infinite].flat[0] = np.inf
    with pytest.raises(ValueError) as error:
        from_tf_variables(variables, CONFIG)
    said = str(error.value)
    for name in (missing, "feat_net/surplus/kernel", narrow, broken, infinite):
        assert name in said
    assert "5 in all" in said.splitlines()[0]
    assert len(said.splitlines()) == 6


def test_weights_of_another_size_are_refused(variables):
    with pytest.raises(ValueError, match="shape differs"):
        from_tf_variables(variables, FilmConfig.small())


@pytest.mark.parametrize(
    "given", ["tiny_saved_model", *(f"tiny_checkpoint/{end}" for end in ("", "ckpt-3", "ckpt-3.index"))]
)
def test_tensorflow_bundles_hold_the_same_network(given):
    reference = recipe.narrow()
    assert_same_parameters(from_tf_checkpoint(recipe.DATA / given, reference.config), reference)


def test_checkpoint_table_names_the_real_keys():
    listed = {key for key, _ in json.loads((recipe.DATA / "tiny_checkpoint_keys.json").read_text())["checkpoint"]}
    assert {entry.source for entry in checkpoint_table(CONFIG).values()} <= listed


@pytest.mark.parametrize("file", ["dajes_tiny.pth", "dajes_tiny_torchscript.pt"])
def test_torch_files_hold_the_same_network(file):
    reference = recipe.narrow()
    assert_same_parameters(from_torch(recipe.DATA / file, reference.config), reference)
    assert_same_parameters(read_reference(recipe.DATA / file, reference.config), reference)


def test_a_state_dict_in_safetensors(tmp_path, reference):
    safetensors.numpy.save_file(to_torch(reference), tmp_path / "port.safetensors")
    assert_same_parameters(read_reference(tmp_path / "port.safetensors", CONFIG), reference)
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "port.safetensors").read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"cut\.safetensors"):
        read_reference(tmp_path / "cut.safetensors", CONFIG)


def test_both_ways_lose_nothing(reference, variables):
    assert_same_parameters(from_tf_variables(to_tf_variables(reference), CONFIG), reference)
    assert_same_parameters(from_torch(to_torch(reference), CONFIG), reference)
    back = to_tf_variables(reference)
    assert back.keys() == variables.keys()
    for name, value in back.items():
        np.testing.assert_array_equal(value, variables[name])


def test_torch_faults_are_all_named(reference):
    tensors = to_torch(reference)
    first, second = sorted(tensors)[:2]
    del tensors[first]
    tensors["module." + second] = tensors.pop(second)
    with pytest.raises(ValueError) as error:
        from_torch(tensors, CONFIG)
    assert all(name in str(error.value) for name in (first, second, "module." + second))


def test_names_of_the_published_network():
    """Every row of the PyTorch port's own list: its name, its shape, and the TensorFlow variable it came from."""
    config = FilmConfig.paper()
    rows = json.loads((recipe.DATA / "dajes_state_dict_map.json").read_text())
    tf = {entry.source: path for path, entry in variable_table(config).items()}
    torch = torch_table(config)
    shapes = {entry["name"]: tuple(entry["shape"]) for entry in recipe.manifest("full")["variables"]}
    assert len(rows) == len(torch) == len(tf) == len(shapes)
    assert {row["tf"] for row in rows} == tf.keys() == shapes.keys()
    for row in rows:
        entry = torch[tf[row["tf"]]]
        assert entry.source == row["torch"]
        ours = tuple(row["shape"])
        if row["torch"].endswith("weight"):
            assert entry.layout == OIHW_TO_HWIO
            ours = tuple(ours[axis] for axis in (2, 3, 1, 0))
        assert ours == shapes[row["tf"]]
