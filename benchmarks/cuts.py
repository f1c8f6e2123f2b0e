"""The gaps of clips, least continuous first: `python -m benchmarks.cuts CLIP ... [--count 20]`.

`film.shots.continuity` falls below `film.shots.CUT` at a cut. For each clip the gaps around the threshold are listed,
with the number and time of the frame after each, so that a player shows whether they are cuts.
"""

from pathlib import Path
from typing import Annotated, NamedTuple

import tyro

from common import terminal
from common.io.video_reader import read_video
from film.shots import CUT, continuity, thumbnail


class Gap(NamedTuple):
    continuity: float
    frame: int  # after the gap, counted from 0
    time: float  # of that frame, in seconds


def gaps(clip: Path) -> list[Gap]:
    found, before = [], None
    for number, frame in enumerate(read_video(clip)):
        after = thumbnail(frame.image)
        if before is not None:
            found.append(Gap(continuity(before, after), number, float(frame.time)))
        before = after
    return sorted(found)


def main(clips: Annotated[tuple[Path, ...], tyro.conf.Positional], count: int = 5) -> None:
    """Print a table of gaps.

    Args:
        clips: video files.
        count: so many gaps on either side of the threshold.
    """
    print(f"| clip | gaps | cuts | continuity below {CUT}, highest last | above, lowest first |")
    print("| --- | ---: | ---: | --- | --- |")
    for clip in clips:
        found = gaps(clip)
        cuts = sum(gap.continuity < CUT for gap in found)
        sides = found[max(0, cuts - count) : cuts], found[cuts : cuts + count]
        cells = [", ".join(f"{gap.continuity:.2f} ({gap.frame}, {gap.time:.2f} s)" for gap in side) for side in sides]
        print(f"| {clip.name} | {len(found)} | {cuts} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    terminal.program(main)
