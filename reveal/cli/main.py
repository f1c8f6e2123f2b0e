"""`reveal`: questions about images, answered from a memory that can be changed at any time.

    reveal build birds/ wit:wit.tsv.gz,images=pictures -o facts --weights runs/mine    a memory of your own data
    reveal ask gull.jpg "what does it eat?" --memory facts --weights runs/mine         the answer with its evidence
    reveal search facts --text "seabirds" --weights runs/mine                          the best matches
    reveal add facts --text "gulls eat fish" --source wit --weights runs/mine          known at once, without training
    reveal remove facts 17 18
    reveal info facts                                                                  needs no weights
    reveal verify facts                                                                whether its bytes are as written
    reveal refresh facts --weights runs/other                                          keys and values by other weights
    reveal compact facts                                                               frees the space of deleted items
    reveal watch photos notes --memory mine                                            follows the folders
    reveal convert flan-t5-base ViT-B_16.npz start.safetensors                         published weights -> ours
    reveal web                                                                         a page in the browser

User errors are one line on stderr and exit code 2. `--json` prints one JSON object in place of text. A further command
is a dataclass of its options in `commands.py`, a function that takes it, and a line in COMMANDS.
"""

from __future__ import annotations

import importlib
import sys

import tyro

from common import terminal
from reveal.cli import commands
from reveal.cli.commands import PROGRAM

# Each command's options, and the module of the function that carries it out, imported when it is called.
COMMANDS: dict[str, tuple[type, str]] = {
    "build": (commands.Build, "reveal.cli.changes"),
    "add": (commands.Add, "reveal.cli.changes"),
    "remove": (commands.Remove, "reveal.cli.changes"),
    "search": (commands.Search, "reveal.cli.questions"),
    "ask": (commands.Ask, "reveal.cli.questions"),
    "info": (commands.Info, "reveal.cli.questions"),
    "verify": (commands.Verify, "reveal.cli.questions"),
    "refresh": (commands.Refresh, "reveal.cli.changes"),
    "compact": (commands.Compact, "reveal.cli.changes"),
    "watch": (commands.Watch, "reveal.cli.changes"),
    "convert": (commands.Convert, "reveal.cli.convert"),
    "web": (commands.Web, "reveal.cli.web"),
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
    if words[0] in terminal.COMPLETION:
        tyro.extras.subcommand_cli_from_dict(
            {known: kind for known, (kind, _) in COMMANDS.items()}, prog=PROGRAM, args=words
        )
    if words[0] == TOKENIZER:
        from reveal.processing import tokenizers

        tokenizers.main(words[1:], prog=f"{PROGRAM} {TOKENIZER}")
        return
    if words[0] not in COMMANDS:
        terminal.complain(f"{PROGRAM}: {words[0]!r} is no command; choose one of {', '.join(COMMANDS)}, {TOKENIZER}")
        raise SystemExit(2)
    kind, module = COMMANDS[words[0]]
    command = terminal.parse(kind, words[1:], f"{PROGRAM} {words[0]}", __doc__, commands.GROUPS)
    with terminal.exits(PROGRAM, out_of_memory="give a smaller network, or fewer items with -k"):
        getattr(importlib.import_module(module), words[0])(command)


def _help() -> str:
    summaries = {name: (kind.__doc__ or "").splitlines()[0] for name, (kind, _) in COMMANDS.items()}
    summaries[TOKENIZER] = "Train or show the tokenizer of a network of your own."
    lines = "\n".join(f"  {name:10}{summary}" for name, summary in summaries.items())
    return f"usage: {PROGRAM} COMMAND ... (each with --help)\n\n{lines}{terminal.examples_of(PROGRAM, __doc__)}"


if __name__ == "__main__":
    main()
