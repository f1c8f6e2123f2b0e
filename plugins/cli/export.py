"""`plugins export`: from a trained plugin or adapter to a file that others run, or to its features of one picture.

    stablehlo   program and weights for XLA, any accelerator      plugin.stablehlo
    onnx        the same for onnxruntime, phones, browsers        plugin.onnx (extra `export`)
    features    what it says about --picture, for PyTorch         edges.safetensors

The format is told by --format or by the output's suffix. What would be refused in the end is refused before weights are
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import terminal
from common.io.files import atomic_output, check_output_file
from common.io.images import read_image
from plugins.cli.commands import Export
from plugins.cli.controls import covering
from plugins.control import export as formats
from plugins.control.loading import load

SUFFIXES = {".stablehlo": "stablehlo", ".onnx": "onnx", ".safetensors": "features"}
SIDE = 512  # of pictures, where none is asked for: Stable Diffusion's, and the article's
WRITERS: Mapping[str, Any] = {"stablehlo": formats.to_stablehlo, "onnx": formats.to_onnx}


def export(command: Export) -> None:
    """Carries out the command. Raises ValueError, OSError and ImportError in one line."""
    kind, size = format_of(command), size_of(command)
    target = Path(command.output)
    check_output_file(target, command.overwrite)
    picture = None if command.picture is None else read_image(command.picture)
    network = load(command.plugin)
    if kind == "features":
        assert picture is not None
        shown = picture if size is None else covering(picture, *size)
        strength = 1.0 if command.strength is None else command.strength
        formats.save_features(target, network, shown, strength, overwrite=command.overwrite)
    else:
        data = WRITERS[kind](network, *(size or (SIDE, SIDE)))
        with atomic_output(target, command.overwrite) as temporary:
            temporary.write_bytes(data)
    if not command.quiet:
        terminal.say(f"{type(network).__name__} as {kind}, {target.stat().st_size / 1e6:,.2f} MB -> {target}")


def format_of(command: Export) -> str:
    """By its word, or by the suffix of the output. Raises ValueError, also for words that go with another format."""
    kind = command.format or SUFFIXES.get(Path(command.output).suffix.lower())
    if kind is None:
        raise ValueError(f"{command.output} does not say the format; add --format {', '.join(SUFFIXES.values())}")
    if kind == "features" and command.picture is None:
        raise ValueError("features are of a picture; give its condition: --picture EDGES")
    stray = [name for name in ("picture", "strength") if getattr(command, name) is not None]
    if kind != "features" and stray:
        raise ValueError(f"--{stray[0]} belongs to --format features; {kind} is the network, for any picture")
    return kind


def size_of(command: Export) -> tuple[int, int] | None:
    """Height and width. Raises ValueError."""
    if command.size is None:
        return None
    if len(command.size) not in (1, 2) or min(command.size) < 1:
        said = " ".join(map(str, command.size))
        raise ValueError(f"--size {said}: give one side in pixels, or WIDTH HEIGHT")
    return command.size[-1], command.size[0]
