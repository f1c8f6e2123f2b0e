"""`film`: photos or a video in, a smooth or slow clip out.

    film a.jpg b.jpg                         two photos -> a_film.mp4, 33 frames
    film holiday/ -o clip.gif --frames 7     seven new frames in every gap of a folder of photos (sorted by name)
    film clip.mp4 -o smooth.mp4 --fps 60     a video at another rate, its sound kept
    film clip.mp4 -o slow.mp4 --factor 4 --slow-motion    four times as long
    film info                                the default weights
    film verify ours.safetensors             whether they are as they were written
    film web                                 a page in the browser
    film convert SAVED_MODEL ours.safetensors    weights of the TensorFlow or PyTorch program -> ours
    film prepare vimeo_triplet/ records/ --layout vimeo90k    a dataset -> ArrayRecord shards to train from

User errors are one line on stderr and exit code 2; then no output was written. The groups of options of
`film.io.options` are sections of the help. A further command is a dataclass of its arguments with a `run` method, and a
line in COMMANDS. Imports that need JAX are inside the methods, so that mistakes are reported at once.
"""

import dataclasses
import difflib
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from common import terminal
from common.terminal import Flag, Printing
from film.io.options import (
    InspectionOptions,
    NetworkOptions,
    Options,
    OutputOptions,
    PhotoOptions,
    VideoOptions,
    option,
)
from film.io.plan import make_plan
from film.io.pretrained import SHIPPED, find

PROGRAM = "film"
MOST_KEPT = 32 << 20  # bytes; a larger buffer goes back to the kernel, so that large images peak low


@dataclasses.dataclass(frozen=True)
class Interpolate(Printing):
    """Turn photos into a slow-motion clip, or make a video smoother or slower."""

    inputs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="INPUT ...", help_behavior_hint="")]
    """Two or more photos in order; or a folder or a quoted glob of photos; or a video."""
    photos: Annotated[PhotoOptions, tyro.conf.arg(name="photo")]
    video: VideoOptions
    clip: Annotated[OutputOptions, tyro.conf.arg(name="output")]
    network: NetworkOptions
    inspection: InspectionOptions
    output: Annotated[str | None, tyro.conf.arg(aliases=["-o"]), option("CLIP", "a movie beside the input")] = None
    """A movie (.mp4 .mov .mkv .webm), an animation (.gif .webp .apng), or a folder for numbered PNGs."""
    weights: Annotated[str | None, option("WEIGHTS", "film-small-style")] = None
    """Name of shipped weights, a file (also of a published network), the folder of a run, or hf:OWNER/NAME."""
    quiet: Flag = False
    """Print no plan and no progress bar."""

    def run(self) -> None:
        find(self.weights)
        groups = (self.photos, self.video, self.clip, self.network, self.inspection)
        options = Options(**{name: value for group in groups for name, value in vars(group).items()})
        plan = make_plan(self.inputs, self.output, options)
        quiet = self.quiet or self.json
        if not quiet:
            terminal.say(terminal.one_line(str(plan)))

        from common.runtime import return_freed_memory, setup
        from film.clip import as_asked, compute_plan, describe, run
        from film.io.weights import load

        setup(most_kept=MOST_KEPT)
        model = as_asked(load(self.weights), options)
        return_freed_memory()  # of reading the weights
        compute = compute_plan(model, plan)
        if not quiet:
            terminal.say(describe(compute, model, plan))
        frames = run(model, plan, compute, progress=not self.quiet)
        if self.json:
            sheets = [str(sheet) for sheet in plan.sheets]
            about = {"frames": frames, "size": plan.size, "rate": str(plan.rate), "sheets": sheets, "note": plan.note}
            self.write("", {"source": str(plan.source), "output": str(plan.output), **about})


@dataclasses.dataclass(frozen=True)
class Info(Printing):
    """Print the header of a weights file, or list the weights on this machine."""

    weights: Annotated[tyro.conf.Positional[str | None], option("[WEIGHTS]", "film-small-style")] = None
    """Name of shipped weights, a file, or the folder of a run."""
    list: Flag = False
    """List the shipped and downloaded weights on this machine, with size, licence and source."""

    def run(self) -> None:
        if self.list:
            from common.weights import at_hand

            self.write(*at_hand.listing(self.weights, SHIPPED.folder, PROGRAM))
            return
        import jax
        from flax import nnx

        from film.io.weights import load_with_metadata

        model, header = load_with_metadata(self.weights)
        count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))
        path, about = str(find(self.weights)), dataclasses.asdict(header)
        text = f"{path}\n{count:,} parameters\n{json.dumps(about, indent=2, default=str)}"
        self.write(text, {"weights": path, "parameters": count, **about})


