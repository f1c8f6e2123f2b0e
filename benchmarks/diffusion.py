"""Speed and memory of the diffusion base: against the PyTorch library, by steps, in tiles, on an accelerator. Tables:

    python -m benchmarks.diffusion                            all; needs pip install -e ".[bench]", 8 GB of memory
    python -m benchmarks.diffusion --small                    tiny networks through the same code, to try it out
    python -m benchmarks.diffusion --only gpu --peak-tflops 989

`unet`: the UNet of Stable Diffusion 1.5, random weights, float32, one latent of 64x64 and 77 tokens, on the processor.
This project and the library (diffusers, in its default layout and channels last, with PyTorch's fused attention), in
processes of their own and in turns, load one folder (3.4 GB) and call it: medians. The library maps the file and reads
it in its first call, so compare `wait s` and `peak MB`, not `load`.

- `load peak MB`: the most held while loading, less what was held after the imports; mapped pages of the file count.
  `over size`: how far that exceeds the parameters. Ours has to stay within 10 %.
- `wait s`: load, compile and first call, of a file in the system's cache.
- `CPU s`: of all threads, for one call: less noisy than `call s` on a busy machine, but threads that wait may spin.
- `peak MB`: the most held from the loading on, program and libraries included.

`sdxl`: the UNet of SDXL (2.6 billion parameters), from its folder and from a single file, in float16, 5 GB each.
Columns as above: a second copy would be 100 % over size.

`steps`: the sampling program of a tiny UNet, with guidance, for runs of 1 to 100 steps. The loop is one scan: lines and
compile time stay, only the run gets longer. `by calls`: the run over as many calls of the UNet alone.

`tiles`: the shipped autoencoder there and back, on a photograph: whole, and in tiles. `off by` and `mean`: largest and
mean difference from the whole one; `step`: the largest mean step of it between neighbouring rows or columns, a seam.

`gpu`: pictures per second from text to the host, 512 pixels, 50 steps of DDIM with guidance, bfloat16. Arithmetic is
XLA's count of two UNet rows per step and the decoder, in float32, where attention is plain products that XLA sees.
`of peak` is the share of `--peak-tflops`.

Memory is read from /proc (Linux). No table uses programs that were compiled earlier.
"""

import dataclasses
import functools
import importlib.util
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from benchmarks.measuring import (
    MEGABYTE,
    NO_CACHE,
    ON_CPU,
    forget_peak,
    heading,
    in_process,
    line,
    medians,
    memory,
    timed,
)
from plugins import diffusion  # imports nothing more until it is used: the library's processes do without JAX

TIMESTEP, TOKENS = 500, 77
OFFLINE = {**ON_CPU, "HF_HUB_OFFLINE": "1"}  # of the library's processes
SMALL_SIDE, SMALL_WIDTHS = 16, (32, 64)
# Columns and the formats of their numbers.
UNET = {"": "", "load s": ".2f", "load peak MB": ",.0f", "over size": "+.0%", "compile s": ".1f", "wait s": ".1f"}
UNET |= {"call s": ".3f", "CPU s": ".3f", "peak MB": ",.0f"}
SDXL = {"": "", "load s": ".2f", "CPU s": ".2f", "load peak MB": ",.0f", "over size": "+.0%"}
PROGRAM = {"steps": "", "lines": ",", "compile s": ".2f", "CPU s": ".2f", "run s": ".3f", "by calls": ".2f"}
TILES = {"side": "", "tile": "", "s": ".2f", "CPU s": ".2f", "peak MB": ",.0f", "off by": ".4f", "mean": ".5f"}
TILES |= {"step": ".5f"}
GPU = {"batch": "", "first s": ".0f", "s": ".2f", "pictures/s": ".2f", "TFLOP/s": ".1f", "of peak": ".0%"}
GPU |= {"peak MB": ",.0f"}


@dataclass
class Options:
    only: Literal["unet", "sdxl", "steps", "tiles", "gpu"] | None = None  # One table instead of all
    repeats: int = 3  # Timed runs per number; the median counts
    rounds: int = 2  # Processes of each library in the first table, in turns
    small: bool = False  # Tiny networks and pictures, to see that it runs
    peak_tflops: float | None = None  # What the accelerator can do in bfloat16, by its data sheet (without sparsity)


def write(folder: str, small: bool) -> int:
    """The library's own folder of a random UNet; its number of parameters."""
    import torch
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    unet = UNet2DConditionModel.from_config(unet_config(small).to_json())
    unet.save_pretrained(folder)
    os.sync()  # or the first to load would share the machine with the writing
    return unet.num_parameters()


