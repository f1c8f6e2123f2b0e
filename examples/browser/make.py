"""A folder with the page and its models: `make browser`, or `python examples/browser/make.py -o FOLDER`.

    index.html page.js diffusion.js                        beside this file; how it works stands in diffusion.js
    text.onnx plugin.onnx unet.onnx decoder.onnx base.json of the base and the plugin, weights as float16
    ort*                                                   onnxruntime-web, from npm, with a pinned SHA-256

Any server of files serves it: `python -m http.server --directory FOLDER`.
"""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import tyro

from common import terminal
from common.io.clip_tokenizer import BYTE_CHARACTERS, Tokenizer
from common.io.files import atomic_output
from plugins import control, diffusion
from plugins.control.export import control_program
from plugins.diffusion.io.base import Base
from plugins.diffusion.programs import decoder_program, text_program, unet_program
from plugins.diffusion.samplers import ddim
from plugins.formats.onnx_graph import onnx
from recipes.downloads.archives import Package, read_packages

HERE = Path(__file__).parent
RUNTIME = Package(
    "npm", "onnxruntime-web", "1.30.0", "MIT", "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
)
RUNTIME_FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
PAGE = ("index.html", "page.js", "diffusion.js")


@dataclass(kw_only=True)
class Options:
    output: Annotated[str, tyro.conf.arg(aliases=["-o"])] = "out/browser"
    """Folder of the page; its files are replaced."""
    base: str = "diffusion-small"
    """A base without guidance of its own (LCM), of latents."""
    plugin: str = "canny-small"
    """A plugin that fits it."""
    steps: int = 20
    """Steps of a picture, by DDIM."""
    archives: str | None = None
    """A folder with onnxruntime-web's archive, if npm cannot download it here."""


def step_table(schedule: Any, steps: int) -> list[list[float]]:
    """Timestep, and the factors of the latents and of the prediction in the next latents, for each step of DDIM."""
    plan = ddim.plan(schedule, steps)
    alpha, sigma, image, noise = plan.alpha, plan.sigma, plan.columns["x0"], plan.columns["eps"]
    if schedule.prediction_type == "v_prediction":  # x0 = alpha x - sigma v, eps = sigma x + alpha v
        factors = image * alpha + noise * sigma, noise * alpha - image * sigma
    elif schedule.prediction_type == "epsilon":  # x0 = (x - sigma eps) / alpha
        factors = image / alpha, noise - image * sigma / alpha
    else:
        raise ValueError(f"a base that predicts {schedule.prediction_type} has no page yet; take one of epsilon or v")
    return np.stack([plan.timesteps, *factors], 1).tolist()


def tokenizer_table(tokenizer: Tokenizer, length: int) -> dict[str, Any]:
    ids = {"start": tokenizer.start_id, "end": tokenizer.end_id, "pad": tokenizer.pad_id, "length": length}
    merges = [" ".join(pair) for pair in tokenizer.merges]
    return {"vocabulary": tokenizer.vocab, "merges": merges, "characters": byte_characters(), **ids}


def byte_characters() -> list[str]:
    """The printable character of each byte: itself, or, for the others, one from 256 on, in order."""
    own = {ord(character) for character in BYTE_CHARACTERS if ord(character) < 256}
    others = iter(range(256, 512))
    return [chr(byte) if byte in own else chr(next(others)) for byte in range(256)]


def write_models(folder: Path, options: Options) -> None:
    """The four networks and base.json. Raises ValueError for a base or a plugin that the page cannot run."""
    pipeline, network = diffusion.load(options.base), control.load(options.plugin)
    base: Base = pipeline.base
    if base.distilled or base.vae is None or len(base.texts) != 1 or base.sizes:
        raise ValueError(f"--base {options.base}: the page runs Stable Diffusion 1.x and 2.x, and no LCM; name another")
    network.check(base.unet, base.unit)
    side, latents = base.side, base.unet.sample_size
    assert pipeline.text_encoder is not None and pipeline.tokenizer is not None and pipeline.vae is not None
    programs = {
        "text": text_program(pipeline.text_encoder, base.length),
        "plugin": control_program(network, side, side),
        "unet": unet_program(pipeline.unet, latents, latents, base.length, features=True),
        "decoder": decoder_program(pipeline.vae, latents, latents),
    }
    for name, program in programs.items():
        with atomic_output(folder / f"{name}.onnx", True) as temporary:
            temporary.write_bytes(onnx(program, "float16"))
    about = {"side": side, "latents": latents, "channels": base.channels}
    about |= {"steps": step_table(base.schedule, options.steps)}
    about |= {"tokenizer": tokenizer_table(pipeline.tokenizer, base.length)}
    with atomic_output(folder / "base.json", True) as temporary:
        temporary.write_text(json.dumps(about, ensure_ascii=False), "utf-8")


def main(options: tyro.conf.OmitArgPrefixes[Options]) -> None:
    """Write the page and all that it loads into a folder."""
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {f"package/dist/{name}" for name in RUNTIME_FILES}
    for _, _, files in read_packages({RUNTIME: wanted}, options.archives):
        for path, file in files.items():
            (folder / Path(path).name).write_bytes(file.content)
    for name in PAGE:
        shutil.copy(HERE / name, folder)
    write_models(folder, options)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    terminal.say(f"{folder}: {size:.1f} MB; see it with: python -m http.server --directory {folder}")


if __name__ == "__main__":
    terminal.program(main)
