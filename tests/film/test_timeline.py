"""Output times are exact: which source frames are shown, at which moments, how many there are."""

from fractions import Fraction
from itertools import pairwise

import pytest

from film.timeline import of_movie, snapped

NTSC = Fraction(24000, 1001)


@pytest.mark.parametrize("factor", ["2", "5/2", "1/3", "1", "7/4"])
def test_every_output_frame_falls_into_one_gap_and_nothing_drifts(factor):
    timeline, times = of_movie(NTSC, Fraction(factor)), [number / NTSC for number in range(1000)]
    gaps = pairwise([*times, 1000 / NTSC])
    shown = [start + moment * (end - start) for start, end in gaps for moment in timeline.moments(start, end)]
    assert shown == [number * timeline.step for number in range(len(shown))]
    assert len(shown) == timeline.frames(1000 / NTSC)


def test_times_in_milliseconds_are_put_on_a_constant_rate():
    for number in range(5000):
        assert snapped(Fraction(round(1000 * number / NTSC), 1000), NTSC) == number / NTSC
    assert snapped(Fraction(1, 50), Fraction(30)) == Fraction(1, 50)
