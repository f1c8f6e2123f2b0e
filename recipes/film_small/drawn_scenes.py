"""Moving photographs drawn by the accelerator that trains on them: one compiled program draws a whole batch.

The scenes are those of `moving_photographs.py`; here every pixel of every layer of every scene is a lookup of its own,
and host and disk have no part in a step. For a batch of b crops of c pixels (`film.data.triplet_batches`), by the
functions of `drawn_layers.py`:

1. `draw_layers`   random numbers: for each of n layers poses, waves, texture and outline
2. `trace`         pixels p at times 0, t and 1 -> points u of each layer, the inverse of its motion
3. `sample`        colours at u from the photographs, at the mipmap that fits their size, opacity from the outlines
4. compositing, back to front: x0, y, x1
5. `visible`       the front-most layer's flow from y to x0 and to x1; valid where nothing in front covers its end

More of what interpolation finds hard than there: small and thin things, things that enter at a border, layers that hang
on others and turn about a joint, motion up to 160 px. Film frames (`film`), of which only the images are known, are
mixed in: of some random triplets of crops the one that moves most. Batch i is a function of the seed and i.

    python -m recipes.film_small.drawn_scenes --folder data/photographs -o sheet.png
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Array, Float, PRNGKeyArray, UInt8

from common import terminal
from common.checked import Checked, NotNegative, Positive, Rule, Share, whole
from common.io.files import require_file
from common.io.images import contact_sheet, write_image
from common.training.task import IDS, Batch
from film.data.augment import CELL, Side
from film.visualization import flow_picture
from recipes.film_small.drawn_layers import (
    MIPMAPS,
    OUTLINE_SIDE,
    Layers,
    Textures,
    front_cells,
    mipmaps,
    sample,
    trace_pixels,
    visible,
)
from recipes.film_small.motions import SHEAR, SHORTEST, STEEPEST, TILT, TURN, ZOOM
from recipes.film_small.outlines import outline
from recipes.film_small.photograph_cache import Album
from recipes.film_small.textures import COARSEST

STEPS = 16  # y is at a multiple of 1 / 16, or half-way
OUTLINES = 384  # to choose from
WAVES = 3
CANDIDATES = 4  # triplets of the film's crops, of which one is taken
CUT = 24.0  # mean difference of neighbouring frames, of 255, from which on they are of different shots


PAIR = Rule(lambda pair: len(pair) == 2 and 0 < pair[0] <= pair[1], "the least and the most, above 0")


@dataclass(frozen=True)
class DrawnScenes(Checked):
    """Moving photographs, and film, drawn on the device; `accelerated` to `repeated` are as of `MovingPhotographs`."""

    folder: str = "data/photographs"  # and split: of `photograph_cache.py`
    split: str = "train"
    film: str | None = None  # a video; None: photographs alone
    film_share: Share = 0.25  # of a batch
    run: int = 0  # frames after which the film goes on somewhere else (`bundle.py`); 0: never
    gaps: Annotated[Sequence[int], PAIR] = (
        1,
        4,
    )  # fewest and most frames from the middle to an outer frame of the film
    batch_size: Positive = 64
    crop: Annotated[Side, whole(32)] = 224
    layers: NotNegative = 4  # in front of the background, at most
    motion: Annotated[Sequence[int | float], PAIR] = (0.5, 160.0)  # px, extent of a scene's motion between t = 0 and 1
    still: Share = 0.4  # of scenes with a still camera and background
    any_time: Share = 0.4  # of scenes with y at 1/16 to 15/16, not at 1/2
    accelerated: Share = 0.3
    bend: Share = 0.5
    light: Share = 0.3
    noise: Share = 0.3
    repeated: Share = 0.25

    def rules(self):
        yield not self.run or self.run > 2 * self.gaps[1], "run is over twice the largest of gaps, or 0"

    def batches(self, seed: int) -> "DrawnBatches":
        """ValueError for a film too small or short, or a batch that the processes cannot share; raises as `Album`."""
        return DrawnBatches(self, seed, load_textures(self))

    def names(self, ids: Iterable[int | np.integer]) -> list[str]:
        return [f"drawn scene {number}" for number in ids]


class DrawnBatches:
    """This process's share of the endless batches of a seed, with a position (`common.training.task.Data`)."""

    def __init__(self, config: DrawnScenes, seed: int, textures: Textures) -> None:
        self.config, self.position, self.textures = config, 0, textures
        self.key = jax.random.key(seed)
        count, index = jax.process_count(), jax.process_index()
        if config.batch_size % count:
            raise ValueError(f"batch_size {config.batch_size} cannot be split for {count} processes: give a multiple")
        size = config.batch_size // count
        self.share = size * index, size * (index + 1)
        self.draw = jax.jit(partial(draw_batch, config, *self.share))

    def __iter__(self) -> "DrawnBatches":
        return self

    def __next__(self) -> Batch:
        batch = self.draw(jax.random.fold_in(self.key, self.position), self.textures)
        ids = self.config.batch_size * self.position + np.arange(*self.share)
        self.position += 1
        return batch | {IDS: ids}

    def get_state(self) -> dict[str, int]:
        return {"position": self.position}

    def set_state(self, state: dict[str, int]) -> None:
        self.position = int(state["position"])


