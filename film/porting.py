"""FILM weights of other programs -> ours.

Four vocabularies name the same convolutions. Each row of `convolutions` is one convolution in all of them:

| vocabulary | source | example of a key (before `SUFFIX`, if any) |
| --- | --- | --- |
| variables | TensorFlow variables | `predict_flow/flow_predictor_0/conv_2/kernel:0` |
| bundle | TF SavedModel, in order of creation | `variables/16` |
| checkpoint | TF training checkpoint | `model/layer_with_weights-1/_predictors/0/_convs/2/kernel` |
| torch | dajes/frame-interpolation-pytorch, kernels OIHW | `predict_flow._predictors.2._convs.2.0.weight` |

The decoder's TensorFlow names are Keras auto-names: a second model in one process goes on counting (`conv2d_13`, ...),
so they are ranked by their number. The PyTorch port lists specialised predictors and decoder levels coarsest first.
Nothing is skipped or guessed: see `common/weights/porting.py`.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.io.tensor_files import TensorFiles
from common.io.tf_checkpoint import read_tf_checkpoint
from common.io.torch_file import read_torch
from common.nn.init import blank
from common.weights import porting
from common.weights.porting import OIHW_TO_HWIO, Entry
from film.config import FilmConfig
from film.model import Film

SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
NOT_WEIGHTS = re.compile(r"\.OPTIMIZER_SLOT|^optimizer/|^(step|epoch|save_counter|training_finished)/|^_CHECKPOINT")
AUTO_NAME = re.compile(r"^fusion/conv2d(?:_(\d+))?/")


class Names(NamedTuple):
    """One convolution: our path, and its prefix in the other vocabularies."""

    ours: str
    variable: str
    checkpoint: str
    torch: str


def convolutions(config: FilmConfig) -> Iterator[Names]:
    """All convolutions, in the order in which the reference creates them."""
    for j in range(2 * config.sub_levels):
        yield Names(
            f"extractor.convs.{j}",
            f"feat_net/sub_extractor/cfeat_conv_{j}",
            f"model/layer_with_weights-0/extract_sublevels/convs/{j}",
            f"extract.extract_sublevels.convs.{j // 2}.{j % 2}.0",
        )
    last = config.specialized_levels
    for p, count in enumerate(config.flow_convs):
        torch = "_predictor" if p == last else f"_predictors.{last - 1 - p}"
        for j in range(count + 2):
            yield Names(
                f"flow.predictors.{p}.convs.{j}",
                f"predict_flow/flow_predictor_{'shared' if p == last else p}/conv_{j}",
                f"model/layer_with_weights-1/_predictors/{p}/_convs/{j}",
                f"predict_flow.{torch}._convs.{j}.0",
            )
    levels = config.fusion_pyramid_levels - 1
    for j in range(3 * levels):
        level, place = divmod(j, 3)
        yield Names(
            f"fusion.convs.{j}",
            f"fusion/conv2d{f'_{j}' if j else ''}",
            f"model/layer_with_weights-2/convs/{level}/{place}",
            f"fuse.convs.{levels - 1 - level}.{place}.0",
        )
    yield Names(
        "fusion.output", f"fusion/conv2d_{3 * levels}", "model/layer_with_weights-2/output_conv", "fuse.output_conv"
    )


def key_table(config: FilmConfig, vocabulary: str) -> dict[str, Entry]:
    """Path of each of our parameters -> its key in a vocabulary of the module docstring."""
    table = {}
    for i, names in enumerate(convolutions(config)):
        for j, leaf in enumerate(("kernel", "bias")):
            table[f"{names.ours}.{leaf}"] = {
                "variables": Entry(f"{names.variable}/{leaf}"),
                "bundle": Entry(f"variables/{2 * i + j}{SUFFIX}"),
                "checkpoint": Entry(f"{names.checkpoint}/{leaf}{SUFFIX}"),
                "torch": Entry(f"{names.torch}.bias") if j else Entry(f"{names.torch}.weight", OIHW_TO_HWIO),
            }[vocabulary]
    return table


def from_tf_variables(variables: Mapping[str, np.ndarray], config: FilmConfig) -> Film:
    """A network from TensorFlow variables by name (with or without ":0"); kernels HWIO.

    ValueError lists every missing, extra, mis-shaped or non-finite variable, or all that are given as "x" and "x:0".
    """
    if twice := sorted(name for name in variables if f"{name}:0" in variables):
        pairs = ", ".join(f"{name} and {name}:0" for name in twice)
        raise ValueError(f"{len(twice)} variables are given under two names: {pairs}; keep one of each pair")
    named = {name.removesuffix(":0"): np.asarray(value) for name, value in variables.items()}
    return _port(_renumber(named, config), "variables", config)


def from_torch(state_dict: Mapping[str, np.ndarray], config: FilmConfig) -> Film:
    return _port(state_dict, "torch", config)


def read_reference(path: str | Path, config: FilmConfig) -> Film:
    """A network from a state dict's file (.pt, .pth, read without torch, or .safetensors), a SavedModel's folder or a
    training checkpoint (both need the `convert` extra)."""
    suffix = Path(path).suffix.lower()
    if suffix in (".safetensors", ".pt", ".pth"):
        return from_torch(TensorFiles(path) if suffix == ".safetensors" else read_torch(path), config)
    if suffix != ".index" and Path(path).is_file():
        known = ".safetensors, .pt or .pth, the .index of a checkpoint, or the folder of a SavedModel"
        raise ValueError(f"{path}: not a file of weights that is known here: give {known}")
    tensors = read_tf_checkpoint(path)
    return _port(tensors, "bundle" if any(key.startswith("variables/") for key in tensors) else "checkpoint", config)


def _port(source: Mapping[str, np.ndarray], vocabulary: str, config: FilmConfig) -> Film:
    table = key_table(config, vocabulary)
    ported = porting.port(source, table, blank(Film, config)[1], lambda key: bool(NOT_WEIGHTS.search(key)))
    return porting.assemble(Film, config, ported)


def _renumber(variables: Mapping[str, np.ndarray], config: FilmConfig) -> Mapping[str, np.ndarray]:
    """Counts the decoder's auto-names from 0 again if a whole decoder is there under later numbers."""
    numbers = {int(match[1] or 0) for name in variables if (match := AUTO_NAME.match(name))}
    expected = 3 * (config.fusion_pyramid_levels - 1) + 1
    if len(numbers) != expected or max(numbers) - min(numbers) != expected - 1:
        return variables

    def again(match: re.Match[str]) -> str:
        rank = int(match[1] or 0) - min(numbers)
        return f"fusion/conv2d{f'_{rank}' if rank else ''}/"

    renamed = {AUTO_NAME.sub(again, name): value for name, value in variables.items()}
    return renamed if len(renamed) == len(variables) else variables  # "conv2d" beside "conv2d_0": no guess
