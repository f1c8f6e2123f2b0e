"""Moments of a gap: 0 is its first frame, 1 its last; rational numbers between them.

A network that estimates flow at the moment itself (`FilmConfig.bilateral`) is asked for any moment. The published ones
know the midpoint alone: other moments are midpoints of midpoints, so a moment becomes one with a denominator of 2^n,
always the same one, whatever else is asked.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from fractions import Fraction

from film.config import MOST_TIMES

NEAR = Fraction(1, 64)  # of a gap; a thirtieth of a second at 30 frames per second is off by half a millisecond
HALF = Fraction(1, 2)
ENDS = frozenset({Fraction(0), Fraction(1)})


def even(count: int) -> list[Fraction]:
    """`count` moments that divide the gap evenly."""
    return [Fraction(number, count + 1) for number in range(1, count + 1)]


def of_midpoints(moment: Fraction) -> Fraction:
    """The moment if its denominator is 2^n; else the one with the smallest such denominator within `NEAR`, or 0 or 1
    for one that is closer to an end than to 1/64."""
    if moment.denominator & (moment.denominator - 1) == 0:
        if moment.denominator > 2**MOST_TIMES:
            raise ValueError(f"moment {moment}: midpoints of midpoints end at 1/{2**MOST_TIMES}")
        return moment
    for denominator in (2, 4, 8, 16, 32):
        nearest = Fraction(round(moment * denominator), denominator)
        if 0 < nearest < 1 and abs(nearest - moment) <= NEAR:
            return nearest
    return Fraction(round(moment * 64), 64)


def closure(moments: Iterable[Fraction], made: Container[Fraction] = ENDS) -> set[Fraction]:
    """What is still to be made for `moments` k / 2^n: themselves and the midpoints that they are made from."""
    missing: set[Fraction] = set()
    waiting = list(moments)
    while waiting:
        moment = waiting.pop()
        if moment not in made and moment not in missing:
            missing.add(moment)
            step = Fraction(1, moment.denominator)
            waiting += [moment - step, moment + step]
    return missing
