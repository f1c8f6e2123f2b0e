"""Commands to train.py and eval.py from inside a program, for proofs that consist of many of them.

train("experiment=shapes_base", *length(700))
evaluate("experiment=shapes_control", "weights=runs/shapes_control/weights")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hydra

from common.training.run import evaluate_from_config, train_from_config


def train(*words: str) -> None:
    """`python train.py WORDS`; resumes what was begun, and does nothing where all is done."""
    _order(train_from_config, "train", words)


def evaluate(*words: str) -> None:
    """`python eval.py WORDS`."""
    _order(evaluate_from_config, "eval", words)


def length(steps: int) -> list[str]:
    """A training of so many steps, with one checkpoint half-way."""
    return [
        f"trainer.steps={steps}",
        f"trainer.checkpoint_every={max(steps // 2, 1)}",
        f"trainer.picture_every={steps}",
    ]


def _order(program: Callable[[Any], None], config: str, words: tuple[str, ...]) -> None:
    with hydra.initialize_config_module("configs", version_base="1.3"):
        program(hydra.compose(config, overrides=list(words)))
