"""How close a base's pictures come to real ones that it never saw: one table, with anchors to read it by.

    python -m plugins.evaluation.base_quality runs/diffusion_small/weights data/captioned64
    python -m plugins.evaluation.base_quality diffusion-small data/captioned64 --page page.png    64 of the pictures

Stages:

1. The reference: the held-out pictures of the folder (`unseen` labels, and labels unseen in one style).
2. The base draws a picture for each of their captions, with fixed seeds.
3. Every picture becomes 1280 features of EfficientNet-Lite0 (`common/perceptual/efficientnet.py`).
4. Fréchet distance and kernel distance (`plugins/metrics/`) of each set to the reference.

| row | what it is | how to read it |
| --- | --- | --- |
| base | what the base drew | |
| training pictures | real ones of the same styles and subjects, other labels | the floor: nobody draws better |
| ... through its autoencoder | the same, encoded and decoded by the base's VAE | the floor for its UNet |
| test pictures | the split `test`: real, of another kind | what real but wrong pictures get |
| mean colours | each held-out picture as one plain colour | colours without a drawing |
| noise | uniform | nothing at all |

All rows have as many pictures as the base drew, as far as there are, because the Fréchet distance shrinks as they grow.
A base's pictures that are larger than the real ones are first shrunk to their size; all are rounded to 8 bits.

**These are not the published FID and KID**, which use Inception's features and tens of thousands of pictures: compare
them with other rows of this program on the same folder only. A few hundred pictures tell a good base from a bad one by
the kernel distance and its error; they do not tell two good ones apart.

For scale, KID x 1000 of 275 pictures on data/captioned64 (November 2026): floor 0 to 2, test pictures 68, mean colours
313, noise 587; the floor's pictures blurred by 0.8 or 1.2 pixels 11 or 29, with noise of 5/255 on them 46.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro
from jaxtyping import Float, UInt8
from tqdm import tqdm

from common import terminal
from common.evaluation.score_table import write_json
from common.io.files import check_output_file
from common.io.images import contact_sheet, from_uint8, shrink, to_uint8, write_image
from common.perceptual.efficientnet import EfficientNet
from common.perceptual.efficientnet_weights import load_efficientnet
from common.runtime import setup
from plugins.data.captioned_batches import CaptionedPictures
from plugins.diffusion.batching import chunk_size, in_chunks, make_layout
from plugins.diffusion.io.folder import load, read_base
from plugins.diffusion.pipeline import Pipeline
from plugins.diffusion.request import Request, make_request
from plugins.diffusion.training.summaries import SampleSheet
from plugins.metrics.frechet import FEWEST, frechet_distance
from plugins.metrics.kernels import kid
from recipes.captioned_pictures.splits import TEST, TRAIN, UNSEEN, UNSEEN_STYLE

HELD_OUT = (UNSEEN, UNSEEN_STYLE)
ON_A_PAGE = 64
NOTE = "Features of EfficientNet-Lite0: not comparable with published FID or KID."

Bytes = UInt8[np.ndarray, "n h w 3"]
Row = dict[str, Any]


class Real(NamedTuple):
    """Real pictures, their whole captions, and what kind each is of: style and group of subjects."""

    images: Bytes
    captions: list[str]
    kinds: list[tuple[str, str]]


def read(folder: str | Path, splits: Sequence[str]) -> Real:
    """All pictures of these splits. Raises as `CaptionedPictures`."""
    parts = [CaptionedPictures(folder, split) for split in splits]
    entries = [part.entries[number] for part in parts for number in part.ids]
    return Real(
        np.stack([part[i]["image"] for part in parts for i in range(len(part))]),
        [part.caption(i) for part in parts for i in range(len(part))],
        [(entry["style"], entry["group"]) for entry in entries],
    )


def matched(wanted: Sequence[Hashable], there: Sequence[Hashable], rng: np.random.Generator) -> list[int]:
    """For each kind wanted, in turn, the place of another picture of that kind, drawn without putting back; where none
    is left, nothing."""
    waiting = defaultdict(list)
    for place in rng.permutation(len(there)):
        waiting[there[place]].append(int(place))
    return [waiting[kind].pop() for kind in wanted if waiting[kind]]


def drawn(pipeline: Pipeline, request: Request, side: int, batch: int | None = None) -> Bytes:
    """The pictures of a request, no larger than `side`."""
    with tqdm(total=len(request.seeds), unit="picture", desc="base", disable=None) as bar:
        found = []
        for images in pipeline.run(request, batch=batch, stepwise=False):
            found += [to_uint8(shrink(image, side)) for image in images]
            bar.update(len(images))
    return np.stack(found)


def page(images: Bytes, captions: Sequence[str]) -> Float[np.ndarray, "_ _ 3"]:
    """64 of the pictures at even distances, not chosen, with what they are to show."""
    places = np.linspace(0, len(images) - 1, min(ON_A_PAGE, len(images))).round().astype(int)
    return contact_sheet([from_uint8(images[i]) for i in places], columns=8, labels=[captions[int(i)] for i in places])


def through_autoencoder(pipeline: Pipeline, images: Bytes) -> Bytes:
    """What is left of pictures after the base's VAE; sides are multiples of its `unit`."""
    programs, (_, height, width, _) = pipeline.programs, images.shape
    vae, chunk = programs.params()["vae"], chunk_size(len(images), height * width)
    latents = in_chunks(partial(programs.encode_image, vae), from_uint8(images), chunk, None)
    return to_uint8(in_chunks(partial(programs.decode, vae), latents, chunk, None))


