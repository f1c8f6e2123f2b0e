"""Cuts the held-out sets, which no training sees, from the film, the clips and the stereo pairs.

    data/held_out/film/00001/im1.png im2.png im3.png        triplets; the truth, im2, half-way
    data/held_out/cup_1/ cup_4/ ...                         a clip at two gaps: frames c-g, c, c+g
    data/held_out/motorcycle/00001/ ... known.png           a pair; the truth where known.png is white (`stereo.py`)
    data/held_out/film_quarters/00001/frame_0.png ...       truths, 1 and 3, at 1/4 and 3/4 between frames 0 and 4
    data/held_out/test/vtest_1/ ...                         sets that nothing is chosen by
    .../index.json                                          frame c, gap g and motion of each; source and licence
    data/held_out/index.json                                sets for choices and for the last test: source, seconds
                                                            between the outer frames, number of triplets

Losses, rates and shapes are chosen by the scores of the first sets (`evaluation=film_held_out`), which are thus too
good; the sets in `test` (`evaluation=film_test`) are scored when all is chosen. A clip has at most one set with a short
gap and one with a longer gap, so that clips weigh the same.

Nothing is hand-picked: centres are evenly spaced, and `film.data.cutting.EvaluationCut` keeps those with motion in the
cut's range. The people of `vtest` are small, so its range begins lower; in the dark sky of `tower`, the second shot of
`cityCC0`, flow is noise, so it has no range.

    python -m recipes.film_small.footage && python -m recipes.film_small.held_out       # after fetch_film
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from common import terminal
from common.io.files import atomic_folder, check_output_folder, require_file
from common.io.images import read_image, write_image
from common.io.video_reader import probe
from film.data.cutting import FILM, LICENCE, EvaluationCut, cut_evaluation
from recipes.film_small.footage import licence_of
from recipes.film_small.stereo import middle_view

MOTION = (6.0, 80.0)  # px
TEST = "test"
Cuts = Mapping[str, tuple[str, EvaluationCut]]  # set, with its folder -> video, cut


class Pair(NamedTuple):
    """Files of a stereo pair; the disparity is of the left view."""

    left: str
    right: str
    disparity: str


_cut = partial(EvaluationCut, motion=MOTION)
CUTS: Cuts = {
    "film_1": (FILM, _cut(9000, 11600, gap=1, spacing=100)),
    "film": (FILM, _cut(9000, 11600, gap=3, spacing=100)),
    "cup_1": ("cup.mp4", _cut(0, 216, gap=1, spacing=15)),
    "cup_4": ("cup.mp4", _cut(0, 216, gap=4, spacing=20)),
    "box_8": ("box.mp4", _cut(0, 454, gap=8, spacing=40)),
    "city_10": ("cityCC0.mpg", _cut(0, 115, gap=10, spacing=12)),
    "bikes_1": ("bikes.mp4", _cut(0, 249, gap=1, spacing=20)),
    "bikes_2": ("bikes.mp4", _cut(0, 249, gap=2, spacing=20)),
    "film_quarters": (FILM, _cut(9000, 11600, gap=2, spacing=40, quarters=True)),
    "cup_quarters": ("cup.mp4", _cut(0, 216, gap=2, spacing=10, quarters=True)),
    "box_quarters": ("box.mp4", _cut(0, 454, gap=4, spacing=20, quarters=True)),
    "city_quarters": ("cityCC0.mpg", _cut(0, 115, gap=8, spacing=6, quarters=True)),
    "bikes_quarters": ("bikes.mp4", _cut(0, 249, gap=2, spacing=10, quarters=True)),
    "test/face_1": ("face.mp4", _cut(0, 471, gap=1, spacing=10)),
    "test/face_3": ("face.mp4", _cut(0, 471, gap=3, spacing=20)),
    "test/vtest_1": ("vtest.avi", _cut(0, 794, gap=1, spacing=50, motion=(1.5, 80.0))),
    "test/tower_20": ("cityCC0.mpg", _cut(118, 189, gap=20, spacing=6, motion=(0.0, 1000.0))),
}
PAIRS: Mapping[str, Pair] = {
    "motorcycle": Pair("motorcycle_left.png", "motorcycle_right.png", "motorcycle_disp.npz"),
    "test/aloe": Pair("aloeL.jpg", "aloeR.jpg", "aloeGT.png"),
}


def cut_held_out(
    folder: str | Path = "data/held_out",
    film: str | Path = "data/bbb.mp4",
    footage: str | Path = "data/footage",
    cuts: Cuts = CUTS,
    pairs: Mapping[str, Pair] = PAIRS,
) -> dict[str, int]:
    """Writes all sets; returns the number of triplets, or quadruples, of each. ValueError: a video is shorter, a set is
    empty."""
    film, footage = Path(film), Path(footage)
    videos = {file: film if file == FILM else footage / file for file, _ in cuts.values()}
    check_output_folder(folder)
    for path in [*videos.values(), *(footage / file for pair in pairs.values() for file in pair)]:
        require_file(path)  # before minutes of work
    entries: dict[str, dict[str, Any]] = {}
    with atomic_folder(folder) as part:
        for name, (file, cut) in cuts.items():
            licence = LICENCE if file == FILM else licence_of(file)
            count = cut_evaluation(videos[file], part / name, cut, licence)
            seconds = round(2 * cut.gap / float(probe(videos[file]).rate), 4)
            entries[name] = dict(source=file, seconds=seconds, count=count)
        for name, pair in pairs.items():
            write_pair(footage, part / name, pair)
            entries[name] = dict(source=pair.left, count=1)
        tests = {name: entry for name, entry in entries.items() if name.startswith(TEST)}
        index = {"choice": {name: entry for name, entry in entries.items() if name not in tests}, TEST: tests}
        (part / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    return {name: entry["count"] for name, entry in entries.items()}


def write_pair(footage: Path, folder: Path, pair: Pair) -> None:
    """The stereo pair as one triplet with known.png, and index.json. Raises FileNotFoundError."""
    left, right = (read_image(footage / file) for file in pair[:2])
    view = middle_view(left, right, read_disparity(footage / pair.disparity))
    place = folder / "00001"
    known = np.repeat(view.known[..., None], 3, axis=-1).astype(np.float32)
    truth = np.where(view.known[..., None], view.image, np.float32(0.5))
    for name, image in {"im1": left, "im2": truth, "im3": right, "known": known}.items():
        write_image(place / f"{name}.png", image)
    motion = round(float(np.nanpercentile(view.motion, 95)), 3)
    entry = dict(name=place.name, views=["left", "right"], motion=motion, known=round(float(view.known.mean()), 4))
    record = dict(source=pair.left, licence=licence_of(pair.left), triplets=[entry])
    (folder / "index.json").write_text(json.dumps(record, indent=1) + "\n")


def read_disparity(path: Path) -> Float[np.ndarray, "h w"]:
    """Pixels, not finite where unknown: an array in .npz, or a grey picture, which is 0 there."""
    if path.suffix == ".npz":
        with np.load(require_file(path)) as arrays:
            return arrays["arr_0"].astype(np.float32)
    levels = read_image(path)[..., 0] * 255
    return np.where(levels > 0, np.rint(levels), np.nan).astype(np.float32)


def main(
    folder: Path = Path("data/held_out"), film: Path = Path("data/bbb.mp4"), footage: Path = Path("data/footage")
) -> None:
    """Write the evaluation sets to FOLDER, cut from the film and from `python -m recipes.film_small.footage`."""
    for name, count in cut_held_out(folder, film, footage).items():
        terminal.say(f"{name}: {count}")


if __name__ == "__main__":
    terminal.program(main)
