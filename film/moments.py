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
    """`count` moments that divide the gap evenly."""
    return [Fraction(number, count + 1) for number in range(1, count + 1)]


def of_midpoints(moments: Sequence[Fraction]) -> list[Fraction]:
    """Moments k / 2^n, within `NEAR` of those given and in the same order.

    A moment with a denominator of 64 or less that is a power of two stays; any other becomes the nearest k / 32, next
    to an end of the gap k / 64. So the result for a moment does not depend on the others, with one exception: if all
    denominators are powers of two up to 2^MOST_TIMES, all moments stay. Beside others those beyond 64 cannot: 3/128
    would come before the 1/32 that stands for the earlier 1/48. A float such as 0.1 is k / 2^55: beyond, as any other.
    """
    if all(_is_power_of_two(moment.denominator) and moment.denominator <= 2**MOST_TIMES for moment in moments):
        return list(moments)
    return [_nearest(moment) for moment in moments]


def _nearest(moment: Fraction) -> Fraction:
    if _is_power_of_two(moment.denominator) and moment.denominator <= NEAR.denominator:
        return moment
    nearest = Fraction(round(moment * 32), 32)
    return Fraction(round(moment * 64), 64) if nearest in ENDS else nearest


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
    missing: set[Fraction] = set()
    waiting = list(moments)
    while waiting:
        moment = waiting.pop()
        if moment not in made and moment not in missing:
            missing.add(moment)
            waiting += sources(moment)
    return missing


def schedule(wanted: Iterable[Fraction], most: int) -> Iterator[tuple[list[Fraction], list[Fraction]]]:
    """Steps that make the `wanted` moments k / 2^n, in their order: moments of one denominator to make together, from
    their `sources`, and which of the wanted ones are ready then. As many of the next ones are made together as need at
    most `most` - 1 moments more."""
    made: set[Fraction] = set(ENDS)
    waiting = deque(wanted)
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
