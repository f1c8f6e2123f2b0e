"""The proof that control is learnt: shapes that only a condition can place, three kinds of control, several seeds.

    python -m recipes.shapes.proof                              all of it, into runs/ and data/; resumes
    python -m recipes.shapes.proof --seeds 1 --kinds mediapipe  the shortest

1. Draw captioned shapes (`recipes/shapes/pictures.py`) and encode them with the shipped autoencoder.
2. Train a small base on the captions: it knows what a "red circle" is, and not where (`experiment=shapes_base`).
3. Train a control of each kind on edges, base frozen, with each seed (`experiment=shapes_control`). A seed decides the
   control's first weights, the order of the pictures and the noise; the base is one for all.
4. Score held-out pictures: the mask's IoU with the picture that the edges are of, with control, without, and with
   another picture's edges, which should be no better than without (`plugins/evaluation/control_fidelity.py`).

Everything is the trainer's and the evaluation's own; this file only gives the orders and prints the table.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import tyro
from flax import nnx

from common import terminal
from common.evaluation.evaluation import write_json
from common.evaluation.score_table import markdown
from plugins.control.loading import load
from plugins.control.training.control_task import KINDS
from plugins.data.latent_cache import write_cache
from plugins.diffusion.io.pretrained import WEIGHTS
from plugins.metrics.anchors import WITH, WITHOUT, WRONG
from recipes.commands import evaluate, length, train
from recipes.shapes import pictures

PICTURES, LATENTS = Path("data/shapes64"), Path("data/shapes64_latents")
VAE = WEIGHTS / "diffusion-small"
SCORE = "area"
BASE_STEPS, STEPS, BATCH = 600, 250, 16  # enough to see it; the experiments by themselves train for longer


@dataclass
class Proof:
    """Train controls on procedural shapes, and score them."""

    seeds: int = 3
    """Trainings of each kind."""
    kinds: tuple[str, ...] = tuple(KINDS)
    """mediapipe, controlnet, t2i_adapter."""
    output: str = "runs/proof.json"
    """Where the numbers go."""
    set: tuple[str, ...] = ()
    """Further settings of the controls' trainings, as train.py takes them: trainer.steps=100."""
    base_set: tuple[str, ...] = ()
    """The same for the base's training."""


def prove(proof: Proof) -> list[dict[str, Any]]:
    """The rows of the table. Raises ValueError for a kind that is none."""
    if unknown := [kind for kind in proof.kinds if kind not in KINDS]:
        raise ValueError(f"kind {unknown[0]!r} is not known; choose of {', '.join(KINDS)}")
    if not PICTURES.exists():
        pictures.prepare(PICTURES)
    if not LATENTS.exists():
        write_cache(PICTURES, VAE, LATENTS)
    train("experiment=shapes_base", *length(BASE_STEPS), *proof.base_set)
    rows = []
    for kind in proof.kinds:
        runs = [one(kind, seed, proof.set) for seed in range(proof.seeds)]
        rows.append({"kind": kind, "parameters": parameters(kind), **summary(runs)})
        write_json(Path(proof.output), {"rows": rows}, overwrite=True)
    return rows


def one(kind: str, seed: int, settings: Sequence[str]) -> dict[str, float]:
    """One control: trained if it is not yet, scored; IoU of the rows, and the seconds of the training."""
    name = f"shapes_{kind}_{seed}"
    overrides = (
        "experiment=shapes_control",
        f"task.kind={kind}",
        f"seed={seed}",
        f"name={name}",
        "evaluation.strengths=[1.0]",
        f"data.batch_size={BATCH}",
        *length(STEPS),
        *settings,
    )
    started = time.perf_counter()
    train(*overrides)
    seconds = time.perf_counter() - started
    evaluate(*overrides, f"weights=runs/{name}/weights", "overwrite=true")
    scores = json.loads(Path(f"runs/{name}/evaluation/results.json").read_text())["scores"]
    return {row: values[SCORE]["value"] for row, values in scores.items()} | {"seconds": seconds}


def parameters(kind: str) -> int:
    """Of the control of that kind."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(load(f"runs/shapes_{kind}_0/weights"))))


def summary(runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Mean and range over the seeds of each number."""
    return {
        key: {"mean": statistics.mean(run[key] for run in runs), "all": [run[key] for run in runs]} for key in runs[0]
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    columns = [f"{WITH}, strength 1", WITHOUT, WRONG]
    lines = []
    for row in rows:
        cells = [f"{row[c]['mean']:.3f} ({min(row[c]['all']):.3f} to {max(row[c]['all']):.3f})" for c in columns]
        lines.append([row["kind"], f"{row['parameters']:,}", *cells, f"{row['seconds']['mean']:.0f}"])
    return markdown(["control", "parameters", *columns, "training s"], lines)


def main() -> None:
    proof = tyro.cli(Proof, prog="python -m recipes.shapes.proof")
    with terminal.exits("recipes.shapes.proof", out_of_memory="give --set data.batch_size=16"):
        terminal.say(table(prove(proof)))


if __name__ == "__main__":
    main()
