"""Moments of a gap: 0 is its first frame, 1 its last; rational numbers between them.

A network that estimates flow at the moment itself (`FilmConfig.bilateral`) is asked for any moment. The published ones
know the midpoint alone, and make others as midpoints of midpoints, k / 2^n:

    gap     0 ------------------------------ 1
    1/2                     1/2                     from 0 and 1
    1/4             1/4             3/4             from 0 and 1/2, 1/2 and 1
    1/8         1/8     3/8     5/8     7/8

For a moment that is none of them the nearest k / 32 is taken. `schedule` orders the work depth first.
"""

import itertools
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from fractions import Fraction

from film.config import MOST_TIMES

NEAR = Fraction(1, 64)  # of a gap; a thirtieth of a second at 30 frames per second is off by half a millisecond
HALF = Fraction(1, 2)
ENDS = frozenset({Fraction(0), Fraction(1)})


def even(count: int) -> list[Fraction]:
    return [Fraction(number, count + 1) for number in range(1, count + 1)]


def of_midpoints(moments: Sequence[Fraction]) -> list[Fraction]:
    """Moments k / 2^n, within `NEAR` of those given and in the same order.

    If all denominators are powers of two up to 2^MOST_TIMES, all moments stay. Else those up to 64 do, and any other
    (the float 0.1 is k / 2^55) becomes the nearest k / 32, next to an end of the gap k / 64: so the result for a moment
    does not depend on the others.
    """

    def halved(moment: Fraction, most: int) -> bool:
        return _is_power_of_two(moment.denominator) and moment.denominator <= most

    def nearest(moment: Fraction) -> Fraction:
        near = Fraction(round(moment * 32), 32)
        return Fraction(round(moment * 64), 64) if near in ENDS else near

    if all(halved(moment, 2**MOST_TIMES) for moment in moments):
        return list(moments)
    return [moment if halved(moment, NEAR.denominator) else nearest(moment) for moment in moments]


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def sources(moment: Fraction) -> tuple[Fraction, Fraction]:
    """The moments that k / 2^n is half-way between: it is made from their frames."""
    step = Fraction(1, moment.denominator)
    return moment - step, moment + step


def halvings(parts: int) -> int:
    """How often a gap is halved for moments k / parts, at most; 0 parts: for any moments."""
    exact = 0 < parts <= 2**MOST_TIMES and _is_power_of_two(parts)
    return (parts if exact else NEAR.denominator).bit_length() - 1


def closure(moments: Iterable[Fraction], made: Container[Fraction] = ENDS) -> set[Fraction]:
    """What is still to be made for `moments` k / 2^n: themselves and the midpoints that they are made from."""
    missing, waiting = set(), list(moments)
    while waiting:
        moment = waiting.pop()
        if moment not in made and moment not in missing:
            missing.add(moment)
            waiting += sources(moment)
    return missing


def schedule(wanted: Iterable[Fraction], most: int) -> Iterator[tuple[list[Fraction], list[Fraction]]]:
    """Steps that make the `wanted` moments k / 2^n, in their order: moments of one denominator to make together, and
    which of the wanted ones are ready then. With the next one come as many others as need at most `most` - 1 moments
    more."""
    made, waiting = set(ENDS), deque(wanted)
    while waiting:
        ready = [waiting.popleft()]
        missing = closure(ready, made)
        limit = len(missing) + most - 1
        while waiting and len(more := closure([*ready, waiting[0]], made)) <= limit:
            missing, ready = more, [*ready, waiting.popleft()]
        levels = itertools.groupby(sorted(missing, key=lambda m: (m.denominator, m)), key=lambda m: m.denominator)
        steps = [list(level) for _, level in levels] or [[]]
        yield from ((new, []) for new in steps[:-1])
        yield steps[-1], ready
        made = {moment for moment in made | missing if moment >= ready[-1]}
