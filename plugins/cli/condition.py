"""`plugins condition`: condition images from images on disk.

A folder becomes a folder with the same names, as PNG, and can be stopped and restarted: existing outputs are kept. An
image that fails (no face in it, a damaged file) does not stop the others: failures are reported at the end, and listed
in OUTPUT/failures.txt until a later run succeeds. Exit code 2: there is no condition image at all, neither from this
run nor from an earlier one.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from natsort import natsorted
from tqdm import tqdm

from common import terminal
from common.data.files import walk
from common.io.files import atomic_output, check_output_file
from common.io.images import READABLE, check_writable, read_image, write_image
from plugins.cli.commands import Condition
from plugins.conditions import depth, landmarks
from plugins.conditions.registry import emptiness, make

REPORT, REPORT_HEADER = "failures.txt", "# plugins condition: pictures it could not make"
SHOWN = 20  # failures reported on the terminal; the file lists all
OPTIONS = {
    "canny": ("low", "high"),
    "face": ("faces", "landmarks"),
    "holistic": ("landmarks",),
    "depth": ("depth", "model", "near", "inflate"),
    "mask": ("mask", "threshold"),
    "scribble": ("width", "blur", "drawing"),
}
READERS: dict[str, tuple[tuple[str, ...], Callable[[Path], Any]]] = {  # suffixes and reader of options that are files
    "landmarks": (landmarks.SUFFIXES, landmarks.read_landmarks),
    "depth": (depth.SUFFIXES, depth.read_depth),
    "mask": (tuple(READABLE), lambda path: read_image(path).mean(axis=-1)),
}


def condition(command: Condition) -> None:
    """Runs the command; user errors are ValueError, OSError and ImportError."""
    options = given_options(command)
    source, target = Path(command.input), Path(command.output)
    read = READERS.keys() & options.keys()
    for name in read:
        if source.is_dir() != Path(options[name]).is_dir():
            wrong = "is not a folder; for a folder of images" if source.is_dir() else "is a folder; for one image"
            error = NotADirectoryError if source.is_dir() else IsADirectoryError
            raise error(f"--{name} {options[name]} {wrong} give {'one' if source.is_dir() else 'one file'}")
    inputs = [source, *(Path(options[name]) for name in read - {"landmarks"})]  # which are no images
    if target.exists() and any(target.samefile(path) for path in inputs if path.exists()):
        raise ValueError(f"{target} is an input, which would be replaced; give another output")
    if source.is_dir():
        convert_folder(command, options, source, target)
    else:
        check_writable(target)
        check_output_file(target, command.overwrite)
        write_image(target, make_one(command, _with_model(options), source, source.name), command.overwrite)
        if command.json:
            command.write("", {"output": str(target), "made": 1, "kept": 0, "failed": {}})


def given_options(command: Condition) -> dict[str, Any]:
    """The options of this kind that are given. Raises ValueError for one of another kind."""
    names = dict.fromkeys(name for names in OPTIONS.values() for name in names)
    given = {name: value for name in names if (value := getattr(command, name)) is not None and value is not False}
    for name in given:
        if name not in OPTIONS[command.kind]:
            kinds = " and ".join(kind for kind, names in OPTIONS.items() if name in names)
            raise ValueError(f"--{name} is an option of {kinds}, not of {command.kind}; leave it out")
    if command.kind == "depth" and len(given.keys() & {"depth", "model", "inflate"}) != 1:
        sources = "read from --depth MAPS, estimated by --model FILE.onnx, or of one object on a plain ground --inflate"
        raise ValueError(f"depth is {sources}: give one of them")
    if given.keys() >= {"inflate", "near"}:
        raise ValueError("--near is of maps: --inflate makes depth that needs none; leave one out")
    return given


def convert_folder(command: Condition, options: Mapping[str, Any], source: Path, target: Path) -> None:
    """Makes the missing outputs, or all with --overwrite. Raises SystemExit(2) if there is no output at all."""
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is no folder; for a folder of pictures give a new or another folder")
    outputs = plan(source, target)
    report = target / REPORT
    if report.exists() and not report.read_text("utf-8", "replace").startswith(REPORT_HEADER):
        raise FileExistsError(f"{report} exists and is not this command's; rename it, or give another folder")
    todo = {path: output for path, output in outputs.items() if command.overwrite or not output.exists()}
    options = _with_model(options) if todo else options
    failures: dict[str, str] = {}
    with tqdm(todo.items(), unit="picture", disable=True if command.quiet else None) as bar:
        for path, output in bar:
            name = path.relative_to(source)
            try:
                image = make_one(command, _own_files(options, name), path, name.as_posix())
            except (ValueError, OSError) as error:
                failures[name.as_posix()] = terminal.one_line(str(error)).replace("\n", " ")
                continue
            write_image(output, image, command.overwrite)  # outside of `try`: a full disk ends the run
    write_report(report, failures)
    if not command.quiet or command.json:
        made, before = len(todo) - len(failures), len(outputs) - len(todo)
        kept = f", {before} there before" * (before > 0)
        data = {"output": command.output, "made": made, "kept": before, "failed": failures}
        command.write(f"{made} made{kept}, {len(failures)} failed -> {command.output}", data)
    if not any(output.exists() for output in outputs.values()):
        raise SystemExit(2)


def plan(source: Path, target: Path) -> dict[Path, Path]:
    """Every image below `source`, in natural order, and its output. Raises FileNotFoundError, ValueError."""
    inside = target.resolve()  # outputs of an earlier run are no inputs
    found = [path for path in walk(source, tuple(READABLE)) if inside not in path.resolve().parents]
    if not found:
        raise FileNotFoundError(f"no images found in {source}; known suffixes: {' '.join(READABLE)}")
    sources: dict[Path, Path] = {}
    for path in natsorted(found, key=str):
        output = (target / path.relative_to(source)).with_suffix(".png")
        if output in sources:
            raise ValueError(f"{sources[output]} and {path} would both become {output}; rename one of them")
        sources[output] = path
    return {path: output for output, path in sources.items()}


def make_one(command: Condition, options: Mapping[str, Any], path: Path, name: str) -> Float[np.ndarray, "h w 3"]:
    """The condition image of a file; warnings begin with `name`."""

    def warn(line: str) -> None:
        if line and not command.quiet:
            tqdm.write(terminal.one_line(f"{name}: {line}"), file=sys.stderr)

    values = {key: READERS[key][1](Path(value)) if key in READERS else value for key, value in options.items()}
    if command.kind == "face":
        values = {"most" if key == "faces" else key: value for key, value in values.items()} | {"note": warn}
    image = make(command.kind, read_image(path), **values)
    warn(emptiness(command.kind, image))
    return image


def write_report(report: Path, failures: Mapping[str, str]) -> None:
    """Failures to the file and the first of them to stderr; without any the file is removed."""
    lines = [f"{name}: {reason}" for name, reason in failures.items()]
    more = [f"and {len(lines) - SHOWN} more, all in {report}"] if len(lines) > SHOWN else []
    for line in lines[:SHOWN] + more:
        terminal.complain(line)
    if not failures:
        return report.unlink(missing_ok=True)
    with atomic_output(report, overwrite=True) as temporary:
        temporary.write_text("\n".join([REPORT_HEADER, *lines]) + "\n", "utf-8", "backslashreplace")


def _with_model(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options with the depth model loaded, once for all images."""
    return {**options, "model": depth.OnnxDepth(options["model"])} if "model" in options else options


def _own_files(options: Mapping[str, Any], name: Path) -> dict[str, Any]:
    """The options with the file of this image in place of a folder. Raises FileNotFoundError."""
    own = dict(options)
    for key in READERS.keys() & own.keys():
        path, suffixes = Path(own[key]) / name, READERS[key][0]
        files = [file for suffix in suffixes if (file := path.with_suffix(suffix)).is_file()]
        if not files:
            raise FileNotFoundError(f"--{key}: no {path.with_suffix('')} with a suffix of {' '.join(suffixes)}")
        own[key] = files[0]
    return own
