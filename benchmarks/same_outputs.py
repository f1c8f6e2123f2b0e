"""Compare the images, answers and losses of two checkouts, before and after a refactoring.

    git worktree add /elsewhere/before COMMIT
    python -m benchmarks.same_outputs /elsewhere/before

Runs the same commands in both checkouts, each with its own code, and compares the outputs: images as floats in [0, 1]
and numbers in JSON within `TOLERANCE`, other text exactly. Exits with 1 if something differs. Some minutes on two
cores.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tyro.conf import Positional

from common import terminal
from common.io.images import read_image

TOLERANCE = 1e-6
EXAMPLES = Path(__file__).parents[1] / "examples"
CUP = [str(EXAMPLES / f"cup_{i}.jpg") for i in range(2)]
MEMORY = str(Path(__file__).parents[1] / "reveal" / "weights" / "countries" / "memory")
APPLE, FLAG = str(EXAMPLES / "apple.png"), str(EXAMPLES / "estonia.png")
GENERATE = ["plugins", "generate", "--steps", "8", "--prompt"]
QUESTIONS = "What is the capital?", "Which languages are spoken?", "What is the currency?", "Which countries border it?"
COMMANDS: dict[str, list[str]] = {
    "film-small": ["film", *CUP, "-o", "frames", "--times", "2", "--weights", "film-small"],
    "film-small-style": ["film", *CUP, "-o", "frames", "--times", "2", "--weights", "film-small-style"],
    "prompt": [*GENERATE, "red apple", "-o", "a.png"],
    "ddim": [*GENERATE, "blue fish, 3d emoji", "-o", "a.png", "--sampler", "ddim", "--seed", "3"],
    "euler": [*GENERATE, "green tree", "-o", "a.png", "--sampler", "euler", "--guidance", "3"],
    "canny": [*GENERATE, "green apple, 3d emoji", "-o", "a.png", "--control", "canny", "--image", APPLE],
    "mask": [*GENERATE, "red apple", "-o", "a.png", "--control", "mask", "--image", APPLE],
    "plug-and-play": [*GENERATE, "yellow apple", "-o", "a.png", "--control", "layout", "--image", APPLE],
    "image-to-image": [*GENERATE, "apple", "-o", "a.png", "--image", APPLE, "--strength", "0.5"],
    "condition": ["plugins", "condition", "canny", APPLE, "-o", "c.png"],
    **{f"question-{i}": ["reveal", "ask", FLAG, text, "--json"] for i, text in enumerate(QUESTIONS)},
    "no-memory": ["reveal", "ask", FLAG, QUESTIONS[0], "--json", "--no-memory"],
    "search": ["reveal", "search", MEMORY, "--image", FLAG, "--json", "-k", "5"],
    "training": ["train", "experiment=film_style", "debug=cpu", "trainer.steps=4", "trainer.checkpoint_every=4"],
}
TIMES = ("seconds", "time", "per_s", "memory", "commit")  # parts of names of numbers that differ between runs


def output(checkout: Path, arguments: list[str], folder: Path) -> dict[str, Any]:
    """The printed JSON, images and metrics of a command of a checkout, by name."""
    folder.mkdir(parents=True)
    module, *rest = arguments
    environment = os.environ | {"PYTHONPATH": str(checkout), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", module, *rest]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{checkout}: {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = {"printed": json.loads(done.stdout) if "--json" in arguments else ""}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".png" and "tensorboard" not in name:
            found[name] = read_image(path)
        elif path.name == "metrics.jsonl":
            found[name] = [json.loads(line) for line in path.read_text().splitlines()]
    return found


def differences(one: Any, other: Any, place: str) -> Iterator[tuple[str, float]]:
    """The difference at each place; infinite for other kinds, lengths or text."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other} - {key for key in {*one, *other} if any(part in key for part in TIMES)}):
            yield from differences(one.get(key), other.get(key), f"{place}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differences(a, b, f"{place}[{i}]")
    elif isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.shape == other.shape:
        yield place, float(np.abs(one - other).max())
    elif isinstance(one, int | float) and isinstance(other, int | float):
        yield place, abs(one - other) / max(1.0, abs(one))
    elif one != other:
        yield place, float("inf")


def main(before: Positional[Path], only: Positional[tuple[str, ...]] = ()) -> None:
    """Compare the outputs of another checkout with those of this one.

    Args:
      before: folder of the other checkout.
      only: names of comparisons; none: all of them.
    """
    chosen = only or tuple(COMMANDS)
    if unknown := set(chosen) - set(COMMANDS):
        raise ValueError(f"no comparison {min(unknown)}: there are {', '.join(COMMANDS)}")
    after, failed = Path(__file__).parents[1], False
    with tempfile.TemporaryDirectory() as scratch:
        for name in chosen:
            one = output(before.resolve(strict=True), COMMANDS[name], Path(scratch) / name / "before")
            other = output(after, COMMANDS[name], Path(scratch) / name / "after")
            found = list(differences(one, other, name))
            worst = max((value for _, value in found), default=0.0)
            failed |= worst > TOLERANCE
            verdict = "DIFFERS" if worst > TOLERANCE else "same"
            print(f"{name:18} {verdict}  largest difference {worst:.1e}", flush=True)
            for place, value in found:
                if value > TOLERANCE:
                    print(f"    {place}: {value:.3g}")
    raise SystemExit(int(failed))


if __name__ == "__main__":
    terminal.program(main)
