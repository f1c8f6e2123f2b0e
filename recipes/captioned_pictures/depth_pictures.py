"""Captioned pictures with depth, in the layout of own images (`plugins/data/sources.py`), for the depth plugin.

    python -m recipes.captioned_pictures.depth_pictures data/captioned64 data/depth64

| folder | pictures | depth |
| --- | --- | --- |
| `train` | the training pictures, and rendered scenes (`scenes.py`) | of pictures inflated, of scenes exact |
| `unseen`, `test` | those of these splits | inflated |
| `scenes` | scenes of another seed | exact |

`base` and `floor` of the inflation (`plugins/conditions/depth.py`) vary in training, because maps of estimators do.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro
from jaxtyping import Float
from tqdm import tqdm

from common import terminal
from common.io.files import atomic_folder, check_output_folder
from common.io.images import from_uint8, write_image
from plugins.conditions.depth import draw_depth, inflated
from plugins.conditions.mask import foreground
from plugins.data.captioned import CaptionedPictures, caption
from recipes.captioned_pictures.scenes import scene

BASES, FLOOR, WITH_FLOOR = (0.2, 0.7), 0.4, 0.5  # range of the base; the largest floor; share of pictures with one


class Pair(NamedTuple):
    """A picture in RGB and its depth as a condition, both in [0, 1], and its captions."""

    image: Float[np.ndarray, "h w 3"]
    depth: Float[np.ndarray, "h w 3"]
    captions: list[str]


def pictures(folder: str | Path, split: str, seed: int | None = None) -> Iterator[Pair]:
    """The pictures of a split in which an object stands out, inflated; with `seed` base and floor vary."""
    source = CaptionedPictures(folder)
    for index in source.split(split):
        entry, image = source.entries[index], from_uint8(source[index].image)
        silhouette = foreground(image)
        if not silhouette.any():
            continue
        options = {}
        if seed is not None:
            rng = np.random.default_rng([seed, index])
            has_floor = rng.random() < WITH_FLOOR
            options = {"base": rng.uniform(*BASES), "floor": rng.uniform(0, FLOOR) if has_floor else 0.0}
        label, style = entry["label"], entry["style"]
        tags = ["", *map(str, entry["tags"][:2])] if style else []
        captions = [*(caption(label, style, tag) for tag in tags), label]
        yield Pair(image, draw_depth(inflated(silhouette, **options)), captions)


def scenes(seed: int, count: int, side: int) -> Iterator[Pair]:
    for number in range(count):
        made = scene(np.random.default_rng([seed, number]), side)
        yield Pair(made.image, draw_depth(made.depth, near="low"), [made.caption])


def write(pairs: Iterable[Pair], folder: Path, prefix: str) -> None:
    (folder / "captions").mkdir(parents=True, exist_ok=True)
    for number, pair in enumerate(tqdm(pairs, desc=f"{folder.name} {prefix}"), 1):
        name = f"{prefix}{number:05d}"
        write_image(folder / "images" / f"{name}.png", pair.image)
        write_image(folder / "conditions" / "depth" / f"{name}.png", pair.depth)
        (folder / "captions" / f"{name}.txt").write_text("\n".join(pair.captions) + "\n", "utf-8")


def main(
    source: tyro.conf.Positional[Path],
    folder: tyro.conf.Positional[Path],
    train_scenes: int = 3000,
    test_scenes: int = 128,
    seed: int = 0,
) -> None:
    """Write the pictures of SOURCE, which `recipes.captioned_pictures` prepares, and scenes with depth to FOLDER."""
    check_output_folder(folder)
    side = CaptionedPictures(source).images.shape[1]
    with atomic_folder(folder) as part:
        write(pictures(source, "train", seed), part / "train", "picture")
        write(scenes(seed, train_scenes, side), part / "train", "scene")
        for split in ("unseen", "test"):
            write(pictures(source, split), part / split, "picture")
        write(scenes(seed + 1, test_scenes, side), part / "scenes", "scene")
    terminal.say(f"{folder}: train, unseen, test, scenes")


if __name__ == "__main__":
    terminal.program(main)
