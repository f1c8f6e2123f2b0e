"""Invented flags, as varied as real ones.

    flags(count, seed)      uint8 [n 48 64 3], RGB

A flag has a ground (bands, crosses, rays, ...), possibly a figure at the hoist, possibly charges (`charges.py`), and
colours that flags have. Each of these four parts has a seed of its own. A third of all flags are siblings: they share
all seeds but one with an earlier flag, like Chad and Romania, the Nordic crosses, or the flags with a Union canton.
Flag i depends on seed and i alone.

    python -m recipes.countries.drawing sheet.png        invented flags, then real ones as questions show them
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
import tyro
from jaxtyping import Float, UInt8

from common import terminal
from common.io.images import contact_sheet, from_uint8, write_image
from recipes.countries.augmentation import augment
from recipes.countries.charges import CHARGES, SHARES, Canvas, Colours, fill
from recipes.countries.facts import Atlas
from recipes.countries.fetch import HEIGHT, WIDTH

OVERSAMPLED = 4
SIBLINGS = 0.33
PARTS = ("ground", "colours", "hoist", "charge")
CHANGED = (0.25, 0.35, 0.1, 0.3)  # probability of each part to be the one that a sibling changes
COLOURS = {  # and their relative frequencies
    (206, 17, 38): 5,
    (255, 255, 255): 5,
    (0, 56, 147): 4,
    (252, 209, 22): 3,
    (0, 122, 61): 3.5,
    (0, 0, 0): 1.6,
    (12, 28, 92): 1.4,
    (108, 172, 228): 1.4,
    (255, 130, 0): 0.8,
    (0, 163, 173): 0.4,
    (126, 20, 45): 0.5,
    (84, 45, 122): 0.15,
    (120, 72, 32): 0.2,
    (150, 200, 60): 0.25,
}
JITTER = 9  # standard deviation of a colour's channels
Ground = Callable[[Canvas, np.random.Generator, Colours], None]


def flags(count: int, seed: int = 0) -> UInt8[np.ndarray, "n 48 64 3"]:
    return np.stack([flag(seeds(seed, number)) for number in range(count)])


@functools.lru_cache(maxsize=65536)
def seeds(seed: int, number: int) -> tuple[tuple[int, ...], ...]:
    """Seeds of the four parts of a flag, in the order of `PARTS`."""
    own = tuple((seed, number, part) for part in range(len(PARTS)))
    rng = np.random.default_rng([seed, number, len(PARTS)])
    if number == 0 or rng.random() >= SIBLINGS:
        return own
    parent, other = seeds(seed, int(rng.integers(number))), int(rng.choice(len(PARTS), p=CHANGED))
    return tuple(mine if part == other else theirs for part, (mine, theirs) in enumerate(zip(own, parent, strict=True)))


def flag(part_seeds: Sequence[Sequence[int]]) -> UInt8[np.ndarray, "48 64 3"]:
    ground, colours, hoist, charge = (np.random.default_rng(list(seed)) for seed in part_seeds)
    palette = pick_colours(colours)
    canvas = np.zeros((OVERSAMPLED * HEIGHT, OVERSAMPLED * WIDTH, 3), np.uint8)
    GROUNDS[int(ground.choice(len(GROUNDS), p=GROUND_SHARES))](canvas, ground, palette)
    kind = draw_hoist(canvas, hoist, palette)
    draw_charges(canvas, charge, palette, kind, bare=bool((canvas == canvas[0, 0]).all()))
    return cv2.resize(canvas, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)


def pick_colours(rng: np.random.Generator) -> Colours:
    """Five different colours; frequent ones tend to come first."""
    shares = np.array(list(COLOURS.values()))
    chosen = rng.choice(len(COLOURS), 5, replace=False, p=shares / shares.sum())
    colours = np.array(list(COLOURS))[chosen] + rng.normal(0, JITTER, (5, 3))
    return [(int(r), int(g), int(b)) for r, g, b in np.clip(colours, 0, 255)]


# ---- grounds


def plain(canvas: Canvas, rng: np.random.Generator, colours: Colours) -> None:
    canvas[:] = colours[0]


def bands(canvas: Canvas, rng: np.random.Generator, colours: Colours) -> None:
    """2 to 5, horizontal or vertical, of equal or unequal widths, possibly with thin lines between."""
    count, along = int(rng.choice([2, 3, 3, 3, 4, 5])), int(rng.choice([0, 0, 1]))
    shares = [np.ones(count), 1 + rng.integers(0, 3, count), np.array([1, 2, 1, 1, 1][:count])][rng.integers(3)]
    order = np.arange(count)
    if rng.random() < 0.35:  # symmetric
        order = np.minimum(order, order[::-1])
    ends = np.rint(np.cumsum(shares) / np.sum(shares) * canvas.shape[along]).astype(int)
    line = int(rng.choice([0, 0, 0, 6]))
    view = canvas if along == 0 else canvas.transpose(1, 0, 2)
    for start, end, number in zip([0, *ends[:-1]], ends, order, strict=True):
        view[start:end] = colours[number]
    for end in ends[:-1] if line else ():
        view[end - line // 2 : end + line] = colours[4]


def stripes(canvas: Canvas, rng: np.random.Generator, colours: Colours) -> None:
    count = int(rng.choice([5, 7, 9, 11, 13]))
    rows = np.arange(canvas.shape[0]) * count // canvas.shape[0] % 2
    canvas[:] = np.array(colours[:2], np.uint8)[rows][:, None]


def diagonal(canvas: Canvas, rng: np.random.Generator, colours: Colours) -> None:
    """Halves, often with a band between them, which may have borders."""
    height, width = canvas.shape[:2]
    canvas[:] = colours[0]
    fill(canvas, np.array([[0, height], [width, height], [width, 0]]), colours[int(rng.choice([0, 1, 1]))])
    wide = rng.uniform(0.08, 0.2) * height
    for colour, extent in ((colours[3], wide * rng.choice([1, 1.35])), (colours[2], wide)):
        if wide > 0.11 * height:
            shift = np.array([[-1, -1], [1, 1]]) * extent * [0.6, 0.8]
            ends = np.array([[-0.1 * width, 1.1 * height], [1.1 * width, -0.1 * height]])
            fill(canvas, np.concatenate([ends + shift[0], ends[::-1] + shift[1]]), colour)
    if rng.random() < 0.5:
        canvas[:] = canvas[::-1].copy()


def crossed(canvas: Canvas, rng: np.random.Generator, colours: Colours) -> None:
    """An upright, Nordic or diagonal cross, possibly with borders, or an upright one on a diagonal one."""
    canvas[:] = colours[0]
    height, width = canvas.shape[:2]
    kind, arm, rim = rng.integers(5), rng.uniform(0.06, 0.11) * height, rng.choice([0, 1.7, 2.0])
    if kind in (2, 4):
        for colour, wide in ((colours[1], arm * max(rim, 1)), (colours[2 if rim else 1], arm)):
            for a, b in (((0, 0), (width, height)), ((0, height), (width, 0))):
                cv2.line(canvas, a, b, colour, round(2 * wide))
    if kind != 2:
        x, y = (0.5 if kind in (0, 4) else 0.37) * width, 0.5 * height
        for colour, wide in ((colours[1], arm * max(rim, 1)), (colours[2 if rim else 1], arm)):
            canvas[round(y - wide) : round(y + wide)] = colour
            canvas[:, round(x - wide) : round(x + wide)] = colour


def quarters(canvas: Canvas, rng: np.random.Generator, colours: Colours) -> None:
    half_h, half_w = canvas.shape[0] // 2, canvas.shape[1] // 2
    order = [0, 1, 1, 0] if rng.random() < 0.5 else list(rng.permutation(4))
    for number, place in zip(order, np.ndindex(2, 2), strict=True):
        rows, columns = (slice(at * half, (at + 1) * half) for at, half in zip(place, (half_h, half_w), strict=True))
        canvas[rows, columns] = colours[number]


def rays(canvas: Canvas, rng: np.random.Generator, colours: Colours) -> None:
    """From the middle, the lower edge, the hoist or a corner."""
    height, width = canvas.shape[:2]
    x, y = [(0.5, 0.5), (0.0, 1.0), (0.5, 1.0), (0.0, 0.5)][rng.integers(4)]
    ys, xs = np.mgrid[:height, :width]
    count = int(rng.choice([6, 8, 12, 16]))
    number = np.floor((np.arctan2(ys - y * height, xs - x * width) / (2 * np.pi) + 0.5) * 2 * count).astype(int)
    canvas[:] = np.array(colours[: int(rng.choice([2, 2, 4]))], np.uint8)[number % 2]


def bordered(canvas: Canvas, rng: np.random.Generator, colours: Colours) -> None:
    canvas[:] = colours[0]
    rim = round(rng.uniform(0.06, 0.14) * canvas.shape[0])
    (plain, bands, diagonal)[rng.integers(3)](canvas[rim:-rim, rim:-rim], rng, colours[1:] + colours[:1])


def serrated(canvas: Canvas, rng: np.random.Generator, colours: Colours) -> None:
    """A hoist with a zigzag edge."""
    canvas[:] = colours[0]
    height, width = canvas.shape[:2]
    teeth, at, deep = int(rng.integers(4, 11)), rng.uniform(0.25, 0.4) * width, rng.uniform(0.06, 0.12) * width
    ys = np.linspace(0, height, 2 * teeth + 1)
    edge = np.stack([at + deep * (np.arange(len(ys)) % 2), ys], 1)
    fill(canvas, np.concatenate([[[0, 0]], edge, [[0, height]]]), colours[1])


GROUNDS: tuple[Ground, ...] = (plain, bands, stripes, diagonal, crossed, quarters, rays, bordered, serrated)
GROUND_SHARES = [0.2, 0.38, 0.07, 0.1, 0.11, 0.03, 0.03, 0.05, 0.03]


# ---- hoist and charges


def draw_hoist(canvas: Canvas, rng: np.random.Generator, colours: Colours) -> str:
    """Returns the kind: "" (none), "triangle", "bar" or "canton"."""
    height, width = canvas.shape[:2]
    kind = ("", "triangle", "bar", "canton")[rng.choice(4, p=[0.62, 0.14, 0.06, 0.18])]
    if kind == "triangle":
        tip = rng.uniform(0.3, 0.6) * width
        points = np.array([[0, 0], [tip, height / 2], [0, height]])
        if rng.random() < 0.35:
            fill(canvas, points + [[0, -14], [18, 0], [0, 14]], colours[4])
        fill(canvas, points, colours[3])
    elif kind == "bar":
        canvas[:, : round(rng.uniform(0.2, 0.38) * width)] = colours[3]
    elif kind == "canton":
        part = canvas[: round(rng.uniform(0.4, 0.55) * height), : round(rng.uniform(0.36, 0.5) * width)]
        of_own = pick_colours(rng)
        ground = (plain, plain, crossed, crossed, bands, stripes)[rng.integers(6)]
        ground(part, rng, of_own if ground is crossed else colours[3:] + colours[:3])
    return kind


def draw_charges(canvas: Canvas, rng: np.random.Generator, colours: Colours, hoist: str, bare: bool) -> None:
    """None, one or two, at places that suit the hoist; a flag of one colour gets one at least."""
    height, width = canvas.shape[:2]
    places = {
        "": [(0.5, 0.5), (0.5, 0.5), (0.33, 0.5), (0.25, 0.28)],
        "triangle": [(0.15, 0.5), (0.65, 0.5)],
        "bar": [(0.15, 0.5), (0.6, 0.5)],
        "canton": [(0.2, 0.24), (0.72, 0.5), (0.72, 0.6)],
    }[hoist]
    count = max(int(rng.choice([0, 1, 2], p=[0.2, 0.68, 0.12])), int(bare))
    for x, y in [places[number] for number in rng.permutation(len(places))[:count]]:
        small = (hoist and x < 0.3) or y < 0.3
        radius = (rng.uniform(0.11, 0.17) if small else rng.uniform(0.15, 0.33)) * height
        under = np.array(canvas[round(y * height), round(x * width)], int)
        seen = [colour for colour in colours[::-1] if np.abs(np.array(colour) - under).sum() > 150]
        own = seen[rng.integers(len(seen)) :] + seen
        charge = CHARGES[rng.choice(len(CHARGES), p=SHARES)]
        charge(canvas, rng, (x * width, y * height), radius, [*own, *colours])


def sheet(count: int = 160, seed: int = 0, size: int = 64) -> Float[np.ndarray, "h w 3"]:
    real = Atlas.create().flags
    rngs = [np.random.default_rng([seed, number]) for number in range(count)]
    augmented = [augment(real[number * 7 % len(real)], size, rng) for number, rng in enumerate(rngs)]
    return contact_sheet([*map(from_uint8, flags(count, seed)), *augmented], columns=20)


def main(output: tyro.conf.Positional[Path], count: int = 160, seed: int = 0, overwrite: bool = False) -> None:
    """Write a sheet: COUNT invented flags, then COUNT augmented real ones."""
    write_image(output, sheet(count, seed), overwrite)


if __name__ == "__main__":
    terminal.program(main)