def load_textures(config: DrawnScenes) -> Textures:
    album = Album(config.folder, config.split)
    photographs = [np.asarray(album[number]) for number in range(len(album))]
    side = max(max(photograph.shape[:2]) for photograph in photographs)
    side += -side % 2**MIPMAPS
    rng = np.random.default_rng(0)
    film = np.zeros((1, config.crop, config.crop, 3), np.uint8)
    if config.film is not None:
        film = read_film(config.film)
        if min(film.shape[1:3]) < config.crop or len(film) <= 2 * config.gaps[1]:
            raise ValueError(f"{config.film}: {len(film)} frames of {film.shape[2]}x{film.shape[1]}, too few or small")
    step = [np.abs(a[::4, ::4].astype(np.int16) - b[::4, ::4]).mean() for a, b in itertools.pairwise(film)]
    cuts = np.array([0.0, *step]) > CUT
    if config.run:
        cuts[config.run :: config.run] = True
    atlases = np.stack([mipmaps(photograph, side) for photograph in photographs])
    outlines = np.stack([outline(rng, OUTLINE_SIDE) for _ in range(OUTLINES)])
    return Textures(*map(jnp.asarray, (atlases, outlines, film, np.cumsum(cuts).astype(np.int32))))


def read_film(path: str | Path) -> UInt8[np.ndarray, "f h w 3"]:
    video, frames = cv2.VideoCapture(str(require_file(path))), []
    while (found := video.read())[0]:
        frames.append(cv2.cvtColor(found[1], cv2.COLOR_BGR2RGB))
    if not frames:
        raise ValueError(f"{path}: no frames can be read")
    return np.stack(frames)


def draw_batch(config: DrawnScenes, first: int, end: int, key: PRNGKeyArray, textures: Textures) -> Batch:
    """Examples `first` to `end` of a batch as `film.data.triplet_batches` has it, without id; the film's are last."""
    of_film = round(config.film_share * config.batch_size) if config.film is not None else 0
    keys, scenes = jax.random.split(key, config.batch_size), config.batch_size - of_film
    parts = []
    if first < scenes:
        parts.append(jax.vmap(partial(draw_scene, config, textures))(keys[of_film:][first:end]))
    if end > scenes:
        parts.append(jax.vmap(partial(draw_film, config, textures))(keys[max(first - scenes, 0) : end - scenes]))
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


