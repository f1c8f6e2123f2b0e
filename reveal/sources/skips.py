"""The count of what was left out, by reason."""

from __future__ import annotations

import collections
from collections.abc import Mapping

HELD_OUT = "whose picture is in an evaluation set"


class Skips:
    """Counts records that are left out, by reason; with `strict`, `add` raises ValueError instead."""

    def __init__(self, strict: bool = False):
        self.strict, self.counts = strict, collections.Counter[str]()

    def add(self, reason: str, where: str) -> None:
        if self.strict:
            raise ValueError(f"{where}: {reason}; correct it, or set strict=false to leave it out")
        self.counts[reason] += 1

    def held_out(self) -> None:
        """Counts a record whose image is in an evaluation set: no fault, so `strict` does not raise."""
        self.counts[HELD_OUT] += 1

    def merge(self, others: Mapping[str, int]) -> None:
        self.counts.update(others)

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.counts.most_common())
        return f"{self.counts.total()} records left out" + (f" ({reasons})" if reasons else "")
