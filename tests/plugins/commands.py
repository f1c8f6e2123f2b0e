"""The `plugins` command as a user calls it, and what it leaves on the disk."""

import shlex
from pathlib import Path

import pytest

from plugins.cli.main import main

APPLE = "a red apple"
GENERATE = f"generate --prompt '{APPLE}' --base base --steps 3"


def generate(words: str) -> None:
    main(shlex.split(f"{GENERATE} {words}"))


def tree(folder: str = ".") -> dict[str, bytes | None]:
    """All files below a folder, to the byte; None for a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in Path(folder).rglob("*")}


def refused(words: str, capsys) -> str:
    """The error of a command: exit code 2, one line, and nothing written."""
    before = tree()
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(words))
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and tree() == before, error
    return error
