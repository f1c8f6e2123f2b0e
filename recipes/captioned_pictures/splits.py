"""Which pictures are too alike, and which are kept out of training.

Labels are held back by a hash of their text, so that the choice depends on no order and stays when pictures are added.
Only labels of things that can be drawn are chosen (`CONCRETE` groups), and only those drawn in all styles.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

import cv2
import numpy as np
from jaxtyping import UInt8

from recipes.captioned_pictures.thumbnails import Picture

TRAIN, UNSEEN, UNSEEN_STYLE, TEST = "train", "unseen", "unseen_style", "test"
CONCRETE = {"animals-nature", "food-drink", "travel-places", "activities", "objects"}
COARSE, LEVELS = 16, 32  # pictures are the same when they are so at 16x16 pixels and 32 levels of each colour


def distinct(pictures: Iterable[Picture]) -> list[Picture]:
    """The first of each kind of alike pictures of one source."""
    kept: dict[tuple[str, bytes], Picture] = {}
    for picture in pictures:
        kept.setdefault((picture.source, signature(picture.image)), picture)
    return list(kept.values())


def signature(image: UInt8[np.ndarray, "s s 3"]) -> bytes:
    """Equal for pictures that nobody could tell apart."""
    small = cv2.resize(image, (COARSE, COARSE), interpolation=cv2.INTER_AREA)
    return (small // (256 // LEVELS)).tobytes()


def assign(pictures: Sequence[Picture], test: str, styles: Sequence[str], unseen: int, unseen_style: int) -> list[str]:
    """The split of each picture.

    The pictures of source `test` are the test set. Of the concrete labels that all `styles` have, `unseen` go with all
    their pictures (of other sources as well), and `unseen_style` more with one style each."""
    drawn = defaultdict(set)
    for picture in pictures:
        if picture.group in CONCRETE:
            drawn[picture.label].add(picture.style)
    eligible = sorted((label for label in drawn if drawn[label].issuperset(styles)), key=digest)
    held = set(eligible[:unseen])
    held_style = {
        (label, styles[number % len(styles)]) for number, label in enumerate(eligible[unseen : unseen + unseen_style])
    }
    return [_split(picture, test, held, held_style) for picture in pictures]


def digest(label: str) -> str:
    return hashlib.sha256(label.encode()).hexdigest()


def _split(picture: Picture, test: str, held: set[str], held_style: set[tuple[str, str]]) -> str:
    if picture.source == test:
        return TEST
    if picture.label in held:
        return UNSEEN
    return UNSEEN_STYLE if (picture.label, picture.style) in held_style else TRAIN
