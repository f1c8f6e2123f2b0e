"""Programs as a user calls them: what they print, and what a mistake leaves on the disk."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def tree(folder: str | Path = ".") -> dict[str, bytes | None]:
    """All that is below a folder, to the byte; None for a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in Path(folder).rglob("*")}


def printed(capsys, main: Callable[[list[str]], Any], *words: str) -> dict:
    """The JSON object that a command prints, and nothing else."""
    capsys.readouterr()
    main([*words, "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def mistake(capsys, run: Callable[[Any], Any], words: Any, *, code: int = 2, lines: int | None = 1, folder="") -> str:
    """The line with which a command ends; all below `folder` stays as it is, and None is any number of lines."""
    capsys.readouterr()
    before = tree(folder) if folder else {}
    with pytest.raises(SystemExit) as stop:
        run(words)
    error = capsys.readouterr().err
    assert stop.value.code == code and error.count("\n") == (lines or error.count("\n")), error
    assert not folder or tree(folder) == before
    return error
