"""`plugins generate`: images on disk from the options of the command.

Cheap checks come first (output names, the base's configs, images, controls, LoRA files), so that a mistake is reported
before gigabytes are read. Each batch is written as it is made, into a folder that appears when it is complete, or when
the command is stopped: an image depends on its own seed alone, so the others can be made later.

The progress bar moves with each step where steps are slow. JAX does not keep programs that report their steps in its
compilation cache; where compiling takes longer, the bar moves batch by batch.
"""

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import cv2
import jax
import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from common import terminal
from common.io.files import atomic_folder, check_output_file, check_output_folder
from common.io.images import check_writable, contact_sheet, read_image, shrink, write_image
from common.runtime import setup
from common.training.mesh import make_mesh
from plugins.cli.commands import PLUG_AND_PLAY, Generate
from plugins.cli.controls import make_controls, make_image_prompt, reads_image
from plugins.diffusion.io.base import EDITING, TEXT_TO_IMAGE, Base, BaseFiles, read_base
from plugins.diffusion.io.components import load_vae
from plugins.diffusion.io.lora import Lora
from plugins.diffusion.io.textual_inversion import TextualInversion, with_words
from plugins.diffusion.pipeline import from_files
from plugins.diffusion.preview import Preview
from plugins.diffusion.request import Request, make_request

PATTERN = r"seed_\d+\.png"
SHEET_SIDE = 512  # longest side of an image on the sheet
SLOW = 1e13  # operations of a batch that take a CPU longer than compiling

Images = Iterable[Float[np.ndarray, "h w 3"]]


def generate(command: Generate) -> None:
    """Runs the command; user errors are ValueError and OSError."""
    check_outputs(command)
    files = read_base(command.base, tokenizer=command.tokenizer, prediction=command.prediction, vae=command.vae)
    embeddings = [read_embedding(option) for option in command.embedding]
    request = request_of(command, with_words(files.base, embeddings) if embeddings else files.base)
    loras = [read_lora(option) for option in command.lora]
    for line in request.truncated:
        terminal.complain(f"warning: {line}")
    if request.guided and request.guidance < 1:
        rule = "the prompt counts less below 1, and not at all at 0; 1 disables guidance, as 0 does in diffusers"
        terminal.complain(f"warning: --guidance {request.guidance:g}: {rule}")
    if not (command.quiet or command.json):
        terminal.say(terminal.one_line(describe(command, files, request)))
    paths = write(command, request, images(command, files, request, loras, embeddings))
    if command.json:
        made = [{"image": str(path), "seed": seed} for path, seed in zip(paths, request.seeds, strict=True)]
        size, sampler = [request.width, request.height], command.sampler or request.sampler.name
        about = {"base": str(files.path), "size": size, "steps": request.steps, "sampler": sampler}
        command.write("", {"images": made, "sheet": command.sheet, "guidance": request.guidance, **about})


def check_outputs(command: Generate) -> None:
    """Raises for outputs that could not be written in the end, and for counts below 1."""
    for name, value in (("count", command.count), ("batch", command.batch)):
        if value is not None and value < 1:
            raise ValueError(f"--{name} {value}: give a number of images, 1 or more")
    if _is_file(command.output):
        check_writable(command.output)
        if command.count > 1:
            raise ValueError(f"{command.output} is a file for one image, not for {command.count}; give a folder")
        check_output_file(command.output, command.overwrite)
    else:
        check_output_folder(command.output, command.overwrite, own_files(command))
    output = Path(command.output).resolve()
    inputs = (command.image, command.mask, command.image_prompt, *command.condition)
    taken = [Path(file).resolve() for file in inputs if file is not None]
    if any(path == output or (path.parent == output and re.fullmatch(PATTERN, path.name)) for path in taken):
        raise ValueError(f"{command.output}: the images would replace an input; give another name")
    taken.append(output)
    for name, file in (("sheet", command.sheet), ("preview", command.preview)):
        if file is None:
            continue
        check_writable(file)
        check_output_file(file, command.overwrite)
        path = Path(file).resolve()
        if path in taken or (path.parent == output and re.fullmatch(PATTERN, path.name)):
            raise ValueError(f"--{name} {file} would replace an input or another output; give it another name")
        if name == "preview" and path.parent == output:  # the folder is to hold nothing else when it is complete
            raise ValueError(f"--preview {file} is in the folder of the images; give it a name outside")
        taken.append(path)
    if command.preview_vae is not None and command.preview is None:
        raise ValueError(f"--preview-vae {command.preview_vae} decodes a preview; add --preview FILE")


def own_files(command: Generate) -> str:
    """The pattern of the names of this command's files in its output folder: images, and a sheet beside them."""
    inside = command.sheet and Path(command.sheet).resolve().parent == Path(command.output).resolve()
    return f"{PATTERN}|{re.escape(Path(command.sheet).name)}" if command.sheet and inside else PATTERN


def request_of(command: Generate, base: Base) -> Request:
    """The checked request to the base."""
    image = None if command.image is None else read_image(command.image)
    controls = make_controls(command, base, image)
    options = command.options()
    if command.sampler is None and set(command.control) & PLUG_AND_PLAY:
        options["sampler"] = "ddim"  # the only one with an inversion
    return make_request(
        base,
        command.prompt,
        negative=command.negative,
        seeds=range(command.seed, command.seed + command.count),
        image=None if reads_image(command) and base.task == TEXT_TO_IMAGE else image,
        mask=None if command.mask is None else read_image(command.mask).mean(-1),
        controls=[*controls, *make_image_prompt(command)],
        **options,
    )


