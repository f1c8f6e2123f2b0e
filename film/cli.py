"""`film`: photos in, a slow-motion clip out.

    film a.jpg b.jpg -o clip.mp4             two photos, 33 frames
    film holiday/ -o clip.gif --times 3      every gap of a folder of photos (sorted by name), halved three times
    film 'shot_*.png' -o frames/ --times 1   numbered PNGs
    film info                                what the default weights are
    film convert SAVED_MODEL ours.safetensors    weights of the TensorFlow or PyTorch program -> ours

User errors are one line on stderr and exit code 2; then nothing was written.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import tyro

PROGRAM = "film"


@dataclasses.dataclass
class Interpolate:
    """Turn photos into a slow-motion clip. Other commands: `film info`, `film convert` (each with --help).

    Every gap between two photos is halved TIMES times: n photos give (n-1) * 2^TIMES + 1 frames.
    """

    inputs: tyro.conf.Positional[tuple[str, ...]]
    """Two or more photos in order; or one folder; or one quoted glob. All of one size."""
    output: Annotated[str, tyro.conf.arg(aliases=["-o"])]
    """clip.mp4, clip.gif, or a folder for numbered PNGs."""
    times: int = 5
    """How often each gap is halved: 1 gives one in-between, 5 give 31."""
    fps: str = "30"
    """Frames per second: 30, 23.976 or 30000/1001."""
    weights: str | None = None
    """Name of shipped weights, or a file (default: film-small)."""
    sheet: str | None = None
    """Also write a contact sheet of nine frames to this picture."""
    batch: int | None = None
    """Most pairs computed at once (default: by picture size and device)."""
    overwrite: bool = False
    """Replace the output if it exists."""
    quiet: bool = False
    """No plan, no progress bar."""


@dataclasses.dataclass
class Info:
    """Print what a weights file says about itself."""

    weights: tyro.conf.Positional[str | None] = None
    """Name of shipped weights, or a file (default: film-small)."""


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


COMMANDS = {"info": Info, "convert": Convert}


def main(arguments: list[str] | None = None) -> None:
    """The program; `arguments` defaults to the command line."""
    words = sys.argv[1:] if arguments is None else arguments
    name = words[0] if words and words[0] in COMMANDS else ""
    command = tyro.cli(
        COMMANDS.get(name, Interpolate),
        args=words[1:] if name else words,
        prog=f"{PROGRAM} {name}".strip(),
    )
    try:
        run(command)
    except (ValueError, OSError, ImportError, MemoryError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except KeyboardInterrupt:
        print(f"{PROGRAM}: stopped; nothing was written", file=sys.stderr)
        raise SystemExit(130) from None


def run(command: Interpolate | Info | Convert) -> None:
    """Carries out a command. JAX is imported only when the words are known to be right."""
    if isinstance(command, Interpolate):
        _interpolate(command)
    elif isinstance(command, Info):
        _info(command)
    else:
        _convert(command)


def _interpolate(command: Interpolate) -> None:
    from common.runtime import setup
    from film.clip import make_clip, make_plan
    from film.loading import find, load

    find(command.weights)
    plan = make_plan(command.inputs, command.output, command.times, parse_fps(command.fps), command.overwrite)
    if not command.quiet:
        print(plan)
    setup()
    model = load(command.weights)
    make_clip(
        model,
        plan,
        overwrite=command.overwrite,
        sheet=command.sheet,
        progress=not command.quiet,
        batch=command.batch,
    )


def _info(command: Info) -> None:
    from film.loading import find, load_with_metadata, names
    from film.model import parameter_count

    model, metadata = load_with_metadata(command.weights)
    print(f"{find(command.weights)}\n{parameter_count(model):,} parameters")
    print(json.dumps(dataclasses.asdict(metadata), indent=2, default=str))
    if command.weights is None:
        print(f"shipped weights: {', '.join(names())}")


def _convert(command: Convert) -> None:
    from common.files import check_output_file
    from film.loading import is_ours, load_with_metadata, save_model
    from film.porting import read_reference

    check_output_file(command.destination, command.overwrite)
    if is_ours(command.source):
        model, header = load_with_metadata(command.source)
        metadata = header.metadata
    else:
        model = read_reference(command.source, architecture(command.model))
        metadata = {"ported_from": Path(command.source).name}
    save_model(command.destination, model, metadata, dtype=command.dtype, overwrite=command.overwrite)
    print(f"{command.source} -> {command.destination}")


def parse_fps(text: str) -> Fraction:
    """An exact rate from "30", "23.976" (which stands for 24000/1001) or "30000/1001"."""
    from common import video

    try:
        return video.parse_fps(text)
    except ValueError:
        raise ValueError(
            f"--fps {text}: give a number above 0 and up to 1000, such as 30, 23.976 or 30000/1001"
        ) from None


def architecture(name: str):
    """The FilmConfig of a preset's name or a JSON file."""
    from film.model import FilmConfig

    presets = {"paper": FilmConfig.paper, "small": FilmConfig.small}
    if name in presets:
        return presets[name]()
    try:
        return FilmConfig(**json.loads(Path(name).read_text()))
    except (OSError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"--model {name}: give paper, small or a JSON file of FilmConfig's fields ({error})") from None


if __name__ == "__main__":
    main()
