"""Duplicates and splits.

Labels are held out by a hash of their text, so the choice does not depend on order or on other pictures. Only labels of
concrete things are chosen (`CONCRETE` groups), and only those with pictures in all styles.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

import cv2
import numpy as np
from jaxtyping import UInt8

from recipes.captioned_pictures.thumbnails import Picture

TRAIN, UNSEEN, UNSEEN_STYLE, TEST = "train", "unseen", "unseen_style", "test"
CONCRETE = {"animals-nature", "food-drink", "travel-places", "activities", "objects"}
COARSE, LEVELS = 16, 32  # duplicates are equal at 16x16 pixels and 32 levels per colour


def distinct(pictures: Iterable[Picture]) -> list[Picture]:
    """The first of all duplicates of one source."""
    kept: dict[tuple[str, bytes], Picture] = {}
    for picture in pictures:
        kept.setdefault((picture.source, signature(picture.image)), picture)
    return list(kept.values())


def signature(image: UInt8[np.ndarray, "s s 3"]) -> bytes:
    small = cv2.resize(image, (COARSE, COARSE), interpolation=cv2.INTER_AREA)
    return (small // (256 // LEVELS)).tobytes()


def assign(pictures: Sequence[Picture], test: str, styles: Sequence[str], unseen: int, unseen_style: int) -> list[str]:
    """The split of each picture.

    The pictures of source `test` are the test set. Of the concrete labels that all `styles` have, `unseen` are held out
    with all their pictures (of other sources too), and `unseen_style` more with one style each."""
    drawn = defaultdict(set)
    for picture in pictures:
        if picture.group in CONCRETE:
            drawn[picture.label].add(picture.style)
    eligible = sorted((label for label in drawn if drawn[label].issuperset(styles)), key=digest)
    held_out = set(eligible[:unseen])
    partly = eligible[unseen : unseen + unseen_style]
    held_out_style = {(label, styles[number % len(styles)]) for number, label in enumerate(partly)}

    def split(picture: Picture) -> str:
        if picture.source == test:
            return TEST
        if picture.label in held_out:
            return UNSEEN
        return UNSEEN_STYLE if (picture.label, picture.style) in held_out_style else TRAIN

    return [split(picture) for picture in pictures]


def digest(label: str) -> str:
    return hashlib.sha256(label.encode()).hexdigest()
