"""`plugins condition`: from pictures on the disk to condition pictures beside them.

A picture becomes a picture. A folder becomes a folder with the same names, as PNG, and can be stopped and started
again: what is there is not made again. One picture that fails (no face on it, a damaged file) does not stop the others:
failures are told at the end, a line each, and kept in OUTPUT/failures.txt until a later run makes them good.

The command fails (exit code 2) when there is nothing to show for it: not one picture made, now or before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from natsort import natsorted
from tqdm import tqdm

from common import terminal
from common.io.files import atomic_output, check_output_file
from common.io.images import READABLE, check_writable, read_image, write_image
from plugins.cli.commands import Condition
from plugins.conditions import depth, landmarks, mask
from plugins.conditions.registry import emptiness, make

REPORT = "failures.txt"
HEAD = "# plugins condition: pictures it could not make"
SHOWN = 20  # failures told on the terminal; the report holds all
OPTIONS = {  # of each kind, by their names in the command and in `registry`
    "canny": {"low": "low", "high": "high"},
    "face": {"faces": "most", "landmarks": "landmarks"},
    "holistic": {"landmarks": "landmarks"},
    "depth": {"depth": "depth", "model": "model", "near": "near"},
    "mask": {"mask": "mask", "threshold": "threshold"},
}
PER_PICTURE: dict[str, tuple[tuple[str, ...], Callable[[Path], Any]]] = {  # options that are files, and how to read one
    "landmarks": (landmarks.SUFFIXES, landmarks.read_landmarks),
    "depth": (depth.SUFFIXES, depth.read_depth),
    "mask": (mask.SUFFIXES, mask.read_mask),
}


def condition(command: Condition) -> None:
    """Carries out the command. Raises ValueError, OSError and ImportError in one line."""
    options = given_options(command)
    source, target = Path(command.input), Path(command.output)
    for name in PER_PICTURE.keys() & options.keys():
        _check_exists(f"--{name}", Path(options[name]), folder=source.is_dir())
    if source.is_dir():
        many(command, options, source, target)
    else:
        check_writable(target)
        check_output_file(target, command.overwrite)
        write_image(target, made(command, _started(options), source, source.name), command.overwrite)


def given_options(command: Condition) -> dict[str, Any]:
    """The options that were given, by the command's names. Raises ValueError for one of another kind."""
    given = {}
    for kind, names in OPTIONS.items():
        for name in names:
            value = getattr(command, name)
            if value is not None and name not in OPTIONS[command.kind]:
                of = " and ".join(kind for kind, names in OPTIONS.items() if name in names)
                raise ValueError(f"--{name} is an option of {of}, not of {command.kind}; leave it out")
            if value is not None:
                given[name] = value
    if command.kind == "depth" and ("depth" in given) == ("model" in given):
        raise ValueError("depth is read from --depth MAPS or estimated by --model FILE.onnx: give one of them")
    if command.faces is not None and command.faces < 1:
        raise ValueError(f"--faces {command.faces}: one face or more can be drawn")
    return given


def many(command: Condition, options: Mapping[str, Any], source: Path, target: Path) -> None:
    """A folder to a folder."""
    if target.exists() and (not target.is_dir() or target.samefile(source)):
        raise ValueError(f"{target} is no folder of its own; for a folder of pictures give a new or another folder")
    jobs = plan(source, target)
    report = target / REPORT
    _check_report(report)
    todo = {path: out for path, out in jobs.items() if command.overwrite or not out.exists()}
    ready = _started(options) if todo else {}
    failures: dict[str, str] = {}
    with tqdm(todo.items(), unit="picture", disable=True if command.quiet else None) as bar:
        for path, out in bar:
            name = path.relative_to(source)
            try:
                picture = made(command, _for_picture(ready, name), path, name.as_posix())
            except (ValueError, OSError) as error:
                failures[name.as_posix()] = terminal.one_line(str(error)).replace("\n", " ")
                continue
            write_image(out, picture, command.overwrite)  # a full disk is no fault of this picture, and ends the run
    _write_report(report, failures)
    _report_counts(command, len(todo) - len(failures), len(jobs) - len(todo), failures, report)
    if len(failures) == len(jobs):
        raise SystemExit(2)


