"""The report of a build, an addition or a refresh, for people and for programs."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from reveal.assistant import short
from reveal.memory.memory import Memory
from reveal.sources import Skips

SHOWN = 3  # names of each reason in the text; JSON has all


@dataclasses.dataclass(frozen=True)
class Report:
    """Counts of one run, and the state of the memory after it."""

    memory: str  # its folder
    items: int  # in the memory now
    counts: Mapping[str, int]  # of those, of each source
    version: int  # of the memory
    hash: str
    seconds: float  # of this run
    added: int = 0  # items that this run wrote
    edited: int = 0  # of those, in the place of others
    removed: int = 0  # items that this run deleted
    resumed: int = 0  # written by an interrupted run
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)  # or cut: records, by reason
    names: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)  # of the first of those
    ids: tuple[int, int] | None = None  # the first and the last that were written; None if nothing was

    @classmethod
    def of(
        cls, memory: Memory, started: float, ids: Sequence[int] = (), skips: Skips | None = None, **counts: int
    ) -> "Report":
        """The report on a memory as it is now, of a run since `started` (`time.perf_counter`) that wrote items of these
        ids; `counts`: the fields from `added` on."""
        skips, written = skips or Skips(), (min(ids), max(ids)) if ids else None
        state = len(memory), memory.sources, memory.version, memory.manifest.hash(), time.perf_counter() - started
        return cls(str(memory.folder), *state, left_out=skips.counts, names=skips.names, ids=written, **counts)

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.added / max(self.seconds, 1e-9)

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "rate": self.rate}

    def __str__(self) -> str:
        ids = "" if self.ids is None else f", ids {self.ids[0]} to {self.ids[1]}"
        edited = f", {self.edited:,} replaced" if self.edited else ""
        items = "item" if self.added == 1 else "items"
        lines = [f"{self.added:,} {items} in {self.seconds:.1f} s, {self.rate:,.1f} per second{ids}{edited}"]
        lines += [f"{self.removed:,} removed"] if self.removed else []
        lines += [f"{self.resumed:,} were already written by an interrupted run"] if self.resumed else []
        for reason, count in self.left_out.items():
            names = [short(name) for name in self.names.get(reason, ())[:SHOWN]]
            rest = [f"{count - len(names):,} more"] if len(names) < count else []
            listed = f": {'; '.join(names + rest)}" if names else ""
            lines.append(f"{'cut' if 'cut' in reason else 'left out'}: {count:,} {reason}{listed}")
        counts = ", ".join(f"{name} {count:,}" for name, count in self.counts.items())
        return "\n".join([*lines, f"{self.memory}: {self.items:,} items ({counts}), version {self.version}"])
