"""Quality of a base: distances of its images to held-out real ones, with anchors to read them by.

    python eval.py evaluation=base_quality weights=runs/diffusion_small/weights
    python eval.py evaluation=base_quality weights=diffusion-small evaluation.pictures=data/captioned64

The base generates an image for each caption of the held-out images of a prepared folder (`unseen` labels, and labels
unseen in one style), with fixed seeds; 64 of them are in `page.png`. Every image becomes 1280 features of
EfficientNet-Lite0, and the Fréchet and kernel distance (`plugins/metrics/quality.py`) of each set to the held-out
images are written to `results.json`.

| row | images | how to read it |
| --- | --- | --- |
| base | generated | |
| training pictures | real ones of the same styles and subjects, other labels | the floor: no base does better |
| ... through its autoencoder | the same, encoded and decoded by the base's VAE | the floor for its UNet |
| test pictures | the split `test`: real, of another kind | the score of real but wrong images |
| mean colours | each held-out image as one plain colour | colours without a drawing |
| noise | uniform | no information |

All rows have as many images as the base generated, if the folder has them, because the Fréchet distance shrinks as sets
grow. Generated images larger than the real ones are downscaled to their size; all are rounded to 8 bits.

**These are not the published FID and KID**, which use Inception's features and tens of thousands of images. With a few
hundred the kernel distance and its error separate a good base from a bad one, not two good ones. For scale, KID x 1000
of 275 images on data/captioned64 (November 2026): floor 0 to 2, test pictures 68, mean colours 313, noise 587; the
floor's images blurred by 0.8 or 1.2 pixels 11 or 29, with noise of 5/255 on them 46.
"""

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
from common.training.mesh import make_mesh
from plugins.data.captioned import CaptionedPictures
from plugins.diffusion.compiled import chunk_size, in_chunks, make_layout
from plugins.diffusion.io.base import read_base
from plugins.diffusion.pipeline import Pipeline, from_files
from plugins.diffusion.request import Request, make_request
from plugins.diffusion.training.denoising_task import SampleSheet
from plugins.metrics.quality import FEWEST, frechet_distance, kid

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
    def read(cls, folder: str, splits: Sequence[str]) -> "Real":
        """All images of these splits. Raises as `CaptionedPictures`."""
        source = CaptionedPictures(folder)
        ids = [index for split in splits for index in source.split(split)]
        kinds = [(source.entries[index]["style"], source.entries[index]["group"]) for index in ids]
        return cls(source.images[ids], [source[index].captions[0] for index in ids], kinds)


@dataclasses.dataclass(frozen=True)
class BaseQuality(Evaluation):
    """Real images, and the settings of the generated ones, by default those of the sheets of a training."""

    pictures: str  # a prepared folder; next, its splits by their purpose
    held_out: Sequence[str] = ("unseen", "unseen_style")
    train: Sequence[str] = ("train",)
    test: Sequence[str] = ("test",)
    features: str = "data/efficientnet_lite0.safetensors"  # `python -m recipes.downloads.efficientnet` writes it
    count: int | None = None  # generated images; None: one for each held-out caption. More reuse the captions in turn
    steps: int = SampleSheet.steps
    guidance: float = SampleSheet.guidance
    sampler: str | None = None
    seed: int = 0  # of the first image, the next ones count up; also chooses the real images
    batch: int | None = None  # images at once

    def files(self) -> Sequence[str]:
        return ("results.json", "page.png")

    def evaluate(self, weights: str, output: Output) -> str:
        """Scores a base: a folder, a file or a name that `plugins.diffusion.load` takes."""
        held, train, test = (Real.read(self.pictures, splits) for splits in (self.held_out, self.train, self.test))
        network = load_efficientnet(self.features)
        count = len(held.images) if self.count is None else self.count
        if count < FEWEST or len(held.images) < FEWEST:
            raise ValueError(f"{count} images and {len(held.images)} held-out ones: a distance takes {FEWEST} or more")
        files = read_base(weights)
        captions = [held.captions[i % len(held.captions)] for i in range(count)]
        settings = {"steps": self.steps, "guidance": self.guidance, "sampler": self.sampler}
        request = make_request(files.base, captions, seeds=range(self.seed, self.seed + count), **settings)
        make_layout(count, request.height, request.width, files.base.unit, self.batch, make_mesh())  # checks `batch`
        if request.truncated:
            long, first = len(request.truncated), request.truncated[0]
            terminal.complain(f"warning: {long} captions are too long; the first: {first}")
        pipeline = from_files(files)
        images = generate(pipeline, request, held.images.shape[1], self.batch)
        shown = np.linspace(0, count - 1, min(ON_A_PAGE, count)).round().astype(int)  # evenly spaced, not chosen
        page = contact_sheet([from_uint8(images[i]) for i in shown], 8, [captions[int(i)] for i in shown])
        rows = distances(network, held.images, anchors(pipeline, images, held, train, test, self.seed))
        settings |= {"sampler": request.sampler.name, "seed": self.seed}
        reference = {"pictures": self.pictures, "splits": list(self.held_out), "count": len(held.images)}
        about = provenance(weights) | {"base": weights, **settings, "reference": reference, "note": NOTE}
        output.write_image("page.png", page)
        output.write_json("results.json", about | {"rows": rows})
        return f"{table(rows)}\nDistances to {len(held.images)} held-out pictures. {NOTE}"