def run_unet(library: str, folder: str, small: bool, repeats: int) -> dict[str, Any]:
    """All numbers of one library, in this process."""
    load, prepare = PROGRAMS[library]()
    rng, side = np.random.default_rng(0), SMALL_SIDE if small else 64
    latents = rng.standard_normal((1, side, side, 4), np.float32)
    states = rng.standard_normal((1, TOKENS, 768), np.float32)
    before = forget_peak()
    unet, loading, _ = timed(lambda: load(folder))
    load_peak = memory("VmHWM") - before
    call, compiling, _ = timed(lambda: prepare(unet, latents, states))
    output, first, _ = timed(call)
    seconds, work = np.median([timed(call)[1:] for _ in range(repeats)], axis=0)
    np.save(Path(folder) / f"{library}.npy", output)
    row = {"load s": loading, "load peak MB": load_peak, "compile s": compiling, "wait s": loading + compiling + first}
    return row | {"call s": seconds, "CPU s": work, "peak MB": memory("VmHWM")}


def ours() -> tuple[Callable, Callable]:
    """How to load, and how to make a call of what was loaded; all imports are done."""
    import jax
    from flax import nnx

    from common.runtime import keep_freed_memory, return_compilers_memory

    keep_freed_memory()
    return_compilers_memory()
    jax.devices()  # starts the backend

    def prepare(unet: Any, latents: np.ndarray, states: np.ndarray) -> Callable[[], np.ndarray]:
        graph, state = nnx.split(unet)
        inputs = (nnx.to_pure_dict(state), latents, TIMESTEP, states)
        program = jax.jit(lambda params, *inputs: nnx.merge(graph, params)(*inputs)).lower(*inputs).compile()
        return lambda: np.asarray(program(*inputs))

    return diffusion.load_unet, prepare


def theirs(channels_last: bool = False) -> tuple[Callable, Callable]:
    """As `ours`, with the library."""
    import torch
    from diffusers import UNet2DConditionModel

    torch.set_num_threads(os.cpu_count() or 1)

    def prepare(unet: Any, latents: np.ndarray, states: np.ndarray) -> Callable[[], np.ndarray]:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        unet = unet.to(memory_format=layout)
        x = torch.from_numpy(latents).permute(0, 3, 1, 2).contiguous(memory_format=layout)
        context = torch.from_numpy(states)

        @torch.no_grad()
        def call() -> np.ndarray:
            return unet(x, TIMESTEP, context).sample.permute(0, 2, 3, 1).numpy()

        return call

    return UNet2DConditionModel.from_pretrained, prepare


PROGRAMS = {
    "ours": ours,
    "diffusers": theirs,
    "diffusers, channels last": functools.partial(theirs, channels_last=True),
}


def write_sdxl(folder: str, small: bool) -> int:
    """The folder of a random UNet, and a single file with it, in float16; its number of parameters."""
    import safetensors.numpy
    from flax import nnx

    from common.nn.init import blank
    from common.weights.porting import flatten, unflatten_like
    from common.weights.torch_names import state_dict
    from plugins.diffusion.io import single_file

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "plugins"))
    from ldm import single_names

    config = diffusion.UNetConfig.sdxl()
    if small:
        sizes = {"block_out_channels": (64, 128, 128), "attention_head_dim": (1, 2, 2), "cross_attention_dim": 64}
        config = dataclasses.replace(config, **sizes)
    block = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float16)
    graph, params = blank(diffusion.UNet, config)
    values = {path: np.resize(block, leaf.shape) for path, leaf in flatten(params).items()}
    tensors = state_dict(nnx.merge(graph, unflatten_like(values, params)), "float16")
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    place = Path(folder) / "folder"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config.to_json()))
    safetensors.numpy.save_file(tensors, place / "diffusion_pytorch_model.safetensors")
    names = single_names(tensors, config)
    single = {single_file.PREFIXES["unet"][0] + other: tensors[name] for name, other in names.items()}
    safetensors.numpy.save_file(single, Path(folder) / "single.safetensors")
    os.sync()
    return sum(tensor.size for tensor in tensors.values())


def run_sdxl(source: str) -> dict[str, Any]:
    ours()
    before = forget_peak()
    _, seconds, work = timed(lambda: diffusion.load_unet(source, "float16"))
    return {"load s": seconds, "CPU s": work, "load peak MB": memory("VmHWM") - before}


