"""`plugins export`: a trained plugin or adapter as a file for other programs, or its features of one image.

    stablehlo   program and weights for XLA, any accelerator      plugin.stablehlo
    onnx        the same for onnxruntime, phones, browsers        plugin.onnx (extra `export`)
    features    its features of --picture, for PyTorch            edges.safetensors

The output's suffix names the format; --format may say it once more. Options are checked before weights are read.
"""

from __future__ import annotations

from pathlib import Path

from common.io.files import atomic_output, check_output_file
from common.io.images import read_image
from plugins.cli.commands import Export
from plugins.cli.controls import cover
from plugins.control.export import save_features, to_onnx, to_stablehlo
from plugins.control.loading import load

SUFFIXES = {".stablehlo": "stablehlo", ".onnx": "onnx", ".safetensors": "features"}
SIDE = 512  # default of --size: Stable Diffusion's, and the article's


def export(command: Export) -> None:
    """Runs the command; user errors are ValueError, OSError and ImportError."""
    kind, size = check_options(command)
    target = Path(command.output)
    check_output_file(target, command.overwrite)
    picture = None if command.picture is None else read_image(command.picture)
    network = load(command.plugin)
    if picture is not None:
        picture = picture if size is None else cover(picture, *size)
        strength = 1.0 if command.strength is None else command.strength
        save_features(target, network, picture, strength, overwrite=command.overwrite)
    else:
        data = (to_stablehlo if kind == "stablehlo" else to_onnx)(network, *(size or (SIDE, SIDE)))
        with atomic_output(target, command.overwrite) as temporary:
            temporary.write_bytes(data)
    if not command.quiet or command.json:
        name, size = type(network).__name__, target.stat().st_size
        data = {"output": str(target), "network": name, "format": kind, "bytes": size}
        command.write(f"{name} as {kind}, {size / 1e6:,.2f} MB -> {target}", data)


def check_options(command: Export) -> tuple[str, tuple[int, int] | None]:
    """Format, and height and width where they are given. Raises ValueError, also for options of another format."""
    kind = SUFFIXES.get(Path(command.output).suffix.lower())
    if kind is None or command.format not in (None, kind):
        own = [suffix for suffix, name in SUFFIXES.items() if command.format in (None, name)]
        wanted = f"of --format {command.format} is {own[0]}" if command.format else f"is one of {' '.join(own)}"
        raise ValueError(f"{command.output}: the suffix {wanted}; rename the output")
    if kind == "features" and command.picture is None:
        raise ValueError("features are of an image; give its condition: --picture EDGES")
    for name in ("picture", "strength"):
        if kind != "features" and getattr(command, name) is not None:
            raise ValueError(f"--{name} is an option of --format features; {kind} is the network, for any image")
    if command.size is None:
        return kind, None
    if len(command.size) not in (1, 2) or min(command.size) < 1:
        raise ValueError(f"--size {' '.join(map(str, command.size))}: give one side in pixels, or WIDTH HEIGHT")
    return kind, (command.size[-1], command.size[0])
