"""`film`: photos in, a slow-motion clip out.

    film a.jpg b.jpg -o clip.mp4             two photos, 33 frames
    film holiday/ -o clip.gif --times 3      every gap of a folder of photos (sorted by name), halved three times
    film 'shot_*.png' -o frames/ --times 1   numbered PNGs
    film info                                what the default weights are
    film convert SAVED_MODEL ours.safetensors    weights of the TensorFlow or PyTorch program -> ours
    film prepare vimeo_triplet/ records/ --layout vimeo90k    a data set -> ArrayRecord shards to train from

User errors are one line on stderr and exit code 2; then nothing was written. A further command is a dataclass of its
arguments, a function that takes it, and a line in COMMANDS.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import tyro

from common import terminal

PROGRAM = "film"


@dataclasses.dataclass
class Interpolate:
    """Turn photos into a slow-motion clip.

    Every gap between two photos is halved TIMES times: n photos give (n-1) * 2^TIMES + 1 frames.
    """

    inputs: tyro.conf.Positional[tuple[str, ...]]
    """Two or more photos in order; or one folder; or one quoted glob. All of one size."""
    output: Annotated[str, tyro.conf.arg(aliases=["-o"])]
    """clip.mp4, clip.gif, or a folder for numbered PNGs."""
    times: int = 5
    """How often each gap is halved, up to 16: 1 gives one in-between, 5 give 31."""
    fps: str = "30"
    """Frames per second: 30, 23.976 or 30000/1001."""
    weights: Annotated[str | None, tyro.conf.arg(help_behavior_hint="(default: film-small)")] = None
    """Name of shipped weights, a file, or the folder of a run."""
    sheet: Annotated[str | None, tyro.conf.arg(help_behavior_hint="(default: no sheet)")] = None
    """Also write a contact sheet of nine frames to this image file."""
    batch: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: by image size and device)")] = None
    """Most pairs computed at once."""
    overwrite: bool = False
    """Replace the output if it exists."""
    quiet: bool = False
    """No plan, no progress bar."""


@dataclasses.dataclass
class Info:
    """Print what a weights file says about itself."""

    weights: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(help_behavior_hint="(default: film-small)")] = (
        None
    )
    """Name of shipped weights, a file, or the folder of a run."""


@dataclasses.dataclass
class Convert:
    """Turn reference weights into ours: a TF SavedModel folder or training checkpoint, or the PyTorch port's file.

    Our own weights (a file, or the folder of a run) are written again, in another dtype if you like.
    """

    source: tyro.conf.Positional[str]
    """SavedModel folder, checkpoint folder or prefix (both need the `convert` extra), a .pt/.pth file, or ours."""
    destination: tyro.conf.Positional[str]
    """Where to write the .safetensors file."""
    model: str = "paper"
    """Shape of the network: paper, small, or a JSON file with the fields of FilmConfig."""
    dtype: str = "float32"
    """float32, float16 or bfloat16."""
    overwrite: bool = False
    """Replace the destination if it exists."""


# Subcommand -> its arguments and its function, imported when it is called. "" is `film` itself.
COMMANDS: dict[str, Callable[[], tuple[type, Callable[[Any], None]]]] = {
    "": lambda: (Interpolate, _interpolate),
    "info": lambda: (Info, _info),
    "convert": lambda: (Convert, _convert),
    "prepare": lambda: _prepare(),
}


def main(arguments: list[str] | None = None) -> None:
    """The program; `arguments` defaults to the command line.

    Exit codes: 0; 2 for an error of the user or the machine; 128 + n when stopped by signal n (130 for Ctrl-C).
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    name = arguments[0] if arguments and arguments[0] in COMMANDS else ""
    kind, run = COMMANDS[name]()
    command = tyro.cli(
        kind,
        args=arguments[1:] if name else arguments,
        prog=f"{PROGRAM} {name}".strip(),
        description=None if name else f"{Interpolate.__doc__}\n\n{_other_commands()}",
    )
    with terminal.exits(PROGRAM, out_of_memory="give smaller pictures"):
        run(command)


def _prepare() -> tuple[type, Callable[[Any], None]]:
    from film.data.prepare import Prepare, run

    return Prepare, run


def _other_commands() -> str:
    names = [f"`{PROGRAM} {name}`" for name in COMMANDS if name]
    return f"Other commands: {', '.join(names)} (each with --help)."


def _interpolate(command: Interpolate) -> None:
    """What needs no JAX comes first, so that a mistake is answered at once."""
    from film.io.plan import make_plan
    from film.io.pretrained import find

    quiet = command.quiet
    if command.batch is not None and command.batch < 1:
        raise ValueError(f"--batch {command.batch}: pairs at once are 1 or more; without --batch the program chooses")
    find(command.weights)
    plan = make_plan(
        command.inputs,
        command.output,
        command.times,
        parse_fps(command.fps),
        command.overwrite,
        sheet=command.sheet,
    )
    if not quiet:
        terminal.say(terminal.one_line(str(plan)))

    from common.runtime import setup
    from film.clip import make_clip
    from film.io.weights import load

    setup()
    make_clip(load(command.weights), plan, overwrite=command.overwrite, progress=not quiet, batch=command.batch)


def _info(command: Info) -> None:
    from film.io.pretrained import find, names
    from film.io.weights import load_with_metadata
    from film.model import parameter_count

    model, metadata = load_with_metadata(command.weights)
    terminal.say(f"{find(command.weights)}\n{parameter_count(model):,} parameters")
    terminal.say(json.dumps(dataclasses.asdict(metadata), indent=2, default=str))
    if command.weights is None:
        terminal.say(f"shipped weights: {', '.join(names())}")


def _convert(command: Convert) -> None:
    from common.io.files import check_output_file
    from film.io.pretrained import is_ours
    from film.io.weights import load_with_metadata, save_model
    from film.porting import read_reference

    if Path(command.destination).suffix.lower() != ".safetensors":
        raise ValueError(f"{command.destination}: weights are written as .safetensors; give such a name")
    check_output_file(command.destination, command.overwrite)
    if is_ours(command.source):
        model, header = load_with_metadata(command.source)
        metadata = header.metadata
    else:
        model = read_reference(command.source, architecture(command.model))
        metadata = {"ported_from": Path(command.source).name}
    save_model(command.destination, model, metadata, dtype=command.dtype, overwrite=command.overwrite)
    terminal.say(f"{command.source} -> {command.destination}")


def parse_fps(text: str) -> Fraction:
    """An exact rate from "30", "23.976" (which stands for 24000/1001) or "30000/1001"."""
    from common.io import clip_limits

    try:
        return clip_limits.parse_fps(text)
    except ValueError:
        raise ValueError(f"--fps {text}: give a number from 0.01 to 1000, such as 30, 23.976 or 30000/1001") from None


def architecture(name: str):
    """The FilmConfig of a preset's name or a JSON file."""
    from film.model import FilmConfig

    presets = {"paper": FilmConfig.paper, "small": FilmConfig.small}
    if name in presets:
        return presets[name]()
    try:
        return FilmConfig(**json.loads(Path(name).read_text()))
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"--model {name}: give paper, small or a JSON file of FilmConfig's fields ({error})") from None


if __name__ == "__main__":
    main()
