"""Cut training and evaluation triplets out of a film, each in one sequential decode.

Nothing seeks, since that is where frame numbers go wrong: number n is always the n-th decoded frame, from 0. A triplet
is three frames c-g, c, c+g: the outer two are the network's inputs, the middle one is the truth.

Training (`cut_training`), written to `data/film_triplets/`, N triplets of S pixels with s = S // 4:

    images.npy  uint8   [N, 3, S, S, 3]  RGB of c-g, c, c+g, in that order
    flows.npy   float16 [N, 2, s, s, 2]  teacher flow (dx, dy), middle -> c-g and middle -> c+g, in full-size
                                         pixels, averaged over 4x4 pixel blocks
    valid.npy   uint8   [N, 2, s, s]     1 where the teacher flow is valid (see `film.data.teacher_flow`)
    index.json  frame, gap, y, x, motion of each; motion = 95th percentile, px, between the outer frames

Most of a film moves little. So of several random patches one is drawn with a preference for motion that is rare so far,
counted in half-octave bins: the result is roughly log-uniform.

Evaluation (`cut_evaluation`), `data/film_eval/00001/im1.png im2.png im3.png` (im2 = truth, as in Vimeo-90K): whole
frames at a fixed gap and spacing, kept by one motion rule. With `quarters` the truths are a quarter and three quarters
of the way: frame_0.png, frame_1.png, frame_3.png, frame_4.png.

    python -m film.data.cutting --video data/bbb.mp4
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import av
import cv2
import numpy as np
from jaxtyping import Float, UInt8
from numpy.lib.format import open_memmap, write_array_header_1_0
from tqdm import tqdm

from common import terminal
from common.checked import Checked, OneOrMore, Positive
from common.io.colour import MATRICES, frame_colour
from common.io.files import atomic_folder, check_output_folder
from film.data.augment import CELL, Side
from film.data.teacher_flow import FlowTeacher, MiddleFlow, half_luma

STILL = 1.5  # px of p95 outer motion below which a patch counts as standing still
ERROR_LIMIT = 14.0  # mean warp error, levels of 255, above which two frames show different scenes
FLAT = 4.0  # standard deviation, levels: below it there is no texture to learn from or to judge by
BINS = np.geomspace(STILL, 96.0, 13)  # half octaves
CUT_LEVEL, CUT_RATIO = 8.0, 3.0  # a cut changes the thumbnail by so many levels AND so many times its surroundings
FILM, LICENCE = "bbb.mp4", "Big Buck Bunny (c) 2008 Blender Foundation, www.bigbuckbunny.org, CC-BY-3.0"


class Frame(NamedTuple):
    image: UInt8[np.ndarray, "h w 3"]
    luma: UInt8[np.ndarray, "h2 w2"]  # at half the size: all that flow needs
    change: float  # mean absolute difference of the 32x18 thumbnail from the frame before, levels of 255


@dataclass(frozen=True)
class TrainingCut(Checked):
    """Frames `first` to `last` (both included) feed training: `count` evenly spaced centres, None = all."""

    first: int = 600
    last: int = 8999
    count: Positive | None = None
    gaps: OneOrMore[Positive] = (1, 2, 3, 4)
    size: Side = 320
    candidates: Positive = 8
    still_share: float = 0.1
    max_motion: float = 120.0
    seed: int = 0

    @property
    def centres(self) -> list[int]:
        first, last = self.first + max(self.gaps), self.last - max(self.gaps)
        total = max(0, last - first + 1)
        count = total if self.count is None else min(self.count, total)
        return np.linspace(first, last, count).round().astype(int).tolist()


@dataclass(frozen=True)
class EvaluationCut(Checked):
    """Centres every `spacing` frames from first + gap on; kept when the p95 of motion is in `motion` (px), but for
    scene cuts and frames without texture (fades to black). With `quarters` the frames of a centre are -gap, -gap/2,
    +gap/2 and +gap away."""

    first: int = 9000
    last: int = 11600
    gap: Positive = 3
    spacing: Positive = 20
    motion: tuple[float, float] = (6.0, 90.0)
    quarters: bool = False

    def rules(self):
        yield not self.quarters or self.gap % 2 == 0, "with quarters, gap is even: there is a frame at its half"

    @property
    def places(self) -> dict[str, int]:
        """The frames written for a centre: file name -> distance from the centre, in frames."""
        if self.quarters:
            return {f"frame_{k}": (k - 2) * self.gap // 2 for k in (0, 1, 3, 4)}
        return {"im1": -self.gap, "im2": 0, "im3": self.gap}

    @property
    def reach(self) -> int:
        """Frames of a window on either side; at least three, since a cut shows by the changes around it."""
        return max(self.gap, 3)


def cut_training(
    video: str | Path, folder: str | Path, cut: TrainingCut = TrainingCut(), licence: str | None = None
) -> int:
    centres, reach = cut.centres, max(cut.gaps)
    rng, teacher, histogram = np.random.default_rng(cut.seed), FlowTeacher(), np.zeros(len(BINS) + 1)
    index = []
    size, cells = cut.size, cut.size // CELL
    shapes = dict(images=(3, size, size, 3), flows=(2, cells, cells, 2), valid=(2, cells, cells))
    types = dict(images=np.uint8, flows=np.float16, valid=np.uint8)
    with atomic_folder(folder) as part:
        arrays = {
            name: open_memmap(part / f"{name}.npy", "w+", types[name], (max(1, len(centres)), *shape))
            for name, shape in shapes.items()
        }
        for centre, window in windows(video, centres, reach):
            gap = int(rng.choice(cut.gaps))
            triplet = window[reach - gap : reach + gap + 1 : gap]
            flow = None if has_cut(window, gap) else _same_scene_flow(teacher, triplet)
            patch = flow and _choose_patch(flow, triplet[1], cut, histogram, rng)
            if flow is None or patch is None:
                continue
            y, x, motion = patch
            row = len(index)
            arrays["images"][row] = [f.image[y : y + size, x : x + size] for f in triplet]
            arrays["flows"][row], arrays["valid"][row] = _flow_cells(flow, y, x, size)
            index.append(dict(frame=centre, gap=gap, y=y, x=x, motion=round(motion, 3)))
        for name, array in arrays.items():
            array.flush()
            _truncate(part / f"{name}.npy", array, len(index))
        _write_index(part, video, licence, cut, len(centres), index)
    return len(index)


def cut_evaluation(
    video: str | Path, folder: str | Path, cut: EvaluationCut = EvaluationCut(), licence: str | None = None
) -> int:
    centres = list(range(cut.first + cut.reach, cut.last - cut.reach + 1, cut.spacing))
    teacher, index = FlowTeacher(), []
    with atomic_folder(folder) as part:
        for centre, window in windows(video, centres, cut.reach):
            frames = {name: window[cut.reach + place] for name, place in cut.places.items()}
            if has_cut(window, cut.gap) or min(frame.luma.std() for frame in frames.values()) < FLAT:
                continue
            flow = _same_scene_flow(teacher, window[cut.reach - cut.gap : cut.reach + cut.gap + 1 : cut.gap])
            motion = -1.0 if flow is None else float(np.percentile(flow.motion(), 95))
            if not cut.motion[0] <= motion <= cut.motion[1]:
                continue
            name = f"{len(index) + 1:05d}"
            (part / name).mkdir()
            for file, frame in frames.items():
                cv2.imwrite(str(part / name / f"{file}.png"), frame.image[..., ::-1])
            index.append(dict(name=name, frame=centre, gap=cut.gap, motion=round(motion, 3)))
        _write_index(part, video, licence, cut, len(centres), index)
    return len(index)


def windows(video: str | Path, centres: Sequence[int], reach: int) -> Iterator[tuple[int, list[Frame]]]:
    """For each of the rising `centres`: (centre, its frames centre - reach ... centre + reach)."""
    if not Path(video).is_file():
        raise FileNotFoundError(f"{video}: no such video; `python -m recipes.film_small.fetch_film` gets data/bbb.mp4")
    if not centres or centres[0] < reach:
        raise ValueError(f"no centre has {reach} frames on either side: widen first..last or lower the gap")
    waiting, ring = deque(centres), deque(maxlen=2 * reach + 1)
    thumbnail = np.zeros((18, 32), np.float32)
    with av.open(str(video)) as container, tqdm(total=len(centres), unit="frame", desc=Path(video).name) as bar:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for number, decoded in enumerate(container.decode(stream)):
            if number < waiting[0] - reach:
                continue
            matrix = MATRICES.get(frame_colour(decoded).matrix)
            image = decoded.to_ndarray(format="rgb24", src_colorspace=matrix)
            luma, before = half_luma(image), thumbnail
            thumbnail = np.asarray(cv2.resize(luma, (32, 18), interpolation=cv2.INTER_AREA), np.float32)
            ring.append(Frame(image, luma, float(np.abs(thumbnail - before).mean())))
            if number == waiting[0] + reach:
                bar.update()
                yield waiting.popleft(), list(ring)
                if not waiting:
                    return
    raise ValueError(f"{video}: ends before frame {waiting[0] + reach}: lower `last`")


def has_cut(window: list[Frame], gap: int) -> bool:
    """Whether the thumbnail jumps, between middle - gap and middle + gap, beyond the changes around it."""
    changes = np.array([frame.change for frame in window[1:]])  # the first one's is about a frame outside
    middle = len(changes) // 2
    largest = changes[middle - gap : middle + gap].max()
    return bool(largest > CUT_LEVEL and largest > CUT_RATIO * np.median(changes))


def _same_scene_flow(teacher: FlowTeacher, triplet: list[Frame]) -> MiddleFlow | None:
    """None for a dissolve, a flash or a cut that `has_cut` missed."""
    flow = teacher(*(frame.luma for frame in triplet))
    return flow if flow.error < ERROR_LIMIT else None


def _choose_patch(
    flow: MiddleFlow, middle: Frame, cut: TrainingCut, histogram: Float[np.ndarray, " bins"], rng: np.random.Generator
) -> tuple[int, int, float] | None:
    """(y, x, motion) of one of `candidates` random patches, rare motion preferred and then counted."""
    height, width = middle.image.shape[:2]
    if min(height, width) < cut.size:
        raise ValueError(f"size {cut.size} does not fit in {width}x{height} frames: choose a smaller one")
    ys = CELL * rng.integers(0, (height - cut.size) // CELL + 1, cut.candidates)
    xs = CELL * rng.integers(0, (width - cut.size) // CELL + 1, cut.candidates)
    motion_map, half = flow.motion(), cut.size // 2
    patches = [np.s_[y // 2 : y // 2 + half, x // 2 : x // 2 + half] for y, x in zip(ys, xs, strict=True)]
    motions = np.array([np.percentile(motion_map[patch][::2, ::2], 95) for patch in patches])
    textured = np.array([middle.luma[patch].std() > FLAT for patch in patches])
    bins = np.digitize(motions, BINS)
    weights = np.where(textured & (motions <= cut.max_motion), 1.0 / (1.0 + histogram[bins]) ** 2, 0.0)
    if (weights[bins > 0] > 0).any():
        weights[bins == 0] = 0.0
    elif not weights.any() or rng.random() > cut.still_share:
        return None
    chosen = int(rng.choice(cut.candidates, p=weights / weights.sum()))
    histogram[bins[chosen]] += 1
    return int(ys[chosen]), int(xs[chosen]), float(motions[chosen])


def _flow_cells(
    flow: MiddleFlow, y: int, x: int, size: int
) -> tuple[Float[np.ndarray, "2 s s 2"], UInt8[np.ndarray, "2 s s"]]:
    """A patch's mean flow, and whether all of it is valid, over each 2x2 block of the half-size maps."""
    patch = np.s_[:, y // 2 : (y + size) // 2, x // 2 : (x + size) // 2]
    cells = size // CELL
    flows = flow.flows[patch].reshape(2, cells, 2, cells, 2, 2).mean(axis=(2, 4))
    valid = flow.valid[patch].reshape(2, cells, 2, cells, 2).all(axis=(2, 4))
    return flows.astype(np.float16), np.asarray(valid, np.uint8)


def _truncate(path: Path, array: np.ndarray, rows: int) -> None:
    """Keeps the first `rows` of an .npy file. NumPy pads the header: its length is the same for any row count."""
    with path.open("r+b") as file:
        shape = (rows, *array.shape[1:])
        write_array_header_1_0(file, dict(descr=array.dtype.str, fortran_order=False, shape=shape))
        file.truncate(file.tell() + rows * array[0].nbytes)


def _write_index(
    part: Path, video: str | Path, licence: str | None, cut: TrainingCut | EvaluationCut, count: int, triplets: list
) -> None:
    if not triplets:
        raise ValueError(f"{video}: none of {count} triplets fits (motion, texture, cuts): widen first..last")
    licence = licence or (LICENCE if Path(video).name == FILM else "not stated")
    counts = dict(considered=count, kept=len(triplets))
    record = dict(source=Path(video).name, licence=licence, settings=asdict(cut), **counts, triplets=triplets)
    (part / "index.json").write_text(json.dumps(record, indent=1) + "\n")


def main(
    video: Path = Path("data/bbb.mp4"),
    folder: Path = Path("data"),
    training: TrainingCut = TrainingCut(),
    evaluation: EvaluationCut = EvaluationCut(),
    licence: str | None = None,
) -> None:
    """Write FOLDER/film_eval and FOLDER/film_triplets; refuses to overwrite either."""
    for name in ("film_eval", "film_triplets"):
        check_output_folder(folder / name)  # now rather than after minutes of work
    print(cut_evaluation(video, folder / "film_eval", evaluation, licence), "evaluation triplets")
    print(cut_training(video, folder / "film_triplets", training, licence), "training triplets")


if __name__ == "__main__":
    terminal.program(main)
