"""When each output frame is shown: exact times, the gap it falls into, and its moment in that gap.

Source frames have presentation times t_0 < t_1 < ... in seconds (photos: 0, 1, 2, ...). Output frame k shows source
time `k * step`: between t_i and t_{i+1} the moment `(k * step - t_i) / (t_{i+1} - t_i)` in [0, 1); moment 0 is the
source frame itself. All of it is rational, so that a rate of 24000/1001 neither drifts nor rounds.

| asked | rate of the output | source seconds per output second |
| --- | --- | --- |
| factor F | source rate * F | 1 |
| factor F, slow motion | source rate | 1 / F |
| fps R | R | 1 |
| fps R, factor F, slow motion | R | 1 / F |

Matroska and WebM round times to milliseconds, and a source frame would be computed instead of shown; so times as near
as that to a constant rate are put on it (`snapped`). A movie's last frame stays until the movie ends.
"""

import dataclasses
import itertools
import math
from fractions import Fraction

LARGEST_FACTOR = 1000
EASED = 1023  # steps of a gap; not a power of two, so that fine ones become near midpoints
PRECISION = Fraction(1, 1000)  # seconds


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Rate of the output, and how fast source time passes in it."""

    rate: Fraction  # output frames per second
    stretch: Fraction = Fraction(1)  # output seconds per source second; above 1 is slow motion
    ease: bool = False  # slow in and slow out within each gap

    @property
    def step(self) -> Fraction:
        """Source seconds from one output frame to the next."""
        return 1 / (self.rate * self.stretch)

    def frames(self, duration: Fraction) -> int:
        """Output frames of `duration` source seconds, the last one held to the end."""
        return math.ceil(duration / self.step)

    def moments(self, start: Fraction, end: Fraction) -> list[Fraction]:
        """Moments in [0, 1) of the output frames from `start` to before `end`, in source seconds."""
        numbers = range(math.ceil(start / self.step), math.ceil(end / self.step))
        moments = [(number * self.step - start) / (end - start) for number in numbers]
        return list(itertools.accumulate(map(smoothstep, moments), max)) if self.ease else moments


def of_movie(
    source_rate: Fraction, factor: Fraction | None = None, fps: Fraction | None = None, slow_motion: bool = False
) -> Timeline:
    """The timeline of the table above; with nothing asked, twice the rate. ValueError for options that are
    contradictory."""
    if factor is not None and not 0 < factor <= LARGEST_FACTOR:
        raise ValueError(f"--factor {float(factor):g}: give a number above 0, at most {LARGEST_FACTOR}")
    if slow_motion:
        if factor is None:
            raise ValueError("--slow-motion needs --factor: how many times longer the clip shall be")
        return Timeline(fps or source_rate, factor)
    if fps is not None and factor is not None:
        raise ValueError("--fps and --factor both set the rate: give one of them, or --slow-motion with both")
    return Timeline(fps or source_rate * (factor or 2))


def snapped(time: Fraction, rate: Fraction) -> Fraction:
    """The multiple of 1 / rate that is within `PRECISION`, or the time itself."""
    regular = round(time * rate) / rate
    return regular if abs(regular - time) <= PRECISION else time


def smoothstep(moment: Fraction) -> Fraction:
    """3 m^2 - 2 m^3: speed 0 at both ends of the gap, 1.5 in the middle. A fine fraction is rounded to `EASED` steps,
    since midpoints of midpoints (`film.moments`) would follow each of its digits."""
    eased = moment * moment * (3 - 2 * moment)
    if eased.denominator <= EASED or moment == 0:
        return eased
    return Fraction(min(max(round(eased * EASED), 1), EASED - 1), EASED)
