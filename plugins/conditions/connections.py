"""Landmark connections of MediaPipe 0.10.14: which points a line joins, its colour, and the point's mirror partner.

A face has 478 points (468 of the mesh and five for each iris), a body 33, a hand 21. "Left" is the person's own left,
which is on the right of an image taken from the front. A path of numbers, "33 7 163 144", stands for an edge from each
to the next, in MediaPipe's direction, because OpenCV rounds a slanted line by where it starts.

The colours of a face are MediaPipe's; for bodies and hands none are published, and these are ours. A mirror exchanges
green and blue: left and right differ in nothing else, and the middle has as much of one as of the other. The mirror
table of the face was measured: a reflection, aligned on 16 known points, took the landmarks of a photograph onto each
other one to one. 1,316 of the 1,322 mesh edges map to edges; the other six are diagonals that differ by side.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

FACE_POINTS, POSE_POINTS, HAND_POINTS = 478, 33, 21

Colour = tuple[float, float, float]
WHITE, RED = (1.0, 1.0, 1.0), (1.0, 0.0, 0.0)
GREEN, BLUE = (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
ORANGE, ROSE = (1.0, 0.5, 0.0), (1.0, 0.0, 0.5)
LIME, VIOLET = (0.5, 1.0, 0.0), (0.5, 0.0, 1.0)
YELLOW, MAGENTA = (1.0, 1.0, 0.0), (1.0, 0.0, 1.0)


@dataclass(frozen=True)
class Group:
    """Lines of one name and colour."""

    name: str
    colour: Colour
    paths: tuple[str, ...]

    @property
    def edges(self) -> list[tuple[int, int]]:
        """The edges, in the order and direction in which they are drawn."""
        numbers = [[int(number) for number in path.split()] for path in self.paths]
        return [edge for path in numbers for edge in itertools.pairwise(path)]


OVAL = (
    "10 338 297 332 284 251 389 356 454 323 361 288 397 365 379 378 400 377 "
    "152 148 176 149 150 136 172 58 132 93 234 127 162 21 54 103 67 109 10"
)
LIPS = (
    "61 146 91 181 84 17 314 405 321 375 291",
    "61 185 40 39 37 0 267 269 270 409 291",
    "78 95 88 178 87 14 317 402 318 324 308",
    "78 191 80 81 82 13 312 311 310 415 308",
)
LEFT_EYE = ("263 249 390 373 374 380 381 382 362", "263 466 388 387 386 385 384 398 362")
RIGHT_EYE = ("33 7 163 144 145 153 154 155 133", "33 246 161 160 159 158 157 173 133")

FACE = (
    Group("oval", WHITE, (OVAL,)),
    Group("lips", WHITE, LIPS),
    Group("left eye", GREEN, LEFT_EYE),
    Group("left eyebrow", GREEN, ("276 283 282 295 285", "300 293 334 296 336")),
    Group("left iris", GREEN, ("474 475 476 477 474",)),
    Group("right eye", BLUE, RIGHT_EYE),
    Group("right eyebrow", BLUE, ("46 53 52 65 55", "70 63 105 66 107")),
    Group("right iris", BLUE, ("469 470 471 472 469",)),
)
BODY = (
    Group("trunk", RED, ("11 12", "11 23", "12 24", "23 24")),
    Group("left arm", ORANGE, ("11 13 15",)),
    Group("right arm", ROSE, ("12 14 16",)),
    Group("left leg", LIME, ("23 25 27 29 31", "27 31")),
    Group("right leg", VIOLET, ("24 26 28 30 32", "28 32")),
)
# The pose's own points of head and hands are drawn only where a face or hand has no landmarks of its own.
HEAD = (
    Group("mouth", WHITE, ("9 10",)),
    Group("left of the head", GREEN, ("0 1 2 3 7",)),
    Group("right of the head", BLUE, ("0 4 5 6 8",)),
)
LEFT_PALM = (Group("left palm", YELLOW, ("15 17 19", "15 19", "15 21")),)
RIGHT_PALM = (Group("right palm", MAGENTA, ("16 18 20", "16 20", "16 22")),)
FINGERS = ("0 1 2 3 4", "0 5 6 7 8", "0 17 18 19 20", "5 9 10 11 12", "9 13 14 15 16", "13 17")
LEFT_HAND = (Group("left hand", YELLOW, FINGERS),)
RIGHT_HAND = (Group("right hand", MAGENTA, FINGERS),)


def swap_table(count: int, runs: Iterable[tuple[int, int, int]]) -> Int[np.ndarray, " count"]:
    """The mirror partner of each landmark. A run (first, last, partner) pairs the right points first..last with the
    left points from `partner` on; points outside all runs lie in the middle and keep their number."""
    table = np.arange(count)
    for first, last, partner in runs:
        right = np.arange(first, last + 1)
        left = right - first + partner
        table[right], table[left] = left, right
    return table


FACE_RUNS = ((3, 3, 248), (7, 7, 249), (20, 93, 250), (95, 150, 324), (153, 163, 380), (165, 167, 391))
FACE_RUNS += ((169, 174, 394), (176, 194, 400), (196, 196, 419), (198, 198, 420), (201, 247, 421))
IRIS_RUNS = ((468, 468, 473), (469, 469, 476), (470, 470, 475), (471, 471, 474), (472, 472, 477))

FACE_SWAP = swap_table(FACE_POINTS, FACE_RUNS + IRIS_RUNS)
POSE_SWAP = swap_table(POSE_POINTS, [(4, 6, 1), *((left + 1, left + 1, left) for left in range(7, 33, 2))])
HAND_SWAP = np.arange(HAND_POINTS)  # a left hand becomes a right one, finger for finger