def run_steps(steps: int, repeats: int) -> dict[str, Any]:
    """The sampling program for one number of steps."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from common.nn.init import split
    from common.runtime import keep_freed_memory
    from plugins.diffusion.steering import COND, UNCOND, Conditioning

    keep_freed_memory()
    unet = diffusion.UNet(unet_config(True), rngs=nnx.Rngs(0))
    graph, params = split(unet)
    keys, states = diffusion.samplers.keys_of_seeds([0]), jnp.zeros((1, TOKENS, 768))
    branches = dict.fromkeys((UNCOND, COND), Conditioning(states))
    arrays = (params, keys, branches, None, jnp.float32(7.5))
    settings = {"sampler": diffusion.samplers.ddim, "schedule": diffusion.samplers.schedules.Schedule(), "steps": steps}
    settings |= {"strength": 1.0, "rescale": 0.0, "shape": (SMALL_SIDE, SMALL_SIDE, 4), "progress": False}
    alone, rows = jax.jit(lambda *inputs: unet(*inputs)), []
    latents, pair = jnp.zeros((2, SMALL_SIDE, SMALL_SIDE, 4)), jnp.concatenate(2 * [states])
    for _ in range(repeats):
        jax.clear_caches()
        program, compiling, work = timed(lambda: diffusion.compiled.denoise.lower(graph, *arrays, **settings).compile())
        _, running = [timed(lambda program=program: np.asarray(program(*arrays)))[1] for _ in range(2)]
        np.asarray(alone(latents, TIMESTEP, pair))
        calling = timed(lambda: [np.asarray(alone(latents, TIMESTEP, pair)) for _ in range(steps)])[1]
        rows.append({"compile s": compiling, "CPU s": work, "run s": running, "by calls": running / calling})
    return medians(rows) | {"steps": steps, "lines": program.as_text().count("\n")}


def run_tiles(side: int, tile: int, folder: str) -> dict[str, Any]:
    """One size of tiles, in this process; the picture goes to the folder."""
    import cv2

    from common.io.images import read_image
    from plugins.diffusion.compiled import in_tiles, make_layout

    pipeline = diffusion.load()
    unit, params = pipeline.base.unit, pipeline.compiled.params()["vae"]
    photograph = read_image(Path(__file__).parents[1] / "examples" / "cup_0.jpg")
    picture = cv2.resize(photograph, (side, side), interpolation=cv2.INTER_AREA)[None]
    layout = make_layout(1, side, side, unit, 1, None, tile)

    def back() -> np.ndarray:
        both = pipeline.compiled.encode_image, pipeline.compiled.decode
        encode, decode = (functools.partial(function, params) for function in both)
        latents = in_tiles(encode, picture, layout, unit, (side // unit, side // unit))
        return in_tiles(decode, latents, layout, unit, (side, side))

    before = forget_peak()
    back()
    peak = memory("VmHWM") - before
    output, seconds, work = timed(back)
    np.save(Path(folder) / f"{tile}.npy", output)
    return {"s": seconds, "CPU s": work, "peak MB": peak}


def run_gpu(batch: int, small: bool, repeats: int) -> dict[str, Any]:
    """Pictures per second of one batch size; nothing without an accelerator."""
    import jax
    from flax import nnx

    from common.nn.init import blank

    if jax.default_backend() == "cpu":
        return {}
    text = diffusion.TextConfig(49408, 768, 768, 1, 12) if small else diffusion.TextConfig.clip_l()
    vae = diffusion.VAEConfig(block_out_channels=SMALL_WIDTHS) if small else diffusion.VAEConfig.sd()
    unet, steps = unet_config(small), 2 if small else 50
    pipeline = diffusion.Pipeline(
        unet=diffusion.UNet(unet, rngs=nnx.Rngs(0)),
        vae=diffusion.AutoencoderKL(vae, rngs=nnx.Rngs(1)),
        text_encoder=diffusion.TextEncoder(text, rngs=nnx.Rngs(2)),
        tokenizer=diffusion.Tokenizer({"<|startoftext|>": 49406, "<|endoftext|>": 49407}, []),
        schedule=diffusion.samplers.schedules.Schedule(),
        sampler=diffusion.samplers.ddim,
    )

    def call() -> np.ndarray:
        return pipeline([""] * batch, seeds=range(batch), steps=steps, dtype="bfloat16", batch=batch)

    def flops(network: Any, config: Any, method: Callable, *shapes: tuple[int, ...]) -> float:
        graph, params = blank(network, config)
        inputs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
        program = jax.jit(lambda params, *inputs: method(nnx.merge(graph, params), *inputs))
        return program.lower(params, *inputs).cost_analysis()["flops"]

    first = timed(call)[1]
    seconds = statistics.median(timed(call)[1] for _ in range(repeats))
    shape = (unet.sample_size, unet.sample_size, 4)
    pair = flops(diffusion.UNet, unet, diffusion.UNet.__call__, (2, *shape), (2,), (2, TOKENS, 768))
    work = steps * pair + flops(diffusion.AutoencoderKL, vae, diffusion.AutoencoderKL.decode, (1, *shape))
    device = jax.devices()[0]
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use", float("nan"))
    row = {"device": device.device_kind, "batch": batch, "first s": first, "s": seconds, "pictures/s": batch / seconds}
    return row | {"TFLOP/s": work * batch / seconds / 1e12, "peak MB": peak / MEGABYTE}


def unet_config(small: bool) -> Any:
    """The UNet of Stable Diffusion 1.5, or one of two levels with all its parts."""
    down, up = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
    sizes = {"sample_size": SMALL_SIDE, "block_out_channels": SMALL_WIDTHS, "layers_per_block": 1}
    config: Any = diffusion.UNetConfig
    return config(**sizes, down_block_types=down, up_block_types=up) if small else config.sd15()


def table_unet(options: Options) -> None:
    if importlib.util.find_spec("diffusers") is None:
        raise SystemExit('the table unet needs the PyTorch library: pip install -e ".[bench]"')
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as folder:
        case = folder, options.small
        size = in_process(write, *case, environment=OFFLINE)
        for _ in range(options.rounds):
            for name in runs:
                runs[name].append(in_process(run_unet, name, *case, options.repeats, environment=OFFLINE))
        a, b, _ = (np.load(Path(folder) / f"{name}.npy") for name in runs)
    megabytes = 4 * size / MEGABYTE
    heading(f"unet: {size:,} parameters, {megabytes:,.0f} MB, {os.cpu_count()} cores", UNET)
    rows = {name: medians(several) for name, several in runs.items()}
    for name, row in rows.items():
        line(UNET, row | {"": name, "over size": row["load peak MB"] / megabytes - 1})
    compared = ("wait s", "call s", "CPU s", "peak MB")
    for name in list(PROGRAMS)[1:]:
        line(UNET, {"": f"ours / {name}"} | {key: f"{rows['ours'][key] / rows[name][key]:.2f}" for key in compared})
    print(f"\noutputs differ by {np.abs(a - b).max():.1e} at most; their standard deviation is {b.std():.2f}\n")


def table_sdxl(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        size = 2 * in_process(write_sdxl, folder, options.small, environment=ON_CPU) / MEGABYTE
        heading(f"sdxl: {size:,.0f} MB of parameters in float16", SDXL)
        for name in ("folder", "single.safetensors"):
            path = Path(folder) / name
            rows = [in_process(run_sdxl, str(path), environment=ON_CPU) for _ in range(options.rounds)]
            row = medians(rows)
            line(SDXL, row | {"": name.partition(".")[0], "over size": row["load peak MB"] / size - 1})
    print()


def table_steps(options: Options) -> None:
    heading("steps: the sampling program of a tiny UNet", PROGRAM)
    for steps in (1, 10, 50, 100):
        line(PROGRAM, in_process(run_steps, steps, options.repeats, environment=ON_CPU))
    print()


def table_tiles(options: Options) -> None:
    side, tiles = (256, (256, 160)) if options.small else (512, (512, 256, 160))
    heading("tiles: the shipped autoencoder, there and back", TILES)
    with tempfile.TemporaryDirectory() as folder:
        for tile in tiles:
            row = in_process(run_tiles, side, tile, folder, environment=ON_CPU)
            off = np.load(Path(folder) / f"{tile}.npy") - np.load(Path(folder) / f"{side}.npy")
            steps = [np.abs(np.diff(off, axis=axis)).mean((0, 3 - axis, 3)).max() for axis in (1, 2)]
            row |= {"off by": np.abs(off).max(), "mean": np.abs(off).mean(), "step": max(steps)}
            line(TILES, row | {"side": side, "tile": tile})
    print()


def table_gpu(options: Options) -> None:
    for batch in (1, 8):
        row = in_process(run_gpu, batch, options.small, options.repeats, environment=NO_CACHE)
        if not row:
            return print("gpu: no accelerator")
        if batch == 1:
            heading(f"gpu: on {row['device']}", GPU)
        line(GPU, row | ({"of peak": row["TFLOP/s"] / options.peak_tflops} if options.peak_tflops else {}))


def main(options: Options) -> None:
    tables = {"unet": table_unet, "sdxl": table_sdxl, "steps": table_steps, "tiles": table_tiles, "gpu": table_gpu}
    for name, table in tables.items():
        if options.only in (None, name):
            table(options)


if __name__ == "__main__":
    main(tyro.cli(Options))
