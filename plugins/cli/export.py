"""`plugins export`: a plugin, an adapter or a network of a base as a file for other programs; or features of an image.

    stablehlo   program and weights for XLA, any accelerator      plugin.stablehlo
    onnx        the same for onnxruntime, phones, browsers        plugin.onnx (extra `export`)
    litert      the same for LiteRT, on phones                    plugin.tflite (extra `litert`)
    features    a plugin's features of --picture, for PyTorch     edges.safetensors

The output's suffix names the format; --format may say it once more. Options are checked before weights are read.
"""

from pathlib import Path

import jax
from flax import nnx

from common.io.files import atomic_output, check_output_file
from common.io.images import place, read_image
from plugins.cli.commands import Export
from plugins.control.export import control_program, save_features
from plugins.control.loading import load
from plugins.diffusion.io.base import Base, read_base
from plugins.diffusion.io.components import load_component
from plugins.diffusion.programs import decoder_program, text_program, unet_program
from plugins.formats.litert import litert
from plugins.formats.onnx_graph import onnx
from plugins.formats.program import Program, Weights, stablehlo

SUFFIXES = {".stablehlo": "stablehlo", ".onnx": "onnx", ".tflite": "litert", ".safetensors": "features"}
SIDE = 512  # default of --size: Stable Diffusion's, and the article's
LARGEST = 2**31  # bytes of a file: flatbuffers (StableHLO, LiteRT) and protobuf (ONNX) count in 32 bits
PARTS = {"unet": "unet", "decoder": "vae", "text_encoder": "text_encoder"}  # of --part -> the base's component


def export(command: Export) -> None:
    """Runs the command; user errors are ValueError, OSError and ImportError."""
    kind, size = check_options(command)
    target = Path(command.output)
    check_output_file(target, command.overwrite)
    if kind == "features":
        picture, network = read_image(str(command.picture)), load(str(command.plugin))
        name, strength = type(network).__name__, 1.0 if command.strength is None else command.strength
        picture = picture if size is None else place(picture, (size[1], size[0]), "crop")
        save_features(target, network, picture, strength, overwrite=command.overwrite)
    else:
        if command.plugin is None:
            name, program = f"{command.part} of {command.base}", base_program(command, kind, size)
        else:
            network = load(command.plugin)
            name = type(network).__name__
            check_bytes(name, sum(leaf.size for leaf in jax.tree.leaves(nnx.state(network))), kind, command.weights)
            program = control_program(network, *(size or (SIDE, SIDE)))
        others = {"onnx": onnx, "litert": litert}
        data = stablehlo(program) if kind == "stablehlo" else others[kind](program, command.weights)
        with atomic_output(target, command.overwrite) as temporary:
            temporary.write_bytes(data)
    if not command.quiet or command.json:
        written = target.stat().st_size
        facts = {"output": str(target), "network": name, "format": kind, "bytes": written}
        command.write(f"{name} as {kind}, {written / 1e6:,.2f} MB -> {target}", facts)


def base_program(command: Export, form: str, size: tuple[int, int] | None) -> Program:
    """The program of --part for that format and size (None: the base's). Raises as `read_base`; ValueError."""
    files = read_base(command.base, tokenizer=command.tokenizer)
    base: Base = files.base
    height, width = size or (base.side, base.side)
    if height % base.unit or width % base.unit:
        raise ValueError(f"--size {width} {height}: this base makes images of sides that are multiples of {base.unit}")
    latents = height // base.unit, width // base.unit
    kind = PARTS[command.part or ""]
    if kind not in files.components:
        raise ValueError(f"--part {command.part}: {files.path} has none; it has {', '.join(files.components)}")
    if command.part == "text_encoder" and base.sizes:
        raise ValueError("--part text_encoder: SDXL's two text encoders are one input together; export the unet alone")
    check_bytes(f"--part {command.part}", files.components[kind].parameters, form, command.weights)
    network = load_component(kind, files.path)
    if command.part == "unet":
        return unet_program(network, *latents, base.length, sizes=base.sizes, features=command.with_features)
    return decoder_program(network, *latents) if kind == "vae" else text_program(network, base.length)


def check_options(command: Export) -> tuple[str, tuple[int, int] | None]:
    """Format, and height and width where they are given. Raises ValueError, also for options of another format."""
    kind = SUFFIXES.get(Path(command.output).suffix.lower())
    if kind is None or command.format not in (None, kind):
        own = [suffix for suffix, name in SUFFIXES.items() if command.format in (None, name)]
        wanted = f"of --format {command.format} is {own[0]}" if command.format else f"is one of {' '.join(own)}"
        raise ValueError(f"{command.output}: the suffix {wanted}; rename the output")
    if (command.plugin is None) == (command.base is None):
        raise ValueError("give one of --plugin and --base: a file holds one network")
    if (command.base is None) != (command.part is None):
        raise ValueError(f"--base and --part belong together: --part is one of {', '.join(PARTS)}")
    if command.with_features and command.part != "unet":
        raise ValueError("--with-features is an option of --part unet, which reads a plugin's features")
    if kind == "features" and command.plugin is None:
        raise ValueError("features are a plugin's; a network of a base is exported as .onnx, .tflite or .stablehlo")
    if kind == "features" and command.picture is None:
        raise ValueError("features are of an image; give its condition: --picture EDGES")
    if command.weights != "float32" and (kind not in ("onnx", "litert") or (kind, command.weights) == ("onnx", "int8")):
        types = {"onnx": "float32 or float16", "litert": "any type"}
        raise ValueError(f"--weights {command.weights}: {kind} stores {types.get(kind, 'float32')}; choose another")
    for name in ("picture", "strength"):
        if kind != "features" and getattr(command, name) is not None:
            raise ValueError(f"--{name} is an option of --format features; {kind} is the network, for any image")
    if command.size is None:
        return kind, None
    if len(command.size) not in (1, 2) or min(command.size) < 1:
        raise ValueError(f"--size {' '.join(map(str, command.size))}: give one side in pixels, or WIDTH HEIGHT")
    return kind, (command.size[-1], command.size[0])


def check_bytes(name: str, parameters: int, form: str, weights: Weights) -> None:
    """Raises ValueError for more parameters than a file of that format holds (LiteRT's are float32 on their way)."""
    size = parameters * (2 if (form, weights) == ("onnx", "float16") else 4)
    if size >= LARGEST:
        fits = "write .onnx with --weights float16" if 2 * parameters < LARGEST else "no format here holds it"
        raise ValueError(f"{name} has {size / 1e9:.1f} GB of weights, and {form} holds {LARGEST / 1e9:.1f}: {fits}")
