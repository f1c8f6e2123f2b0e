"""`plugins`: pictures from a text, with a diffusion base and what is plugged into it.

    plugins generate --prompt "a red apple" -o apple.png
    plugins generate --prompt "a red apple" --count 16 -o apples/ --sheet apples.png
    plugins generate --prompt "the same in oil" --image apple.png --strength 0.6 -o oil.png
    plugins generate --prompt "a glass apple" --control canny --image apple.png -o glass.png
    plugins info stable-diffusion-v1-5/          what a base is, without loading its weights
    plugins condition canny photos/ -o edges/    what a control plugin is shown of pictures
    plugins export --plugin P -o plugin.onnx     a trained plugin for other programs

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
LAYOUT = "layout"  # the control that takes no plugin


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
    """A picture to start from; with --control, the picture that it looks at."""
    strength: float | None = None
    """With --image alone: how much of it is redrawn, above 0 and up to 1 (default: 0.8)."""
    control: tuple[Literal["canny", "face", "holistic", "depth", "mask", "layout"], ...] = ()
    """What of --image is kept: edges, a face, a person, depth, a silhouette, or the whole layout (Plug-and-Play)."""
    plugin: tuple[str, ...] = ()
    """For each control its network: a folder, a single file, or a shipped name (default: the shipped one)."""
    condition: tuple[str, ...] = ()
    """For each plugin a condition picture as it is, in place of one made of --image."""
    control_strength: tuple[float, ...] = ()
    """One for all controls or one each: 0 is off, 1 as it was trained (default: 1)."""
    control_steps: tuple[float, float] | None = None
    """The part of the run in which controls act, as in 0 0.5 for its first half (default: 0 1)."""
    prompt_only: bool = False
    """Controls act on the half of guidance with the prompt only."""
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


@dataclasses.dataclass
class Condition:
    """Make condition pictures (edges, faces, persons, depth, masks) of a picture or a folder of them."""

    kind: tyro.conf.Positional[Literal["canny", "face", "holistic", "depth", "mask"]]
    """What to show of a picture."""
    input: tyro.conf.Positional[str]
    """A picture, or a folder of pictures with its subfolders."""
    output: Annotated[str, tyro.conf.arg(aliases=["-o"])]
    """A picture; of a folder a folder, where a.jpg becomes a.png. What is there already is not made again."""
    low: float | None = None
    """canny: threshold down to which an edge goes on (default: 100)."""
    high: float | None = None
    """canny: threshold above which an edge starts (default: 200)."""
    faces: int | None = None
    """face: how many of them, the largest ones (default: 1)."""
    landmarks: str | None = None
    """face, holistic: a file of landmarks (.json, .npz), or a folder of files named as the pictures; without it
    mediapipe finds them."""
    depth: str | None = None
    """depth: a map (.npy, .npz or a grey picture), or a folder of maps named as the pictures."""
    model: str | None = None
    """depth: an ONNX file that estimates it."""
    near: Literal["high", "low"] | None = None
    """depth: whether what is near has high values, as inverse depth, or low ones, as distances (default: high)."""
    mask: str | None = None
    """mask: a grey picture, white where the thing is, or a folder of them named as the pictures."""
    threshold: float | None = None
    """mask: how far, of 1, from the ground's colour a pixel of the thing is (default: 0.1)."""
    overwrite: bool = False
    """Replace what exists."""
    quiet: bool = False
    """No progress bar, no notes."""


@dataclasses.dataclass
class Export:
    """Write a trained plugin as one file for other programs, or what it says about a picture."""

    plugin: str
    """A MediaPipe plugin or a T2I-Adapter: a folder, a single file, or a shipped name."""
    output: Annotated[str, tyro.conf.arg(aliases=["-o"])]
    """plugin.stablehlo, plugin.onnx, or features.safetensors."""
    format: Literal["stablehlo", "onnx", "features"] | None = None
    """What to write (default: by the suffix of the output)."""
    size: tuple[int, ...] | None = None
    """Of the pictures it will be shown: one side, or width and height (default: 512; for features the picture's)."""
    picture: str | None = None
    """features: the condition picture; with --size, scaled to cover it and cropped from its middle."""
    strength: float | None = None
    """features: 0 is off, 1 as it was trained (default: 1)."""
    overwrite: bool = False
    """Replace the output if it exists."""
    quiet: bool = False
    """Say nothing."""


# Of each word: what it takes and what carries it out, imported when the word is said.
COMMANDS: dict[str, Callable[[], tuple[type, Callable[[Any], None]]]] = {
    "generate": lambda: (Generate, _generate),
    "info": lambda: (Info, _info),
    "condition": lambda: (Condition, _condition),
    "export": lambda: (Export, _export),
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
    from plugins.cli.generate import generate

    generate(command)


def _info(command: Info) -> None:
    from plugins.cli.info import about
    from plugins.diffusion.io.folder import read_base

    terminal.say(about(read_base(command.base, tokenizer=command.tokenizer, prediction=command.prediction)))


def _condition(command: Condition) -> None:
    from plugins.cli.condition import condition

    condition(command)


def _export(command: Export) -> None:
    from plugins.cli.export import export

    export(command)


if __name__ == "__main__":
    main()
