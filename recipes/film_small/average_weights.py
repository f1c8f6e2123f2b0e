"""The mean of several trained weights of one network, often better than each of them.

Weights that were fine-tuned from the same start lie in one basin of the loss, and so does their mean (Wortsman et al.,
Model Soups, ICML 2022); so do a training and one that continued from it (Izmailov et al., Averaging Weights Leads to
Wider Optima, UAI 2018). `optim.ema` averages the last steps of one training.

    python -m recipes.film_small.average_weights runs/film_small runs/film_small_2 \\
        -o runs/film_small_mean/weights.safetensors
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from flax import nnx

from common import terminal
from common.io.files import check_output_file
from common.weights.porting import assemble, flatten
from film.io.weights import load_with_metadata, save_model
from film.model import Film


def average(
    weights: tyro.conf.Positional[tuple[str, ...]],
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    dtype: str = "float32",
    overwrite: bool = False,
) -> None:
    """Write the unweighted mean of FILM weights of one config.

    Raises ValueError (fewer than two, different configs), FileNotFoundError, FileExistsError.

    Args:
        weights: two or more shipped names, files or run folders.
        output: file to write, .safetensors.
        dtype: float32, float16 or bfloat16.
        overwrite: replace the output if it exists.
    """
    if len(weights) < 2:
        raise ValueError(f"{len(weights)} weights given: give two or more")
    check_output_file(output, overwrite)
    found = [load_with_metadata(name) for name in weights]
    config = found[0][0].config
    for name, (model, _) in zip(weights, found, strict=True):
        if model.config != config:
            raise ValueError(f"{name} holds {model.config}, and {weights[0]} {config}: give weights of one config")
    leaves = [flatten(nnx.to_pure_dict(nnx.state(model))) for model, _ in found]
    mean = {path: np.mean([np.asarray(each[path], np.float64) for each in leaves], axis=0) for path in leaves[0]}
    mean = {path: leaf.astype(np.float32) for path, leaf in mean.items()}
    about = {"mean_of": [{"git_commit": header.git_commit, **header.metadata} for _, header in found]}
    save_model(output, assemble(Film, config, mean), about, dtype=dtype, overwrite=overwrite)


if __name__ == "__main__":
    terminal.program(average)
