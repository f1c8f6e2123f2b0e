"""Weights by name: a folder each of a package. A user's file or folder of the same name comes first."""

import dataclasses
from pathlib import Path
from typing import Any

from common.weights.remote import local


@dataclasses.dataclass(frozen=True)
class Shipped:
    """The folders of `folder` that hold a file `marker`; None is the name `default` ("": there is none). Errors say
    `what` is not there ("base"), and the `ways` to give another."""

    folder: Path
    marker: str
    default: str
    what: str
    ways: str

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self.folder.glob(f"*/{self.marker}"))

    def find(self, name: str | Path | None = None, **options: Any) -> Path:
        """The path itself, the folder of a shipped name, or what an address names, with the `options` of `local`.

        Raises ValueError for "", FileNotFoundError, which lists the names, and as `common.weights.remote.local`."""
        names, text = self.names(), str(self.default if name is None else name)
        if not text:
            raise ValueError("'' is no name of weights: check that the variables of the shell are set")
        shipped = text in names and (name is None or not Path(name).exists())
        path = self.folder / text if shipped else local(text, **options)
        if not path.exists():
            ways = f"{self.ways}, hf:OWNER/NAME, or a shipped name ({', '.join(names) or 'there is none'})"
            raise FileNotFoundError(f"no {self.what} {text!r}: give {ways}")
        return path
