"""How well images follow the shipped controls, on held-out pictures and on photographs, over several seeds.

    python -m recipes.captioned_pictures.obedience out/obedience           # data/captioned64, data/depth64

Each picture's caption is drawn with its own condition, without control, and with another picture's condition; scores
compare with the picture itself (`plugins/metrics/fidelity.py`). `pictures` are labels that training never saw,
`photographs` stamps: things cut out of photographs, with a sentence. Depth is inflated from silhouettes there, and
exact in `scenes`.
"""

import dataclasses
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tyro

from common import terminal
from common.evaluation.score_table import markdown
from common.io.files import atomic_folder, check_output_folder
from common.training.mesh import make_mesh
from plugins import control, diffusion
from plugins.control.training.control_task import draw
from plugins.data.batches import PictureBatches
from plugins.data.captioned_batches import CaptionedConfig
from plugins.data.own_batches import OwnPicturesConfig
from plugins.diffusion.pipeline import Pipeline
from plugins.evaluation.control_fidelity import ControlEvaluation
from plugins.evaluation.held_out import Images
from plugins.metrics.anchors import derangement
from plugins.metrics.fidelity import EdgeF1, MaskIou

SCENES = "scenes"  # which have no silhouette
SETS = {"pictures": "unseen", "photographs": "test"}
PLUGINS = ("canny-small", "mask-small", "scribble-small", "depth-small")
OWN, NONE, WRONG = "own", "none", "wrong"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is drawn."""

    plugins: tuple[str, ...] = PLUGINS  # Shipped names, or folders of weights
    seeds: int = 3
    count: int = 128  # Pictures of each set
    strength: float = 1.0
    base: str = "diffusion-small"
    captioned: str = "data/captioned64"
    depth: str = "data/depth64"


def sets_of(kind: str, settings: Settings, side: int) -> dict[str, PictureBatches]:
    """The pictures that a kind of condition is scored on; `side` is the base's."""
    if kind != "depth":
        return {name: CaptionedConfig(settings.captioned, split=split, condition=kind) for name, split in SETS.items()}
    folders = {**SETS, SCENES: "scenes"}
    options: dict[str, Any] = {"split": "all", "size": side, "condition": "depth", "stored": True}
    options["tokenizer"] = settings.base
    return {name: OwnPicturesConfig(f"{settings.depth}/{split}", **options) for name, split in folders.items()}


def rows_of(
    name: str, settings: Settings, pipeline: Pipeline, without: dict[tuple[str, ...], list[Images]]
) -> Iterator[dict[str, Any]]:
    """A row for each set and condition, with the scores of each seed; `without` keeps the images without control."""
    network, mesh = control.load(name), make_mesh()
    for place, data in sets_of(network.config.condition, settings, pipeline.base.side).items():
        metrics = {"edges": EdgeF1()} if place == SCENES else {"edges": EdgeF1(), "area": MaskIou()}
        evaluation = ControlEvaluation(data, metrics, count=settings.count)
        held = evaluation.held_out(settings.count)
        key, wrong = tuple(held.prompts), held.conditions[derangement(len(held.conditions))]
        ways = (OWN, network, held.conditions), (NONE, None, held.conditions), (WRONG, network, wrong)
        for way, by, conditions in ways:
            images = without.get(key, []) if by is None else []
            for seed in range(len(images), settings.seeds):
                how: dict[str, Any] = {"first_seed": seed * settings.count, "strength": settings.strength, "mesh": mesh}
                images.append(draw(pipeline, held.prompts, by, conditions, evaluation, **how))
            if by is None:
                without[key] = images
            rounds = [evaluation.scored(held, {way: of_seed})[way] for of_seed in images]
            scores = [{score: mean.value for score, mean in means.items()} for means in rounds]
            terminal.say(f"{name} {place} {way}: {scores}")
            yield {"plugin": name, "set": place, "condition": way, "count": len(held.images), "scores": scores}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: means over the seeds, and their ranges."""

    def cell(row: dict[str, Any], key: str) -> str:
        values = [scores[key] for scores in row["scores"] if key in scores]
        return "" if not values else f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"

    titles = ["plugin", "set", "images", "condition", "edge F1", "mask IoU"]
    cells = [
        [row["plugin"], row["set"], str(row["count"]), row["condition"], cell(row, "edges"), cell(row, "area")]
        for row in rows
    ]
    return markdown(titles, cells)


def main(folder: tyro.conf.Positional[Path], settings: Settings = Settings()) -> None:
    """Score the controls, and write `results.json` and `table.md` to FOLDER."""
    check_output_folder(folder)
    pipeline = diffusion.load(settings.base)
    without: dict[tuple[str, ...], list[Images]] = {}
    rows = [row for name in settings.plugins for row in rows_of(name, settings, pipeline, without)]
    with atomic_folder(folder) as part:
        about = {"settings": dataclasses.asdict(settings), "rows": rows}
        (part / "results.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
        (part / "table.md").write_text(table(rows) + "\n", "utf-8")
    terminal.say(table(rows))


if __name__ == "__main__":
    terminal.program(main)
