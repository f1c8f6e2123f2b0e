"""`plugins generate`: from the words of the command to pictures on the disk.

What is cheap comes first (names of outputs, what the base is, pictures, controls, LoRA files), so that a mistake
is answered before gigabytes are read; then the weights; then pictures, each batch written as it is made, into a folder
that appears when it is complete.

The bar moves with each step where steps are long. A program that reports its steps calls the host, and JAX keeps no
such program on the disk for the next start; where a batch takes less than compiling, the bar moves batch by batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from common import terminal
from common.io.files import atomic_folder, check_output_file, check_output_folder
from common.io.images import READABLE, check_writable, contact_sheet, read_image, shrink, write_image
from common.runtime import setup
from common.training.mesh import make_mesh
from plugins.cli.commands import PLUG_AND_PLAY, Generate
from plugins.cli.controls import controls_of
from plugins.diffusion.io.folder import BaseFiles, read_base
from plugins.diffusion.io.lora import Lora
from plugins.diffusion.pipeline import from_files
from plugins.diffusion.request import Request, make_request

PATTERN = r"seed_\d+\.png"
DTYPES = {"f32": "float32", "bf16": "bfloat16"}
SHEET_SIDE = 512  # longest side of a picture on the sheet
LONG = 1e13  # operations from which on a CPU takes longer for a batch than for compiling


def generate(command: Generate) -> None:
    """Carries out the command. Raises ValueError and OSError in one line."""
    check_outputs(command)
    files = read_base(command.base, tokenizer=command.tokenizer, prediction=command.prediction)
    request = ask(command, files)
    loras = [read_lora(word) for word in command.lora]
    for line in request.truncated:
        terminal.complain(f"warning: {line}")
    if not command.quiet:
        terminal.say(terminal.one_line(plan_line(command, files, request)))
    write(command, request, pictures(command, files, request, loras))


def check_outputs(command: Generate) -> None:
    """Refuses what could not be written in the end, and numbers that are none."""
    if command.count < 1:
        raise ValueError(f"--count {command.count}: one picture or more")
    if command.batch is not None and command.batch < 1:
        raise ValueError(f"--batch {command.batch}: pictures at once are 1 or more; without it the program chooses")
    if is_picture(command.output):
        check_writable(command.output)
        if command.count > 1:
            raise ValueError(f"{command.output} holds one picture, not {command.count}; give a folder")
        check_output_file(command.output, command.overwrite)
    else:
        check_output_folder(command.output, command.overwrite, PATTERN)
    if command.sheet is not None:
        check_writable(command.sheet)
        check_output_file(command.sheet, command.overwrite)


def is_picture(output: str) -> bool:
    """Whether this names a file, not a folder: by its suffix."""
    return Path(output).suffix.lower() in (*READABLE, ".gif")


def ask(command: Generate, files: BaseFiles) -> Request:
    """The command as a request to the base."""
    if command.seed < 0 or command.seed + command.count > 2**32:
        raise ValueError(
            f"--seed {command.seed} --count {command.count}: seeds are whole numbers from 0 to {2**32 - 1}"
        )
    controls = controls_of(command, files.base)
    follows = command.sampler is None and set(command.control) & {*PLUG_AND_PLAY}  # an inversion, which is DDIM's
    return make_request(
        files.base,
        command.prompt,
        negative=command.negative,
        seeds=range(command.seed, command.seed + command.count),
        image=None if command.image is None or controls else read_image(command.image),
        controls=controls,
        **command.options() | ({"sampler": "ddim"} if follows else {}),
    )


def read_lora(word: str) -> tuple[Lora, float]:
    """ "style.safetensors:0.8" -> the file and its weight; 1 without one. Raises as `Lora.load`."""
    name, colon, number = word.rpartition(":")
    if not colon or Path(word).exists():
        return Lora.load(word), 1.0
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise ValueError(f"--lora {word}: {number!r} is no weight; write FILE or FILE:0.8")
    return Lora.load(name), weight


def plan_line(command: Generate, files: BaseFiles, request: Request) -> str:
    """What will happen, in a line."""
    count = len(request.seeds)
    seeds = f"seed {command.seed}" + (f" to {request.seeds[-1]}" if count > 1 else "")
    start = "" if request.image is None else f" from {command.image} at strength {request.strength:g}"
    start += f", {len(request.controls)} control{'s' * (len(request.controls) > 1)}" if request.controls else ""
    what = f"{count} picture{'s' * (count > 1)} {request.width}x{request.height}{start}, {seeds}"
    how = f"{request.steps} steps of {command.sampler or request.sampler.name}, guidance {request.guidance:g}"
    base = f"{files.path.name} ({files.parameters / 1e6:,.1f} M parameters, {command.dtype})"
    return f"{what}, {how}, {base} -> {command.output}"


def pictures(
    command: Generate, files: BaseFiles, request: Request, loras: Sequence[tuple[Lora, float]]
) -> Iterator[Float[np.ndarray, "h w 3"]]:
    """Loads the weights, then makes one picture after the other."""
    setup()
    pipeline = from_files(files, DTYPES[command.dtype]).with_loras(loras)
    devices = len(jax.devices())
    fits = devices <= len(request.seeds) if command.batch is None else command.batch % devices == 0
    mesh = make_mesh() if devices > 1 and fits else None
    with tqdm(total=request.calls, unit="step", disable=True if command.quiet else None) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        progress, stepwise = (None, False) if bar.disable else (show, takes_long(files, request))
        for images in pipeline.run(request, batch=command.batch, progress=progress, stepwise=stepwise, mesh=mesh):
            yield from images


def takes_long(files: BaseFiles, request: Request) -> bool:
    """Whether a program that reports its steps is worth being compiled at each start: slow steps, on a CPU."""
    rows = len(request.seeds) * (2 if request.guided else 1)
    pixels = request.height * request.width // files.base.unit**2
    return jax.default_backend() == "cpu" and files.components["unet"].parameters * pixels * rows * request.calls > LONG


def write(command: Generate, request: Request, made: Iterator[Float[np.ndarray, "h w 3"]]) -> None:
    """Writes pictures as they come, and the contact sheet in the end."""
    thumbnails = []

    def kept(image: Float[np.ndarray, "h w 3"]) -> Float[np.ndarray, "h w 3"]:
        if command.sheet is not None:
            thumbnails.append(shrink(image, SHEET_SIDE))
        return image

    if is_picture(command.output):
        (image,) = made
        write_image(command.output, kept(image), command.overwrite)
    else:
        digits = max(4, len(str(request.seeds[-1])))
        with atomic_folder(command.output, command.overwrite, PATTERN) as folder:
            for seed, image in zip(request.seeds, made, strict=True):
                write_image(folder / f"seed_{seed:0{digits}d}.png", kept(image))
    if command.sheet is not None:
        sheet = contact_sheet(thumbnails, labels=[f"seed {seed}" for seed in request.seeds])
        write_image(command.sheet, sheet, command.overwrite)