def made(command: Condition, options: Mapping[str, Any], source: Path, name: str) -> Float[np.ndarray, "h w 3"]:
    """The condition picture of the file `source`; `name` begins notes."""
    chosen = {
        OPTIONS[command.kind][option]: PER_PICTURE[option][1](Path(value)) if option in PER_PICTURE else value
        for option, value in options.items()
    }

    def note(line: str) -> None:
        if line and not command.quiet:
            tqdm.write(terminal.one_line(f"{name}: {line}"), file=sys.stderr)

    if command.kind == "face":
        chosen["note"] = note
    picture = make(command.kind, read_image(source), **chosen)
    note(emptiness(command.kind, picture))
    return picture


def plan(source: Path, target: Path) -> dict[Path, Path]:
    """Every picture below `source`, in natural order, and what it becomes. Raises FileNotFoundError, ValueError."""
    inside = target.resolve()
    found = [
        path
        for path in source.rglob("*")
        if path.suffix.lower() in READABLE
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(source).parts)
        and inside not in path.resolve().parents  # the results of an earlier run are no pictures to take
    ]
    if not found:
        raise FileNotFoundError(f"no pictures found in {source}; known suffixes: {' '.join(READABLE)}")
    jobs: dict[Path, Path] = {}
    taken: dict[Path, Path] = {}
    for path in natsorted(found, key=str):
        out = (target / path.relative_to(source)).with_suffix(".png")
        if out in taken:
            raise ValueError(f"{taken[out]} and {path} would both become {out}; rename one of them")
        taken[out], jobs[path] = path, out
    return jobs


def _started(options: Mapping[str, Any]) -> dict[str, Any]:
    """With the model loaded, once for all pictures."""
    ready = dict(options)
    if "model" in ready:
        from plugins.conditions.onnx_depth import OnnxDepth

        ready["model"] = OnnxDepth(ready["model"])
    return ready


def _for_picture(options: Mapping[str, Any], name: Path) -> dict[str, Any]:
    """With the file of this picture in place of a folder. Raises FileNotFoundError."""
    chosen = dict(options)
    for option in PER_PICTURE.keys() & chosen.keys():
        folder, suffixes = Path(chosen[option]), PER_PICTURE[option][0]
        files = [file for suffix in suffixes if (file := (folder / name).with_suffix(suffix)).is_file()]
        if not files:
            stem = (folder / name).with_suffix("")
            raise FileNotFoundError(f"--{option}: there is no {stem} with a suffix of {' '.join(suffixes)}")
        chosen[option] = files[0]
    return chosen


def _check_exists(option: str, path: Path, folder: bool) -> None:
    if folder and not path.is_dir():
        raise NotADirectoryError(f"{option} {path} is no folder; for a folder of pictures give a folder of files")
    if not folder and path.is_dir():
        raise IsADirectoryError(f"{option} {path} is a folder; for one picture give one file")


def _check_report(report: Path) -> None:
    """Refuses early to replace a file that this command did not write."""
    if report.exists() and not report.read_text("utf-8", "replace").startswith(HEAD):
        raise FileExistsError(f"{report} exists and is not this command's; rename it, or give another folder")


def _write_report(report: Path, failures: Mapping[str, str]) -> None:
    if failures:
        with atomic_output(report, overwrite=True) as temporary:
            lines = [HEAD, *(f"{name}: {reason}" for name, reason in failures.items())]
            temporary.write_text("\n".join(lines) + "\n", "utf-8", "backslashreplace")
    else:
        report.unlink(missing_ok=True)  # of an earlier run, which this one has made good


def _report_counts(command: Condition, made: int, kept: int, failures: Mapping[str, str], report: Path) -> None:
    for name, reason in list(failures.items())[:SHOWN]:
        terminal.complain(f"{name}: {reason}")
    if len(failures) > SHOWN:
        terminal.complain(f"and {len(failures) - SHOWN} more, all in {report}")
    if not command.quiet:
        before = f", {kept} there before" * (kept > 0)
        terminal.say(f"{made} made{before}, {len(failures)} failed -> {command.output}")
