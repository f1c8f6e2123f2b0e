"""The report of a build, an addition or a refresh, for people and for programs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from reveal.memory.memory import Memory
from reveal.sources import Skips


@dataclasses.dataclass(frozen=True)
class Report:
    """Counts of one run, and the state of the memory after it."""

    memory: str  # its folder
    items: int  # in the memory now
    added: int  # written by this run
    edited: int  # of those, in the place of others
    resumed: int  # written by an interrupted run
    left_out: Mapping[str, int]  # records, by reason
    seconds: float  # of this run
    counts: Mapping[str, int]  # items of each source in the memory
    version: int  # of the memory
    hash: str
    ids: tuple[int, int] | None  # the first and the last that were written; None if nothing was

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.added / max(self.seconds, 1e-9)

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"rate": self.rate}

    def __str__(self) -> str:
        ids = "" if self.ids is None else f", ids {self.ids[0]} to {self.ids[1]}"
        edited = f", {self.edited:,} in the place of others" if self.edited else ""
        lines = [f"{self.added:,} items in {self.seconds:.1f} s, {self.rate:,.1f} a second{ids}{edited}"]
        if self.resumed:
            lines.append(f"{self.resumed:,} were there of an interrupted run")
        lines += [f"left out: {count:,} {reason}" for reason, count in self.left_out.items()]
        counts = ", ".join(f"{name} {count:,}" for name, count in self.counts.items())
        return "\n".join([*lines, f"{self.memory}: {self.items:,} items ({counts}), version {self.version}"])


def report_of(
    memory: Memory,
    started: float,
    skips: Skips | None = None,
    *,
    added: int = 0,
    edited: int = 0,
    resumed: int = 0,
    ids: tuple[int, int] | None = None,
) -> Report:
    """The report of a memory as it is now; `started` is of `time.perf_counter`."""
    left_out = {} if skips is None else dict(skips.counts)
    state = memory.sources, memory.version, memory.manifest.hash(), ids
    seconds = time.perf_counter() - started
    return Report(str(memory.folder), len(memory), added, edited, resumed, left_out, seconds, *state)
