"""`reveal`: questions about pictures, answered from a memory that may be changed at any time.

    reveal build birds/ wit:wit.tsv.gz,images=pictures -o facts --weights runs/mine    a memory of what you have
    reveal ask gull.jpg "what does it eat?" --memory facts --weights runs/mine         the answer, and what it is from
    reveal search facts --text "seabirds" --weights runs/mine                          what would be found
    reveal add facts --text "gulls eat fish" --source wit --weights runs/mine          known at once, without training
    reveal remove facts 17 18
    reveal info facts                                                                  needs no weights
    reveal refresh facts --weights runs/other                                          keys and values by other weights
    reveal compact facts                                                               the space of removed items again

User errors are one line on stderr and exit code 2. `--json` prints one JSON object in place of text. A further command
is a dataclass for its words, a function of `commands.py` that takes it, and a line in COMMANDS.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Any, Literal

import tyro

from common import terminal

PROGRAM = "reveal"
Output = Annotated[str, tyro.conf.arg(aliases=["-o"])]
Number = Annotated[int | None, tyro.conf.arg(aliases=["-k"])]
Flag = tyro.conf.FlagCreatePairsOff[bool]


@dataclasses.dataclass(kw_only=True)
class Network:
    """Words of all commands that need one."""

    weights: str | None = None
    """A weights file, or the folder of a run (default: those that come with the program)."""
    tokenizer: str | None = None
    """The tokenizer that it was trained with, x.model or x.json (default: the one beside the weights)."""
    json: Flag = False
    """Print one JSON object."""


@dataclasses.dataclass(kw_only=True)
class Searching(Network):
    """Words of what searches."""

    sources: str | None = None
    """Look in these sources only: a,b"""
    k: Number = None
    """Items (default: 4 to read, 10 to list, or all there are)."""
    engine: Literal["exact", "faiss", "milvus"] = "exact"
    """What searches."""
    milvus: str | None = None
    """With --engine milvus: a server, http://host:19530, or a file, keys.db."""


@dataclasses.dataclass(kw_only=True)
class Reading:
    """Words of what reads items."""

    source: str | None = None
    """Which of the network's sources the items are like, where they do not say."""
    renumber: Flag = False
    """Number items anew in the order in which they come."""
    picture_side: int | None = None
    """Keep pictures at most so large, in pixels; 0: files as they are (default: 256, or the network's side)."""
    quiet: Flag = False
    """No progress bar, no notes."""


@dataclasses.dataclass(kw_only=True)
class Build(Reading, Network):
    """Make a memory of knowledge; an interrupted build goes on."""

    inputs: tyro.conf.Positional[tuple[str, ...]]
    """A folder of pictures and texts, an items.jsonl, or READER:PATH,option=value (docs/reveal-command.md)."""
    output: Output
    """Folder of the memory."""
    names: str | None = None
    """What the network's sources are called, in order, if its weights do not say: a,b"""
    shard: int | None = None
    """Items of a file, which an interruption costs at most (default: 16384)."""
    overwrite: Flag = False
    """Replace the memory that is there, when the new one is whole."""


@dataclasses.dataclass(kw_only=True)
class Add(Reading, Network):
    """Add items to a memory, or edit some; the network stays as it is."""

    memory: tyro.conf.Positional[str]
    """Folder of the memory."""
    inputs: tyro.conf.Positional[tuple[str, ...]] = ()
    """As for build; or none, and --text, --image."""
    text: str | None = None
    """The text of one item."""
    image: str | None = None
    """The picture of one item."""
    id: int | None = None
    """The number of one item (default: the next one)."""
    edit: Flag = False
    """Items with a number that is there take that item's place; of one item, --text replaces all texts, and what is not
    given stays."""


@dataclasses.dataclass(kw_only=True)
class Remove:
    """Take items out of a memory."""

    memory: tyro.conf.Positional[str]
    """Folder of the memory."""
    ids: tyro.conf.Positional[tuple[int, ...]]
    """Their numbers."""
    json: Flag = False
    """Print one JSON object."""


@dataclasses.dataclass(kw_only=True)
class Search(Searching):
    """List the items that answer a text, a picture, or both best."""

    memory: tyro.conf.Positional[str]
    """Folder of the memory."""
    text: str = ""
    """What to look for, put as a question would be."""
    image: str | None = None
    """A picture to look for."""


@dataclasses.dataclass(kw_only=True)
class Ask(Searching):
    """Answer a question about a picture, and tell what the answer was read from."""

    image: tyro.conf.Positional[str]
    """The picture; - for none."""
    question: tyro.conf.Positional[str] = ""
    """The question; without it, networks that were trained to describe pictures do so."""
    memory: str | None = None
    """Folder of the memory (default: the one that comes with the program)."""
    no_memory: Flag = False
    """Answer without items."""
    beams: int | None = None
    """Beginnings of an answer that are followed side by side; 1 writes greedily (default: 4)."""
    sheet: str | None = None
    """Also draw answer and items into this picture."""
    overwrite: Flag = False
    """Replace the sheet if it exists."""


@dataclasses.dataclass(kw_only=True)
class Info:
    """Print what a memory holds, and which network made it."""

    memory: tyro.conf.Positional[str | None] = None
    """Folder of the memory (default: the one that comes with the program)."""
    json: Flag = False
    """Print one JSON object."""


@dataclasses.dataclass(kw_only=True)
class Refresh(Network):
    """Encode all items of a memory anew, by other weights; the items stay as they are."""

    memory: tyro.conf.Positional[str]
    """Folder of the memory."""
    names: str | None = None
    """What the network's sources are called, in order, if its weights do not say: a,b"""
    quiet: Flag = False
    """No progress bar."""


@dataclasses.dataclass(kw_only=True)
class Compact:
    """Give back the space of items that were removed or edited."""

    memory: tyro.conf.Positional[str]
    """Folder of the memory."""
    json: Flag = False
    """Print one JSON object."""


COMMANDS: dict[str, type] = {
    "build": Build,
    "add": Add,
    "remove": Remove,
    "search": Search,
    "ask": Ask,
    "info": Info,
    "refresh": Refresh,
    "compact": Compact,
}
TOKENIZER = "tokenizer"  # `python -m reveal.processing.tokenizers`


def main(arguments: list[str] | None = None) -> None:
    """The program; `arguments` defaults to the command line.

    Exit codes: 0; 2 for an error of the user or the machine; 128 + n when stopped by signal n (130 for Ctrl-C).
    """
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help"):
        terminal.say(_help())
        return
    if words[0] == TOKENIZER:
        from reveal.processing import tokenizers

        tokenizers.main(words[1:], prog=f"{PROGRAM} {TOKENIZER}")
        return
    if words[0] not in COMMANDS:
        terminal.complain(f"{PROGRAM}: {words[0]!r} is no command; choose one of {', '.join(COMMANDS)}, {TOKENIZER}")
        raise SystemExit(2)
    command: Any = tyro.cli(COMMANDS[words[0]], args=words[1:], prog=f"{PROGRAM} {words[0]}")
    with terminal.exits(PROGRAM, out_of_memory="give a smaller network, or fewer items with -k"):
        from reveal.cli import commands

        getattr(commands, words[0])(command)


def _help() -> str:
    summaries = {name: (kind.__doc__ or "").splitlines()[0] for name, kind in COMMANDS.items()}
    summaries[TOKENIZER] = "Train or show the tokenizer of a network of your own."
    commands = "\n".join(f"  {name:10}{summary}" for name, summary in summaries.items())
    return f"usage: {PROGRAM} COMMAND ... (each with --help)\n\n{commands}"


if __name__ == "__main__":
    main()