def draw_scene(config: DrawnScenes, textures: Textures, key: PRNGKeyArray) -> Batch:
    """One example: images [c c 3], flows [c/4 c/4 2], valid [c/4 c/4], time [1]. `flow0`, `flow1` and `valid` are of y,
    as in `film.data.triplet_batches`."""
    size, keys = config.crop, jax.random.split(key, 8)
    layers = draw_layers(config, keys[0], textures.photographs.shape)
    sixteenth = jax.random.randint(keys[1], (), 1, STEPS) / STEPS
    time = jnp.where(jax.random.uniform(keys[2]) < config.any_time, sixteenth, 0.5)

    def view(time: Array) -> tuple[Array, Array]:
        """Image, and the opacity of each layer."""

        def paint(image: Array, layer: Layers) -> tuple[Array, Array]:
            points = trace_pixels(layer, size, time)
            colour, opacity = sample(textures, layer, points)
            return image + opacity[..., None] * (colour - image), opacity

        return jax.lax.scan(paint, jnp.zeros((size, size, 3)), layers)

    # Loops, so that all of it is compiled once and one frame's positions are in memory.
    images, opacities = jax.lax.map(view, jnp.stack([jnp.zeros(()), time, jnp.ones(())]))
    front = front_cells(opacities[1])
    flows, valid = jax.lax.map(lambda end: visible(textures, layers, front, time, end, size), jnp.array([0.0, 1.0]))
    x0, y, x1 = _finish(config, keys[3], images, time)
    flow = dict(flow0=flows[0], flow1=flows[1], valid0=valid[0], valid1=valid[1])
    return dict(x0=x0, y=y, x1=x1, time=time[None], **flow)


