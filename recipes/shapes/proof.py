"""The proof that controls learn: three kinds of control, several seeds, on shapes that only a condition can place.

    python -m recipes.shapes.proof                              all of it, into runs/ and data/; resumes
    python -m recipes.shapes.proof --seeds 1 --kinds mediapipe  the shortest

Draws captioned shapes (`pictures.py`), encodes them with the shipped autoencoder, and trains a small base on the
captions (`experiment=shapes_base`). Then a control of each kind on edges, base frozen, with each seed
(`shapes_control`), which decides its initial weights, the order of the pictures and the noise. Held-out pictures are
scored: mask IoU with the picture of the edges, with control, without control, and with another picture's edges, which
should be no better than without.
"""

import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import tyro
from flax import nnx

from common import terminal
from common.evaluation.evaluation import write_json
from common.evaluation.score_table import markdown
from plugins.control.loading import load
from plugins.data.latent_cache import write_cache
from plugins.diffusion.io.base import WEIGHTS
from plugins.metrics.anchors import WITH, WITHOUT, WRONG
from recipes.commands import evaluate, length, train
from recipes.shapes import pictures

PICTURES, LATENTS = Path("data/shapes64"), Path("data/shapes64_latents")
VAE = WEIGHTS / "diffusion-small"
SCORE = "area"
BASE_STEPS, STEPS, BATCH = 600, 250, 16  # enough for the proof; the experiments alone train for longer


@dataclass
class Proof:
    """Train controls on procedural shapes, and score them."""

    seeds: int = 3  # Trainings per kind
    kinds: tuple[Literal["mediapipe", "controlnet", "t2i_adapter"], ...] = ("mediapipe", "controlnet", "t2i_adapter")
    output: str = "runs/proof.json"  # JSON file of the scores
    set: tuple[str, ...] = ()  # Further overrides of the controls' trainings, as of train.py: trainer.steps=100
    base_set: tuple[str, ...] = ()  # The same for the base's training


def prove(proof: Proof) -> list[dict[str, Any]]:
    """The rows of the table."""
    if not PICTURES.exists():
        pictures.prepare(PICTURES)
    if not LATENTS.exists():
        write_cache(PICTURES, VAE, LATENTS)
    train("experiment=shapes_base", *length(BASE_STEPS), *proof.base_set)
    rows = []
    for kind in proof.kinds:
        runs = [train_and_score(kind, seed, proof.set) for seed in range(proof.seeds)]
        control = nnx.state(load(f"runs/shapes_{kind}_0/weights"))
        row = {"kind": kind, "parameters": sum(leaf.size for leaf in jax.tree.leaves(control))}
        for key in runs[0]:
            values = [run[key] for run in runs]
            row[key] = {"mean": statistics.mean(values), "all": values}
        rows.append(row)
        write_json(Path(proof.output), {"rows": rows}, overwrite=True)
    return rows


def train_and_score(kind: str, seed: int, settings: Sequence[str]) -> dict[str, float]:
    """IoU of the rows, and seconds of training, NaN of one that was stopped and resumed."""
    name = f"shapes_{kind}_{seed}"
    folder = Path("runs") / name
    spent, begun = folder / "seconds.txt", folder.exists()
    overrides = ["experiment=shapes_control", f"task.kind={kind}", f"seed={seed}", f"name={name}"]
    overrides += ["evaluation.strengths=[1.0]", f"data.batch_size={BATCH}", *length(STEPS), *settings]
    started = time.perf_counter()
    train(*overrides)
    if not begun:
        spent.write_text(f"{time.perf_counter() - started}\n")
    seconds = float(spent.read_text()) if spent.exists() else math.nan
    evaluate(*overrides, f"weights={folder}/weights", "overwrite=true")
    scores = json.loads((folder / "evaluation" / "results.json").read_text())["scores"]
    return {row: values[SCORE]["value"] for row, values in scores.items()} | {"seconds": seconds}


def table(rows: Sequence[dict[str, Any]]) -> str:
    columns = [f"{WITH}, strength 1", WITHOUT, WRONG]
    lines = []
    for row in rows:
        cells = [f"{row[c]['mean']:.3f} ({min(row[c]['all']):.3f} to {max(row[c]['all']):.3f})" for c in columns]
        lines.append([row["kind"], f"{row['parameters']:,}", *cells, f"{row['seconds']['mean']:.0f}"])
    return markdown(["control", "parameters", *columns, "training s"], lines)


def main() -> None:
    proof = tyro.cli(Proof, prog="python -m recipes.shapes.proof")
    with terminal.exits("recipes.shapes.proof", out_of_memory="give --set data.batch_size=8"):
        terminal.say(table(prove(proof)))


if __name__ == "__main__":
    main()
