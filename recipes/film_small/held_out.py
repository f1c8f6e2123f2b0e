"""Cuts the held-out sets, which no training sees, from the film, the clips and the stereo pair.

    data/held_out/film/00001/im1.png im2.png im3.png        triplets; the truth, im2, half-way
    data/held_out/cup_2/ cup_4/ box_4/ ...                  a clip at two gaps: frames c-g, c, c+g
    data/held_out/motorcycle/00001/ ... known.png           the pair; the truth where known.png is white (`stereo.py`)
    data/held_out/film_quarters/00001/frame_0.png frame_1.png frame_3.png frame_4.png
                                                            truths at 1/4 and 3/4 between frame_0 and frame_4
    .../index.json                                          frame c, gap g and motion of each; source and licence

Nothing is hand-picked: centres are evenly spaced, and `film.data.cutting.EvaluationCut` keeps those where the 95th
percentile of motion between the outer frames, by DIS flow, is 6 to 80 px, without cuts, black frames or dissolves. The
gaps keep most of a clip's triplets within that range. Of `cityCC0` only the first shot is used: in the second the
towers hardly move, and flow fails in a dark sky. PNG is lossless.

    python -m recipes.film_small.footage && python -m recipes.film_small.held_out       # after fetch_film
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from common import terminal
from common.io.files import atomic_folder, check_output_folder, require_file
from common.io.images import read_image, write_image
from film.data.cutting import FILM, LICENCE, EvaluationCut, cut_evaluation
from recipes.film_small.footage import licence_of
from recipes.film_small.stereo import middle_view

PAIR = "motorcycle"
MOTION = (6.0, 80.0)  # px
Cuts = Mapping[str, tuple[str, EvaluationCut]]  # set -> video, cut


def _cut(first: int, last: int, gap: int, spacing: int, quarters: bool = False) -> EvaluationCut:
    return EvaluationCut(first, last, gap, spacing, MOTION, quarters)


CUTS: Cuts = {
    "film": (FILM, _cut(9000, 11600, gap=3, spacing=10)),
    "cup_2": ("cup.mp4", _cut(0, 216, gap=2, spacing=10)),
    "cup_4": ("cup.mp4", _cut(0, 216, gap=4, spacing=10)),
    "box_4": ("box.mp4", _cut(0, 454, gap=4, spacing=20)),
    "box_8": ("box.mp4", _cut(0, 454, gap=8, spacing=20)),
    "city_5": ("cityCC0.mpg", _cut(0, 115, gap=5, spacing=6)),
    "city_10": ("cityCC0.mpg", _cut(0, 115, gap=10, spacing=6)),
    "bikes_1": ("bikes.mp4", _cut(0, 249, gap=1, spacing=10)),
    "bikes_2": ("bikes.mp4", _cut(0, 249, gap=2, spacing=10)),
    "film_quarters": (FILM, _cut(9000, 11600, gap=2, spacing=40, quarters=True)),
    "cup_quarters": ("cup.mp4", _cut(0, 216, gap=2, spacing=10, quarters=True)),
    "box_quarters": ("box.mp4", _cut(0, 454, gap=4, spacing=20, quarters=True)),
    "city_quarters": ("cityCC0.mpg", _cut(0, 115, gap=8, spacing=6, quarters=True)),
    "bikes_quarters": ("bikes.mp4", _cut(0, 249, gap=2, spacing=10, quarters=True)),
}


def cut_held_out(
    folder: str | Path = "data/held_out",
    film: str | Path = "data/bbb.mp4",
    footage: str | Path = "data/footage",
    cuts: Cuts = CUTS,
) -> dict[str, int]:
    """Writes all sets to `folder`; returns the number of triplets, or quadruples, of each.

    Raises FileExistsError, FileNotFoundError (a video is missing), ValueError (one is shorter, or a set is empty)."""
    film, footage = Path(film), Path(footage)
    videos = {file: film if file == FILM else footage / file for file, _ in cuts.values()}
    check_output_folder(folder)
    for path in videos.values():
        require_file(path)  # before minutes of work
    counts = {}
    with atomic_folder(folder) as part:
        for name, (file, cut) in cuts.items():
            licence = LICENCE if file == FILM else licence_of(file)
            counts[name] = cut_evaluation(videos[file], part / name, cut, licence)
        write_pair(footage, part / PAIR)
        counts[PAIR] = 1
    return counts


def write_pair(footage: Path, folder: Path) -> None:
    """The stereo pair as one triplet with known.png, and index.json. Raises FileNotFoundError."""
    left, right = (read_image(footage / f"{PAIR}_{side}.png") for side in ("left", "right"))
    with np.load(require_file(footage / f"{PAIR}_disp.npz")) as arrays:
        view = middle_view(left, right, arrays["arr_0"])
    place = folder / "00001"
    known = np.repeat(view.known[..., None], 3, axis=-1).astype(np.float32)
    truth = np.where(view.known[..., None], view.image, np.float32(0.5))
    for name, image in {"im1": left, "im2": truth, "im3": right, "known": known}.items():
        write_image(place / f"{name}.png", image)
    motion = round(float(np.nanpercentile(view.motion, 95)), 3)
    entry = dict(name=place.name, views=["left", "right"], motion=motion, known=round(float(view.known.mean()), 4))
    record = dict(source=f"{PAIR}_left.png", licence=licence_of(f"{PAIR}_left.png"), triplets=[entry])
    (folder / "index.json").write_text(json.dumps(record, indent=1) + "\n")


def main(
    folder: Path = Path("data/held_out"), film: Path = Path("data/bbb.mp4"), footage: Path = Path("data/footage")
) -> None:
    """Write the evaluation sets to FOLDER, cut from the film and from `python -m recipes.film_small.footage`."""
    for name, count in cut_held_out(folder, film, footage).items():
        terminal.say(f"{name}: {count}")


if __name__ == "__main__":
    terminal.program(main)
