"""Exports a trained network of the countries, with a memory of all real ones, as reveal/weights/countries holds them.

python -m recipes.countries.ship runs/countries_long --folder out/shipped

weights.safetensors    float16; the header has the recipe and the processor
memory/                all items about the 250 real countries, by those weights: keys float32, values float16
"""

import dataclasses
from pathlib import Path

import cv2
import tyro
from flax import nnx

from common import terminal
from common.io.files import atomic_folder
from recipes.countries.data import CountriesConfig
from recipes.countries.phrases import SOURCES
from reveal import pretrained
from reveal.memory.builder import Builder
from reveal.memory.items import Item
from reveal.network import weights
from reveal.processing.processor import recipe_of
from reveal.reader import Reader, layout_of

COUNTRIES = ("recipes.countries.data.CountriesConfig", "recipes.countries.hard_questions.HardQuestions")


def ship(run: Path, folder: Path, tower_weight: float | None = None) -> int:
    """Writes both into `folder`; returns the number of items. `tower_weight` is of the tower's cosine in a score; None:
    that of the run. Training the tower does not depend on it. Raises FileExistsError for an existing folder;
    FileNotFoundError, ValueError for a run without such a network."""
    model, header = weights.load_with_metadata(run)
    recipe = recipe_of(header, "data")
    recipe = recipe.get("world", recipe)  # of `FlagPairs`
    if recipe.get("_target_") not in COUNTRIES:
        raise ValueError(f"{run} was trained on {recipe.get('_target_')}, not on {COUNTRIES[0]}: give another run")
    length = recipe.get("item_length", CountriesConfig.item_length)
    if tower_weight is not None:
        if (tower := model.config.tower) is None:
            raise ValueError(f"{run} has no tower to weigh {tower_weight}: give a run of countries_pictures")
        tower = dataclasses.replace(tower, weight=tower_weight, heads_weight=tower.weights[0])
        model.config = dataclasses.replace(model.config, tower=tower)
    data = CountriesConfig(size=model.config.vit.image_size, item_length=length, invented=0)
    metadata = {"processor": data.processor()} | header.metadata
    items = data.memory_items()
    with atomic_folder(folder) as part:
        params = nnx.to_pure_dict(nnx.state(model))
        weights.save(part / pretrained.WEIGHTS, params, model.config, metadata=metadata, dtype="float16")
        reader = Reader(weights.load(part / pretrained.WEIGHTS), read_item=data.read_item)
        layout = dataclasses.replace(layout_of(reader.model, SOURCES), value_dtype="float16")
        with Builder(part / pretrained.MEMORY, layout) as builder:
            builder.add([with_png(item) for item in items], *reader.encode(items))
    return len(items)


def with_png(item: Item) -> Item:
    """Its picture encoded as PNG, a tenth of the size."""
    if item.picture is None or isinstance(item.picture, bytes):
        return item
    return dataclasses.replace(item, picture=cv2.imencode(".png", item.picture[..., ::-1])[1].tobytes())


def main(run: tyro.conf.Positional[Path], folder: Path, tower_weight: float | None = None) -> None:
    """Export the weights of RUN, and a memory encoded by them, to FOLDER, a new one."""
    terminal.say(f"{folder}: {ship(run, folder, tower_weight)} items")


if __name__ == "__main__":
    terminal.program(main)