def draw_layers(config: DrawnScenes, key: PRNGKeyArray, atlas: tuple[int, ...]) -> Layers:
    """The background and `config.layers` more, some of which are not there."""
    count, size, keys = config.layers + 1, config.crop, iter(jax.random.split(key, 32))

    def uniform(low: Any = 0.0, high: Any = 1.0, *shape: int) -> Array:
        return jax.random.uniform(next(keys), shape, minval=low, maxval=high)

    def log_uniform(low: Any, high: Any, *shape: int) -> Array:
        return jnp.exp(uniform(jnp.log(low), jnp.log(high), *shape))

    number = jnp.arange(count)
    back = number == 0
    extent = log_uniform(config.motion[0], config.motion[1])
    kind, between = uniform(), uniform(0.2, 0.8)
    share = jnp.where(kind < config.still, 0.0, jnp.where(kind < config.still + 0.2, 1.0, between))
    nearness = jnp.sort(uniform(0.4, 1.0, count)).at[-1].set(1.0)
    # Sides are log-uniform: small and thin things are as frequent as large ones.
    side = jnp.where(back, size * jnp.sqrt(2.0), size * log_uniform(0.08, 1.1, count))
    centre = jnp.where(back[:, None], (size - 1) / 2, uniform(-0.1, 1.1, count, 2) * size)
    there = number <= jax.random.randint(next(keys), (), 0, count)
    own = (1 - share) * extent * jnp.where(back, (1 - nearness) * (share > 0), uniform(0.4, 1.0, count))
    bending = jnp.where(uniform(0, 1, count) < 1 / 3, 0.4 * own, 0.0)

    # Three poses: the camera's, that of the layer below on which some hang, and the layer's own.
    hangs = (uniform(0, 1, count) < 0.2) & (number > 1)
    budget = jnp.stack([jnp.broadcast_to(share * extent, (count,)), own - bending, own - bending], axis=1)
    shares = jax.random.dirichlet(next(keys), jnp.array([0.6, 0.15, 0.15, 0.06, 0.15]), (count, 3))
    shares = shares.at[:, 0].set(shares[0, 0])  # one camera
    radius = jnp.stack([jnp.full(count, size / jnp.sqrt(2.0)), side / 2, side / 2], axis=1)
    parts = shares * budget[..., None]
    signs = jnp.sign(uniform(-1, 1, count, 3, 3)).at[:, 0].set(jnp.sign(uniform(-1, 1, 3)))
    ratios = signs * jnp.minimum(parts[..., 1:4] / radius[..., None], jnp.array([TURN, ZOOM, SHEAR]))
    directions = uniform(0, 2 * jnp.pi, count, 3, 2)
    directions = directions.at[:, 0].set(directions[0, 0])
    unit = jnp.stack([jnp.cos(directions), jnp.sin(directions)], axis=-1)  # [count 3 (shift, tilt) 2]
    tilts = jnp.where(back, 1.0, 0.0)[:, None].at[:, 0].set(0.0)
    shift, tilt = parts[..., :1] * unit[..., 0, :], (tilts * jnp.minimum(parts[..., 4] / radius, TILT) / radius)
    tilt = tilt[..., None] * unit[..., 1, :]
    scale = jnp.stack([nearness, jnp.zeros(count), jnp.ones(count)], axis=1)

    def chained(x: Array) -> Array:
        """The second of the three is the own one of the layer below, for layers that hang."""
        x = x * scale.reshape(count, 3, *[1] * (x.ndim - 2))
        below = jnp.roll(x[:, 2], 1, axis=0) * hangs.reshape(count, *[1] * (x.ndim - 2))
        return x.at[:, 1].set(below)

    hung = jnp.roll(centre, 1, axis=0) + uniform(-0.4, 0.4, count, 2) * side[:, None]
    centre = jnp.where(hangs[:, None], hung, centre)
    middle = jnp.full((count, 2), (size - 1) / 2)
    joint = centre + jnp.where(hangs[:, None], uniform(-0.5, 0.5, count, 2) * side[:, None], 0.0)
    pivot = jnp.stack([middle, jnp.roll(centre, 1, axis=0), joint], axis=1)

    lengths = log_uniform(SHORTEST, jnp.maximum(2 * side[:, None], 2 * SHORTEST), count, WAVES)
    angles, sides = uniform(0, 2 * jnp.pi, count, WAVES), uniform(0, 2 * jnp.pi, count, WAVES)
    heights = jnp.minimum(bending[:, None] / WAVES, STEEPEST / WAVES * lengths / (2 * jnp.pi))
    bend = config.bend * uniform(-1, 1, count) * (uniform() < config.accelerated)
    periods = log_uniform(6.0, 40.0, count, 2)
    repeats = uniform(0, 1, count) < config.repeated
    density = log_uniform(1.0, COARSEST, count)
    return Layers(
        centre=centre,
        shift=chained(shift),
        turn=chained(ratios[..., 0]),
        zoom=chained(ratios[..., 1]),
        shear=chained(ratios[..., 2]),
        tilt=chained(tilt),
        pivot=pivot,
        bend=jnp.where(back, bend / 4, bend),
        heights=heights[..., None] * jnp.stack([jnp.cos(sides), jnp.sin(sides)], axis=-1),
        waves=(2 * jnp.pi / lengths)[..., None] * jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1),
        phases=uniform(0, 2 * jnp.pi, count, WAVES),
        photograph=jax.random.randint(next(keys), (count,), 0, atlas[0]),
        origin=uniform(0, atlas[1], count, 2),
        density=density * jnp.sign(uniform(-1, 1, count)),  # negative: mirrored
        period=jnp.where(repeats[:, None], periods, 0.0),
        angle=uniform(0, jnp.pi, count),
        outline=jax.random.randint(next(keys), (count,), 0, OUTLINES),
        side=jnp.where(there, jnp.where(back, 0.0, side), -1.0),
    )


