"""The mean of several trained weights of one network, often better than each of them: weights that were fine-tuned from
one start lie in one basin of the loss (Wortsman et al., Model Soups, ICML 2022), and so do a training and one that
continued from it (Izmailov et al., UAI 2018). `optim.ema` averages the last steps of one training.

    python -m recipes.average_weights film-small runs/film_small_style -o runs/film_small_mean/weights.safetensors
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from common import terminal
from common.io.files import check_output_file
from common.weights.model_file import load_weights, save_weights
from film.io.pretrained import SHIPPED


def average(
    weights: tyro.conf.Positional[tuple[str, ...]],
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    dtype: str = "float32",
    overwrite: bool = False,
) -> None:
    """Write the unweighted mean of weights of one kind and config.

    The header is the last one's, with the headers of all as `mean_of`. Raises ValueError (fewer than two, different
    kinds or configs), FileNotFoundError, FileExistsError.

    Args:
        weights: two or more files, run folders, or FILM's shipped names.
        output: file to write, .safetensors.
        dtype: float32, float16 or bfloat16.
        overwrite: replace the output if it exists.
    """
    if len(weights) < 2:
        raise ValueError(f"{len(weights)} weights given: give two or more")
    check_output_file(output, overwrite)
    files = (place / SHIPPED.marker if place.is_dir() else place for place in map(SHIPPED.find, weights))
    leaves, headers = zip(*map(load_weights, files), strict=True)
    first, *_, last = headers
    for name, header in zip(weights, headers, strict=True):
        if (header.kind, header.config) != (first.kind, first.config):
            found = f"{name} holds {header.kind} {header.config}, {weights[0]} {first.kind} {first.config}"
            raise ValueError(f"{found}: give weights of one config")
    mean = {path: np.mean([each[path] for each in leaves], axis=0, dtype=np.float64) for path in leaves[0]}
    mean = {path: leaf.astype(np.float32) for path, leaf in mean.items()}
    metadata = {**last.metadata, "mean_of": [{"git_commit": one.git_commit, **one.metadata} for one in headers]}
    save_weights(output, mean, kind=last.kind, config=last.config, metadata=metadata, dtype=dtype, overwrite=overwrite)


if __name__ == "__main__":
    terminal.program(average)
