"""Stores a trained control of the small base in float16, its outputs multiplied by `scale`.

    python -m recipes.captioned_pictures.ship_control runs/control_mask/weights out/mask-small

An output is added to the base's features times the strength, so `scale` decides what strength 1 is. Controls are
trained at 1, and those of the shipped base follow their condition closer at 1.5 (their cards have the scores).
"""

from pathlib import Path

import jax
import tyro
from flax import nnx

from common import terminal
from plugins import control
from plugins.control.mediapipe import MediaPipePlugin


def main(
    run: tyro.conf.Positional[Path], folder: tyro.conf.Positional[Path], scale: float = 1.5, overwrite: bool = False
) -> None:
    """Store the plugin of RUN in FOLDER.

    Args:
        scale: factor of the outputs.
        overwrite: replace the plugin that is in the folder.
    """
    network = control.load(run)
    if not isinstance(network, MediaPipePlugin):
        raise ValueError(f"{run} holds a {type(network).__name__}: give a plugin that has heads")
    for head in network.heads:
        nnx.update(head, jax.tree.map(lambda values: scale * values, nnx.state(head)))
    control.save(network, folder, "float16", overwrite=overwrite)


if __name__ == "__main__":
    terminal.program(main)