def generate(pipeline: Pipeline, request: Request, side: int, batch: int | None = None) -> Bytes:
    """The images of a request, downscaled to `side`."""
    images: list[Any] = []
    with tqdm(total=len(request.seeds), unit="picture", desc="base", disable=None) as bar:
        for some in pipeline.run(request, batch=batch, stepwise=False, mesh=make_mesh()):
            images += [to_uint8(shrink(image, side)) for image in some]
            bar.update(len(some))
    return np.stack(images)


def anchors(
    pipeline: Pipeline, generated: Bytes, held: Real, train: Real, test: Real, seed: int
) -> Iterator[tuple[str, Bytes]]:
    """(name, images) of each row of the table."""
    rng, count, shape = np.random.default_rng(seed), len(generated), held.images.shape[1:]
    turns = np.arange(count) % len(held.images)
    like = train.images[matched([held.kinds[i] for i in turns], train.kinds, rng)]
    yield "base", generated
    yield "training pictures", like
    if pipeline.vae is not None and shape[0] % pipeline.base.unit == 0 and len(like):
        yield "training pictures through its autoencoder", through_autoencoder(pipeline, like)
    yield "test pictures", test.images[rng.permutation(len(test.images))[:count]]
    colours = np.rint(held.images[turns].mean(axis=(1, 2), keepdims=True)).astype(np.uint8)
    yield "mean colours", np.broadcast_to(colours, (count, *shape))
    yield "noise", rng.integers(0, 256, (count, *shape), np.uint8)


def matched(wanted: Sequence[Hashable], available: Sequence[Hashable], rng: np.random.Generator) -> list[int]:
    """For each wanted kind, in turn, an image of that kind, drawn without replacement while there are any."""
    waiting = defaultdict(list)
    for index in rng.permutation(len(available)):
        waiting[available[index]].append(int(index))
    return [waiting[kind].pop() for kind in wanted if waiting[kind]]


def through_autoencoder(pipeline: Pipeline, images: Bytes) -> Bytes:
    """The images encoded and decoded by the base's VAE; sides are multiples of its `unit`."""
    compiled, (_, height, width, _) = pipeline.compiled, images.shape
    vae, chunk = compiled.params()["vae"], chunk_size(len(images), height * width)
    latents = in_chunks(partial(compiled.encode_image, vae), from_uint8(images), chunk, None)
    return to_uint8(in_chunks(partial(compiled.decode, vae), latents, chunk, None))


def distances(network: EfficientNet, reference: Bytes, sets: Iterable[tuple[str, Bytes]]) -> list[Row]:
    """The distances of each set to the reference, without sets that are too small."""
    truth, rows = network.embed(reference), []
    for name, images in sets:
        if len(images) >= FEWEST:
            features = network.embed(images)
            kernel = kid(features, truth)
            row = {"pictures": name, "count": len(images), "frechet": frechet_distance(features, truth)}
            rows.append(row | {"kid": kernel.value, "kid_error": kernel.error})
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = []
    for row in rows:
        kernel = f"{1000 * row['kid']:.2f} ± {1000 * row['kid_error']:.2f}"
        lines.append([row["pictures"], str(row["count"]), f"{row['frechet']:.2f}", kernel])
    return markdown(["pictures", "count", "Fréchet", "KID x 1000"], lines)
