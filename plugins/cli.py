"""`plugins`: pictures from a text, with a diffusion base and what is plugged into it.

    plugins generate --prompt "a red apple" -o apple.png
    plugins generate --prompt "a red apple" --count 16 -o apples/ --sheet apples.png
    plugins generate --prompt "the same in oil" --image apple.png --strength 0.6 -o oil.png
    plugins info stable-diffusion-v1-5/          what a base is, without loading its weights

User errors are one line on stderr and exit code 2; then nothing was written. A further command is a dataclass for its
words, a function that takes it, and a line in COMMANDS.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

import tyro

from common import terminal

PROGRAM = "plugins"


@dataclasses.dataclass
class Generate:
    """Make pictures of a text."""

    prompt: str
    """What is to be seen."""
    output: Annotated[str, tyro.conf.arg(aliases=["-o"])]
    """picture.png, .jpg or .webp for one; a folder, numbered by seed, for any number."""
    negative: str = ""
    """What is not to be seen."""
    base: str | None = None
    """A folder of diffusers, a single safetensors file, or a shipped name (default: the shipped one)."""
    lora: tuple[str, ...] = ()
    """LoRA files, each with a weight if you like: style.safetensors:0.8"""
    image: str | None = None
    """A picture to start from."""
    strength: float | None = None
    """With --image: how much of it is redrawn, above 0 and up to 1 (default: 0.8)."""
    seed: int = 0
    """Of the first picture; the same seed gives the same picture."""
    count: int = 1
    """Pictures, of as many seeds."""
    steps: int = 50
    """Steps from noise to picture."""
    sampler: str | None = None
    """ddim, euler, dpm_karras, unipc, ... (default: the base's own)."""
    guidance: float = 7.5
    """How strongly the prompt pulls; 1 is not at all, and twice as fast."""
    rescale: float = 0.0
    """Against over-exposure by guidance, 0 to 1."""
    width: int | None = None
    """In pixels (default: the image's, or the base's)."""
    height: int | None = None
    """In pixels (default: the image's, or the base's)."""
    clip_skip: int = 0
    """Layers of the text encoder to leave out; what many programs call 2 is 1."""
    dtype: Literal["f32", "bf16"] = "f32"
    """To compute in; bf16 is faster on accelerators and takes half the memory."""
    batch: int | None = None
    """Pictures computed at once (default: by size and devices)."""
    tokenizer: str | None = None
    """A tokenizer's folder or OpenAI's list of merges (.gz): a single file has none."""
    prediction: Literal["epsilon", "v_prediction", "sample"] | None = None
    """What the base predicts, in place of what its scheduler says: a single file of 2.x does not say."""
    sheet: str | None = None
    """Also write a contact sheet of all pictures to this file."""
    overwrite: bool = False
    """Replace the output if it exists."""
    quiet: bool = False
    """No plan, no progress bar."""


@dataclasses.dataclass
class Info:
    """Print what a base is: components, sizes, what it predicts. Weights are not loaded."""

    base: tyro.conf.Positional[str | None] = None
    """A folder of diffusers, a single safetensors file, or a shipped name (default: the shipped one)."""
    tokenizer: str | None = None
    """A tokenizer's folder or OpenAI's list of merges (.gz): a single file has none."""
    prediction: Literal["epsilon", "v_prediction", "sample"] | None = None
    """What the base predicts, in place of what its scheduler says."""


# Of each word: what it takes and what carries it out, imported when the word is said.
COMMANDS: dict[str, Callable[[], tuple[type, Callable[[Any], None]]]] = {
    "generate": lambda: (Generate, _generate),
    "info": lambda: (Info, _info),
}


def main(arguments: list[str] | None = None) -> None:
    """The program; `arguments` defaults to the command line.

    Exit codes: 0; 2 for an error of the user or the machine; 128 + n when stopped by signal n (130 for Ctrl-C).
    """
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help"):
        terminal.say(_help())
        return
    if words[0] not in COMMANDS:
        terminal.complain(f"{PROGRAM}: {words[0]!r} is no command; choose one of {', '.join(COMMANDS)}")
        raise SystemExit(2)
    kind, run = COMMANDS[words[0]]()
    command = tyro.cli(kind, args=words[1:], prog=f"{PROGRAM} {words[0]}")
    with terminal.exits(PROGRAM, out_of_memory="give a smaller --batch"):
        run(command)


def _help() -> str:
    summaries = {name: (entry()[0].__doc__ or "").splitlines()[0] for name, entry in COMMANDS.items()}
    commands = "\n".join(f"  {name:10}{summary}" for name, summary in summaries.items())
    return f"usage: {PROGRAM} COMMAND ... (each with --help)\n\n{commands}"


def _generate(command: Generate) -> None:
    from plugins.generate import generate

    generate(command)


def _info(command: Info) -> None:
    from plugins.about import about
    from plugins.diffusion.folder import read_base

    terminal.say(about(read_base(command.base, tokenizer=command.tokenizer, prediction=command.prediction)))


if __name__ == "__main__":
    main()