def read_lora(option: str) -> tuple[Lora, float]:
    """ "style.safetensors:0.8" or "hf:OWNER/NAME:0.8" -> its `Lora` and weight, 1 without; raises as `Lora.load`."""
    name, colon, number = option.rpartition(":")
    if not colon or Path(option).exists() or name in ("hf", "http", "https") or "/" in number:
        return Lora.load(option), 1.0
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise ValueError(f"--lora {option}: {number!r} is no weight; write FILE or FILE:0.8")
    return Lora.load(name), weight


def read_embedding(option: str) -> TextualInversion:
    """ "WORD=FILE" or "FILE" -> its `TextualInversion`."""
    word, equals, name = option.partition("=")
    own = not equals or Path(option).exists()
    return TextualInversion.load(option) if own else TextualInversion.load(name, word)


def make_preview(command: Generate, base: Base, request: Request) -> Preview:
    """The preview of --preview: its file is replaced at each step, by the images of the batch at their size."""

    def show(done: int, total: int, images: Float[np.ndarray, "b h w 3"]) -> None:
        size = request.width, request.height
        larger = [np.clip(cv2.resize(image, size, interpolation=cv2.INTER_CUBIC), 0, 1) for image in images]
        with contextlib.suppress(OSError, ValueError):  # a run goes on without its preview
            sheet = contact_sheet(larger, gap=0) if len(larger) > 1 else larger[0]
            write_image(str(command.preview), sheet, overwrite=True)

    return Preview(show, None if command.preview_vae is None else load_vae(command.preview_vae, xl=base.sizes > 0))


def describe(command: Generate, files: BaseFiles, request: Request) -> str:
    """What is about to be computed, in a line."""
    count = len(request.seeds)
    seeds = f"seed {command.seed}" + (f" to {request.seeds[-1]}" if count > 1 else "")
    start = "" if request.image is None else f" from {command.image} at strength {request.strength:g}"
    start += "" if request.mask is None else f" under {command.mask}"
    start += f", {len(request.controls)} control{'s' * (len(request.controls) > 1)}" if request.controls else ""
    output = f"{count} image{'s' * (count > 1)} {request.width}x{request.height}{start}, {seeds}"
    sampling = f"{request.steps} steps of {command.sampler or request.sampler.name}, guidance {request.guidance:g}"
    base = f"{files.path.name} ({files.parameters / 1e6:,.1f} M parameters, {command.dtype})"
    return f"{output}, {sampling}, {base} -> {command.output}"


def images(
    command: Generate,
    files: BaseFiles,
    request: Request,
    loras: Sequence[tuple[Lora, float]],
    embeddings: Sequence[TextualInversion],
) -> Images:
    """Loads the weights, then generates one image after the other."""
    setup()
    preview = None if command.preview is None else make_preview(command, files.base, request)
    pipeline = from_files(files, command.dtype).with_loras(loras).with_embeddings(embeddings)
    devices, count = len(jax.devices()), len(request.seeds)
    divides = devices <= count if command.batch is None else command.batch % devices == 0
    mesh = make_mesh() if devices > 1 and divides else None
    branches = 1 if not request.guided else 3 if files.base.task == EDITING else 2
    rows = count * branches * request.height * request.width // files.base.unit**2
    slow = files.components["unet"].parameters * rows * request.calls > SLOW and jax.default_backend() == "cpu"
    with tqdm(total=request.calls, unit="step", disable=True if command.quiet else None) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        progress = None if bar.disable else show
        options = {"preview": preview, "stepwise": slow or preview is not None, "mesh": mesh}
        for batch in pipeline.run(request, batch=command.batch, progress=progress, **options):
            yield from batch


def write(command: Generate, request: Request, images: Images) -> list[Path]:
    """Writes images as they come, then the contact sheet; returns the images' paths. A stop leaves a new folder with
    the images so far, and one that is to be replaced as it was."""
    thumbnails, paths = [], [Path(command.output)]

    def kept(images: Images) -> Iterator[Float[np.ndarray, "h w 3"]]:
        for image in images:
            if command.sheet is not None:
                thumbnails.append(shrink(image, SHEET_SIDE))
            yield image

    if _is_file(command.output):
        (image,) = kept(images)
        write_image(command.output, image, command.overwrite)
    else:
        digits = max(4, len(str(request.seeds[-1])))
        output = Path(command.output)
        paths = [output / f"seed_{seed:0{digits}d}.png" for seed in request.seeds]
        stop = None
        with atomic_folder(output, command.overwrite, own_files(command)) as folder:
            try:
                for path, image in zip(paths, kept(images), strict=True):
                    write_image(folder / path.name, image)
            except KeyboardInterrupt as error:
                made = sum((folder / path.name).exists() for path in paths)
                if made == 0 or (output.exists() and any(output.iterdir())):
                    raise
                stop = error
        if stop is not None:
            rest = f"--seed {command.seed + made} --count {command.count - made}, to another folder, makes the others"
            with terminal.stopping(f"{output} has the first {made} of {command.count} images; {rest}"):
                raise stop
    if command.sheet is not None:
        sheet = contact_sheet(thumbnails, labels=[f"seed {seed}" for seed in request.seeds])
        write_image(command.sheet, sheet, command.overwrite)
    return paths


def _is_file(output: str) -> bool:
    """Whether the output is an image, not a folder: a suffix of letters, of which `check_writable` knows some."""
    return Path(output).suffix[1:].isalpha() and not Path(output).is_dir()