def sets(
    pipeline: Pipeline, base: Bytes, held: Real, train: Real, test: Real, seed: int
) -> Iterator[tuple[str, Bytes]]:
    """(name, pictures) of each row of the table, one after the other. `base`: what the pipeline drew."""
    rng, count, shape = np.random.default_rng(seed), len(base), held.images.shape[1:]
    turns = np.arange(count) % len(held.images)
    like = train.images[matched([held.kinds[i] for i in turns], train.kinds, rng)]
    yield "base", base
    yield "training pictures", like
    if pipeline.vae is not None and shape[0] % pipeline.base.unit == 0 and len(like):
        yield "training pictures through its autoencoder", through_autoencoder(pipeline, like)
    yield "test pictures", test.images[rng.permutation(len(test.images))[:count]]
    colours = np.rint(held.images[turns].mean(axis=(1, 2), keepdims=True)).astype(np.uint8)
    yield "mean colours", np.broadcast_to(colours, (count, *shape))
    yield "noise", rng.integers(0, 256, (count, *shape), np.uint8)


def rows(network: EfficientNet, reference: Bytes, named: Iterator[tuple[str, Bytes]]) -> list[Row]:
    """The distances of each set to the reference; sets too small for one are left out."""
    truth, found = network.embed(reference), []
    for name, images in named:
        if len(images) >= FEWEST:
            features = network.embed(images)
            kernel = kid(features, truth)
            found.append({"pictures": name, "count": len(images), "frechet": frechet_distance(features, truth)})
            found[-1] |= {"kid": kernel.value, "kid_error": kernel.error}
    return found


def table(found: Sequence[Row]) -> str:
    """Rows for people."""
    lines = [["pictures", "count", "Fréchet", "KID x 1000"], ["---", "---:", "---:", "---:"]]
    for row in found:
        kernel = f"{1000 * row['kid']:.2f} ± {1000 * row['kid_error']:.2f}"
        lines.append([row["pictures"], str(row["count"]), f"{row['frechet']:.2f}", kernel])
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    padded = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def score(
    base: str | Path,
    pictures: str | Path,
    *,
    count: int | None = None,
    steps: int = SampleSheet.steps,
    guidance: float = SampleSheet.guidance,
    sampler: str | None = None,
    seed: int = 0,
    batch: int | None = None,
    weights: str | Path = "data/efficientnet_lite0.safetensors",
    sheet: str | Path | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """What `main` prints, as plain values: settings, the reference, rows.

    Args:
      base: as for `plugins.diffusion.load`.
      pictures: a folder that `recipes.captioned_pictures` wrote.
      count: how many pictures the base draws; None: one for each held-out caption. More take the captions in turn.
      steps, guidance, sampler: as a pipeline's; defaults are those of the sheets of a training.
      seed: of the first picture, the next ones count up; also chooses the real pictures.
      batch: pictures at once.
      weights: made by `python -m recipes.downloads.efficientnet`.
      sheet: a picture file for 64 of what the base drew. overwrite: replace it.

    Raises FileNotFoundError, FileExistsError, ValueError; in one line, before the base is loaded.
    """
    if sheet is not None:
        check_output_file(sheet, overwrite)
    held, train, test = (read(pictures, splits) for splits in (HELD_OUT, [TRAIN], [TEST]))
    network = load_efficientnet(weights)
    count = len(held.images) if count is None else count
    if count < FEWEST or len(held.images) < FEWEST:
        raise ValueError(f"{count} pictures and {len(held.images)} held-out ones: a distance takes {FEWEST} or more")
    if not 0 <= seed <= 2**32 - count:
        raise ValueError(f"seed {seed}: {count} seeds from there have to be whole numbers from 0 to {2**32 - 1}")
    files = read_base(base)
    captions = [held.captions[i % len(held.captions)] for i in range(count)]
    settings = {"steps": steps, "guidance": guidance, "sampler": sampler}
    request = make_request(files.base, captions, seeds=range(seed, seed + count), **settings)
    make_layout(count, request.height, request.width, files.base.unit, batch, None)  # checks `batch`
    if request.cut:
        terminal.complain(f"warning: {len(request.cut)} captions are too long; the first: {request.cut[0]}")
    pipeline = load(base)
    images = drawn(pipeline, request, held.images.shape[1], batch)
    if sheet is not None:
        write_image(sheet, page(images, captions), overwrite=overwrite)
    found = rows(network, held.images, sets(pipeline, images, held, train, test, seed))
    settings |= {"sampler": request.sampler.name, "seed": seed}
    reference = {"pictures": str(pictures), "splits": list(HELD_OUT), "count": len(held.images)}
    return {"base": str(base), **settings, "reference": reference, "note": NOTE, "rows": found}


def main(
    base: tyro.conf.Positional[Path],
    pictures: tyro.conf.Positional[Path],
    count: int | None = None,
    steps: int = SampleSheet.steps,
    guidance: float = SampleSheet.guidance,
    sampler: str | None = None,
    seed: int = 0,
    batch: int | None = None,
    weights: Path = Path("data/efficientnet_lite0.safetensors"),
    output: Path | None = None,
    page: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Print how far BASE's pictures are from the held-out ones of PICTURES.

    Args:
      output: Also write the table to this JSON file.
      page: Also write 64 of the pictures, with their captions, to this picture file.
      overwrite: Replace these files.
    """
    if output is not None:
        check_output_file(output, overwrite)
    setup()
    settings = {"count": count, "steps": steps, "guidance": guidance, "sampler": sampler, "seed": seed, "batch": batch}
    found = score(base, pictures, weights=weights, sheet=page, overwrite=overwrite, **settings)
    terminal.say(table(found["rows"]))
    terminal.say(f"Distances to {found['reference']['count']} held-out pictures. {NOTE}")
    if output is not None:
        write_json(output, found, overwrite)


if __name__ == "__main__":
    terminal.program(main)