def draw_film(config: DrawnScenes, textures: Textures, key: PRNGKeyArray) -> Batch:
    """One example of the film; its flow is unknown."""
    frames, height, width, _ = textures.film.shape
    crop, keys = config.crop, jax.random.split(key, 8)
    gap = jax.random.randint(keys[0], (CANDIDATES,), config.gaps[0], config.gaps[1] + 1)
    centre = jax.random.randint(keys[1], (CANDIDATES,), gap, frames - gap)
    gap *= textures.shots[centre - gap] == textures.shots[centre + gap]  # across a cut: a still scene
    top = jax.random.randint(keys[2], (CANDIDATES,), 0, height - crop + 1)
    left = jax.random.randint(keys[3], (CANDIDATES,), 0, width - crop + 1)

    def cut(frame: Array, top: Array, left: Array) -> Array:
        start = (frame, top, left, jnp.zeros((), frame.dtype))
        return jax.lax.dynamic_slice(textures.film, start, (1, crop, crop, 3))[0]

    triplets = jnp.stack([jax.vmap(cut)(centre + i * gap, top, left) for i in (-1, 0, 1)], axis=1)
    motion = jnp.abs(triplets[:, 0].astype(jnp.float32) - triplets[:, 2]).mean(axis=(1, 2, 3))
    images = triplets[jnp.argmax(motion)].astype(jnp.float32) / 255
    swap, turn, mirror = (jax.random.uniform(keys[i]) < 0.5 for i in (4, 5, 6))
    images = jnp.where(swap, images[::-1], images)
    images = jnp.where(turn, jnp.swapaxes(images, 1, 2), images)
    images = jnp.where(mirror, images[:, :, ::-1], images)
    x0, y, x1 = _tint(keys[7], images)
    cells = (crop // CELL, crop // CELL)
    flow = {f"flow{ends}": jnp.zeros((*cells, 2)) for ends in "01"}
    valid = {f"valid{end}": jnp.zeros(cells) for end in "01"}
    return dict(x0=x0, y=y, x1=x1, time=jnp.full(1, 0.5), **flow, **valid)


def _finish(config: DrawnScenes, key: PRNGKeyArray, images: Float[Array, "3 c c 3"], time: Array) -> Array:
    """Light that changes, noise of each frame, and one tint for all; 8-bit levels."""
    keys = jax.random.split(key, 6)
    changes = jax.random.uniform(keys[0], (2,), minval=-0.1, maxval=0.1) * (jax.random.uniform(keys[1]) < config.light)
    times = jnp.stack([jnp.zeros(()), time, jnp.ones(())]).reshape(3, 1, 1, 1)
    gain, gamma = (jnp.exp((times - 0.5) * change) for change in changes)
    images = gain * jnp.clip(images, 1e-4, 1) ** gamma
    deviation = jax.random.uniform(keys[2], minval=0.5, maxval=4) * (jax.random.uniform(keys[3]) < config.noise)
    images += deviation / 255 * jax.random.normal(keys[4], images.shape)
    return jnp.round(255 * _tint(keys[5], jnp.clip(images, 0, 1))) / 255


def _tint(key: PRNGKeyArray, images: Float[Array, "3 c c 3"]) -> Array:
    """As `film.data.augment.tint`."""
    keys = jax.random.split(key, 4)
    gain = jax.random.uniform(keys[0], minval=0.9, maxval=1.1)
    gamma = jnp.exp(jax.random.uniform(keys[1], minval=-0.14, maxval=0.14))
    order = jnp.where(jax.random.uniform(keys[2]) < 0.1, jax.random.permutation(keys[3], 3), jnp.arange(3))
    return jnp.clip(gain * jnp.maximum(images, 1e-6) ** gamma, 0, 1)[..., order]


def main(
    config: Annotated[DrawnScenes, tyro.conf.arg(name="")] = DrawnScenes(batch_size=12),
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("sheet.png"),
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Write a contact sheet of one batch: x0, y, x1, the flows from y to x0 and x1 (grey where invalid), and x0's
    visibility."""
    batch = jax.device_get(next(config.batches(seed)))
    pictures = []
    for i in range(config.batch_size):
        flows = [flow_picture(batch[f"flow{end}"][i].repeat(CELL, 0).repeat(CELL, 1)) for end in "01"]
        valid = [batch[f"valid{end}"][i].repeat(CELL, 0).repeat(CELL, 1)[..., None] for end in "01"]
        shown = [np.where(v > 0, flow, 0.5).astype(np.float32) for v, flow in zip(valid, flows, strict=True)]
        one = np.repeat((0.5 + 0.5 * (valid[0] - valid[1])), 3, axis=-1).astype(np.float32)
        pictures += [batch["x0"][i], batch["y"][i], batch["x1"][i], *shown, one]
    write_image(output, contact_sheet(pictures, columns=6), overwrite)


if __name__ == "__main__":
    terminal.program(main)
