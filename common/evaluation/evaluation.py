"""Evaluations: named methods on named test sets, scored by named metric objects.

    python eval.py experiment=film_small weights=film-small      # run: files in the output folder, and a printed table
    trainer.evaluate_every: 5000                                 # prepare before the first step, then score

A system supplies methods (example -> prediction: the network under test, baselines), test sets and metric objects
(`common.evaluation.metrics`); `score_table` makes means and tables of the scores.
"""

from __future__ import annotations

import csv
import json
import math
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from common.checked import Checked
from common.io.files import atomic_output, check_output_file
from common.io.images import write_image
from common.weights.model_file import git_commit


class Evaluation(Checked, ABC):
    """Scores on test sets; a frozen dataclass in a config. Of several processes only the first one evaluates."""

    @abstractmethod
    def files(self) -> Sequence[str]:
        """Names of the files that `evaluate` writes."""

    @abstractmethod
    def evaluate(self, weights: str, output: Output) -> str:
        """Scores `weights`, writes `files` and returns the table. Raises OSError or ValueError before the work."""

    def run(self, weights: str, output: Path, overwrite: bool = False) -> str:
        """`evaluate` into a folder. Raises FileExistsError before any work."""
        return self.evaluate(weights, Output(output, self.files(), overwrite))

    def prepare(self) -> Sequence[str]:
        """The names of `score`. Raises OSError or ValueError before a run begins."""
        raise ValueError(f"{type(self).__name__} gives no scores during training: choose another evaluation")

    def score(self, task: Any, params: Any) -> Mapping[str, float]:
        """Named means over the test sets, during training."""
        raise NotImplementedError


class Output:
    """The files of an evaluation in one folder, each written atomically. Raises FileExistsError for one that exists,
    unless `overwrite` or written by this object."""

    def __init__(self, folder: Path, names: Sequence[str], overwrite: bool = False):
        self.folder, self._overwrite = folder, overwrite
        self._written: set[str] = set()
        for name in names:
            check_output_file(folder / name, overwrite)

    def open(self, name: str) -> AbstractContextManager[Path]:
        """A temporary file that becomes `name` when the block succeeds."""
        overwrite = self._overwrite or name in self._written
        self._written.add(name)
        return atomic_output(self.folder / name, overwrite)

    def write_text(self, name: str, text: str) -> None:
        with self.open(name) as temporary:
            temporary.write_text(text + "\n", "utf-8")

    def write_json(self, name: str, value: Any) -> None:
        with self.open(name) as temporary:
            write_json(temporary, value, overwrite=True)

    def write_csv(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """One line per row, with the keys of the first as header."""
        with self.open(name) as temporary, temporary.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    def write_image(self, name: str, image: Float[np.ndarray, "h w 3"]) -> None:
        with self.open(name) as temporary:
            write_image(temporary, image, overwrite=True)


def provenance(weights: str) -> dict[str, Any]:
    """The weights, the commit of the code and the command of a score."""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {"weights": weights, "git_commit": git_commit(), "command": command}


def write_json(path: Path, value: Any, overwrite: bool = False) -> None:
    """Writes valid JSON: a number that is not finite becomes null."""
    with atomic_output(path, overwrite) as temporary:
        temporary.write_text(json.dumps(_finite(value), indent=2, allow_nan=False) + "\n", "utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
