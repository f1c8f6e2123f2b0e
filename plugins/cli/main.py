"""`plugins`: images from a text, with a diffusion base and the networks that steer it.

    plugins generate --prompt "a red apple" -o apple.png
    plugins generate --prompt "a red apple" --count 16 -o apples/ --sheet apples.png
    plugins generate --prompt "the same in oil" --image apple.png --strength 0.6 -o oil.png
    plugins generate --prompt "a glass apple" --control canny --image apple.png -o glass.png
    plugins info stable-diffusion-v1-5/          what a base is, without loading its weights
    plugins verify stable-diffusion-v1-5/        whether its weights are as they were written
    plugins condition canny photos/ -o edges/    condition images for control plugins
    plugins web                                  a page in the browser
    plugins export --plugin P -o plugin.onnx     a trained plugin for other programs

User errors are one line on stderr and exit code 2; then nothing was written. A further command is a dataclass in
`commands.py`, a module with the function that carries it out, and a line in COMMANDS.
"""

import sys

from common import terminal
from plugins.cli import commands

# Each command's options, and the function that carries it out; its module is imported when it is called.
COMMANDS: dict[str, tuple[type, str]] = {
    "generate": (commands.Generate, ".generate"),
    "info": (commands.Info, ".info"),
    "verify": (commands.Verify, ".info"),
    "condition": (commands.Condition, ".condition"),
    "export": (commands.Export, ".export"),
    "web": (commands.Web, ".web"),
}


def main(arguments: list[str] | None = None) -> None:
    """The program. Exit codes: 0; 2 for an error of the user or the machine; 128 + n when stopped by signal n (130 for
    Ctrl-C)."""
    terminal.dispatch(
        "plugins",
        sys.argv[1:] if arguments is None else arguments,
        COMMANDS,
        package=__package__,
        about=__doc__,
        groups=commands.GROUPS,
        out_of_memory="give a smaller --batch",
    )
