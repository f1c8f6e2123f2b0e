"""What comes with the program: a trained network of flags and countries, and a memory of all real ones.

    python -m recipes.countries.ship runs/countries_long --folder out/shipped       weights and memory, for reveal/weights/countries

    weights.safetensors    float16; its header tells the recipe, from which tokenizer, lengths and prompt follow
    memory/                every item about the 250 real countries, held-out ones too: keys float32, values float16,
                           flags as PNG

Keys and values are those of the float16 weights, for a memory belongs to the very numbers that made it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import cv2
import tyro
from flax import nnx

from common import terminal
from common.io.files import atomic_folder
from common.training import renamed
from recipes.countries.data import CountriesConfig
from recipes.countries.phrases import SOURCES
from reveal import pretrained
from reveal.memory.builder import Builder
from reveal.memory.items import Item
from reveal.memory.manifest import Layout
from reveal.network import weights
from reveal.processing.processor import recipe_of
from reveal.reader import Reader, reader_fingerprint

COUNTRIES = "recipes.countries.data.CountriesConfig"


def ship(run: Path, folder: Path = pretrained.DATA) -> int:
    """Writes both into `folder`; how many items there are.

    Raises FileExistsError if there is such a folder; FileNotFoundError, ValueError for what holds no such network."""
    model, header = weights.load_with_metadata(run)
    told = recipe_of(header).get("data")
    told = told if isinstance(told, Mapping) else {}
    if renamed.target(str(told.get("_target_"))) != COUNTRIES:
        raise ValueError(f"{run} was trained on {told.get('_target_')}, not on {COUNTRIES}: give another run")
    length = told.get("item_length", CountriesConfig.item_length)
    data = CountriesConfig(size=model.config.vit.image_size, item_length=length)
    metadata = {"processor": data.processor()} | header.metadata
    with atomic_folder(folder) as part:
        small = nnx.to_pure_dict(nnx.state(model))
        weights.save(part / pretrained.WEIGHTS, small, model.config, metadata=metadata, dtype="float16")
        reader = Reader(weights.load(part / pretrained.WEIGHTS), read_item=data.read_item)
        return remember(reader, part / pretrained.MEMORY, data)


def remember(reader: Reader, folder: Path, data: CountriesConfig) -> int:
    """A memory of the real countries in a new folder."""
    config, items = reader.model.config, data.real_items()
    values = config.value_tokens, config.width
    layout = Layout(reader_fingerprint(reader.model), SOURCES, config.key_dim, values, value_dtype="float16")
    with Builder(folder, layout) as builder:
        builder.add([as_file(item) for item in items], *reader.encode(items))
    return len(items)


def as_file(item: Item) -> Item:
    """With its picture as PNG, a tenth of the pixels' size."""
    if item.picture is None or isinstance(item.picture, bytes):
        return item
    return dataclasses.replace(item, picture=cv2.imencode(".png", item.picture[..., ::-1])[1].tobytes())


def main(run: tyro.conf.Positional[Path], folder: Path = pretrained.DATA) -> None:
    """Put the weights of RUN, and a memory made by them, into FOLDER."""
    terminal.say(f"{folder}: {ship(run, folder)} items")


if __name__ == "__main__":
    terminal.program(main)
