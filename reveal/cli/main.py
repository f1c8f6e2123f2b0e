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

import sys

from common import terminal
from reveal.cli import commands
from reveal.cli.commands import PROGRAM

# Each command's options, and the module of the function that carries it out, imported when it is called.
COMMANDS: dict[str, tuple[type, str]] = {
    "build": (commands.Build, ".changes"),
    "add": (commands.Add, ".changes"),
    "remove": (commands.Remove, ".changes"),
    "search": (commands.Search, ".questions"),
    "ask": (commands.Ask, ".questions"),
    "info": (commands.Info, ".questions"),
    "verify": (commands.Verify, ".questions"),
    "refresh": (commands.Refresh, ".changes"),
    "compact": (commands.Compact, ".changes"),
    "watch": (commands.Watch, ".changes"),
    "convert": (commands.Convert, ".convert"),
    "web": (commands.Web, ".web"),
}
TOKENIZER = "tokenizer"  # `python -m reveal.processing.tokenizers`


def main(arguments: list[str] | None = None) -> None:
    """The program. Exit codes: 0; 2 for an error of the user or the machine; 128 + n when stopped by signal n (130 for
    Ctrl-C)."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == [TOKENIZER]:
        from reveal.processing import tokenizers

        tokenizers.main(words[1:], prog=f"{PROGRAM} {TOKENIZER}")
        return
    terminal.dispatch(
        PROGRAM,
        words,
        COMMANDS,
        package=__package__,
        about=__doc__,
        groups=commands.GROUPS,
        out_of_memory="give a smaller network, or fewer items with -k",
        others={TOKENIZER: "Train or show the tokenizer of a network of your own."},
    )
