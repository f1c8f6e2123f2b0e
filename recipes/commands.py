"""train.py and eval.py as functions, for proofs that run them many times.

train("experiment=shapes_base", *length(700))
evaluate("experiment=shapes_control", "weights=runs/shapes_control/weights")
"""

from collections.abc import Sequence

import hydra
from omegaconf import DictConfig

from common.training.run import evaluate_from_config, train_from_config


def train(*overrides: str) -> None:
    train_from_config(_compose("train", overrides))


def evaluate(*overrides: str) -> None:
    evaluate_from_config(_compose("eval", overrides))


def length(steps: int) -> list[str]:
    """Overrides for a training of `steps` steps with one checkpoint half-way."""
    return [
        f"trainer.steps={steps}",
        f"trainer.checkpoint_every={max(steps // 2, 1)}",
        f"trainer.picture_every={steps}",
    ]


def _compose(config: str, overrides: Sequence[str]) -> DictConfig:
    with hydra.initialize_config_module("configs", version_base="1.3"):
        return hydra.compose(config, overrides=list(overrides))
