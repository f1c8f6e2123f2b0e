"""`film`: photos in, a slow-motion clip out.

    film a.jpg b.jpg -o clip.mp4             two photos, 33 frames
    film holiday/ -o clip.gif --times 3      every gap of a folder of photos (sorted by name), halved three times
    film 'shot_*.png' -o frames/ --times 1   numbered PNGs
    film info                                the default weights
    film convert SAVED_MODEL ours.safetensors    weights of the TensorFlow or PyTorch program -> ours
    film prepare vimeo_triplet/ records/ --layout vimeo90k    a dataset -> ArrayRecord shards to train from

User errors are one line on stderr and exit code 2; then nothing was written. A further command is a dataclass of its
arguments with a `run` method, and a line in COMMANDS. Imports that need JAX are inside the methods, so that mistakes
are reported at once.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from common import terminal

PROGRAM = "film"
DEFAULT_WEIGHTS = tyro.conf.arg(help_behavior_hint="(default: film-small)")


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
    weights: Annotated[str | None, DEFAULT_WEIGHTS] = None
    """Name of shipped weights, a file, or the folder of a run."""
    sheet: Annotated[str | None, tyro.conf.arg(help_behavior_hint="(default: no sheet)")] = None
    """Also write a contact sheet of nine frames to this image file."""
    batch: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: by image size and device)")] = None
    """Most pairs computed at once."""
    overwrite: bool = False
    """Replace the output if it exists."""
    quiet: bool = False
    """No plan, no progress bar."""

    def run(self) -> None:
        from common.io.clip_limits import parse_fps
        from film.io.plan import make_plan
        from film.io.pretrained import find

        if self.batch is not None and self.batch < 1:
            raise ValueError(
                f"--batch {self.batch}: give 1 or more, or leave it out to choose by image size and device"
            )
        find(self.weights)
        fps = parse_fps(self.fps)
        plan = make_plan(self.inputs, self.output, self.times, fps, self.overwrite, sheet=self.sheet)
        if not self.quiet:
            terminal.say(terminal.one_line(str(plan)))

        from common.runtime import setup
        from film.clip import make_clip
        from film.io.weights import load

        setup()
        model = load(self.weights)
        make_clip(model, plan, overwrite=self.overwrite, progress=not self.quiet, batch=self.batch)


@dataclasses.dataclass
class Info:
    """Print the header of a weights file."""

    weights: Annotated[tyro.conf.Positional[str | None], DEFAULT_WEIGHTS] = None
    """Name of shipped weights, a file, or the folder of a run."""

    def run(self) -> None:
        import jax
        from flax import nnx

        from film.io.pretrained import find, names
        from film.io.weights import load_with_metadata

        model, metadata = load_with_metadata(self.weights)
        count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))
        terminal.say(f"{find(self.weights)}\n{count:,} parameters")
        terminal.say(json.dumps(dataclasses.asdict(metadata), indent=2, default=str))
        if self.weights is None:
            terminal.say(f"shipped weights: {', '.join(names())}")


@dataclasses.dataclass
class Convert:
    """Turn reference weights into ours: a TF SavedModel folder or training checkpoint, or the PyTorch port's file.

    Our own weights (a file, or the folder of a run) are written again, in another dtype if you like.
    """

    source: tyro.conf.Positional[str]
    """SavedModel folder, checkpoint folder or prefix (both need the `convert` extra), a .pt/.pth file, or ours."""
    destination: tyro.conf.Positional[str]
    """The .safetensors file to write."""
    model: str = "paper"
    """Shape of the network: paper, small, or a JSON file with the fields of FilmConfig."""
    dtype: str = "float32"
    """float32, float16 or bfloat16."""
    overwrite: bool = False
    """Replace the destination if it exists."""

    def run(self) -> None:
        from common.io.files import check_output_file
        from film.io.pretrained import is_ours
        from film.io.weights import load_with_metadata, save_model
        from film.porting import read_reference

        if Path(self.destination).suffix.lower() != ".safetensors":
            raise ValueError(f"{self.destination}: weights are written as .safetensors; give such a name")
        check_output_file(self.destination, self.overwrite)
        if is_ours(self.source):
            model, header = load_with_metadata(self.source)
            metadata = header.metadata
        else:
            model = read_reference(self.source, read_config(self.model))
            metadata = {"ported_from": Path(self.source).name}
        save_model(self.destination, model, metadata, dtype=self.dtype, overwrite=self.overwrite)
        terminal.say(f"{self.source} -> {self.destination}")


def read_config(name: str):
    """The FilmConfig of a preset's name or a JSON file."""
    from film.config import FilmConfig

    presets = {"paper": FilmConfig.paper, "small": FilmConfig.small}
    if name in presets:
        return presets[name]()
    try:
        return FilmConfig(**json.loads(Path(name).read_text()))
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"--model {name}: give paper, small or a JSON file of FilmConfig's fields ({error})") from None


def _prepare() -> type:
    from film.data.prepare import Prepare

    return Prepare


COMMANDS: dict[str, Callable[[], type]] = {  # "" is `film` itself
    "": lambda: Interpolate,
    "info": lambda: Info,
    "convert": lambda: Convert,
    "prepare": _prepare,
}


def main(arguments: list[str] | None = None) -> None:
    """The program; `arguments` defaults to the command line.

    Exit codes: 0; 2 for an error of the user or the machine; 128 + n when stopped by signal n (130 for Ctrl-C).
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    name = arguments[0] if arguments and arguments[0] in COMMANDS else ""
    others = ", ".join(f"`{PROGRAM} {other}`" for other in COMMANDS if other)
    command = tyro.cli(
        COMMANDS[name](),
        args=arguments[1:] if name else arguments,
        prog=f"{PROGRAM} {name}".strip(),
        description=None if name else f"{Interpolate.__doc__}\n\nOther commands: {others} (each with --help).",
    )
    with terminal.exits(PROGRAM, out_of_memory="give smaller images"):
        command.run()
