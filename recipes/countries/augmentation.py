"""Augmentation of flags: a flag as somebody might photograph it, drawn anew for every question.

    augment(flag, size, rng)      uint8 [48 64 3] -> float32 [s s 3], RGB in [0, 1]

Rotation, perspective, waves, aspect (flags are 4:3 here; in the world from square to 2:1), position and size (a part
may be outside the picture), light, contrast, tint, blur and noise, on a grey gradient. One picture in five is filled by
the flag. Sampling is inverse: a homography plus waves maps each pixel to a position on the flag, and `cv2.remap` reads
it.
"""

import functools

import cv2
import numpy as np
from jaxtyping import Float, UInt8

ROTATION = 15  # degrees, either way
PERSPECTIVE = 0.12  # of half the side, each corner
SCALE = (0.7, 1.08)  # flag width by picture width
ASPECT = (1.0, 2.0)  # width by height
FULL = 0.2  # share of pictures that are filled
WAVE = 0.045  # of the flag's width, at most
VISIBLE = (0.2, 0.6)  # share of a cut flag's width or height that is inside the picture
CROP = 0.1  # how far the flag may leave the picture, in halves of its side
GREY = (0.25, 0.75)
BLANK = 0.5  # grey of a question without an image
BLUR, NOISE = 0.9, 0.05  # largest standard deviations: pixels, brightness
GRAINS = 2**18  # offsets into the noise
SQUARE = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float32)


def augment(flag: UInt8[np.ndarray, "fh fw 3"], size: int, rng: np.random.Generator) -> Float[np.ndarray, "s s 3"]:
    """A photograph of the flag; `rng` decides all of it."""
    full = rng.random() < FULL
    u, v = _positions(size, _corners(rng, full))
    u, v, shade = _waved(u, v, rng)
    shown, edge = _look_up(flag, u, v)
    shown = _lit(shown.astype(np.float32) if shade is None else shown * shade[..., None], rng)
    pixels = np.float32(size / 2 * (1.0 if full else 0.85))
    inside = np.clip((1 - edge) * pixels + np.float32(0.5), 0, 1)[..., None]
    ground = _ground(size, rng)
    return _lens(ground + inside * (shown - ground), rng)


def blank_image(size: int) -> Float[np.ndarray, "{size} {size} 3"]:
    return np.full((size, size, 3), BLANK, np.float32)


def _corners(rng: np.random.Generator, full: bool) -> Float[np.ndarray, "4 2"]:
    """The flag's corners, in halves of the picture's side."""
    if full:
        return (SQUARE * rng.uniform(1.0, 1.1, 2) + rng.uniform(-0.03, 0.03, (4, 2))).astype(np.float32)
    wide = rng.uniform(*SCALE)
    high = min(wide / rng.uniform(*ASPECT), 1.05)
    corners = SQUARE * [wide, high] + rng.uniform(-PERSPECTIVE, PERSPECTIVE, (4, 2)) * wide
    turned = _turned(corners, rng.uniform(-ROTATION, ROTATION))
    room = np.maximum(1 - np.array([wide, high]), 0) + CROP
    return (turned + rng.uniform(-room, room)).astype(np.float32)