@dataclasses.dataclass(frozen=True)
class Verify(Printing):
    """Read all of a weights file and compare it with its checksum."""

    weights: Annotated[tyro.conf.Positional[str | None], option("[WEIGHTS]", "film-small-style")] = None
    """Name of shipped weights, a file, or the folder of a run."""

    def run(self) -> None:
        from common.weights.model_file import verify_weights

        files = list(verify_weights(find(self.weights)))
        self.write("\n".join(map(str, files)), {"files": [dataclasses.asdict(file) for file in files]})


@dataclasses.dataclass(frozen=True)
class Convert(Printing):
    """Turn reference weights into ours: a TF SavedModel folder or training checkpoint, or the PyTorch port's file.

    Our own weights (a file, or the folder of a run) are written again, in another dtype if you like.
    """

    source: tyro.conf.Positional[str]
    """SavedModel folder, checkpoint folder or prefix (both need the `convert` extra), a .pt/.pth file, an address of
    one of them (hf:OWNER/NAME/FILE, https://...), or ours."""
    destination: tyro.conf.Positional[str]
    """The .safetensors file to write."""
    model: Annotated[str | None, option("SHAPE", "paper")] = None
    """Shape of a reference network: paper, small, or a JSON file with the fields of FilmConfig; ours say it."""
    dtype: str = "float32"
    """float32, float16 or bfloat16."""
    overwrite: Flag = False
    """Replace the destination if it exists."""

    def run(self) -> None:
        from common.io.files import check_output_file
        from common.weights.remote import local
        from film.io.pretrained import is_ours
        from film.io.weights import load_with_metadata, save_model
        from film.porting import read_reference

        if Path(self.destination).suffix.lower() != ".safetensors":
            raise ValueError(f"{self.destination}: weights are written as .safetensors; give such a name")
        check_output_file(self.destination, self.overwrite)
        if is_ours(source := local(self.source, pickles=True)):
            if self.model is not None:
                raise ValueError(f"--model {self.model}: {self.source} says its own shape; leave --model out")
            model, header = load_with_metadata(source)
            metadata = header.metadata
        else:
            model = read_reference(source, read_config(self.model or "paper"))
            metadata = {"ported_from": Path(self.source).name}
        save_model(self.destination, model, metadata, dtype=self.dtype, overwrite=self.overwrite)
        self.write(f"{self.source} -> {self.destination}", {"source": self.source, "weights": self.destination})


@dataclasses.dataclass
class Web:
    """Serve a page in the browser that makes clips (needs the `demo` extra)."""

    serving: terminal.Serving
    weights: Annotated[str | None, option("WEIGHTS", "film-small-style")] = None
    """Weights that the page starts with, as for `film`."""

    def run(self) -> None:
        from common.web import serve
        from film.web import page

        serve(lambda: page(self.weights), self.serving, "FILM")


def read_config(name: str):
    from common.io.tensor_files import read_json
    from film.config import FilmConfig

    if name in ("paper", "small"):
        return getattr(FilmConfig, name)()
    try:
        return FilmConfig(**read_json(Path(name)))
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"--model {name}: give paper, small or a JSON file of FilmConfig's fields ({error})") from None


COMMANDS: dict[str, Callable[[], type]] = {  # "" is `film` itself
    "": lambda: Interpolate,
    "info": lambda: Info,
    "verify": lambda: Verify,
    "convert": lambda: Convert,
    "prepare": lambda: importlib.import_module("film.data.prepare").Prepare,
    "web": lambda: Web,
}


def main(arguments: list[str] | None = None) -> None:
    """The program; `arguments` defaults to the command line. Exit codes: 0; 2 for an error of the user or the machine;
    128 + n when stopped by signal n (130 for Ctrl-C)."""
    words = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if words == ["--version"]:
        terminal.say(terminal.versions())
        return
    if words[0] in terminal.COMPLETION:
        commands = {name: kind() for name, kind in COMMANDS.items() if name}
        terminal.print_completion(PROGRAM, words[1:], commands, main=Interpolate)
        return
    name = words[0] if words[0] in COMMANDS else ""
    others = ", ".join(f"`{PROGRAM} {other}`" for other in COMMANDS if other)
    about = f"{Interpolate.__doc__}\n\nOther commands: {others} (each with --help)."
    about += terminal.examples_of(PROGRAM, __doc__)
    meant = [] if name or Path(words[0]).suffix else difflib.get_close_matches(words[0], filter(None, COMMANDS), 1)
    if meant and not Path(words[0]).exists():
        terminal.complain(f"{PROGRAM}: {words[0]} is no command and no file; did you mean `{PROGRAM} {meant[0]}`?")
        raise SystemExit(2)
    own = words[1:] if name else words
    command = terminal.parsed(COMMANDS[name](), own, f"{PROGRAM} {name}".strip(), None if name else about)
    try:
        with terminal.exits(PROGRAM, out_of_memory="give --memory, or a smaller --size"):
            command.run()
    except SystemExit as stop:
        if arguments is None:
            os._exit(int(stop.code or 0))  # Python would wait for the thread that computes or compiles
        raise
