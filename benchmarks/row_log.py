"""Rows of a benchmark's table in a file of JSON lines, so that it can be made in parts.

log = RowLog(Path("rows.jsonl"))
row = log.row({"model": "paper", "size": "256x256"}, measure)    # measured once, then read
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class RowLog:
    """A row is its key and what was measured; `path` None: nothing is read or kept."""

    def __init__(self, path: Path | None):
        self.path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.rows = [json.loads(line) for line in lines]

    def row(self, key: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The row with this key from the file, or a new one, which is added to it. An option that a row lacks is False:
        the row is older."""
        for row in self.rows:
            if all(row[name] == value if name in row else value is False for name, value in key.items()):
                return row
        row = {**key, **measure()}
        self.rows.append(row)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return row
