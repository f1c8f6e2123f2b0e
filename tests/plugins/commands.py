"""The `plugins` command as a user calls it."""

import shlex

import command

from plugins.cli.main import main

APPLE = "a red apple"
GENERATE = f"generate --prompt '{APPLE}' --base base --steps 3"


def generate(words: str) -> None:
    main(shlex.split(f"{GENERATE} {words}"))


def mistake(words: str, capsys) -> str:
    """The line with which a command ends, and nothing is written."""
    return command.mistake(capsys, main, shlex.split(words), folder=".")
