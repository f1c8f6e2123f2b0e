"""Quality of a base: distances of its images to real ones that it never saw, with anchors to read them by.

    python eval.py evaluation=base_quality weights=runs/diffusion_small/weights
    python eval.py evaluation=base_quality weights=diffusion-small evaluation.pictures=data/captioned64

Stages:

1. The reference: the held-out images of a folder (`unseen` labels, and labels unseen in one style).
2. The base draws an image for each of their captions, with fixed seeds; 64 of them go into `page.png`.
3. Every image becomes 1280 features of EfficientNet-Lite0 (`common/perceptual/efficientnet.py`).
4. Fréchet distance and kernel distance (`plugins/metrics/`) of each set to the reference, into `results.json`.

| row | what it is | how to read it |
| --- | --- | --- |
| base | what the base drew | |
| training pictures | real ones of the same styles and subjects, other labels | the floor: no base draws better |
| ... through its autoencoder | the same, encoded and decoded by the base's VAE | the floor for its UNet |
| test pictures | the split `test`: real, of another kind | the score of real but wrong images |
| mean colours | each held-out image as one plain colour | colours without a drawing |
| noise | uniform | nothing at all |

All rows have as many images as the base drew, as far as there are, because the Fréchet distance shrinks as sets grow. A
base's images that are larger than the real ones are first shrunk to their size; all are rounded to 8 bits.

**These are not the published FID and KID**, which use Inception's features and tens of thousands of images: compare
them with other rows of this program on the same folder only. A few hundred images tell a good base from a bad one by
the kernel distance and its error; they do not tell two good ones apart.

For scale, KID x 1000 of 275 pictures on data/captioned64 (November 2026): floor 0 to 2, test pictures 68, mean colours
313, noise 587; the floor's pictures blurred by 0.8 or 1.2 pixels 11 or 29, with noise of 5/255 on them 46.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from tqdm import tqdm

from common import terminal
from common.evaluation.evaluation import Evaluation, Output, provenance
from common.evaluation.score_table import markdown
from common.io.images import contact_sheet, from_uint8, shrink, to_uint8
from common.perceptual.efficientnet import EfficientNet, load_efficientnet
from plugins.data.captioned_batches import CaptionedPictures
from plugins.diffusion.compiled import chunk_size, in_chunks, make_layout
from plugins.diffusion.io.folder import read_base
from plugins.diffusion.pipeline import Pipeline, load
from plugins.diffusion.request import Request, make_request
from plugins.diffusion.training.denoising_task import SampleSheet
from plugins.metrics.frechet import FEWEST, frechet_distance
from plugins.metrics.kernels import kid

ON_A_PAGE = 64
NOTE = "Features of EfficientNet-Lite0: not comparable with published FID or KID."

Bytes = UInt8[np.ndarray, "n h w 3"]
Row = dict[str, Any]


class Real(NamedTuple):
    """Real images, their whole captions, and the kind of each: style and group of subjects."""

    images: Bytes
    captions: list[str]
    kinds: list[tuple[str, str]]

    @classmethod
    def read(cls, folder: str, splits: Sequence[str]) -> Real:
        """All images of these splits. Raises as `CaptionedPictures`."""
        parts = [CaptionedPictures(folder, split) for split in splits]
        entries = [part.entries[number] for part in parts for number in part.ids]
        return cls(
            np.stack([part[i]["image"] for part in parts for i in range(len(part))]),
            [part.caption(i) for part in parts for i in range(len(part))],
            [(entry["style"], entry["group"]) for entry in entries],
        )


@dataclasses.dataclass(frozen=True)
class BaseQuality(Evaluation):
    """Real images, and how the base draws.

    Attributes:
      pictures: a folder that `recipes.captioned_pictures` wrote.
      held_out, train, test: its splits, by what they are for.
      features: weights made by `python -m recipes.downloads.efficientnet`.
      count: images that the base draws; None: one for each held-out caption. More take the captions in turn.
      steps, guidance, sampler: as a pipeline's; defaults are those of the sheets of a training.
      seed: of the first image, the next ones count up; also chooses the real images.
      batch: images at once.
    """

    pictures: str
    held_out: Sequence[str] = ("unseen", "unseen_style")
    train: Sequence[str] = ("train",)
    test: Sequence[str] = ("test",)
    features: str = "data/efficientnet_lite0.safetensors"
    count: int | None = None
    steps: int = SampleSheet.steps
    guidance: float = SampleSheet.guidance
    sampler: str | None = None
    seed: int = 0
    batch: int | None = None

    def files(self) -> Sequence[str]:
        return ("results.json", "page.png")

    def evaluate(self, weights: str, output: Output) -> str:
        """Scores a base: what `plugins.diffusion.load` takes."""
        held, train, test = (Real.read(self.pictures, splits) for splits in (self.held_out, self.train, self.test))
        network = load_efficientnet(self.features)
        count = len(held.images) if self.count is None else self.count
        if count < FEWEST or len(held.images) < FEWEST:
            raise ValueError(f"{count} images and {len(held.images)} held-out ones: a distance takes {FEWEST} or more")
        if not 0 <= self.seed <= 2**32 - count:
            raise ValueError(
                f"seed {self.seed}: {count} seeds from there have to be whole numbers from 0 to {2**32 - 1}"
            )
        base = read_base(weights).base
        captions = [held.captions[i % len(held.captions)] for i in range(count)]
        settings = {"steps": self.steps, "guidance": self.guidance, "sampler": self.sampler}
        request = make_request(base, captions, seeds=range(self.seed, self.seed + count), **settings)
        make_layout(count, request.height, request.width, base.unit, self.batch, None)  # checks `batch`
        if request.truncated:
            terminal.complain(
                f"warning: {len(request.truncated)} captions are too long; the first: {request.truncated[0]}"
            )
        pipeline = load(weights)
        images = draw(pipeline, request, held.images.shape[1], self.batch)
        shown = np.linspace(0, count - 1, min(ON_A_PAGE, count)).round().astype(int)  # at even distances, not chosen
        page = contact_sheet([from_uint8(images[i]) for i in shown], 8, [captions[int(i)] for i in shown])
        rows = distances(network, held.images, anchors(pipeline, images, held, train, test, self.seed))
        settings |= {"sampler": request.sampler.name, "seed": self.seed}
        reference = {"pictures": self.pictures, "splits": list(self.held_out), "count": len(held.images)}
        about = provenance(weights) | {"base": weights, **settings, "reference": reference, "note": NOTE}
        output.write_image("page.png", page)
        output.write_json("results.json", about | {"rows": rows})
        return f"{table(rows)}\nDistances to {len(held.images)} held-out pictures. {NOTE}"


def draw(pipeline: Pipeline, request: Request, side: int, batch: int | None = None) -> Bytes:
    """The images of a request, no larger than `side`."""
    with tqdm(total=len(request.seeds), unit="picture", desc="base", disable=None) as bar:
        drawn = []
        for images in pipeline.run(request, batch=batch, stepwise=False):
            drawn += [to_uint8(shrink(image, side)) for image in images]
            bar.update(len(images))
    return np.stack(drawn)


def anchors(
    pipeline: Pipeline, drawn: Bytes, held: Real, train: Real, test: Real, seed: int
) -> Iterator[tuple[str, Bytes]]:
    """(name, images) of each row of the table, one after the other; `drawn` by the base."""
    rng, count, shape = np.random.default_rng(seed), len(drawn), held.images.shape[1:]
    turns = np.arange(count) % len(held.images)
    like = train.images[matched([held.kinds[i] for i in turns], train.kinds, rng)]
    yield "base", drawn
    yield "training pictures", like
    if pipeline.vae is not None and shape[0] % pipeline.base.unit == 0 and len(like):
        yield "training pictures through its autoencoder", through_autoencoder(pipeline, like)
    yield "test pictures", test.images[rng.permutation(len(test.images))[:count]]
    colours = np.rint(held.images[turns].mean(axis=(1, 2), keepdims=True)).astype(np.uint8)
    yield "mean colours", np.broadcast_to(colours, (count, *shape))
    yield "noise", rng.integers(0, 256, (count, *shape), np.uint8)


def matched(wanted: Sequence[Hashable], there: Sequence[Hashable], rng: np.random.Generator) -> list[int]:
    """For each kind wanted, in turn, the index of another image of that kind, drawn without replacement; none where
    there are no more."""
    waiting = defaultdict(list)
    for place in rng.permutation(len(there)):
        waiting[there[place]].append(int(place))
    return [waiting[kind].pop() for kind in wanted if waiting[kind]]


def through_autoencoder(pipeline: Pipeline, images: Bytes) -> Bytes:
    """The images encoded and decoded by the base's VAE; sides are multiples of its `unit`."""
    programs, (_, height, width, _) = pipeline.compiled, images.shape
    vae, chunk = programs.params()["vae"], chunk_size(len(images), height * width)
    latents = in_chunks(partial(programs.encode_image, vae), from_uint8(images), chunk, None)
    return to_uint8(in_chunks(partial(programs.decode, vae), latents, chunk, None))


def distances(network: EfficientNet, reference: Bytes, named: Iterable[tuple[str, Bytes]]) -> list[Row]:
    """The distances of each set to the reference; sets too small for one are left out."""
    truth, rows = network.embed(reference), []
    for name, images in named:
        if len(images) >= FEWEST:
            features = network.embed(images)
            kernel = kid(features, truth)
            row = {"pictures": name, "count": len(images), "frechet": frechet_distance(features, truth)}
            rows.append(row | {"kid": kernel.value, "kid_error": kernel.error})
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    kernels = [f"{1000 * row['kid']:.2f} ± {1000 * row['kid_error']:.2f}" for row in rows]
    lines = [
        [row["pictures"], str(row["count"]), f"{row['frechet']:.2f}", kernel]
        for row, kernel in zip(rows, kernels, strict=True)
    ]
    return markdown(["pictures", "count", "Fréchet", "KID x 1000"], lines)
