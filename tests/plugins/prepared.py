"""Prepared folders of captioned images, and what tests of batches share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from common.perceptual.efficientnet import EfficientNet, EfficientNetConfig, Stage, save_efficientnet, shapes
from recipes.captioned_pictures.train_tokenizer import train_bpe, write_tokenizer

PLAIN: dict[str, Any] = {"style": "3d emoji", "tags": [], "group": "all", "mirror": True, "split": "unseen"}


def write_prepared(
    folder: Path, images: np.ndarray, entry: Callable[[int], dict[str, Any]] = lambda i: {}, words: str = ""
) -> str:
    """A folder of uint8 `images`: image i is called "thing i", with the fields of PLAIN and `entry(i)`; the tokenizer
    knows the labels, the style and `words`."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = [{"label": f"thing {i}", **PLAIN, **entry(i)} for i in range(len(images))]
    np.save(folder / "images.npy", images)
    (folder / "index.json").write_text(json.dumps({"pictures": entries}))
    texts = [f"{each['label']}, {each['style']}, {words}" for each in entries]
    write_tokenizer(folder / "tokenizer", *train_bpe(texts, 600))
    return str(folder)


def dark_squares(count: int, side: int) -> np.ndarray:
    """White images with a dark square of 8 px at a random place."""
    rng, images = np.random.default_rng(0), np.full((count, side, side, 3), 255, np.uint8)
    for image in images:
        top, left = rng.integers(0, side - 8, 2)
        image[top : top + 8, left : left + 8] = 0
    return images


def write_efficientnet(path: Path) -> EfficientNet:
    """A small network with random weights, saved."""
    config, rng = EfficientNetConfig((Stage(3, 1, 1, 4, 1),), 4, 6, 2, 16), np.random.default_rng(0)
    params = {
        name: {leaf: jnp.asarray(rng.random(x.shape), jnp.float32) for leaf, x in leaves.items()}
        for name, leaves in shapes(config).items()
    }
    network = EfficientNet(params, config)
    save_efficientnet(path, network, {})
    return network