def _turned(corners: Float[np.ndarray, "4 2"], degrees: float) -> Float[np.ndarray, "4 2"]:
    angle = np.radians(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    return corners @ np.array([[cos, sin], [-sin, cos]])


def _positions(size: int, corners: Float[np.ndarray, "4 2"]) -> tuple[np.ndarray, np.ndarray]:
    """The position of each pixel on the flag, from -1 to 1 along both axes."""
    back = cv2.getPerspectiveTransform(corners, SQUARE).astype(np.float32)
    x, y, w = (back @ _grid(size)).reshape(3, size, size)
    return x / w, y / w


@functools.lru_cache(maxsize=4)
def _grid(size: int) -> Float[np.ndarray, "3 n"]:
    line = (2 * np.arange(size, dtype=np.float32) + 1) / size - 1
    across, down = np.meshgrid(line, line)
    return np.stack([across.ravel(), down.ravel(), np.ones(size * size, np.float32)])


def _look_up(flag: UInt8[np.ndarray, "fh fw c"], u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The flag at these positions, and how far out they are: 1 at its edge, in halves of its width."""
    height, width = flag.shape[:2]
    at = (u + 1) * np.float32(width / 2) - np.float32(0.5), (v + 1) * np.float32(height / 2) - np.float32(0.5)
    seen = cv2.remap(flag, *at, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return seen, np.maximum(np.abs(u), 1 + (np.abs(v) - 1) * np.float32(height / width))


@functools.lru_cache(maxsize=4)
def _grain(size: int) -> Float[np.ndarray, " n"]:
    """Noise of deviation 1; each picture takes a part of it, as drawing it anew would take most of the time."""
    return np.random.default_rng(size).standard_normal(GRAINS + size * size * 3, np.float32)


def _waved(u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Positions on a flag in the wind, and the brightness of its folds; every other flag is flat."""
    height, frequency, phase, slope = rng.random(4, np.float32)
    if height < 0.5:
        return u, v, None
    angle = (np.float32(1.5) + np.float32(2.5) * frequency) * u + np.float32(2 * np.pi) * phase + slope * v
    strength, along = np.float32(2 * WAVE) * (2 * height - 1), np.cos(angle)
    return u + strength / 2 * along, v + 2 * strength * np.sin(angle), 1 + np.float32(1.5) * strength * along


def _lit(shown: Float[np.ndarray, "s s 3"], rng: np.random.Generator) -> Float[np.ndarray, "s s 3"]:
    """Brightness, contrast, tint and desaturation as one linear map, from [0, 255] to [0, 1]."""
    bright, contrast, pale = rng.uniform(0.7, 1.15), rng.uniform(0.75, 1.1), rng.uniform(0, 0.25)
    mixed = (1 - pale) * np.eye(3) + pale / 3
    tint = bright * rng.uniform(0.93, 1.07, (3, 1))
    matrix = tint * np.concatenate([contrast * mixed / 255, np.full((3, 1), 0.5 * (1 - contrast))], axis=1)
    return cv2.transform(shown, matrix)


def _ground(size: int, rng: np.random.Generator) -> np.ndarray:
    left, right = rng.uniform(*GREY) + rng.uniform(-0.1, 0.1, 2)
    line = np.linspace(left, right, size, dtype=np.float32)
    return (line[None] if rng.random() < 0.5 else line[:, None])[..., None]


def photograph(
    drawing: UInt8[np.ndarray, "h w 4"],
    aspect: float,
    ground: UInt8[np.ndarray, "gh gw 3"] | None,
    size: int,
    rng: np.random.Generator,
    scale: tuple[float, float] = (0.55, 1.08),
    full: float = 0.2,
    plain: bool = False,
    cut: bool = False,
) -> Float[np.ndarray, "s s 3"]:
    """A drawing with alpha before a photograph (None: before one colour), as a camera or a web page might show it.
    `scale` is the range of its width by the picture's; a share `full` of the pictures is filled; `plain` flags are
    inside the picture, in their own proportions and outline; of `cut` ones at most `VISIBLE[1]` of the width or height
    is inside. Beyond what `augment` does: proportions between the drawing's own and any of `ASPECT`, an outline that
    the drawing does not have (rounded corners, a disc), gloss, JPEG, and photographs with permuted channels. Drawn at
    twice the size and averaged down, so that thin things stay."""
    side = 2 * size
    filled = rng.random() < full and not cut
    shown = np.ascontiguousarray(drawing)
    if not plain and rng.random() < 0.25:
        shown = _outlined(shown, rng)
    u, v = _positions(side, _placed(rng, filled, aspect, scale, plain, cut))
    u, v, shade = _waved(u, v, rng)
    seen, edge = _look_up(shown, u, v)
    seen = seen.astype(np.float32)
    inside = np.clip((1 - edge) * side / 2 * np.float32(0.8) + np.float32(0.5), 0, 1) * seen[..., 3] / 255
    colours = seen[..., :3] if shade is None else seen[..., :3] * shade[..., None]
    if not plain and rng.random() < 0.2:  # gloss, as on a button
        colours = colours + (np.clip(0.3 - v, 0, 1) * np.float32(rng.uniform(20, 90)))[..., None]
    lit = _lit(np.clip(colours, 0, 255), rng)
    picture = _behind(ground, side, rng, plain)
    picture = picture + inside[..., None] * (lit - picture)
    picture = cv2.resize(picture, (size, size), interpolation=cv2.INTER_AREA)
    return _camera(picture, rng)


def without_flag(
    ground: UInt8[np.ndarray, "gh gw 3"] | None, size: int, rng: np.random.Generator
) -> Float[np.ndarray, "s s 3"]:
    """A picture without a flag: a photograph, or a colour."""
    return _camera(cv2.resize(_behind(ground, 2 * size, rng), (size, size), interpolation=cv2.INTER_AREA), rng)


def _placed(
    rng: np.random.Generator, filled: bool, aspect: float, scale: tuple[float, float], plain: bool, cut: bool
) -> Float[np.ndarray, "4 2"]:
    """`_corners` for a drawing of its own aspect."""
    if filled:
        return (SQUARE * rng.uniform(0.97, 1.1, 2) + rng.uniform(-0.03, 0.03, (4, 2))).astype(np.float32)
    wide = rng.uniform(*scale)
    high = wide / (aspect if plain or rng.random() < 0.6 else rng.uniform(*ASPECT))
    wide, high = np.array([wide, high]) * min(1, 1.05 / high)
    slant = PERSPECTIVE * rng.random() * wide
    corners = SQUARE * [wide, high] + rng.uniform(-slant, slant, (4, 2))
    turned = _turned(corners, rng.uniform(-ROTATION, ROTATION) * rng.random())
    if cut:  # its centre is outside, or nearly so
        side, along = rng.integers(2), rng.uniform(-1, 1, 2)
        along[side] = rng.choice([-1, 1]) * (1 + (wide, high)[side] * (1 - 2 * rng.uniform(*VISIBLE)))
        return (turned + along).astype(np.float32)
    room = np.maximum(1 - np.array([wide, high]), 0) + (0 if plain else CROP / 2)
    return (turned + rng.uniform(-room, room)).astype(np.float32)


def _outlined(drawing: UInt8[np.ndarray, "h w 4"], rng: np.random.Generator) -> UInt8[np.ndarray, "h w 4"]:
    """With rounded corners, or as a disc."""
    height, width = drawing.shape[:2]
    mask = np.zeros((height, width), np.uint8)
    if rng.random() < 0.4:
        cv2.ellipse(mask, (width // 2, height // 2), (width // 2, height // 2), 0, 0, 360, 255, -1, cv2.LINE_AA)
    else:
        r = int(rng.uniform(0.08, 0.25) * height)
        cv2.rectangle(mask, (r, 0), (width - r, height), 255, -1)
        cv2.rectangle(mask, (0, r), (width, height - r), 255, -1)
        for centre in ((r, r), (width - r - 1, r), (r, height - r - 1), (width - r - 1, height - r - 1)):
            cv2.circle(mask, centre, r, 255, -1, cv2.LINE_AA)
    out = drawing.copy()
    out[..., 3] = np.minimum(out[..., 3], mask)
    return out


def _behind(
    ground: UInt8[np.ndarray, "gh gw 3"] | None, side: int, rng: np.random.Generator, plain: bool = False
) -> Float[np.ndarray, "{side} {side} 3"]:
    """A piece of a photograph, possibly mirrored and, unless `plain`, all of it or with permuted channels; without one,
    a colour or a gradient, often white."""
    if ground is None:
        if rng.random() < 0.4:
            return np.full((side, side, 3), rng.choice([1.0, 1.0, 0.0, BLANK]), np.float32)
        gradient = np.repeat(np.broadcast_to(_ground(side, rng), (side, side, 1)), 3, 2)
        return gradient * rng.uniform(0.6, 1.4, 3).astype(np.float32).clip(0, 1)
    height, width = ground.shape[:2]
    if plain or rng.random() < 0.75:
        piece = max(8, int(min(height, width) * rng.uniform(0.3, 1.0)))
        top, left = int(rng.integers(height - piece + 1)), int(rng.integers(width - piece + 1))
        ground = ground[top : top + piece, left : left + piece]
    ground = ground[:, ::-1] if rng.random() < 0.5 else ground
    if not plain and rng.random() < 0.5:
        ground = np.ascontiguousarray(ground[..., rng.permutation(3)])
    return cv2.resize(ground, (side, side), interpolation=cv2.INTER_AREA).astype(np.float32) / 255


def _lens(picture: Float[np.ndarray, "s s 3"], rng: np.random.Generator) -> Float[np.ndarray, "s s 3"]:
    if (blur := rng.uniform(0, BLUR)) > 0.3:
        picture = cv2.GaussianBlur(picture, (0, 0), blur)
    start = int(rng.integers(GRAINS))
    grain = _grain(len(picture))[start : start + picture.size].reshape(picture.shape)
    return np.clip(picture + np.float32(rng.uniform(0, NOISE)) * grain, 0, 1)


def _camera(picture: Float[np.ndarray, "s s 3"], rng: np.random.Generator) -> Float[np.ndarray, "s s 3"]:
    picture = _lens(picture, rng)
    if rng.random() < 0.3:
        coded = cv2.imencode(".jpg", (255 * picture[..., ::-1]).astype(np.uint8), [1, int(rng.uniform(25, 95))])[1]
        picture = np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR), np.float32)[..., ::-1] / 255
    return picture.astype(np.float32)
