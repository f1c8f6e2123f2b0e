"""Packs what a training on an accelerator needs that a clone of the repository lacks, for a machine without a network.

    data/bundle/photographs/    the training photographs, WebP of at most SIDE px, and their index.json
    data/bundle/film.mp4        runs of RUN frames, one in EVERY, of the film's training part (600 to 8,999), 640x360
    data/bundle/wheels/         packages of `WHEELS`, all pure Python

Photographs and film are compressed until each fits its budget. `train_bundle.sh` trains with it (README.md).

    python -m recipes.film_small.bundle                     # after make data
"""

import json
import subprocess
import sys
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from typing import Annotated

import av
import cv2
import numpy as np
import tyro
from jaxtyping import UInt8

from common import terminal
from common.io.files import atomic_folder, check_output_folder, require_file
from common.io.images import shrink
from recipes.film_small.photograph_cache import Album

WHEELS = (
    *("antlr4-python3-runtime", "beartype", "docstring-parser", "hydra-core", "lazy-loader", "natsort", "omegaconf"),
    *("packaging", "tensorboardX", "tqdm", "typeguard", "tyro"),
)
SIDE = 960  # px of a photograph's longer side
QUALITIES = range(85, 20, -5)  # of WebP, from the best
FIRST, LAST = 600, 8999  # frames of the film that are trained on
RUN, EVERY = 9, 36  # frames
WIDTH, HEIGHT = 640, 360
RATES = range(22, 42, 3)  # constant rate factors of H.264, from the best
MEGABYTE = 2**20
Picture = UInt8[np.ndarray, "h w 3"]


def pack(
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("data/bundle"),
    photographs: Path = Path("data/photographs"),
    film: Path = Path("data/bbb.mp4"),
    photographs_size: float = 10.0,
    film_size: float = 8.0,
) -> None:
    """Write the bundle.

    Args:
        output: a folder that does not exist.
        photographs: as `recipes.film_small.photographs` writes it.
        film: as `recipes.film_small.fetch_film` writes it.
        photographs_size, film_size: at most so many megabytes (2^20 bytes).
    """
    check_output_folder(output)
    album, film = Album(photographs), require_file(film)
    with atomic_folder(output) as part:
        pack_photographs(album, part / "photographs", photographs_size * MEGABYTE)
        pack_film(read_runs(film), part / "film.mp4", film_size * MEGABYTE)
        wheels = [f"{name}=={metadata.version(name)}" for name in WHEELS]
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(part / "wheels"), *wheels]
        subprocess.run(command, check=True)
    parts = {path.name: [path, *path.rglob("*")] for path in sorted(output.iterdir())}
    sizes = {name: sum(file.stat().st_size for file in files if file.is_file()) for name, files in parts.items()}
    terminal.say(", ".join(f"{name} {size / MEGABYTE:.1f} MB" for name, size in sizes.items()))


def pack_photographs(album: Album, folder: Path, size: float) -> None:
    """The album as WebP of the best quality at which it fits `size` bytes."""
    pictures = {path.stem + ".webp": shrink(album[number], SIDE) for number, path in enumerate(album.paths)}
    for quality in QUALITIES:
        options = [cv2.IMWRITE_WEBP_QUALITY, quality]
        files = {name: cv2.imencode(".webp", picture[..., ::-1], options)[1] for name, picture in pictures.items()}
        if sum(map(len, files.values())) <= size:
            break
    else:
        raise ValueError(f"{len(files)} photographs do not fit {size / MEGABYTE:g} MB: give them more")
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content.tobytes())
    index = dict(quality=quality, photographs=[dict(file=name, split="train") for name in files])
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def read_runs(film: Path) -> list[Picture]:
    """RUN frames in a row, again and again from EVERY frames later on."""
    frames: list[Picture] = []
    with av.open(str(film)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number > LAST:
                break
            if number >= FIRST and (number - FIRST) % EVERY < RUN:
                picture = frame.to_ndarray(format="rgb24")
                frames.append(np.asarray(cv2.resize(picture, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)))
    frames = frames[: len(frames) // RUN * RUN]
    if not frames:
        raise ValueError(f"{film}: has no {RUN} frames from frame {FIRST} on: fetch it anew")
    return frames


def pack_film(frames: list[Picture], path: Path, size: float) -> None:
    """The frames as H.264, each run with a key frame, of the best rate at which they fit `size` bytes."""
    for rate in RATES:
        options = {"crf": str(rate), "g": str(RUN), "keyint_min": str(RUN), "sc_threshold": "0", "preset": "medium"}
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=Fraction(24), options=options)
            stream.height, stream.width = frames[0].shape[:2]
            stream.pix_fmt = "yuv420p"
            for frame in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            container.mux(stream.encode())
        if path.stat().st_size <= size:
            return
    raise ValueError(f"{len(frames)} frames do not fit {size / MEGABYTE:g} MB: give them more")


if __name__ == "__main__":
    terminal.program(pack)
